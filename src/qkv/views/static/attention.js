// Where each head looks: a text (chosen, or typed where Python stands behind the page), layers x heads as thumbnails, and
// one of them large (head.js).

import { add, choice, clear, h, inSight, lastOnly, together } from "./dom.js";
import { percent, plural, whole } from "./format.js";
import { watch } from "./model.js";
import { figure } from "./figure.js";
import { paint } from "./raster.js";
import { bar, squareRoot } from "./scale.js";
import { onTheme, theme } from "./theme.js";
import { noteOf, sideOf, square, stepOf } from "./reading.js";
import { headAt, stepIndex } from "./decode.js";
import { entry } from "./entry.js";
import { head as largeHead, leading } from "./head.js";

const scale = squareRoot(1);

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
  // The head that the address of the page names, where this text has it.
  function pointed() {
    const asked = headAt(model.get("address"));
    if (!asked || !state.text || asked.layer >= state.text.n_layers || asked.head >= state.text.n_heads) return false;
    if (asked.layer === state.layer && asked.head === state.head && state.pinned) return false;
    Object.assign(state, asked, { pinned: true });
    return true;
  }

  function drawControls() {
    clear(controls);
    if (texts.length > 1) controls.append(choice("text", texts.map((t) => [t, t.origin]), state.text, pick));
  }
  async function typed(source) {
    const text = await ask("attention", { text: source, step: model.get("step") });
    texts.splice(0, texts.length, text, ...texts.filter((t) => t.source !== source).slice(0, 3));
    pick(text);
    drawControls();
  }
  // The same text under the weights of another step: those that came with it, else asked for.
  const kept = () => model.get("kept")[stepIndex(model.get("kept"), model.get("step"))];
  function follow() {
    const text = state.text;
    if (!text) return;
    if (!text.source || !canAsk) {
      if (text.steps.length > 1 && stepOf(text, model.get("step")) !== state.at) drawSoon();
    } else if (kept() !== text.steps[0]) {
      latest(() => ask("attention", { text: text.source, step: model.get("step") }), (fresh) => {
        texts[texts.indexOf(text)] = fresh;
        if (state.text === text) {
          state.text = fresh;
          draw();
        }
      }, () => {});
    }
  }

  function draw() {
    parts();
    clear(body);
    const text = state.text;
    if (!text) return;
    const n = text.tokens.length;
    const at = (state.at = stepOf(text, model.get("step")));
    const note = (layer, head) => noteOf(text, at, layer, head);
    if (!pointed() && !state.pinned) {
      // start at the head that does the most pronounced thing
      const last = text.heads.slice(-text.n_layers * text.n_heads);
      const bold = last.reduce((a, b) => ((leading(b)?.share ?? 0) > (a ? leading(a)?.share ?? 0 : 0) ? b : a), null);
      if (bold) Object.assign(state, { layer: bold.layer, head: bold.head });
    }
    state.query = Math.min(state.query ?? n - 1, n - 1);
    const colours = theme(el);
    const frame = figure(body, { wide: true, title: `${plural(text.n_layers, "layer")} × ${plural(text.n_heads, "head")} on ${whole(n)} tokens, weights of step ${whole(text.steps[at])}`,
      caption: h("span", null, texts.length > 1 ? "" : `Shown on ${text.origin}. `, "Each square is one head: down, the token that looks (", h("b", null, "query"), "); across, the token looked at (", h("b", null, "key"), "). A row sums to 1. Under a square: what that head does most on this text, if anything stands out against looking everywhere evenly.",
        text.causal ? " The empty half is the future, which a causal model may not see." : "", text.tile ? ` A cell of a thumbnail is the largest share among ${text.block} × ${text.block}.` : "") });
    const grid = h("div.heads", { style: `--heads:${text.n_heads}` }, h("span"), Array.from({ length: text.n_heads }, (_, head) => h("span.thumb-head", { "aria-hidden": "true" }, `H${head}`)));
    const side = sideOf(text);
    const thumbs = [];
    for (let layer = 0; layer < text.n_layers; layer++) {
      grid.append(h("span.thumb-layer", null, `L${layer}`));
      for (let head = 0; head < text.n_heads; head++) {
        const canvas = h("canvas", { "aria-hidden": "true" });
        paint(canvas, square(text, at, layer, head), side, side, scale, colours);
        const lead = leading(note(layer, head));
        const button = h("button.thumb", { type: "button", "aria-label": `layer ${layer} head ${head}${lead ? `: ${percent(lead.share)} on ${lead.name.replace("the ", "")}` : ""}`,
          onclick: () => (Object.assign(state, { layer, head, pinned: true }), detail(), model.set("address", `L${layer}.H${head}.pattern`)) }, canvas, h("span.thumb-note", null, lead ? `${percent(lead.share)} on ${lead.name.replace("the ", "")}` : "\u00a0"));
        thumbs.push({ button, layer, head });
        grid.append(button);
      }
    }
    frame.body.append(h("div.scroll", null, grid), bar(scale, colours, "attention, square-root scale"));
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
  add(el, [canAsk ? entry(typed) : null, controls, body]);
  drawControls();
  const drawSoon = inSight(el, draw);
  off.add(drawSoon.off);
  off.add(watch(model, "step", follow));
  off.add(watch(model, "address", () => pointed() && detail()));
  off.add(parts);
  off.add(onTheme(draw));
  draw();
  return off;
}

export default { render };
