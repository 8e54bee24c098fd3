// @ts-check
// "What is trained in self-attention?": a trained model inside the page. One sentence, one token and one head drive everything.

import { h, clear } from "../static/dom.js";
import { openCarried, stepIndex, unpack } from "../static/decode.js";
import { sharesKeys, why } from "../static/fits.js";
import { fixed, token as spelled, whole } from "../static/format.js";
import { onTheme } from "../static/theme.js";
import { catalogue, Transformer } from "../play/engine/transformer.js";
import { retraining } from "./retrain.js";
import { read, trace } from "./trace.js";
import { drawWalk } from "./walk.js";

const FIRST = { word: "the queen sees the cat and she sings now.", char: "the queen sings" };
const FIRST_STEP = 128; // attention finds the subject here already, and there is still a gradient to see
const PRIVATE = 0xe000; // a token of several letters travels to the trainer as one letter of Unicode's private area
const letter = (id) => String.fromCharCode(PRIVATE + id);

// Why a run cannot be walked through here, "" where it can.
function misfit(model) {
  const { settings, weights, tokens, parameters } = model;
  const norm = settings.norm === "none" ? "layer" : settings.norm;
  return why({ ...settings, norm, tied: false, n_ctx: Math.max(32, settings.n_ctx) }, weights && tokens, parameters)
    .replace("the playground's", "this page's").replace("the playground reads characters", "this page reads words or characters").replace("the playground trains", "this page runs").replace(" in a browser", "");
}

const sizesOf = ({ settings: { d_vocab, d_model, d_mlp, n_layers, n_heads, n_ctx } }) => ({ d_vocab, d_model, d_mlp, n_layers, n_heads, n_ctx });
const wiringOf = ({ settings }) => ({ positions: settings.positions === "learned", scale: settings.scale, skip: settings.skip, shared: sharesKeys(settings), norms: settings.norm !== "none", tied: settings.tied });

function open(learned) {
  const names = learned.tokens.map(spelled);
  const packed = Object.fromEntries(Object.entries(learned.weights).map(([address, array]) => [address, unpack(array)]));
  const sizes = sizesOf(learned);
  const shipped = learned.steps.map((step, s) => ({ step, wiring: wiringOf(learned), held: {}, load: (model) => model.entries.forEach(({ address }) => model.W[address].set(packed[address].part(s))) }));
  const state = { snapshots: shipped, at: learned.text ? stepIndex(learned.steps, FIRST_STEP) : shipped.length - 1, ids: [], i: 5, head: 0, live: false }; // token 5 is the “and” of the first sentence
  let [model, stop] = [new Transformer(sizes, shipped[0].wiring, sizes.n_ctx), () => {}];

  const known = read(FIRST[learned.kind], learned).ids.length > 1;
  const box = h("input", { type: "text", id: "sentence", value: known ? FIRST[learned.kind] : learned.tokens.slice(1, 9).join(learned.kind === "word" ? " " : ""), maxlength: 400, oninput: () => answer() });
  const note = h("p.small", { role: "status" });
  const chips = h("div.words", { role: "group", "aria-label": "token" });
  const heads = h("div.words", { role: "group", "aria-label": "head" });
  const range = h("input", { type: "range", min: 0, "aria-label": "step of the training", oninput: () => ((state.at = Number(range.value)), draw()) });
  const now = h("output.step-now");
  const back = h("button.quiet", { type: "button", id: "back", hidden: true, onclick: () => (stop(), Object.assign(state, { snapshots: shipped, at: shipped.length - 1, live: false }), draw()) }, "back to the model that came with the page");
  const walk = h("div.walk");
  const host = document.getElementById("model");
  clear(host).append(h("div.entry-row", null, h("label", { for: "sentence" }, "Your sentence"), box), note,
    h("div.pick", null, h("span", null, "token"), chips), h("div.pick", null, h("span", null, "head"), heads),
    h("div.slider", null, range, now), back, walk);

  function answer() {
    const { ids, unknown } = read(box.value, learned);
    const long = ids.length > sizes.n_ctx;
    const says = [unknown.length ? `Not in this model's vocabulary and left out: ${[...new Set(unknown)].join(", ")}. It knows: ${names.filter((name) => name !== "[UNK]").join(" ")}` : "",
      long ? `The sentence has ${whole(ids.length)} tokens; the model reads the first ${whole(sizes.n_ctx)}.` : "",
      ids.length < 2 ? "Type at least two tokens that the model knows; the last sentence is still shown." : ""].filter(Boolean);
    note.textContent = says.join(" ");
    if (ids.length < 2) return;
    state.ids = ids.slice(0, sizes.n_ctx);
    state.i = Math.min(state.i, state.ids.length - 1);
    draw();
  }
  const pick = (key, n, label, chosen) => Array.from({ length: n }, (_, j) => h("button.word", { type: "button", "aria-pressed": String(j === chosen), "data-pick": `${key}${j}`, onclick: () => {
    state[key] = j;
    draw();
    /** @type {HTMLElement} */ (host.querySelector(`[data-pick="${key}${j}"]`)).focus();
  } }, label(j)));
  function draw() {
    const { step, wiring, held, load } = state.snapshots[state.at];
    if (JSON.stringify(wiring) !== JSON.stringify(model.wiring)) model = new Transformer(sizes, wiring, sizes.n_ctx);
    load(model);
    const shown = trace(model, state.ids);
    clear(chips).append(...pick("i", state.ids.length, (j) => names[state.ids[j]], state.i));
    clear(heads).append(...pick("head", sizes.n_heads, (j) => `H${j}`, state.head));
    Object.assign(range, { max: String(state.snapshots.length - 1) });
    range.value = String(state.at);
    range.setAttribute("aria-valuetext", `step ${whole(step)}`);
    now.textContent = `step ${whole(step)} of ${whole(state.snapshots.at(-1).step)} · loss ${fixed(shown.loss)}`;
    back.hidden = !state.live;
    drawWalk(walk, model, shown, state.ids, { i: state.i, head: state.head, names, held });
    document.documentElement.dataset.ready = "yes";
  }
  // A look at the model that trains in the page becomes a place on the slider.
  function seen(step, weights, { entries, wiring, held }) {
    const following = state.at === state.snapshots.length - 1 || !state.live;
    if (!state.live || step <= state.snapshots.at(-1).step) Object.assign(state, { snapshots: [], live: true });
    state.snapshots.push({ step, wiring, held, load: (into) => into.weights.set(weights) });
    if (following || state.at >= state.snapshots.length) state.at = state.snapshots.length - 1;
    draw();
  }
  answer();
  onTheme(draw);
  const place = document.getElementById("retrain");
  if (learned.text) {
    const base = { tokens: learned.tokens.map((_, id) => letter(id)), sizes, text: read(learned.text, learned).ids.map(letter).join(""),
      weights: Object.fromEntries(catalogue(sizes, shipped[0].wiring).map(({ address }) => [address, Float64Array.from(packed[address].part(0))])) };
    stop = retraining(clear(place), base, () => state.ids, seen);
  } else clear(place).append(h("p", null, "The page has no text of this run to train on. Without a run, it trains the model that comes with it: ", h("code", null, "qkv learn"), "."));
  // what the tests read
  Object.assign(globalThis, { learn: { state, get model() { return model; } } });
}

const { header, numbers } = openCarried();
numbers.then(() => {
  const wrong = header.own ? misfit(header.own) : "";
  if (header.own) document.getElementById("which").textContent = wrong ? `Your run ${header.own.name} does not fit, so the model that comes with the page is shown instead. About your run: ${wrong}` : `This is your run ${header.own.name}.`;
  open(header.own && !wrong ? header.own : header.shipped);
}).catch((error) => (document.getElementById("model").textContent = error.message));
