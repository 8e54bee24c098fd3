// The report's host: read the payload, make the model, lay out the rooms, mount each view. A view that fails says so in
// its own place and leaves the others alone.

import { h } from "./dom.js";
import { createModel, watch } from "./model.js";
import answers from "./answers.js";
import attention from "./attention.js";
import header from "./header.js";
import loss from "./loss.js";
import made from "./made.js";
import map from "./map.js";
import matrices from "./matrices.js";
import measures from "./measures.js";
import slider from "./slider.js";
import table from "./table.js";
import words from "./words.js";

const VERSION = 1;

// [id, heading, short name, key whose absence empties the room, lead, views]
const ROOMS = [
  ["answers", "Answers", "Answers", "answers", "", [answers]],
  ["words", null, null, "run", "", [words]],
  ["loss", "Is it learning?", "Loss", "loss", "", [loss]],
  ["map", "What training did to every matrix", "Every matrix", "map", "Each row is one matrix of the model. Press play, or drag the step, to watch it from the first update to the last.", [map]],
  ["matrices", "The matrices themselves", "Weights", "matrices", "", [matrices, table]],
  ["attention", "Where the heads look", "Attention", "attention", "", [attention]],
  ["made", "How it was made", "How it was made", "made", "", [made]],
  ["measures", "Formulas and sources", "Formulas", "map", "", [measures]],
];

function mount(view, model, el) {
  try {
    view.render({ model, el });
  } catch (error) {
    console.error(error);
    el.append(h("p.missing", null, `This picture could not be drawn (${error.message}).`));
  }
}

// One task after another, so that the first pictures are painted before the last are made; all at once before printing.
function inTurn(tasks) {
  const next = () => {
    tasks.shift()?.();
    if (tasks.length) setTimeout(next);
    else document.documentElement.dataset.ready = "yes";
  };
  next();
  addEventListener("beforeprint", () => tasks.splice(0).forEach((task) => task()));
}

const empty = (value) => value === null || value === undefined || (Array.isArray(value) && !value.length);

function allSteps(payload) {
  const steps = new Set([...(payload.map?.steps ?? []), ...(payload.map?.null_steps ?? []), ...(payload.matrices?.steps ?? [])]);
  return [...steps].sort((a, b) => a - b);
}

function fromAddress(model, steps, addresses) {
  const asked = new URLSearchParams(location.hash.slice(1));
  const step = Number(asked.get("step"));
  if (asked.has("step") && steps.includes(step)) model.set("step", step);
  if (addresses.includes(asked.get("addr"))) model.set("address", asked.get("addr"));
}

function toAddress(model) {
  const text = `#step=${model.get("step")}&addr=${encodeURIComponent(model.get("address") ?? "")}`;
  try {
    history.replaceState(null, "", text);
  } catch {
    // a host without a history (an iframe of a notebook) keeps its address
  }
}

function start() {
  const main = document.querySelector("main");
  const payload = JSON.parse(document.getElementById("qkv-payload").textContent);
  if (payload.version !== VERSION) {
    main.append(h("p.missing", null, `This page reads payload version ${VERSION}; the data is version ${payload.version}. Write the report again with the qkv that made it.`));
    return;
  }
  const steps = allSteps(payload);
  const addresses = (payload.map?.rows ?? []).map((row) => row.address);
  const first = payload.map?.rows.find((row) => row.kind === "W_Q") ?? payload.map?.rows[0];
  const model = createModel({ ...payload, steps, step: steps[steps.length - 1] ?? 0, address: first?.address ?? payload.matrices?.items[0]?.address ?? null });
  fromAddress(model, steps, addresses);

  const head = h("header.page-head");
  main.append(head);
  mount(header, model, head);
  const shown = ROOMS.filter(([id, heading, , key]) => !(id === "measures" && empty(payload.map)) && (heading === null || !empty(payload[key]) || payload.missing[id]));
  main.append(h("nav", { "aria-label": "rooms of this report" }, shown.filter(([, heading]) => heading).map(([id, , short]) => h("a", { href: `#${id}` }, short))));
  const stepped = h("div.stepped");
  const tasks = [];
  for (const [id, heading, , key, lead, views] of shown) {
    const room = h("section.room", { id }, heading ? h("h2", null, heading) : null);
    const hasData = !empty(payload[key]);
    if (hasData && lead) room.append(h("p.lead", null, lead));
    if (payload.missing[id]) room.append(h("p.missing", null, payload.missing[id]));
    (id === "map" || id === "matrices" ? stepped : main).append(room);
    if (stepped.childElementCount && !stepped.isConnected) main.append(stepped);
    if (hasData) views.forEach((view) => tasks.push(() => mount(view, model, room)));
  }
  if (steps.length > 1 && stepped.isConnected) {
    const bar = h("div.stepper");
    stepped.append(bar);
    mount(slider, model, bar);
  }
  watch(model, "step", () => toAddress(model));
  watch(model, "address", () => toAddress(model));
  inTurn(tasks);
}

start();
