// Where each head looks: a text (chosen, or typed where Python stands behind the page), layers x heads as thumbnails, and
// one of them large (head.js).

import { add, atMostEvery, choice, clear, h, inSight, lastOnly, together } from "./dom.js";
import { percent, plural, whole } from "./format.js";
import { watch } from "./model.js";
import { figure } from "./figure.js";
import { paint } from "./raster.js";
import { bar, squareRoot } from "./scale.js";
import { onTheme, theme } from "./theme.js";
import { headName, noteOf, sidesOf, square, stepOf } from "./reading.js";
import { alignment } from "./alignment.js";
import { headAt, stepIndex } from "./decode.js";
import { entry } from "./entry.js";
import { head as tokenByToken, leading } from "./head.js";
import { patches, photograph, pooledRow } from "./patches.js";

const scale = squareRoot(1);

const SITES = { cross: "the source, while writing", enc: "the source by itself", dec: "what is written, by itself" };

// [the large picture of one head, its words] by what is looked at.
function kindOf(text) {
  if (text.picture) return [patches, ["on an image of ", " patches", h("span", null, "Each square is one head, patch for patch as in the image: what ", h("b", null, text.picture.pooled === "class" ? "the class token" : "the average patch"), " attends to, from which the class is told. Each has a scale of its own, from 0 to its largest share. Under a square: what that head does most, if anything stands out against looking everywhere evenly.")]];
  if (text.keys.length) return [alignment, [`while ${whole(text.tokens.length)} tokens are written, on `, " tokens of the source", h("span", null, "Each square is one head: down, the ", h("b", null, "token being written"), "; across, the token of the ", h("b", null, "source"), " looked at. A row sums to 1.")]];
  return [tokenByToken, ["on ", " tokens", h("span", null, "Each square is one head: down, the token that looks (", h("b", null, "query"), "); across, the token looked at (", h("b", null, "key"), "). A row sums to 1. Under a square: what that head does most on this text, if anything stands out against looking everywhere evenly.",
    text.causal ? " The empty half is the future, which a causal model may not see." : "", text.tile ? ` A cell of a thumbnail is the largest share among ${text.block} × ${text.block}.` : "")]];
}

function render({ model, el }) {
  const texts = [...(model.get("attention") || [])];
  const ask = model.get("ask");
  const canAsk = ask && model.get("host").can.includes("attention");
  if (!texts.length && !canAsk) return () => {};
  const off = together();
  const parts = together();
  const state = { text: texts[0] ?? null, layer: 0, head: 0, query: null, way: "reads", first: true };
  const latest = lastOnly();
  const controls = h("div.controls");
  const body = h("div");
  const pick = (text) => (Object.assign(state, { text, query: null }), draw());
  let detail = () => {};
  // Go to the head that the address of the page names, where this text has it, or (`anywhere`) another attention of its pair.
  function pointed(anywhere = false) {
    const asked = headAt(model.get("address"));
    const text = asked && state.text && texts.find((t) => t.origin === state.text.origin && t.site === asked.site && (anywhere || t === state.text));
    if (!text || asked.layer >= text.n_layers || asked.head >= text.n_heads) return false;
    if (text === state.text && asked.layer === state.layer && asked.head === state.head && state.pinned) return false;
    Object.assign(state, { text, layer: asked.layer, head: asked.head, pinned: true });
    return true;
  }

  // Which text, and of a pair which of its attentions.
  function drawControls() {
    clear(controls);
    const heads = texts.filter((t, i) => texts.findIndex((other) => other.origin === t.origin) === i);
    const same = texts.filter((t) => state.text && t.origin === state.text.origin);
    if (heads.length > 1) controls.append(choice("text", heads.map((t) => [t.origin, t.origin]), state.text.origin, (origin) => pick(heads.find((t) => t.origin === origin))));
    if (same.length > 1) controls.append(choice("which attention", same.map((t) => [t.site, SITES[t.site]]), state.text.site, (site) => pick(same.find((t) => t.site === site))));
  }
  async function typed(source) {
    const { texts: found } = await ask("attention", { text: source, step: model.get("step") });
    const others = texts.filter((t) => t.source !== source);
    const origins = [...new Set(others.map((t) => t.origin))].slice(0, 3);
    texts.splice(0, texts.length, ...found, ...others.filter((t) => origins.includes(t.origin)));
    pick(found[0]);
  }
  // The same text under the weights of another step: those that came with it, else asked for.
  const kept = () => model.get("kept")[stepIndex(model.get("kept"), model.get("step"))];
  function follow() {
    const text = state.text;
    if (!text) return;
    if (!text.source || !canAsk) {
      if (text.steps.length > 1 && stepOf(text, model.get("step")) !== state.at) drawSoon();
    } else if (kept() !== text.steps[0]) {
      latest(() => ask("attention", { text: text.source, step: model.get("step") }), ({ texts: fresh }) => {
        for (const one of fresh) texts[texts.findIndex((t) => t.source === text.source && t.site === one.site)] = one;
        if (state.text === text) {
          state.text = fresh.find((one) => one.site === text.site);
          draw();
        }
      }, () => {});
    }
  }

  function draw() {
    parts();
    clear(body);
    if (!state.text) return;
    const found = pointed();
    const text = state.text;
    drawControls();
    const n = text.tokens.length;
    const at = (state.at = stepOf(text, model.get("step")));
    const note = (layer, head) => noteOf(text, at, layer, head);
    if (!found && !state.pinned) {
      // start at the head that does the most pronounced thing
      const last = text.heads.slice(-text.n_layers * text.n_heads);
      const bold = last.reduce((a, b) => ((leading(b)?.share ?? 0) > (a ? leading(a)?.share ?? 0 : 0) ? b : a), null);
      if (bold) Object.assign(state, { layer: bold.layer, head: bold.head });
    }
    state.query = Math.min(state.query ?? (text.keys.length ? 0 : n - 1), n - 1);
    const colours = theme(el);
    const [largeHead, [on, tokens, words]] = kindOf(text);
    const count = whole(text.keys.length || (text.picture ? n - text.picture.before : n));
    const frame = figure(body, { wide: true, title: `${plural(text.n_layers, "layer")} × ${plural(text.n_heads, "head")} ${on}${count}${tokens}, weights of step ${whole(text.steps[at])}`,
      caption: h("span", null, `Shown on ${text.origin}${text.picture ? `, ${text.picture.said}` : ""}. `, words) });
    if (text.picture) frame.body.append(h("div.shown-image", null, photograph(text.picture)));
    const grid = h("div.heads", { style: `--heads:${text.n_heads}` }, h("span"), Array.from({ length: text.n_heads }, (_, head) => h("span.thumb-head", { "aria-hidden": "true" }, `H${head}`)));
    const sides = text.picture ? text.picture.grid : sidesOf(text);
    const thumbs = [];
    for (let layer = 0; layer < text.n_layers; layer++) {
      grid.append(h("span.thumb-layer", null, `L${layer}`));
      for (let head = 0; head < text.n_heads; head++) {
        const canvas = h("canvas", { "aria-hidden": "true" });
        const values = square(text, at, layer, head);
        const pooled = text.picture && pooledRow(text, values);
        paint(canvas, pooled ?? values, ...sides, pooled ? squareRoot(Math.max(...pooled)) : scale, colours);
        canvas.style.aspectRatio = `${Math.min(2, sides[1] / sides[0])}`;
        const lead = leading(note(layer, head));
        const button = h("button.thumb", { type: "button", "aria-label": `layer ${layer} head ${head}${lead ? `: ${percent(lead.share)} on ${lead.name.replace("the ", "")}` : ""}`,
          onclick: () => (Object.assign(state, { layer, head, pinned: true }), detail(), model.set("address", `${headName(text, { layer, head })}.pattern`)) }, canvas, h("span.thumb-note", null, lead ? `${percent(lead.share)} on ${lead.name.replace("the ", "")}` : "\u00a0"));
        thumbs.push({ button, layer, head });
        grid.append(button);
      }
    }
    frame.body.append(h("div.scroll", null, grid), text.picture ? bar(squareRoot(1), colours, "share of a head's largest, square-root scale") : bar(scale, colours, "attention, square-root scale"));
    const large = h("div.detail");
    body.append(large);
    const detailOff = together();
    detail = () => {
      detailOff();
      thumbs.forEach((t) => t.button.setAttribute("aria-pressed", String(t.layer === state.layer && t.head === state.head)));
      detailOff.add(largeHead(clear(large), { text, at, state, note: note(state.layer, state.head), ask, scale }));
    };
    parts.add(detailOff);
    parts.add(frame.off);
    detail();
  }
  add(el, [canAsk ? entry(typed, { label: texts.some((text) => text.keys.length) ? "A source of your own, or a source => and its target" : undefined }) : null, controls, body]);
  const drawSoon = inSight(el, draw);
  off.add(drawSoon.off);
  const followSoon = inSight(el, atMostEvery(200, follow));
  off.add(followSoon.off);
  off.add(watch(model, "step", followSoon));
  off.add(watch(model, "address", () => {
    const before = state.text;
    if (pointed(true)) (state.text === before ? detail : draw)();
  }));
  off.add(parts);
  off.add(onTheme(draw));
  pointed(true);
  draw();
  return off;
}

export default { render };
