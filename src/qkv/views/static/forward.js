// @ts-check
// One text all the way through the model, left to right: tokens, rows of W_E, x, then q, k and v of a head, scores, pattern,
// z, back to d_model by W_O, the residual sum, the MLP, and what is predicted. One token is followed through all of it.
// Where Python stands behind the page, a matrix can be changed to see pattern, prediction and loss change.

import { add, clear, h, inSight, lastOnly, say, together } from "./dom.js";
import { fixed, number, token, whole } from "./format.js";
import { stepIndex, unpack } from "./decode.js";
import { raster } from "./raster.js";
import { bar, robust, squareRoot } from "./scale.js";
import { theme } from "./theme.js";
import { view } from "./view.js";
import { wayBack } from "./back.js";
import { change } from "./change.js";
import { compared } from "./compared.js";
import { takeAway } from "./keep.js";
import { patching, writing } from "./patching.js";
import { nextToken } from "./sampling.js";
import { namesOf } from "./tokens.js";

const pattern = squareRoot(1);

// The stages of one layer and head: [id, name, role, array, shape words, line of Python]; formulas are the payload's.
function stages(text, layer, head) {
  const found = text.layers.find((l) => l.layer === layer);
  const shared = Math.floor((head * text.n_kv_heads) / text.n_heads);
  const signed = (values) => robust([[...values].filter(Number.isFinite)], true);
  const full = (packed) => (packed ? { values: unpack(packed).values, columns: unpack(packed).shape[1], digits: unpack(packed).digits } : null);
  const part = (packed, i) => (packed ? { values: unpack(packed).part(i), columns: unpack(packed).shape[2], digits: unpack(packed).digits } : null);
  const n = text.tokens.length;
  const seen = (array) => (array ? { ...array, values: Float32Array.from(array.values, (v, i) => (text.causal && i % n > Math.floor(i / n) ? NaN : v)) } : null);
  const record = (name, rest = "") => `record["L${layer}.${name}"][0${rest}]`;
  const formulas = { ...text.formulas, ...found.formulas };
  const all = [
    ["embed", "rows of W_E", "E", full(text.embed), "n × d_model", 'record["embed"][0]'],
    ["x", "x", "x", full(found.x), "n × d_model", record("x")],
    ["q", "q", "Q", part(found.q, head), "n × d_head", record("q", `, ${head}`)],
    ["k", "k", "K", part(found.k, shared), "n × d_head", record("k", `, ${shared}`)],
    ["v", "v", "V", part(found.v, shared), "n × d_head", record("v", `, ${shared}`)],
    ["scores", "scores", "Q", part(found.scores, head), "query × key", record("scores", `, ${head}`)],
    ["pattern", "pattern", "norm", seen(part(found.pattern, head)), "query × key", record("pattern", `, ${head}`)],
    ["z", "z", "V", part(found.z, head), "n × d_head", record("z", `, ${head}`)],
    ["attn_out", "attn_out", "O", full(found.attn_out), "n × d_model", record("attn_out")],
    ["mix_out", "mix_out", "O", full(found.mix_out), "n × d_model", record("mix_out")],
    ["resid_mid", "resid_mid", "x", full(found.resid_mid), "n × d_model", record("resid_mid")],
    ["mlp_out", "mlp_out", "MLP", full(found.mlp_out), "n × d_model", record("mlp_out")],
    ["resid_post", "resid_post", "x", full(found.resid_post), "n × d_model", record("resid_post")],
  ];
  return all.filter(([, , , array]) => array).map(([id, name, role, array, shape, code]) =>
    ({ id, name, role, ...array, shape, formula: formulas[id], code, scale: id === "pattern" ? pattern : signed(array.values), square: shape === "query × key" }));
}

// The likeliest tokens at one position, as bars with their probabilities.
export function prediction(text, position) {
  const probabilities = unpack(text.top).part(position);
  return h("ol.predictions", null, text.top_tokens[position].map((name, rank) => h("li", null,
    h("code", { title: token(name) }, token(name)), h("span.bar-of", null, h("span", { style: `width:${probabilities[rank] * 100}%` })), h("span.amount", null, fixed(probabilities[rank], 3)))));
}

const REST = "Point at a number to see its value and the Python that returns it. The outlined row is the token being followed.";

// The stages of a text in one layer and head as pictures; `follow(row)` is called for the row under the pointer (without one when it
// leaves), `readout` told its number. -> [{ el, mark }]: a stage, and what outlines a row of it
function pictures(off, text, { layer, head }, colours, readout, follow) {
  const n = text.tokens.length;
  const names = namesOf(text.tokens);
  return stages(text, layer, head).map((stage) => {
    const mark = h("span.row-mark");
    const panel = raster(off, { label: `${stage.name} of layer ${layer}${text.n_heads ? ` head ${head}` : ""}`, rows: n, columns: stage.columns, values: stage.values, scale: stage.scale, style: "aspect-ratio:1", leave: () => follow(),
      tell: (row, column) => {
        follow(row);
        const value = stage.values[row * stage.columns + column];
        readout.replaceChildren(h("code", null, stage.name), ` of ${names[row]} (${row}), ${stage.square ? `for ${names[column]} (${column})` : `number ${column}`}: `,
          Number.isNaN(value) ? "hidden: it is in the future" : number(value, stage.digits), " · ", h("code", null, `${stage.code.replace(/\]$/, `, ${row}, ${column}]`)}`));
      } });
    panel.el.append(mark);
    const el = h("div.stage", { style: `--role:var(--${stage.role === "x" ? "ink" : `role-${stage.role}`})`, "data-stage": stage.id },
      h("p.stage-name", null, h("b", null, stage.name), h("span", null, stage.shape)), panel.el,
      h("p.stage-formula", null, stage.formula), h("code.stage-code", null, stage.code), bar(stage.scale, colours, ""));
    return { el, mark };
  });
}

// What the text is, and under which weights.
function aboutText(text) {
  const n = text.tokens.length;
  const cut = text.n_all > n ? `The first ${n} of ${whole(text.n_all)} tokens. ` : "";
  const loss = text.loss === null ? "" : `The mean loss of this text is ${number(text.loss, 3)} nats per token. `;
  return `${cut}Weights of step ${whole(text.step)}. ${loss}${text.notes.join(" ")}`;
}

// Everything of one text for `body`. -> { elements, follow }, where `follow()` shows the page's token of it; `off` ends them.
function drawn(off, el, body, state) {
  const { text, base, layer, head } = state;
  const n = text.tokens.length;
  const names = namesOf(text.tokens);
  const colours = theme(el);
  const readout = h("p.readout", { "aria-live": "polite" });
  const answer = h("div.answer-box");
  const beside = base ? compared(off, { base, text, layer, head, colours }) : null;
  const beyond = h("p.small");
  const follow = (row = Math.min(state.position, n - 1)) => {
    beyond.textContent = state.position < n ? "" : `Token ${state.position} of the text is beyond the ${n} that are followed here; the last of these is shown.`;
    panels.forEach(({ mark }) => (mark.style.cssText = `top:${(row / n) * 100}%;height:${100 / n}%`));
    beside?.follow(row);
    answer.replaceChildren(h("h3", null, text.causal ? "after " : "at ", h("code", null, names[row]), ` (${row})`), prediction(text, row),
      h("p.small", null, text.losses && row < n - 1 ? `The next token is ${names[row + 1]}; its loss is ${number(unpack(text.losses).values[row])} nats.` : ""));
  };
  const place = `L${layer}${text.n_heads ? `.H${head}` : ""}`;
  const panels = pictures(off, text, state, colours, readout, follow);
  const file = () => `forward-${place}-step-${text.step}`;
  readout.textContent = REST;
  follow();
  const elements = [
    beside?.el ?? null,
    h("h3", null, h("code", null, place), ` on ${n} tokens`), beyond,
    h("p.small.keep", null, h("span", null, aboutText(text)), takeAway(() => body, file)),
    h("div.stages", null, panels.map((panel) => panel.el), h("div.stage.last", { style: "--role:var(--accent)" }, h("p.stage-name", null, h("b", null, "prediction")), answer, h("p.stage-formula", null, text.formulas.prediction), h("code.stage-code", null, "logits.softmax(-1)[0]"))),
    readout,
    h("p.small", null, "In Python: ", h("code", null, "run = qkv.load(RUN, weights=\"last\"); logits, record = run.model.forward_recorded(ids)"))];
  return { elements, follow };
}

// What Python says of a question: [without its changes, with them or null].
const both = async (ask, question) => [await ask("forward", { ...question, changes: [] }), question.changes.length ? await ask("forward", question) : null];

// What else can be asked of the text that is shown, each an element.
function asksOf({ model, off, ask: may }, ask, state, question) {
  const at = () => Math.min(model.get("position"), state.text.tokens.length - 1);
  return [
    may("next") && nextToken((name, more) => ask(name, { ...question(), ...more }), () => model.get("position"), off),
    wayBack(ask, question, off),
    may("written") && writing(ask, () => ({ ...question(), position: at() }), off),
    may("patch") && patching(ask, question, off)].filter(Boolean);
}

function build(place) {
  const { model, el, off, ask: may, follow, hear, recolour } = place;
  const ask = may("forward");
  const given = model.get("forward");
  const parts = together();
  const latest = lastOnly();
  const state = { text: null, base: null, layer: 0, head: 0, position: 0, changes: [] };
  const said = h("p.small", { role: "status" });
  const [body, away] = [h("div"), h("div", { hidden: true })];
  const kept = () => model.get("kept")[stepIndex(model.get("kept"), model.get("step"))];
  const has = (text, layer) => text?.layers.some((l) => l.layer === layer);
  const question = () => ({ text: model.get("sentence")?.source ?? "", step: model.get("step"), changes: state.changes });
  /** @type {(row?: number) => void} */
  let followed = () => {};
  let shown = "";

  // What came with the page of its sentence, layer and step, else what Python says of it.
  function look(message = "") {
    const sentence = model.get("sentence");
    if (!sentence) return;
    const { layer } = model.get("head");
    const { changes } = state;
    const here = given && given.text === sentence.source && !changes.length && (!ask || (given.step === kept() && has(given, layer)));
    const key = JSON.stringify([sentence.name, layer, kept(), changes]);
    if (key === shown) return;
    shown = key;
    latest(() => {}, () => {}, () => {}); // what was asked before is not waited for
    if (here) return take(given, null);
    if (!ask || !sentence.source) return none("The forward pass of this text was not saved with the page.");
    said.textContent = message;
    latest(() => both(ask, { ...question(), layer }), ([base, changed]) => take(changed ?? base, changed ? base : null), (error) => {
      shown = "";
      state.changes = [...(state.text?.changes ?? [])]; // what is asked next is asked of what is shown
      changeBox?.refresh();
      if (state.text?.text === sentence.source) say(said, error.message);
      else none(error.message);
    });
  }
  function take(text, base) {
    const isOther = text !== state.text;
    const isOtherText = text.text !== state.text?.text;
    said.textContent = "";
    Object.assign(state, { text, base });
    draw();
    if (!isOther) return;
    away.hidden = false;
    for (const one of asks) one.renew(isOtherText ? text.text : undefined);
  }
  function none(message) {
    parts();
    clear(body);
    Object.assign(state, { text: null, base: null });
    away.hidden = true;
    say(said, message);
  }
  const changeBox = ask ? change({ model, state, apply: () => look("Changing …") }) : null;
  function draw() {
    const { text } = state;
    if (!text) return;
    parts();
    const { layer, head } = model.get("head");
    Object.assign(state, { layer: has(text, layer) ? layer : text.layers[0].layer, head: Math.min(head ?? 0, Math.max(0, text.n_heads - 1)), position: model.get("position") });
    changeBox?.refresh();
    const { elements, follow } = drawn(parts, el, body, state);
    followed = follow;
    add(clear(body), [has(text, layer) ? null : h("p.small", null, `This page holds layers ${text.layers.map((l) => l.layer).join(", ")} of this text; layer ${layer} is not among them.`), elements]);
    body.dataset.step = String(text.step);
  }
  add(el, [changeBox?.el ?? null, said, body, away]);
  const asks = ask ? asksOf(place, ask, state, question) : [];
  add(away, asks);
  const soon = inSight(el, look);
  off.add(soon.off);
  hear(["sentence", "head"], () => (state.text && has(state.text, model.get("head").layer) && state.text.text === model.get("sentence")?.source ? draw() : soon()));
  hear(["position"], () => {
    state.position = model.get("position");
    if (!state.text) return;
    followed();
    asks.forEach((one) => one.point?.());
  });
  follow(["step"], () => look());
  off.add(parts);
  recolour(draw);
  look();
}

const render = view(build, { needs: (model) => model.get("forward") || (model.get("ask") && model.get("host").can.includes("forward")) });

export default { render };
