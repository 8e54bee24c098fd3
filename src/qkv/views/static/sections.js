// @ts-check
// The page: lays out the sections, mounts their views in turn, and keeps step, matrix and section in the address. Every host
// opens it with a payload and, where Python stands behind it, `ask(name, question)`. A view that fails says so in its own
// place and leaves the others alone.

import { atEnds, h, wayTo } from "./dom.js";
import { asOf } from "./as_of.js";
import { createModel, watch } from "./model.js";
import answers from "./answers.js";
import attention from "./attention.js";
import curve from "./curve.js";
import decisions from "./decisions.js";
import { why } from "./fits.js";
import forward from "./forward.js";
import { glossary } from "./glossary.js";
import grid from "./grid.js";
import header from "./header.js";
import loss from "./loss.js";
import { headAt, stepIndex } from "./decode.js";
import made from "./made.js";
import map from "./map.js";
import matrices from "./matrices.js";
import matrix from "./matrix.js";
import own from "./own.js";
import { begin, sentence } from "./sentence.js";
import play_section from "./play_section.js";
import measures from "./measures.js";
import slider from "./slider.js";
import table from "./table.js";
import { reads } from "./version.js";
import tour from "./tour.js";
import vocabulary from "./vocabulary.js";
import words from "./words.js";

const attends = ({ run }) => run.mixer === "attention";
const plays = ({ play }) => Boolean(play) && !why(play.settings, play.tokens, play.parameters);
const MIXERS = { lstm: "the LSTM", mean: "the mean" }; // in attention's place

// [id, heading, short name, key (or keys, or what says it of the payload) without which the section is empty, lead (or what makes
// it of the payload), views]
/** @type {[string, string | null, string | null, any, any, Function[]][]} */
const SECTIONS = [
  ["answers", "Answers", "Answers", "answers", (payload) => `Common questions, answered from this run, with pictures. ${attends(payload) ? "L1.H0 is head 0 of layer 1, both" : "L1 is layer 1,"} counted from 0.`, [answers]],
  ["which-q", null, null, attends, "", [words]],
  ["loss", "Is it learning?", "Loss", "loss", "Training and validation loss, compared with baselines on the same data.", [loss]],
  ["decisions", "How it decides", "Decisions", "decisions", "Its answers on the validation texts: mistakes, confidence, and the words behind them.", [decisions]],
  ["grid", "What training did to every matrix", "Matrices", ["grid", "map"], (payload) => `Layers down, matrices across${attends(payload) ? ", heads as cells" : ""}. Press play below or drag the step to watch training; click a cell to open its matrix.`, [grid, curve, matrix]],
  ["map", "Every step at once", "Every step", "map", "All steps at once: each row is one matrix, each column a recorded step.", [map]],
  ["matrices", "The weights themselves", "Weights", "matrices", "Every matrix as a picture, at the steps whose weights were kept. Click one to open it above.", [matrices, table]],
  ["attention", "Where the heads look", "Attention", "attention", (payload) => (payload.attention?.[0]?.picture ? "Every head on validation images: which patches the answer depends on. Choose a head, then point at a patch." : "Every head on one text: how much each token attends to each other token. Choose a head, then point at a token."), [attention]],
  ["forward", "Forward and backward", "Forward", "forward", (payload) => `One ${payload.forward?.picture ? "image" : payload.forward?.encoder ? "pair of sentences" : "sentence"} passes through this model, left to right. x is the input, W the learned weights, ${attends(payload) ? "and q, k and v the outputs" : `and mix_out the output of ${MIXERS[payload.run.mixer]} that replaces attention`}. Every number is computed by the model.`, [forward]],
  ["words", "What became of the words", "Words", "words", "Each token has a row in W_E. This shows which rows are similar, at the slider's step.", [vocabulary]],
  ["play", "Go on training it yourself", "Playground", plays, "The same model in this page: change a matrix, train on, and watch what becomes of it.", [play_section]],
  ["own", "From your packages", "Your packages", "own", "What packages that you installed say of this run.", [own]],
  ["made", "How it was made", "How it was made", "made", "The command that makes this run again, and the versions and hashes to check it by.", [made]],
  ["measures", "Formulas and sources", "Formulas", "map", "What each number of this page is: formula, range, source, and what to compare it with.", [measures]],
];

// Of which keys of the page a section's numbers are; the others say at each picture under the weights of which step it was made.
const DATED = { answers: ["answers"], loss: ["loss"], grid: ["grid", "map"], map: ["map"], matrices: ["matrices"], own: ["own"], made: ["made"] };

export const empty = (value) => value === null || value === undefined || (Array.isArray(value) && !value.length);

function attempt(el, draw) {
  try {
    draw();
  } catch (error) {
    console.error(error);
    el.append(h("p.missing", null, `This picture could not be drawn (${error.message}).`));
  }
}

// A frame, so that what stands there is painted; a hidden page has none and goes on.
const painted = () => new Promise((done) => {
  requestAnimationFrame(() => setTimeout(done));
  setTimeout(done, 100);
});

const AT_A_TIME = 40; // milliseconds of drawing before the page is given back

// What is to be drawn, one task after another, so that the first pictures are painted before the last are made. A view may
// leave some of its own for later: `later(el, draw, { early })`, which come next, in their order. What is not `early` needs
// the arrays of the payload, which `numbers` promises. All at once before printing.
function inTurn(numbers) {
  const tasks = [];
  let [place, arrived] = [Infinity, false];
  let done = false; // what is made again later is made at once
  const add = (el, draw, { early = false } = {}) => (done ? attempt(el, draw) : tasks.splice(place++, 0, { el, draw, early }));
  const run = ({ el, draw }) => {
    place = 0;
    attempt(el, draw);
    place = Infinity;
  };
  async function start() {
    let since = performance.now();
    while (tasks.length) {
      if (!arrived && !tasks[0].early) {
        await painted(); // opening the numbers can wait for the first picture
        await numbers();
        arrived = true;
      }
      if (tasks.length) run(tasks.shift()); // printing may have taken them meanwhile
      if (performance.now() - since < AT_A_TIME) continue; // a frame between any two would take longer than many of them
      await new Promise((next) => setTimeout(next));
      since = performance.now();
    }
    done = true;
    document.documentElement.dataset.ready = "yes";
  }
  addEventListener("beforeprint", () => {
    while (arrived && tasks.length) run(tasks.shift());
  });
  return { add, start };
}

export function allSteps(payload) {
  const steps = new Set([...(payload.map?.steps ?? []), ...(payload.map?.null_steps ?? []), ...(payload.matrices?.steps ?? []), ...(payload.kept ?? [])]);
  return [...steps].sort((a, b) => a - b);
}

// Step, matrix and section as the address of the page asks; a step that was not recorded is the last before it.
function fromAddress(model) {
  const asked = new URLSearchParams(location.hash.slice(1));
  const [step, address, section] = [parseInt(asked.get("step"), 10), asked.get("addr"), asked.get("section")];
  const steps = model.get("steps");
  if (steps.length && !Number.isNaN(step)) model.set("step", steps[stepIndex(steps, step)]);
  const named = [model.get("map")?.rows, model.get("grid")?.rows, model.get("matrices")?.items].flatMap((items) => items ?? []);
  if (headAt(address) || named.some((item) => item.address === address)) model.set("address", address);
  if (section) model.set("section", section);
  return section;
}

const goTo = (section) => document.getElementById(section)?.scrollIntoView();

function toAddress(model) {
  const section = model.get("section");
  const text = `#step=${model.get("step")}&addr=${encodeURIComponent(model.get("address") ?? "")}${section ? `&section=${encodeURIComponent(section)}` : ""}`;
  try {
    history.replaceState(null, "", text);
  } catch {
    // a host without a history (an iframe of a notebook) keeps its address
  }
}

function navigation(shown, model) {
  return h("nav", { "aria-label": "sections of this page" }, shown.filter(([, heading]) => heading)
    .map(([id, , short]) => wayTo(model, id, short)));
}

// -> the model, or null for a payload of another version. `ask` is null where nothing can be computed; `numbers` is a
// promise that the arrays of the payload are there.
export function openPage(main, payload, ask = null, numbers = null) {
  if (!reads(main, payload)) return null;
  const steps = allSteps(payload);
  const first = payload.map?.rows.find((row) => row.kind === "W_Q") ?? payload.map?.rows[0];
  const model = createModel({ ...payload, ask, steps, step: steps[steps.length - 1] ?? 0, section: "", address: first?.address ?? payload.matrices?.items[0]?.address ?? null });
  const asked = fromAddress(model);
  begin(model);

  const holds = (keys) => typeof keys === "function" ? keys(payload) : [keys].flat().some((key) => !empty(payload[key]));
  const asks = (id) => ask !== null && payload.host.can.includes(id); // a section that needs no data of its own

  const head = h("header.page-head", { id: "head" });
  main.append(head);
  attempt(head, () => header({ model, el: head }));
  main.append(...(payload.damaged ?? []).map((sentence) => h("p.missing.damaged", { role: "alert" }, `Not whole: ${sentence}.`)));
  const shown = SECTIONS.filter(([id, heading, , key]) => !(id === "measures" && empty(payload.map)) && (holds(key) || asks(id) || payload.missing[id]));
  main.append(navigation(shown, model));
  const turn = inTurn(() => numbers);
  model.set("later", turn.add); // how a view leaves some of its pictures for later
  for (const [id, heading, , key, lead, views] of shown) {
    const section = h("section.section", { id }, heading ? h("h2", null, heading) : null);
    const hasData = holds(key) || asks(id);
    if (hasData && lead) section.append(h("p.lead", null, typeof lead === "function" ? lead(payload) : lead));
    if (payload.missing[id] && !asks(id)) section.append(h("p.missing", null, payload.missing[id]));
    main.append(section);
    if (hasData && DATED[id]) asOf(model, section, DATED[id]);
    if (hasData) views.forEach((view) => turn.add(section, () => view({ model, el: section }), { early: view === answers }));
  }
  attempt(head, () => tour({ model, el: head })); // when its stops are there
  const dock = h("div.dock");
  main.append(dock);
  attempt(dock, () => sentence({ model, el: dock }));
  if (steps.length > 1) {
    const bar = h("div.stepper");
    dock.append(bar);
    slider({ model, el: bar });
  }
  watch(model, "step", atEnds(300, () => toAddress(model))); // a browser that writes a page's address misses some frames
  for (const key of ["address", "section"]) watch(model, key, () => toAddress(model));
  turn.add(main, () => glossary([head, ...main.querySelectorAll("section.section")]));
  if (asked) turn.add(main, () => goTo(asked));
  addEventListener("hashchange", () => { // a link that was opened in the same tab
    goTo(fromAddress(model));
    toAddress(model);
  });
  turn.start().catch(() => {}); // numbers that do not come are told of by the host
  return model;
}
