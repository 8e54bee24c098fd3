// @ts-check
// Where each head looks: a text (chosen, or typed where Python stands behind the page), layers x heads as thumbnails, and
// one of them large (head.js).

import { add, atMostEvery, clear, h, inSight, lastOnly, together } from "./dom.js";
import { percent, plural, whole } from "./format.js";
import { figure } from "./figure.js";
import { paint } from "./raster.js";
import { bar, squareRoot } from "./scale.js";
import { theme } from "./theme.js";
import { controls, view } from "./view.js";
import { headName, noteOf, sidesOf, square, stepOf } from "./reading.js";
import { alignment } from "./alignment.js";
import { headAt, stepIndex } from "./decode.js";
import { entry } from "./entry.js";
import { head as tokenByToken, leading } from "./head.js";
import { patches, photograph, pooledRow, under, veil } from "./patches.js";

const scale = squareRoot(1);

const SITES = { cross: "the source, while writing", enc: "the source by itself", dec: "what is written, by itself" };

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

// The head that does the most pronounced thing.
function boldest(text) {
  const last = text.heads.slice(-text.n_layers * text.n_heads);
  return last.reduce((a, b) => ((leading(b)?.share ?? 0) > (a ? leading(a)?.share ?? 0 : 0) ? b : a), null);
}

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

// The head that an address names, where the text that is shown has it, or (`anywhere`) another attention of its pair; null where it
// is the one that is shown.
function pointedAt(address, texts, state, anywhere) {
  const asked = headAt(address);
  const text = asked && state.text && texts.find((t) => t.origin === state.text.origin && t.site === asked.site && (anywhere || t === state.text));
  if (!text || asked.layer >= text.n_layers || asked.head >= text.n_heads) return null;
  const same = text === state.text && asked.layer === state.layer && asked.head === state.head && state.pinned;
  return same ? null : { text, layer: asked.layer, head: asked.head };
}

// Texts of which `found` is the newest, all of one typed `source`; of the others three stay.
function withNew(texts, found, source) {
  const others = texts.filter((t) => t.source !== source);
  const origins = [...new Set(others.map((t) => t.origin))].slice(0, 3);
  return [...found, ...others.filter((t) => origins.includes(t.origin))];
}

// What is offered of `texts`: which of them, and of a pair which of its attentions.
function offered(texts, { origin }) {
  const origins = [...new Set(texts.map((t) => t.origin))];
  const sites = texts.filter((t) => t.origin === origin).map((t) => t.site);
  return [origins.length > 1 ? { key: "origin", label: "text", options: origins.map((name) => [name, name]) } : null,
    sites.length > 1 ? { key: "site", label: "which attention", options: sites.map((name) => [name, SITES[name]]) } : null];
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

// -> what draws the chosen head large in `host`, and marks its thumbnail.
function detailOf(off, host, thumbs, { text, at, state, ask }) {
  const [largeHead] = kindOf(text);
  const ends = together();
  off.add(ends);
  return () => {
    ends();
    thumbs.forEach((t) => t.button.setAttribute("aria-pressed", String(t.layer === state.layer && t.head === state.head)));
    largeHead(ends, clear(host), { text, at, state, note: noteOf(text, at, state.layer, state.head), ask, scale });
  };
}

function build({ model, el, off, ask: may, follow, hear, recolour }) {
  const texts = [...(model.get("attention") || [])];
  const ask = model.get("ask");
  const canAsk = may("attention");
  const parts = together();
  const state = { text: texts[0] ?? null, layer: 0, head: 0, query: null, way: "reads", first: true, pinned: false, at: 0 };
  const latest = lastOnly();
  const body = h("div");
  let detail = () => {};
  const chosen = { origin: "", site: "" };
  const choices = controls(chosen, () => (state.text ? offered(texts, Object.assign(chosen, { origin: state.text.origin, site: state.text.site })) : []),
    (key) => pick(texts.find((t) => t.origin === chosen.origin && (key === "origin" || t.site === chosen.site))));
  const pick = (text) => (Object.assign(state, { text, query: null }), draw());

  const pointed = (anywhere = false) => {
    const asked = pointedAt(model.get("address"), texts, state, anywhere);
    if (asked) Object.assign(state, asked, { pinned: true });
    return asked !== null;
  };
  async function typed(source) {
    const { texts: found } = await ask("attention", { text: source, step: model.get("step") });
    texts.splice(0, texts.length, ...withNew(texts, found, source));
    pick(found[0]);
  }
  // The same text under the weights of another step: those that came with it, else asked for.
  function toStep() {
    const text = state.text;
    if (text && (!text.source || !canAsk)) {
      if (text.steps.length > 1 && stepOf(text, model.get("step")) !== state.at) drawSoon();
    } else if (text && keptOf(model) !== text.steps[0]) {
      latest(() => ask("attention", { text: text.source, step: model.get("step") }), ({ texts: fresh }) => renew(text, fresh), () => {});
    }
  }
  function renew(text, fresh) {
    for (const one of fresh) texts[texts.findIndex((t) => t.source === text.source && t.site === one.site)] = one;
    if (state.text !== text) return;
    state.text = fresh.find((one) => one.site === text.site);
    draw();
  }

  function draw() {
    parts();
    clear(body);
    if (!state.text) return;
    const found = pointed();
    const text = state.text;
    choices.draw();
    const last = text.tokens.length - 1;
    const at = stepOf(text, model.get("step"));
    const { layer, head } = (found || state.pinned ? null : boldest(text)) ?? state;
    Object.assign(state, { at, layer, head, query: Math.min(state.query ?? (text.keys.length ? 0 : last), last) });
    const colours = theme(el);
    const frame = frameOf(body, text, text.steps[at]);
    parts.add(frame.off);
    const { el: grid, thumbs } = thumbnails(text, at, colours, (layer, head) => {
      Object.assign(state, { layer, head, pinned: true });
      detail();
      model.set("address", `${headName(text, { layer, head })}.pattern`);
    });
    frame.body.append(h("div.scroll", null, grid), bar(scale, text.picture ? veil(colours) : colours, text.picture ? "share of a head's largest, square-root scale" : "attention, square-root scale"));
    const large = h("div.detail");
    body.append(large);
    detail = detailOf(parts, large, thumbs, { text, at, state, ask });
    detail();
  }
  add(el, [canAsk ? entry(typed, { label: texts.some((text) => text.keys.length) ? "A source of your own, or a source => and its target" : undefined }) : null, choices.el, body]);
  const drawSoon = inSight(el, draw);
  off.add(drawSoon.off);
  follow(["step"], atMostEvery(200, toStep));
  hear(["address"], () => {
    const before = state.text;
    if (pointed(true)) (state.text === before ? detail : draw)();
  });
  off.add(parts);
  recolour(draw);
  pointed(true);
  draw();
}

const render = view(build, { needs: (model) => model.get("attention")?.length || (model.get("ask") && model.get("host").can.includes("attention")) });

export default { render };
