// @ts-check
// One text for the whole page, beside the slider: the text, its token and the head that every section shows are chosen here,
// once. A saved page holds texts to choose among; where Python stands behind it any other can be typed.

import { add, clear, h, say, together } from "./dom.js";
import { headAt } from "./decode.js";
import { entry } from "./entry.js";
import { plural } from "./format.js";
import { watch } from "./model.js";
import { boldest, headName } from "./reading.js";
import { strip } from "./tokens.js";
import { controls } from "./view.js";

/**
 * A text that the page can show. `source` is what to ask of it (empty where only what came with the page is known); `tokens` are
 * those of the source where it has a target, and none of an image; `attention` is what came with the page of it.
 * @typedef {{ name: string, source: string, tokens: string[], note: string, attention?: any[] }} Sentence
 */

const KEPT = 4; // texts to go back to

// Of a pair its source.
const read = (forward) => forward?.encoder ?? forward;

// The texts that came with the page.
/** @returns {Sentence[]} */
function stored({ attention = [], forward = null }) {
  const found = [...new Set(attention.map((text) => text.origin))].map((name, i) => {
    const texts = attention.filter((text) => text.origin === name);
    const { tokens, keys, picture, source } = texts[0];
    return { name, source: source || (i === 0 && forward?.text) || "", tokens: picture ? [] : keys.length ? keys : tokens, note: "", attention: texts };
  });
  return found.length || !forward ? found : [{ name: `the ${forward.picture ? "image" : "text"} of this page`, source: forward.text, tokens: forward.picture ? [] : read(forward).tokens, note: "" }];
}

/**
 * Puts into the model what all sections share: `sentence`, `position` (of a token) and `head` ({ site, layer, head }, `head` null where
 * nothing attends).
 */
export function begin(model) {
  const payload = { attention: model.get("attention") ?? [], forward: model.get("forward") };
  const sentences = stored(payload);
  const first = payload.attention[0];
  const bold = first ? boldest(first) : null;
  const layer = bold?.layer ?? payload.forward?.layers[0]?.layer ?? 0;
  const attends = first || (model.get("run")?.mixer ?? "attention") === "attention";
  model.set("sentences", sentences);
  model.set("sentence", sentences[0] ?? null);
  model.set("position", Math.max(0, (read(payload.forward) ?? sentences[0])?.tokens.length - 1 || 0));
  model.set("head", { site: first?.site ?? "", layer, head: attends ? bold?.head ?? 0 : null });
  const pointed = () => {
    const asked = headAt(model.get("address"));
    const { site, layer, head } = model.get("head");
    if (asked && (asked.site !== site || asked.layer !== layer || asked.head !== head)) model.set("head", asked);
  };
  pointed();
  watch(model, "address", pointed);
}

// The head becomes the page's, in its address too.
export function chooseHead(model, head) {
  model.set("head", head);
  if (head.head !== null) model.set("address", `${headName(head, head)}.pattern`);
}

function choose(model, sentence) {
  const others = model.get("sentences").filter((one) => one.name !== sentence.name || one.source !== sentence.source);
  model.set("sentences", [sentence, ...others].slice(0, Math.max(KEPT, others.length)));
  model.set("position", Math.max(0, sentence.tokens.length - 1));
  model.set("sentence", sentence);
}

// Whether the model writes one text of another.
const isPair = (model) => Boolean(model.get("forward")?.encoder || model.get("attention")?.some((text) => text.keys.length));

// How many layers and heads there are to choose among, of what the page shows.
function sizesOf(model) {
  const shown = model.get("attention")?.[0] ?? model.get("forward") ?? model.get("run")?.sizes ?? {};
  return [shown.n_layers ?? 0, model.get("head").head === null ? 0 : shown.n_heads ?? 0];
}

// What a page that was saved can show.
const still = (texts) => `This page was saved with ${texts.length === 1 ? `one text, ${texts[0].name}` : plural(texts.length, "text")}. To type your own, open the run: qkv view RUN.`;

export function sentence({ model, el }) {
  const off = together();
  const ask = model.get("host").can.includes("sentence") ? model.get("ask") : null;
  if (!ask && !model.get("sentence")) return off;
  const state = {};
  const [note, tokens] = [h("p.small.note", { role: "status" }), h("div.tokens", { role: "group", "aria-label": "tokens of the text; one is followed in every section" })];
  let shown = null;
  const typed = async (source) => choose(model, await ask("sentence", { text: source }));
  const form = ask ? entry(typed, { rows: 1, value: [...(model.get("sentence")?.source ?? "")].slice(0, 400).join(""), label: `One text for the whole page${isPair(model) ? ": a source, or a source => and its target" : ""}` }) : null;
  const offered = () => {
    const numbers = (key, n, letter) => (n ? { key, label: key, options: Array.from({ length: n }, (_, i) => [i, `${letter}${i}`]), most: 0 } : null);
    const [layers, heads] = sizesOf(model);
    const texts = model.get("sentences");
    return [texts.length > 1 ? { key: "text", label: "text", options: texts.map(({ name }, i) => [i, name]), most: 0 } : null, numbers("layer", layers, "L"), numbers("head", heads, "H")];
  };
  const choices = controls(state, offered, (key) => {
    if (key === "text") choose(model, model.get("sentences")[state.text]);
    else chooseHead(model, { ...model.get("head"), [key]: state[key] });
  });
  const point = () => {
    const at = model.get("position");
    shown?.show(at);
    shown?.each((button, i) => {
      button.classList.toggle("on", i === at);
      button.setAttribute("aria-pressed", String(i === at));
      button.tabIndex = i === at ? 0 : -1;
      if (i === at) tokens.scrollLeft = button.offsetLeft - tokens.clientWidth / 2;
    });
  };
  const draw = () => {
    const sentence = model.get("sentence");
    const texts = model.get("sentences");
    Object.assign(state, { text: texts.indexOf(sentence), ...model.get("head") });
    choices.draw();
    if (!sentence) return;
    say(note, sentence.note || (ask || !sentence.tokens.length || model.get("host").kind === "page" ? "" : still(texts)));
    shown = sentence.tokens.length ? strip(sentence.tokens, (i, passing) => passing || model.set("position", i)) : null;
    add(clear(tokens), [shown?.el]);
    point();
  };
  add(el, [h("div.sentence", null, h("div.sentence-row", null, form, choices.el), note, tokens)]);
  for (const key of ["sentence", "head"]) off.add(watch(model, key, draw));
  off.add(watch(model, "position", point));
  draw();
  return off;
}
