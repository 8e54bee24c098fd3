// Where each head looks, on chosen texts: layers x heads as thumbnails, one of them large, and the text itself shaded by
// what a token reads or by who reads it.

import { choice, clear, h, together } from "./dom.js";
import { fixed, number, percent, token } from "./format.js";
import { unpack } from "./decode.js";
import { figure, savePng } from "./figure.js";
import { paint, raster } from "./raster.js";
import { bar, squareRoot } from "./scale.js";
import { onTheme, theme } from "./theme.js";

// A head's pattern as a full square [query_pos, key_pos]; what the mask forbids is NaN, drawn as nothing.
function square(text, layer, head) {
  const array = unpack(text.patterns);
  const n = text.tokens.length;
  const stored = array.part(layer, head);
  if (!text.causal) return stored;
  const full = new Float32Array(n * n).fill(NaN);
  for (let q = 0, i = 0; q < n; q++) for (let k = 0; k <= q; k++) full[q * n + k] = stored[i++];
  return full;
}

function leading(note) {
  const best = note.shares.reduce((a, b) => (b.share - b.even > a.share - a.even ? b : a));
  return best.share - best.even > 0.15 ? best : null;
}

function render({ model, el }) {
  const texts = model.get("attention") || [];
  if (!texts.length) return () => {};
  const off = together();
  const state = { text: 0, layer: 0, head: 0, query: null, way: "reads" };
  const scale = squareRoot(1);
  const body = h("div");
  if (texts.length > 1) {
    el.append(h("div.controls", null, choice("text", texts.map((t, i) => [i, t.origin]), 0, (i) => {
      Object.assign(state, { text: i, query: null });
      draw();
    })));
  }
  el.append(body);
  const parts = together();

  function draw() {
    parts();
    clear(body);
    const text = texts[state.text];
    const n = text.tokens.length;
    const note = (layer, head) => text.heads.find((x) => x.layer === layer && x.head === head);
    // start at the head that does the most pronounced thing
    const bold = text.heads.reduce((a, b) => ((leading(b)?.share ?? 0) > (a ? leading(a)?.share ?? 0 : 0) ? b : a), null);
    if (state.query === null && bold) Object.assign(state, { layer: bold.layer, head: bold.head });
    if (state.query === null) state.query = n - 1;
    const colours = theme(el);
    const frame = figure(body, { wide: true, title: `${text.n_layers} layers × ${text.n_heads} heads on ${n} tokens`,
      caption: h("span", null, "Each square is one head: down, the token that looks (", h("b", null, "query"), "); across, the token looked at (", h("b", null, "key"), "). A row sums to 1. Under a square: what that head does most on this text, if anything stands out against looking everywhere evenly.",
        text.causal ? " The empty half is the future, which a causal model may not see." : "") });
    const thumbs = [];
    const grid = h("div.heads", { style: `--heads:${text.n_heads}` });
    for (let layer = 0; layer < text.n_layers; layer++) {
      grid.append(h("span.thumb-layer", null, `L${layer}`));
      for (let head = 0; head < text.n_heads; head++) {
        const canvas = h("canvas", { "aria-hidden": "true" });
        paint(canvas, square(text, layer, head), n, n, scale, colours);
        const about = note(layer, head);
        const lead = about ? leading(about) : null;
        const button = h("button.thumb", { type: "button", "aria-label": `layer ${layer} head ${head}${lead ? `: ${percent(lead.share)} ${lead.name.replace("the ", "")}` : ""}`,
          onclick: () => (Object.assign(state, { layer, head }), detail()) }, canvas, h("span.thumb-note", null, lead ? `${percent(lead.share)} ${lead.name.replace("the ", "")}` : "\u00a0"));
        thumbs.push({ button, layer, head });
        grid.append(button);
      }
    }
    frame.body.append(h("div.scroll", null, grid), bar(scale, colours, "attention, square-root scale"));
    const large = h("div.detail");
    body.append(large);

    function detail() {
      detailOff();
      clear(large);
      thumbs.forEach((t) => t.button.setAttribute("aria-pressed", String(t.layer === state.layer && t.head === state.head)));
      const values = square(text, state.layer, state.head);
      const about = note(state.layer, state.head);
      const readout = h("p.readout", { "aria-live": "polite" });
      const panel = raster({ label: `attention of layer ${state.layer} head ${state.head}`, rows: n, columns: n, values, scale,
        tell: (q, k) => (look(q), tell(q, k)) });
      panel.el.style.aspectRatio = "1";
      detailOff.add(panel.off);
      const words = text.tokens.map((t, i) => h("button.word", { type: "button", tabindex: i === state.query ? "0" : "-1", onclick: () => look(i),
        onpointerenter: (event) => event.pointerType === "mouse" && look(i), onkeydown: (event) => arrow(event, i) }, token(t)));
      function arrow(event, i) {
        const to = { ArrowLeft: i - 1, ArrowRight: i + 1, Home: 0, End: n - 1 }[event.key];
        if (to === undefined || to < 0 || to >= n) return;
        event.preventDefault();
        look(to);
        words[to].focus();
      }
      function tell(q, k) {
        const p = values[q * n + k];
        readout.textContent = Number.isNaN(p) ? `${token(text.tokens[q])} (${q}) may not see ${token(text.tokens[k])} (${k}): it is in the future`
          : `${token(text.tokens[q])} (${q}) gives ${fixed(p, 2)} of its attention to ${token(text.tokens[k])} (${k})`;
      }
      function look(i) {
        state.query = i;
        const reads = state.way === "reads";
        words.forEach((word, j) => {
          const p = reads ? values[i * n + j] : values[j * n + i];
          const at = Number.isNaN(p) ? 0 : scale.position(p);
          word.style.background = at > 0.02 ? colours.sequential(at) : "transparent";
          word.style.color = at > 0.55 ? colours.paper : colours.ink;
          word.classList.toggle("future", Number.isNaN(p));
          word.classList.toggle("on", j === i);
          word.tabIndex = j === i ? 0 : -1;
          word.title = Number.isNaN(p) ? "" : fixed(p, 2);
        });
        panel.point(...(reads ? [i, Math.min(i, n - 1)] : [i, i]));
        const row = [...Array(n).keys()].map((j) => [j, reads ? values[i * n + j] : values[j * n + i]]).filter(([, p]) => p > 0.005).sort((a, b) => b[1] - a[1]).slice(0, 3);
        readout.textContent = reads ? `${token(text.tokens[i])} (${i}) reads ${row.map(([j, p]) => `${token(text.tokens[j])} (${j}) ${fixed(p)}`).join(", ")}`
          : `${token(text.tokens[i])} (${i}) is read by ${row.map(([j, p]) => `${token(text.tokens[j])} (${j}) ${fixed(p)}`).join(", ") || "no one"}`;
      }
      large.append(h("h3", null, h("code", null, `L${state.layer}.H${state.head}`), " token by token",
        h("button.quiet", { type: "button", onclick: () => savePng(panel.canvas, `L${state.layer}.H${state.head}.pattern`) }, "PNG")),
      h("div.head-detail", null, h("div.panel", null, panel.el),
        h("div", null, choice("direction", [["reads", "what it reads"], ["read", "who reads it"]], state.way, (way) => ((state.way = way), look(state.query))),
          h("div.words", null, words), readout,
          about ? h("dl.numbers", null, about.shares.map((share) => h("div", null, h("dt", null, `on ${share.name}`), h("dd", null, percent(share.share), h("span.even", null, ` even: ${percent(share.even)}`)))),
            h("div", null, h("dt", null, "entropy"), h("dd", null, `${number(about.entropy_nats)} nats`, h("span.even", null, ` even: ${number(about.even_entropy_nats)}`)))) : null)));
      look(state.query);
    }
    const detailOff = together();
    parts.add(detailOff);
    parts.add(frame.off);
    detail();
  }
  off.add(parts);
  off.add(onTheme(draw));
  draw();
  return off;
}

export default { render };
