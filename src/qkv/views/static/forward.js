// @ts-check
// One text (or image, or pair) all the way through the model, left to right: tokens, rows of W_E, x, then q, k and v of a head,
// scores, pattern, z, back to d_model by W_O, cross-attention where there is one, the residual sum, the MLP, and what is predicted.
// One token is followed through all of it. Of a pair the encoder and the decoder are shown one at a time.
// Where Python stands behind the page, a matrix can be changed to see pattern, prediction and loss change.

import { add, clear, h, inSight, lastOnly, say, together } from "./dom.js";
import { fixed, number, plural, token, whole } from "./format.js";
import { stepIndex, unpack } from "./decode.js";
import { raster } from "./raster.js";
import { bar, robust, squareRoot } from "./scale.js";
import { theme } from "./theme.js";
import { controls, view } from "./view.js";
import { wayBack } from "./back.js";
import { change } from "./change.js";
import { compared } from "./compared.js";
import { takeAway } from "./keep.js";
import { photograph } from "./patches.js";
import { patching, writing } from "./patching.js";
import { nextToken } from "./sampling.js";
import { chooseHead } from "./sentence.js";
import { namesOf, strip } from "./tokens.js";

const pattern = squareRoot(1);

// The stages of one layer and head: [id, name, role, array, shape words, line of Python]; formulas are the payload's. `rows` and
// `across` name the tokens down and across. k and v of cross-attention belong to the tokens of the source.
function stages(text, layer, head) {
  const found = text.layers.find((l) => l.layer === layer);
  const shared = Math.floor((head * text.n_kv_heads) / text.n_heads);
  const signed = (values) => robust([[...values].filter(Number.isFinite)], true);
  const full = (packed) => (packed ? { values: unpack(packed).values, columns: unpack(packed).shape[1], digits: unpack(packed).digits } : null);
  const part = (packed, i) => (packed ? { values: unpack(packed).part(i), columns: unpack(packed).shape[2], digits: unpack(packed).digits } : null);
  const n = text.tokens.length;
  const seen = (array) => (array ? { ...array, values: Float32Array.from(array.values, (v, i) => (text.causal && i % n > Math.floor(i / n) ? NaN : v)) } : null);
  const record = (name, rest = "") => `record["${text.scope}L${layer}.${name}"][0${rest}]`;
  const stream = (name, role = "x") => [name, name, role, full(found[name]), "n × d_model", record(name)];
  const attention = (from, where, keys, across) => {
    const ofHead = (name, role, shape, i, masked = (array) => array) => [where + name, where + name, role, masked(part(from[name], i)), shape, record(where + name, `, ${i}`)];
    return [ofHead("q", "Q", "n × d_head", head), ofHead("k", "K", `${keys} × d_head`, shared), ofHead("v", "V", `${keys} × d_head`, shared), ofHead("scores", "Q", `query × ${across}`, head),
      ofHead("pattern", "norm", `query × ${across}`, head, where ? undefined : seen), ofHead("z", "V", "n × d_head", head), [`${where}attn_out`, `${where}attn_out`, "O", full(from.attn_out), "n × d_model", record(`${where}attn_out`)]];
  };
  const formulas = { ...text.formulas, ...found.formulas };
  const all = [
    ["embed", text.picture ? "patches W_E" : "rows of W_E", "E", full(text.embed), "n × d_model", `record["${text.scope}embed"][0]`],
    stream("x"), ...attention(found, "", "n", "key"), stream("mix_out", "O"), ...(found.cross ? attention(found.cross, "cross.", "source", "source") : []),
    stream("resid_mid"), stream("mlp_out", "MLP"), stream("resid_post"),
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

// The stages of a text in one layer and head as pictures; `follow(row)` is called for the row under the pointer (without one when it
// leaves), `readout` told its number. -> [{ el, mark }]: a stage, and what outlines a row of it
function pictures(off, text, { layer, head }, colours, readout, follow) {
  return stages(text, layer, head).map((stage) => {
    const mark = h("span.row-mark");
    const source = stage.rows === text.keys;
    const panel = raster(off, { label: `${stage.name} of ${text.scope}layer ${layer}${text.n_heads ? ` head ${head}` : ""}`, rows: stage.rows.length, columns: stage.columns, values: stage.values, scale: stage.scale, style: "aspect-ratio:1", leave: () => follow(),
      tell: (row, column) => {
        if (!source) follow(row);
        const value = stage.values[row * stage.columns + column];
        readout.replaceChildren(h("code", null, stage.name), ` of ${namesOf(stage.rows)[row]} (${row}), ${stage.across ? `for ${namesOf(stage.across)[column]} (${column})` : `number ${column}`}: `,
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
  const picture = text.picture ? `${text.text[0].toUpperCase()}${text.text.slice(1)}, ${text.picture.said}. ` : "";
  const loss = text.loss === null ? "" : `The mean loss of this text is ${number(text.loss, 3)} nats per token. `;
  return `${picture}${cut}Weights of step ${whole(text.step)}. ${loss}${text.notes.join(" ")}`;
}

// What is predicted at a token, or of all.
function answered(text, row) {
  if (!text.top) return [h("p.small", null, "The decoder reads these vectors by cross-attention.")];
  if (text.pooled) return [h("h3", null, `the class, from ${text.pooled}`), prediction(text, row)];
  const nats = text.losses ? unpack(text.losses).values[row] : NaN;
  const names = namesOf(text.tokens);
  const next = text.written.length ? namesOf(text.written)[row] : names[row + 1];
  return [h("h3", null, text.causal ? "after " : "at ", h("code", null, names[row]), ` (${row})`), prediction(text, row),
    h("p.small", null, Number.isFinite(nats) ? `The next token is ${next}; its loss is ${number(nats)} nats.` : "")];
}

// Tokens that are not those of the page's text: what a decoder writes, patches of an image.
const hasOwnTokens = (text) => text.scope === "dec." || text.picture !== null;

// Everything of one text for `body`. -> { elements, follow }, where `follow()` shows token `at()`, or one of the text's own that
// `choose(i)` makes that; `off` ends them.
function drawn(off, el, body, { text, base, layer, head, at, choose }) {
  const n = text.tokens.length;
  const colours = theme(el);
  const readout = h("p.readout", { "aria-live": "polite" });
  const [answer, beyond] = [h("div.answer-box"), h("p.small")];
  const beside = base ? compared(off, { base, text, layer, head, colours }) : null;
  const words = hasOwnTokens(text) ? strip(text.tokens, (i, passing) => follow(passing ? i : choose(i)), () => follow()) : null;
  const follow = (row = Math.min(at(), n - 1)) => {
    beyond.textContent = words || at() < n ? "" : `Token ${at()} of the text is beyond the ${n} that are followed here; the last of these is shown.`;
    panels.forEach(({ mark }) => (mark.style.cssText = `top:${(row / n) * 100}%;height:${100 / n}%`));
    words?.show(row);
    words?.each((word, i) => {
      word.classList.toggle("on", i === row);
      word.tabIndex = i === row ? 0 : -1;
    });
    beside?.follow(row);
    answer.replaceChildren(...answered(text, row));
  };
  const place = `${text.scope}L${layer}${text.n_heads ? `.H${head}` : ""}`;
  const panels = pictures(off, text, { layer, head }, colours, readout, follow);
  const [followed, given] = text.picture ? ["patch", "pixels"] : ["token", text.scope ? "source, target" : "ids"];
  readout.textContent = `Point at a number to see its value and the Python that returns it. The outlined row is the ${followed} being followed.`;
  follow();
  const elements = [
    beside?.el ?? null,
    h("h3", null, h("code", null, place), ` on ${text.picture ? text.text : plural(n, "token")}`), beyond,
    text.picture ? h("div.shown-image", null, photograph(text.picture)) : null,
    words && h("div", { role: "group", "aria-label": "tokens; one is followed through the model" }, words.el),
    h("p.small.keep", null, h("span", null, aboutText(text)), takeAway(() => body, () => `forward-${place}-step-${text.step}`)),
    h("div.stages", null, panels.map((panel) => panel.el), h("div.stage.last", { style: "--role:var(--accent)" }, h("p.stage-name", null, h("b", null, text.top ? "prediction" : "output")), answer, h("p.stage-formula", null, text.formulas.prediction), h("code.stage-code", null, text.top ? "logits.softmax(-1)[0]" : `record["${text.scope}norm_f"][0]`))),
    readout,
    h("p.small", null, "In Python: ", h("code", null, `run = qkv.load(RUN, weights="last"); logits, record = run.model.forward_recorded(${given})`))];
  return { elements, follow };
}

const has = (text, layer) => text?.layers.some((l) => l.layer === layer);

// What Python says of a question: [without its changes, with them or null].
const both = async (ask, question) => [await ask("forward", { ...question, changes: [] }), question.changes.length ? await ask("forward", question) : null];

// -> look(message): the page's sentence under the slider's weights, with what `question()` changes: what came with the page of it,
// else what Python says (`message` meanwhile), for `take(text, base)`; `failed(why)` where there is none.
function finder(model, ask, question, { take, failed, waits }) {
  const given = model.get("forward");
  const latest = lastOnly();
  let shown = "";
  return (message = "") => {
    const sentence = model.get("sentence");
    if (!sentence) return;
    const { layer } = model.get("head");
    const { text, changes } = question();
    const kept = model.get("kept")[stepIndex(model.get("kept"), model.get("step"))];
    const key = JSON.stringify([sentence.name, text, layer, kept, changes]);
    if (key === shown) return;
    shown = key;
    latest(() => {}, () => {}, () => {}); // what was asked before is not waited for
    if (given && given.text === text && !changes.length && (!ask || (given.step === kept && has(given, layer)))) return take(given, null);
    if (!ask || !text) return failed(`The forward pass of this ${given?.picture ? "image" : "text"} was not saved with the page.`);
    waits(message);
    latest(() => both(ask, { ...question(), layer }), ([base, changed]) => take(changed ?? base, changed ? base : null), (error) => {
      shown = "";
      failed(error.message);
    });
  };
}

// What else can be asked of the text that is shown, each an element.
function asksOf({ model, off, ask: may }, ask, state, question) {
  const at = () => Math.min(model.get("position"), state.text.tokens.length - 1);
  return [
    may("next") && nextToken((name, more) => ask(name, { ...question(), ...more }), () => model.get("position"), off),
    may("backward") && wayBack(ask, question, off),
    may("written") && writing(ask, () => ({ ...question(), position: at() }), off),
    may("patch") && patching(ask, question, off)].filter(Boolean);
}

// What of the page's head the text of `state` has, put into it. -> { text, base }: the stack that is shown, null without a text
function settle(state, { site, layer, head }) {
  const stack = site === "enc" ? "enc" : "dec";
  const of = (text) => (stack === "enc" && text?.encoder) || text;
  const text = of(state.text);
  if (text) Object.assign(state, { stack, layer: has(text, layer) ? layer : text.layers[0].layer, head: Math.min(head ?? 0, Math.max(0, text.n_heads - 1)) });
  return { text, base: of(state.base) };
}

const absent = (text, { layer }) => (has(text, layer) ? null : h("p.small", null, `This page holds layers ${text.layers.map((l) => l.layer).join(", ")} of this text; layer ${layer} is not among them.`));

// Which stack of a pair, in the page's head.
const stackChoice = (model, state) => controls(state, () => (state.text?.encoder ? [{ key: "stack", label: "stack", options: [["enc", "encoder"], ["dec", "decoder, reading it"]] }] : []),
  () => chooseHead(model, { ...model.get("head"), site: state.stack === "enc" ? "enc" : "cross" }));

function build(place) {
  const { model, el, off, ask: may, follow, hear, recolour } = place;
  const ask = may("forward");
  const parts = together(off);
  const state = { text: null, base: null, stack: "dec", layer: 0, head: 0, own: Infinity, changes: [] };
  const said = h("p.small", { role: "status" });
  const [body, away] = [h("div"), h("div", { hidden: true })];
  const question = () => ({ text: model.get("sentence")?.source ?? "", step: model.get("step"), changes: state.changes });
  const isShown = () => state.text !== null && state.text.text === question().text;
  const look = finder(model, ask, question, { take, failed, waits: (message) => (said.textContent = message) });
  /** @type {(row?: number) => void} */
  let followed = () => {};

  function take(text, base) {
    const [isOther, isOtherText] = [text !== state.text, text.text !== state.text?.text];
    said.textContent = "";
    Object.assign(state, { text, base, own: isOtherText ? Infinity : state.own });
    draw();
    if (!isOther) return;
    away.hidden = false;
    for (const one of asks) one.renew(isOtherText ? text.text : undefined);
  }
  function failed(message) {
    state.changes = [...(state.text?.changes ?? [])]; // what is asked next is asked of what is shown
    changeBox?.refresh();
    say(said, message);
    if (isShown()) return;
    Object.assign(state, { text: null, base: null });
    away.hidden = true;
    draw();
  }
  const changeBox = ask ? change({ model, state, apply: () => look("Changing …") }) : null;
  const choices = stackChoice(model, state);
  function draw() {
    parts();
    clear(body);
    const { text, base } = settle(state, model.get("head"));
    choices.draw();
    changeBox?.refresh();
    if (!text) return;
    const at = () => (hasOwnTokens(text) ? state.own : model.get("position"));
    const found = drawn(parts, el, body, { text, base, layer: state.layer, head: state.head, at, choose: (i) => (state.own = i) });
    followed = found.follow;
    add(body, [absent(text, model.get("head")), found.elements]);
    body.dataset.step = String(text.step);
  }
  add(el, [changeBox?.el ?? null, said, choices.el, body, away]);
  const asks = ask ? asksOf(place, ask, state, question) : [];
  add(away, asks);
  const soon = inSight(el, look, off);
  hear(["sentence", "head"], () => (isShown() && has(state.text, model.get("head").layer) ? draw() : soon()));
  hear(["position"], () => {
    if (!state.text) return;
    followed();
    asks.forEach((one) => one.point?.());
  });
  follow(["step"], () => look());
  recolour(draw);
  look();
}

export default view(build, { needs: (model) => model.get("forward") || (model.get("ask") && model.get("host").can.includes("forward")) });
