// @ts-check
// Where each head looks: a text (chosen, or typed where Python stands behind the page), layers x heads as thumbnails, and
// one of them large (head.js).

import { add, atMostEvery, clear, h, inSight, lastOnly, say, together } from "./dom.js";
import { percent, plural, whole } from "./format.js";
import { figure } from "./figure.js";
import { paint } from "./raster.js";
import { bar, squareRoot } from "./scale.js";
import { theme } from "./theme.js";
import { controls, view } from "./view.js";
import { leading, noteOf, sidesOf, square, stepOf } from "./reading.js";
import { alignment } from "./alignment.js";
import { stepIndex } from "./decode.js";
import { head as tokenByToken } from "./head.js";
import { patches, photograph, pooledRow, under, veil } from "./patches.js";
import { chooseHead } from "./sentence.js";

const scale = squareRoot(1);

const SITES = { cross: "the source, while writing", enc: "the source by itself", dec: "what is written, by itself" };

// Whether its queries are tokens of the target, not of the page's text.
const isWritten = ({ site }) => site === "cross" || site === "dec";

// [the large picture of one head, its words] by what is looked at.
/** @returns {[Function, any[]]} */
function kindOf(text) {
  if (text.picture) return [patches, ["on an image of ", " patches", h("span", null, "Each square is one head, drawn over the image: what ", h("b", null, text.picture.pooled === "class" ? "the class token" : "the average patch"), " attends to when the class is predicted. Each has its own scale, from 0 to its largest share. Below a square: what that head does most, if it differs clearly from uniform attention.")]];
  if (text.keys.length) return [alignment, [`while ${whole(text.tokens.length)} tokens are written, on `, " tokens of the source", h("span", null, "Each square is one head: down, the ", h("b", null, "token being written"), "; across, the token of the ", h("b", null, "source"), " attended to. A row sums to 1.")]];
  return [tokenByToken, ["on ", " tokens", h("span", null, "Each square is one head: down, the attending token (", h("b", null, "query"), "); across, the token attended to (", h("b", null, "key"), "). A row sums to 1. Below a square: what that head does most on this text, if it differs clearly from uniform attention.",
    text.causal ? " The empty half is the future, which is masked." : "", text.tile ? ` A cell of a thumbnail is the largest share among ${text.block} × ${text.block}.` : "")]];
}

// The weights at a step, as the steps of a text say it.
const keptOf = (model) => model.get("kept")[stepIndex(model.get("kept"), model.get("step"))];

const leadOf = (note) => {
  const lead = leading(note);
  return lead ? `${percent(lead.share)} on ${lead.name.replace("the ", "")}` : "";
};

// Every head of a text as a thumbnail -> { el, thumbs: [{ button, layer, head }] }; `pick(layer, head)` is called on a click.
function thumbnails(text, at, colours, pick) {
  const el = h("div.heads", { style: `--heads:${text.n_heads}` }, h("span"), Array.from({ length: text.n_heads }, (_, head) => h("span.thumb-head", { "aria-hidden": "true" }, `H${head}`)));
  const sides = text.picture ? text.picture.grid : sidesOf(text);
  const thumbs = [];
  for (let layer = 0; layer < text.n_layers; layer++) {
    el.append(h("span.thumb-layer", null, `L${layer}`));
    for (let head = 0; head < text.n_heads; head++) {
      const canvas = h("canvas", { "aria-hidden": "true" });
      const values = square(text, at, layer, head);
      const pooled = text.picture && pooledRow(text, values);
      paint(canvas, pooled ?? values, ...sides, pooled ? squareRoot(Math.max(...pooled)) : scale, pooled ? veil(colours) : colours);
      const shown = text.picture ? under(text.picture, canvas) : canvas;
      if (!text.picture) canvas.style.aspectRatio = `${Math.min(2, sides[1] / sides[0])}`;
      const lead = leadOf(noteOf(text, at, layer, head));
      const button = h("button.thumb", { type: "button", "aria-label": `layer ${layer} head ${head}${lead && `: ${lead}`}`, onclick: () => pick(layer, head) }, shown, h("span.thumb-note", null, lead || "\u00a0"));
      thumbs.push({ button, layer, head });
      el.append(button);
    }
  }
  return { el, thumbs };
}

// The frame of a text's thumbnails, with what they are in words.
function frameOf(host, text, step) {
  const [, [on, tokens, words]] = kindOf(text);
  const count = whole(text.keys.length || (text.picture ? text.tokens.length - text.picture.before : text.tokens.length));
  const frame = figure(host, { wide: true, title: `${plural(text.n_layers, "layer")} × ${plural(text.n_heads, "head")} ${on}${count}${tokens}, weights of step ${whole(step)}`,
    caption: h("span", null, `Shown on ${text.origin}${text.picture ? `, ${text.picture.said}` : ""}. `, words) });
  if (text.picture) frame.body.append(h("div.shown-image", null, photograph(text.picture)));
  return frame;
}

// -> what draws the chosen head large in `host`, and marks its thumbnail; it gives what shows another token.
function detailOf(off, host, thumbs, { text, at, state, ask, choose }) {
  const [largeHead] = kindOf(text);
  const ends = together(off);
  return () => {
    ends();
    thumbs.forEach((t) => t.button.setAttribute("aria-pressed", String(t.layer === state.layer && t.head === state.head)));
    return largeHead(ends, clear(host), { text, at, state, note: noteOf(text, at, state.layer, state.head), ask, scale, choose });
  };
}

function build({ model, el, off, ask: may, follow, hear, recolour }) {
  const ask = model.get("ask");
  const canAsk = may("attention");
  const parts = together(off);
  const latest = lastOnly();
  const [body, said] = [h("div"), h("p.small", { role: "status" })];
  let [texts, asked] = [[], ""]; // those of the page's sentence, and what they answer
  /** @type {any} */
  let detail;
  /** @type {any} */
  let point;
  const state = { text: null, site: "", layer: 0, head: 0, query: 0, way: "reads", first: true, at: 0 };
  const choices = controls(state, () => (texts.length > 1 ? [{ key: "site", label: "which attention", options: texts.map(({ site }) => [site, SITES[site]]) }] : []),
    () => chooseHead(model, { ...model.get("head"), site: state.site }));

  // The sentence of the page under the weights of the slider's step: what came with the page, else asked for.
  function look() {
    const sentence = model.get("sentence");
    if (!sentence) return;
    const kept = keptOf(model);
    const known = sentence.attention ?? [];
    const here = known.length && canAsk && sentence.source && kept !== undefined && !known[0].steps.includes(kept) ? [] : known;
    const key = `${sentence.name} ${sentence.source} ${here.length ? stepOf(here[0], model.get("step")) : kept}`;
    if (key === asked) return;
    asked = key;
    latest(() => {}, () => {}, () => {}); // what was asked before is not waited for
    if (here.length) return show(here);
    if (!canAsk) return show([], "The attention of this text was not saved with the page.");
    latest(() => canAsk("attention", { text: sentence.source, step: model.get("step") }), (found) => show(found.texts), (error) => {
      asked = "";
      show([], error.message);
    });
  }
  function show(found, message = "") {
    say(said, message);
    texts = found;
    draw();
  }
  // What of the page's choices this text has.
  function settle() {
    const { site, layer, head } = model.get("head");
    const text = texts.find((one) => one.site === site) ?? texts[0];
    const last = text.tokens.length - 1;
    const query = Math.min(!isWritten(text) ? model.get("position") : text === state.text ? state.query : 0, last);
    Object.assign(state, { text, site: text.site, layer: Math.min(layer, text.n_layers - 1), head: Math.min(head ?? 0, text.n_heads - 1), query, at: stepOf(text, model.get("step")) });
  }
  function draw() {
    parts();
    clear(body);
    choices.draw();
    if (!texts.length) return;
    settle();
    choices.draw();
    const { text, at } = state;
    const colours = theme(el);
    const frame = frameOf(body, text, text.steps[at]);
    const { el: grid, thumbs } = thumbnails(text, at, colours, (layer, head) => chooseHead(model, { site: text.site, layer, head }));
    frame.body.append(h("div.scroll", null, grid), bar(scale, text.picture ? veil(colours) : colours, text.picture ? "share of a head's largest, square-root scale" : "attention, square-root scale"));
    const large = h("div.detail");
    body.append(large);
    const choose = (i) => (Object.assign(state, { query: i }), isWritten(text) || model.get("position") === i ? point(i) : model.set("position", i));
    detail = detailOf(parts, large, thumbs, { text, at, state, ask, choose });
    point = detail();
    body.dataset.step = String(text.steps[at]);
  }
  add(el, [said, choices.el, body]);
  hear(["sentence"], inSight(el, look, off));
  follow(["step"], atMostEvery(200, look));
  hear(["head"], () => {
    if (!state.text) return;
    const { text } = state;
    settle();
    if (state.text === text) point = detail();
    else draw();
  });
  hear(["position"], () => {
    if (!state.text || isWritten(state.text)) return;
    settle();
    point?.(state.query);
  });
  recolour(draw);
  look();
}

export default view(build, { needs: (model) => model.get("attention")?.length || (model.get("ask") && model.get("host").can.includes("attention")) });
