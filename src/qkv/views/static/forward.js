// @ts-check
// One text (or image, or pair) all the way through the model, left to right: tokens, rows of W_E, x, then q, k and v of a head,
// scores, pattern, z, back to d_model by W_O, cross-attention where there is one, the residual sum, the MLP, and what is predicted.
// One token is followed through all of it. Of a pair the encoder and the decoder are shown one at a time.
// Where Python stands behind the page, a matrix can be changed to see pattern, prediction and loss change.

import { add, clear, h, inSight, lastOnly, say, together } from "./dom.js";
import { fixed, number, token, whole } from "./format.js";
import { headAt, stepIndex, unpack } from "./decode.js";
import { raster } from "./raster.js";
import { bar, robust, squareRoot } from "./scale.js";
import { theme } from "./theme.js";
import { controls, view } from "./view.js";
import { wayBack } from "./back.js";
import { change } from "./change.js";
import { compared } from "./compared.js";
import { entry } from "./entry.js";
import { takeAway } from "./keep.js";
import { photograph } from "./patches.js";
import { patching, writing } from "./patching.js";

const pattern = squareRoot(1);

// Cross-attention of a layer, as rows of `stages`: k and v belong to the tokens of the source.
function crossed({ cross }, { full, part, record }, head, shared) {
  const of = (name, role, array, shape, more = "") => [`cross.${name}`, `cross.${name}`, role, array, shape, record(`cross.${name}`, more)];
  return !cross ? [] : [of("q", "Q", part(cross.q, head), "n × d_head", `, ${head}`), of("k", "K", part(cross.k, shared), "source × d_head", `, ${shared}`),
    of("v", "V", part(cross.v, shared), "source × d_head", `, ${shared}`), of("scores", "Q", part(cross.scores, head), "query × source", `, ${head}`),
    of("pattern", "norm", part(cross.pattern, head), "query × source", `, ${head}`), of("z", "V", part(cross.z, head), "n × d_head", `, ${head}`),
    of("attn_out", "O", full(cross.attn_out), "n × d_model")];
}

// The stages of one layer and head: [id, name, role, array, shape words, line of Python]; formulas are the payload's. `rows` and
// `across` name the tokens down and across.
function stages(text, layer, head) {
  const found = text.layers.find((l) => l.layer === layer);
  const shared = Math.floor((head * text.n_kv_heads) / text.n_heads);
  const signed = (values) => robust([[...values].filter(Number.isFinite)], true);
  const full = (packed) => (packed ? { values: unpack(packed).values, columns: unpack(packed).shape[1], digits: unpack(packed).digits } : null);
  const part = (packed, i) => (packed ? { values: unpack(packed).part(i), columns: unpack(packed).shape[2], digits: unpack(packed).digits } : null);
  const n = text.tokens.length;
  const seen = (array) => (array ? { ...array, values: Float32Array.from(array.values, (v, i) => (text.causal && i % n > Math.floor(i / n) ? NaN : v)) } : null);
  const record = (name, rest = "") => `record["${text.scope}L${layer}.${name}"][0${rest}]`;
  const formulas = { ...text.formulas, ...found.formulas };
  const all = [
    ["embed", text.picture ? "patches W_E" : "rows of W_E", "E", full(text.embed), "n × d_model", `record["${text.scope}embed"][0]`],
    ["x", "x", "x", full(found.x), "n × d_model", record("x")],
    ["q", "q", "Q", part(found.q, head), "n × d_head", record("q", `, ${head}`)],
    ["k", "k", "K", part(found.k, shared), "n × d_head", record("k", `, ${shared}`)],
    ["v", "v", "V", part(found.v, shared), "n × d_head", record("v", `, ${shared}`)],
    ["scores", "scores", "Q", part(found.scores, head), "query × key", record("scores", `, ${head}`)],
    ["pattern", "pattern", "norm", seen(part(found.pattern, head)), "query × key", record("pattern", `, ${head}`)],
    ["z", "z", "V", part(found.z, head), "n × d_head", record("z", `, ${head}`)],
    ["attn_out", "attn_out", "O", full(found.attn_out), "n × d_model", record("attn_out")],
    ["mix_out", "mix_out", "O", full(found.mix_out), "n × d_model", record("mix_out")],
    ...crossed(found, { full, part, record }, head, shared),
    ["resid_mid", "resid_mid", "x", full(found.resid_mid), "n × d_model", record("resid_mid")],
    ["mlp_out", "mlp_out", "MLP", full(found.mlp_out), "n × d_model", record("mlp_out")],
    ["resid_post", "resid_post", "x", full(found.resid_post), "n × d_model", record("resid_post")],
  ];
  return all.filter(([, , , array]) => array).map(([id, name, role, array, shape, code]) => ({ id, name, role, ...array, shape, formula: formulas[id], code,
    scale: id.endsWith("pattern") ? pattern : signed(array.values), rows: shape.startsWith("source") ? text.keys : text.tokens,
    across: shape === "query × key" ? text.tokens : shape === "query × source" ? text.keys : null }));
}

// The likeliest tokens at one position, as bars with their probabilities.
export function prediction(text, position) {
  const at = text.pooled ? 0 : position;
  const probabilities = unpack(text.top).part(at);
  return h("ol.predictions", null, text.top_tokens[at].map((name, rank) => h("li", null,
    h("code", { title: token(name) }, token(name)), h("span.bar-of", null, h("span", { style: `width:${probabilities[rank] * 100}%` })), h("span.amount", null, fixed(probabilities[rank], 3)))));
}

const restOf = (text) => `Point at a number to see its value and the Python that returns it. The outlined row is the ${text.picture ? "patch" : "token"} being followed.`;

// The stages of a text in one layer and head as pictures; `follow(row)` is called for the row under the pointer, `readout` told its
// number. -> [{ el, mark }]: a stage, and what outlines a row of it
function pictures(off, text, { layer, head }, colours, readout, follow) {
  return stages(text, layer, head).map((stage) => {
    const mark = h("span.row-mark");
    const source = stage.rows === text.keys;
    const panel = raster(off, { label: `${stage.name} of ${text.scope}layer ${layer}${text.n_heads ? ` head ${head}` : ""}`, rows: stage.rows.length, columns: stage.columns, values: stage.values, scale: stage.scale, style: "aspect-ratio:1",
      tell: (row, column) => {
        if (!source) follow(row);
        const value = stage.values[row * stage.columns + column];
        readout.replaceChildren(h("code", null, stage.name), ` of ${token(stage.rows[row])} (${row}), ${stage.across ? `for ${token(stage.across[column])} (${column})` : `number ${column}`}: `,
          Number.isNaN(value) ? "hidden: it is in the future" : number(value, stage.digits), " · ", h("code", null, `${stage.code.replace(/\]$/, `, ${row}, ${column}]`)}`));
      } });
    if (!source) panel.el.append(mark);
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
  if (text.picture) return `${text.text[0].toUpperCase()}${text.text.slice(1)}, ${text.picture.said}. ${text.notes.join(" ")}`;
  const loss = text.loss === null ? "" : `The mean loss of this text is ${number(text.loss, 3)} nats per token. `;
  return `${cut}Weights of step ${whole(text.step)}. ${loss}${text.notes.join(" ")}`;
}

// What is predicted at a token, or of all.
function answered(text, row) {
  if (!text.top) return [h("p.small", null, "The decoder reads these vectors by cross-attention.")];
  if (text.pooled) return [h("h3", null, `the class, from ${text.pooled}`), prediction(text, row)];
  const nats = text.losses ? unpack(text.losses).values[row] : NaN;
  const next = text.written[row] ?? text.tokens[row + 1];
  return [h("h3", null, text.causal ? "after " : "at ", h("code", null, token(text.tokens[row])), ` (${row})`), prediction(text, row),
    h("p.small", null, Number.isFinite(nats) ? `The next token is ${token(next)}; its loss is ${number(nats)} nats.` : "")];
}

// Everything of one text, token `state.position` followed, for `body`. -> its elements; `off` ends them.
function drawn(off, el, body, state, text, base) {
  const { layer, head } = state;
  const n = text.tokens.length;
  const colours = theme(el);
  const readout = h("p.readout", { "aria-live": "polite" });
  const answer = h("div.answer-box");
  const beside = base ? compared(off, { base, text, layer, head, colours }) : null;
  const follow = (row) => {
    state.position = row;
    panels.forEach(({ mark }) => (mark.style.cssText = `top:${(row / n) * 100}%;height:${100 / n}%`));
    words.forEach((word, i) => word.classList.toggle("on", i === row));
    beside?.follow(row);
    answer.replaceChildren(...answered(text, row));
  };
  const words = text.tokens.map((t, i) => h("button.word", { type: "button", onclick: () => follow(i), onpointerenter: (event) => event.pointerType === "mouse" && follow(i) }, token(t)));
  const panels = pictures(off, text, { layer, head }, colours, readout, follow);
  const file = () => `forward-${text.scope}L${layer}${text.n_heads ? `.H${head}` : ""}-step-${text.step}`;
  readout.textContent = restOf(text);
  follow(state.position);
  return [
    beside?.el ?? null,
    text.picture ? h("div.shown-image", null, photograph(text.picture)) : null,
    h("div.words", { role: "group", "aria-label": "tokens; one is followed through the model" }, words),
    h("p.small.keep", null, h("span", null, aboutText(text)), takeAway(() => body, file)),
    h("div.stages", null, panels.map((panel) => panel.el), h("div.stage.last", { style: "--role:var(--accent)" }, h("p.stage-name", null, h("b", null, text.top ? "prediction" : "output")), answer, h("p.stage-formula", null, text.formulas.prediction), h("code.stage-code", null, text.top ? "logits.softmax(-1)[0]" : `record["${text.scope}norm_f"][0]`))),
    readout,
    h("p.small", null, "In Python: ", h("code", null, `run = qkv.load(RUN, weights="last"); logits, record = run.model.forward_recorded(${text.scope ? "source, target" : text.picture ? "pixels" : "ids"})`))];
}

function build({ model, el, off, ask: may, follow, hear, recolour }) {
  const ask = may("forward");
  const given = model.get("forward");
  const parts = together();
  const latest = lastOnly();
  const state = { text: given, base: null, stack: "dec", source: given?.text ?? "", layer: given?.layers[0]?.layer ?? 0, head: 0, position: null, changes: [] };
  const said = h("p.small", { role: "status" });
  const [body, away] = [h("div"), h("div")];
  const has = (layer) => state.text.layers.some((l) => l.layer === layer);

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
  const choices = controls(state, () => {
    const { text } = state;
    if (!text) return [];
    const layers = ask ? [...Array(text.n_layers).keys()] : text.layers.map((l) => l.layer);
    const of = (label, values) => ({ key: label, label, options: values.map((v) => [v, `${label[0].toUpperCase()}${v}`]), most: 8, named: true });
    const stacks = text.encoder ? { key: "stack", label: "stack", options: [["enc", "encoder"], ["dec", "decoder, reading it"]] } : null;
    return [stacks, of("layer", layers), text.n_heads ? of("head", [...Array(text.n_heads).keys()]) : null];
  }, (key) => {
    if (key === "stack") state.position = null;
    if (key === "layer" && !has(state.layer)) fetchAgain();
    else draw();
  });
  const shown = (text) => (state.stack === "enc" && text?.encoder) || text;
  function draw() {
    if (!state.text || !has(state.layer)) return;
    const text = shown(state.text);
    parts();
    choices.draw();
    changeBox?.refresh();
    const n = text.tokens.length;
    state.position = Math.max(0, Math.min(state.position ?? n - 2, n - 1));
    add(clear(body), drawn(parts, el, body, state, text, shown(state.base)));
  }
  // The head that the address of the page names, where this text has it or Python can be asked for it.
  function pointed() {
    const asked = headAt(model.get("address"));
    const there = (text) => asked.head < text.n_heads && (ask ? asked.layer < text.n_layers : has(asked.layer));
    if (!asked || !state.text || !there(state.text) || (asked.layer === state.layer && asked.head === state.head)) return;
    Object.assign(state, asked);
    if (has(asked.layer)) draw();
    else fetchAgain();
  }
  const kept = () => model.get("kept")[stepIndex(model.get("kept"), model.get("step"))];
  const typed = async (source) => {
    state.source = source;
    state.position = null;
    fetchAgain("Reading …");
  };
  add(el, [ask ? entry(typed, { value: state.source.slice(0, 400), label: given?.encoder ? "A source of your own, or a source => and its target" : undefined }) : null, changeBox?.el ?? null, said, choices.el, body, away]);
  const question = () => ({ text: state.source, step: model.get("step"), changes: state.changes });
  if (ask && may("backward")) away.append(wayBack(ask, question, off));
  if (ask && may("written")) away.append(writing(ask, () => ({ ...question(), position: state.position }), off));
  if (ask && may("patch")) away.append(patching(ask, question, off));
  const pointedSoon = inSight(el, pointed);
  off.add(pointedSoon.off);
  hear(["address"], pointedSoon);
  follow(["step"], () => state.text && ask && kept() !== state.text.step && fetchAgain());
  off.add(parts);
  recolour(draw);
  if (state.text) draw();
  else fetchAgain();
  pointedSoon();
}

const render = view(build, { needs: (model) => model.get("forward") || (model.get("ask") && model.get("host").can.includes("forward")) });

export default { render };
