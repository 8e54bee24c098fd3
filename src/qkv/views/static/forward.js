// One text all the way through the model, left to right: tokens, rows of W_E, x, then q, k and v of a head, scores, pattern,
// z, back to d_model by W_O, the residual sum, the MLP, and what is predicted. One token is followed through all of it.
// Where Python stands behind the page, a matrix can be changed to see pattern, prediction and loss change.

import { add, choice, clear, h, inSight, lastOnly, say, together } from "./dom.js";
import { fixed, number, token, whole } from "./format.js";
import { headAt, stepIndex, unpack } from "./decode.js";
import { watch } from "./model.js";
import { raster } from "./raster.js";
import { bar, robust, squareRoot } from "./scale.js";
import { onTheme, theme } from "./theme.js";
import { wayBack } from "./back.js";
import { change } from "./change.js";
import { compared } from "./compared.js";
import { entry } from "./entry.js";
import { takeAway } from "./keep.js";
import { patching, writing } from "./patching.js";

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

function render({ model, el }) {
  const ask = model.get("host").can.includes("forward") ? model.get("ask") : null;
  const given = model.get("forward");
  if (!given && !ask) return () => {};
  const off = together();
  const parts = together();
  const latest = lastOnly();
  const state = { text: given, base: null, source: given?.text ?? "", layer: given?.layers[0]?.layer ?? 0, head: 0, position: null, changes: [] };
  const said = h("p.small", { role: "status" });
  const controls = h("div.controls");
  const body = h("div");
  const away = h("div");

  // Ask again for what is shown now: another text, layer, step or change.
  function fetchAgain(message = "") {
    if (!ask || !state.source) return;
    said.textContent = message;
    const question = { text: state.source, step: model.get("step"), layer: state.layer };
    latest(async () => {
      const base = await ask("forward", question);
      return [base, state.changes.length ? await ask("forward", { ...question, changes: state.changes }) : null];
    }, ([base, changed]) => {
      said.textContent = "";
      Object.assign(state, { text: changed ?? base, base: changed ? base : null });
      draw();
    }, (error) => {
      say(said, error.message);
      const { text } = state; // what is asked next is asked of what is shown
      Object.assign(state, text ? { source: text.text, changes: [...text.changes] } : { changes: [] });
      changeBox.refresh();
    });
  }
  const changeBox = ask ? change({ model, state, apply: () => fetchAgain("Changing …") }) : null;

  function drawControls() {
    const text = state.text;
    const layers = ask ? [...Array(text.n_layers).keys()] : text.layers.map((l) => l.layer);
    const pick = (key) => (value) => {
      state[key] = value;
      if (key === "layer" && !text.layers.some((l) => l.layer === value)) fetchAgain();
      else draw();
    };
    const one = (label, values, value, picked) => values.length > 8
      ? h("label.small", null, `${label} `, h("select", { "aria-label": label, onchange: (event) => picked(values[event.target.selectedIndex]) }, values.map((v) => h("option", { selected: v === value }, v))))
      : choice(label, values.map((v) => [v, `${label[0].toUpperCase()}${v}`]), value, picked);
    add(clear(controls), [one("layer", layers, state.layer, pick("layer")), text.n_heads ? one("head", [...Array(text.n_heads).keys()], state.head, pick("head")) : null]);
  }
  function draw() {
    const text = state.text;
    if (!text || !text.layers.some((l) => l.layer === state.layer)) return;
    parts();
    drawControls();
    changeBox?.refresh();
    const n = text.tokens.length;
    state.position = Math.min(state.position ?? n - 2, n - 1);
    const colours = theme(el);
    const readout = h("p.readout", { "aria-live": "polite" });
    const rows = [];
    const follow = (row) => {
      state.position = row;
      rows.forEach((mark) => (mark.style.cssText = `top:${(row / n) * 100}%;height:${100 / n}%`));
      words.forEach((word, i) => word.classList.toggle("on", i === row));
      beside?.follow(row);
      answer.replaceChildren(h("h3", null, text.causal ? "after " : "at ", h("code", null, token(text.tokens[row])), ` (${row})`), prediction(text, row),
        h("p.small", null, text.losses && row < n - 1 ? `Then comes ${token(text.tokens[row + 1])}: it cost ${number(unpack(text.losses).values[row])} nats.` : ""));
    };
    const words = text.tokens.map((t, i) => h("button.word", { type: "button", onclick: () => follow(i), onpointerenter: (event) => event.pointerType === "mouse" && follow(i) }, token(t)));
    const answer = h("div.answer-box");
    const beside = state.base ? compared(parts, { base: state.base, text, layer: state.layer, head: state.head, colours }) : null;
    const panels = stages(text, state.layer, state.head).map((stage) => {
      const panel = raster({ label: `${stage.name} of layer ${state.layer}${text.n_heads ? ` head ${state.head}` : ""}`, rows: n, columns: stage.columns, values: stage.values, scale: stage.scale,
        tell: (row, column) => {
          follow(row);
          const value = stage.values[row * stage.columns + column];
          readout.replaceChildren(h("code", null, stage.name), ` of ${token(text.tokens[row])} (${row}), ${stage.square ? `for ${token(text.tokens[column])} (${column})` : `number ${column}`}: `,
            Number.isNaN(value) ? "hidden: it is in the future" : number(value, stage.digits), " · ", h("code", null, `${stage.code.replace(/\]$/, `, ${row}, ${column}]`)}`));
        } });
      parts.add(panel.off);
      panel.el.style.aspectRatio = "1";
      const mark = h("span.row-mark");
      rows.push(mark);
      panel.el.append(mark);
      return h("div.stage", { style: `--role:var(--${stage.role === "x" ? "ink" : `role-${stage.role}`})`, "data-stage": stage.id },
        h("p.stage-name", null, h("b", null, stage.name), h("span", null, stage.shape)), panel.el,
        h("p.stage-formula", null, stage.formula), h("code.stage-code", null, stage.code), bar(stage.scale, colours, ""));
    });
    add(clear(body), [
      beside?.el ?? null,
      h("div.words", { role: "group", "aria-label": "tokens; one is followed through the model" }, words),
      h("p.small.keep", null, h("span", null, `${text.n_all > n ? `The first ${n} of ${whole(text.n_all)} tokens. ` : ""}Weights of step ${whole(text.step)}. ${text.loss === null ? "" : `Mean loss of this text ${number(text.loss, 4)} nats per token. `}${text.notes.join(" ")}`), takeAway(() => body, () => `forward-L${state.layer}${text.n_heads ? `.H${state.head}` : ""}-step-${text.step}`)),
      h("div.stages", null, panels, h("div.stage.last", { style: "--role:var(--accent)" }, h("p.stage-name", null, h("b", null, "prediction")), answer, h("p.stage-formula", null, text.formulas.prediction), h("code.stage-code", null, "logits.softmax(-1)[0]"))),
      readout,
      h("p.small", null, "In Python: ", h("code", null, "run = qkv.load(RUN, weights=\"last\"); logits, record = run.model.forward_recorded(ids)"))]);
    readout.textContent = "Point at a number for its value and the line of Python that gives it; the outlined row is the token that is followed.";
    follow(state.position);
  }
  // The head that the address of the page names, where this text has it or Python can be asked for it.
  function pointed() {
    const asked = headAt(model.get("address"));
    const there = (text) => asked.head < text.n_heads && (ask ? asked.layer < text.n_layers : text.layers.some((l) => l.layer === asked.layer));
    if (!asked || !state.text || !there(state.text) || (asked.layer === state.layer && asked.head === state.head)) return;
    Object.assign(state, asked);
    if (state.text.layers.some((l) => l.layer === asked.layer)) draw();
    else fetchAgain();
  }
  const pointedSoon = inSight(el, pointed);
  const kept = () => model.get("kept")[stepIndex(model.get("kept"), model.get("step"))];
  const followStep = inSight(el, () => state.text && ask && kept() !== state.text.step && fetchAgain());
  const typed = async (source) => {
    state.source = source;
    state.position = null;
    fetchAgain("Reading …");
  };
  add(el, [ask ? entry(typed, { value: state.source.slice(0, 400) }) : null, changeBox?.el ?? null, said, controls, body, away]);
  const question = () => ({ text: state.source, step: model.get("step"), changes: state.changes });
  if (ask) away.append(wayBack(ask, question, off));
  if (ask && model.get("host").can.includes("written")) away.append(writing(ask, () => ({ ...question(), position: state.position }), off));
  if (ask && model.get("host").can.includes("patch")) away.append(patching(ask, question, off));
  off.add(followStep.off);
  off.add(pointedSoon.off);
  off.add(watch(model, "address", pointedSoon));
  off.add(watch(model, "step", followStep));
  off.add(parts);
  off.add(onTheme(draw));
  if (state.text) draw();
  else fetchAgain();
  pointedSoon();
  return off;
}

export default { render };
