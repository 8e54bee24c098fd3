// @ts-check
// All rows of W_E in the plane of their two largest directions: zoom, search, and colors by frequency or kind of token.

import { d3 } from "./vendor.js";
import { h, newId, perFrame } from "./dom.js";
import { percent, plural, token, whole } from "./format.js";
import { stepIndex, unpack } from "./decode.js";
import { chart } from "./figure.js";
import { bar, logarithmic } from "./scale.js";
import { theme } from "./theme.js";
import { controls } from "./view.js";

/** @import { Place } from "./view.js" */

const LABELLED = 60;
const NEAR = 14; // pixels from which a point is meant
const EDGE = 18;
const REST = "Point at a dot for its token. Drag to move; zoom with the buttons, + and −, or Ctrl and the wheel.";
const KINDS = [
  { words: "word", form: /^\s*\p{L}{2,}$/u, role: "Q" }, { words: "letter", form: /^\s*\p{L}$/u, role: "V" }, { words: "number", form: /^\s*\p{N}+$/u, role: "E" },
  { words: "mark or space", form: /^[\s\p{P}\p{S}]*$/u, role: "K" }, { words: "other", form: /^/, role: "O" },
];

// The points of a step in pixels, under a zoom.
function placing(places, size, n) {
  const xs = d3.extent(places.values.filter((_, i) => i % 2 === 0));
  const ys = d3.extent(places.values.filter((_, i) => i % 2 === 1));
  const [x, y] = [d3.scaleLinear(xs, [EDGE, size.width - EDGE]), d3.scaleLinear(ys, [size.height - EDGE, EDGE])];
  return (at, zoom) => {
    const out = new Float32Array(2 * n);
    const part = places.part(at);
    for (let i = 0; i < n; i++) [out[2 * i], out[2 * i + 1]] = zoom.apply([x(part[2 * i]), y(part[2 * i + 1])]);
    return out;
  };
}

/** @param {Place} place @param {any} section @param {{ token: number }} state */
export function plane({ model, off, figure, recolour, el }, section, state) {
  const { tokens, counts, steps, shares, specials, places: packed } = section.plane;
  const [places, n, special] = [unpack(packed), tokens.length, new Set(specials)];
  const kind = tokens.map((text, i) => (special.has(i) ? 4 : KINDS.findIndex(({ form }) => form.test(text))));
  const order = counts ? d3.range(n).sort((a, b) => counts[b] - counts[a]) : d3.range(n);
  const ui = { by: counts ? "frequency" : "kind" };
  let [found, zoom, points, size, place] = [/** @type {number[]} */ ([]), d3.zoomIdentity, new Float32Array(0), { width: 0, height: 0 }, null];
  const title = h("span");
  const frame = figure({ title, caption: `${n === 1 ? "The row" : `All ${whole(n)} rows`} of W_E, each on the two directions of their largest variance at the last step (${percent(shares[0])} and ${percent(shares[1])} of all their variance there); the same directions at every step. What lies close here may lie far apart in the other directions.` });
  const [canvas, readout, legend, count] = [h("canvas", { tabindex: "0", role: "img" }), h("p.readout", { "aria-live": "polite" }, REST), h("div"), h("span.small", { role: "status" })];
  const context = canvas.getContext("2d");
  const scale = counts && logarithmic(1, Math.max(2, d3.max(counts)));
  const name = (i) => `${token(tokens[i])}${counts ? `, met ${counts[i] === 1 ? "once" : `${whole(counts[i])} times`}` : ""}`;
  const visible = (i) => points[2 * i] > 0 && points[2 * i] < size.width && points[2 * i + 1] > 0 && points[2 * i + 1] < size.height;

  function dots(colours) {
    const paint = ui.by === "kind" ? (i) => colours.role[KINDS[kind[i]].role] : (i) => (counts[i] ? colours.sequential(0.25 + 0.75 * scale.position(counts[i])) : colours.mute);
    const radius = n > 3000 && zoom.k < 3 ? 1.3 : 2.4;
    context.globalAlpha = found.length ? 0.35 : 0.8;
    for (const i of [...order].reverse()) { // the frequent ones on top
      if (!visible(i)) continue;
      context.fillStyle = paint(i);
      context.beginPath();
      context.arc(points[2 * i], points[2 * i + 1], radius, 0, 2 * Math.PI);
      context.fill();
    }
    context.globalAlpha = 1;
  }

  // Labels that cover no other, those of the chosen and the found ones first.
  function labels(colours, chosen) {
    const kept = [];
    const marked = new Set([chosen, ...found]);
    for (const i of [...marked, ...(found.length ? [] : order)].filter((one) => one >= 0 && visible(one))) {
      const own = marked.has(i);
      context.font = `${own ? "700 13px" : "11px"} ${colours.font}`;
      const half = context.measureText(token(tokens[i])).width / 2 + 2;
      const [x, y] = [Math.max(half, Math.min(size.width - half, points[2 * i])), Math.max(14, points[2 * i + 1] - 7)];
      if (own) {
        context.strokeStyle = colours.accent;
        context.lineWidth = 2;
        context.beginPath();
        context.arc(points[2 * i], points[2 * i + 1], 6, 0, 2 * Math.PI);
        context.stroke();
      }
      if (kept.some(([a, b, w]) => Math.abs(a - x) < w + half && Math.abs(b - y) < 14)) continue;
      kept.push([x, y, half]);
      context.fillStyle = own ? colours.accent : colours.soft;
      context.textAlign = "center";
      context.fillText(token(tokens[i]), x, y);
      if (kept.length === LABELLED) return;
    }
  }

  function draw() {
    if (!place) return;
    const at = stepIndex(steps, model.get("step"));
    const colours = theme(el);
    title.textContent = `The rows of W_E at step ${whole(steps[at])}`;
    canvas.setAttribute("aria-label", `map of ${plural(n, "token")} at step ${whole(steps[at])}; + and - zoom, arrows move, 0 shows all`);
    points = place(at, zoom);
    context.setTransform(devicePixelRatio, 0, 0, devicePixelRatio, 0, 0);
    context.clearRect(0, 0, size.width, size.height);
    dots(colours);
    labels(colours, section.token_ids[state.token]);
    legend.replaceChildren(ui.by === "kind" ? h("p.small", null, KINDS.map(({ words, role }) => [h("span.swatch", { style: `background:${colours.role[role]}` }), ` ${words}  `])) : bar({ ...scale, ticks: scale.ends, position: (v) => 0.25 + 0.75 * scale.position(v) }, colours, "how often it is met in training"));
  }
  const soon = perFrame(draw);

  const zooming = d3.zoom().scaleExtent([1, 60]).filter((event) => (event.type === "wheel" ? event.ctrlKey || event.metaKey : !event.button && (event.type !== "touchstart" || zoom.k > 1)))
    .on("zoom", ({ transform }) => ((zoom = transform), soon()));
  const picture = d3.select(canvas).call(zooming).style("touch-action", "pan-y");
  const by = (factor) => picture.call(zooming.scaleBy, factor);
  const move = (x, y) => picture.call(zooming.translateBy, x / zoom.k, y / zoom.k);
  const toWhole = () => picture.call(zooming.transform, d3.zoomIdentity);
  const keys = { "+": () => by(1.5), "=": () => by(1.5), "-": () => by(1 / 1.5), 0: toWhole, ArrowLeft: () => move(60, 0), ArrowRight: () => move(-60, 0), ArrowUp: () => move(0, 60), ArrowDown: () => move(0, -60) };
  canvas.addEventListener("keydown", (event) => {
    if (!keys[event.key] || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    keys[event.key]();
  });
  canvas.addEventListener("pointermove", (event) => {
    const [x, y] = d3.pointer(event, canvas);
    const nearest = d3.least(d3.range(n), (i) => (points[2 * i] - x) ** 2 + (points[2 * i + 1] - y) ** 2);
    readout.textContent = Math.hypot(points[2 * nearest] - x, points[2 * nearest + 1] - y) < NEAR ? name(nearest) : REST;
  });

  const id = newId("find");
  const search = h("input", { type: "text", id, spellcheck: "false", oninput: () => {
    const asked = search.value;
    found = asked ? order.filter((i) => tokens[i].includes(asked)) : [];
    count.textContent = asked ? plural(found.length, "token") : "";
    if (found.length) readout.textContent = found.slice(0, 3).map(name).join("; ");
    soon();
  } });
  const button = (label, words, run) => h("button", { type: "button", "aria-label": label, onclick: run }, words);
  const choices = controls(ui, () => [counts ? { key: "by", label: "color by", options: [["frequency", "color by frequency"], ["kind", "by kind"]] } : null], soon).el;
  frame.body.before(h("div.list-controls", null, choices, h("div.choice", { role: "group", "aria-label": "zoom" }, button("zoom in", "+", () => by(1.5)), button("zoom out", "−", () => by(1 / 1.5)), button("show all", "all", toWhole)),
    h("label.small", { for: id }, "Find tokens ", search), count));
  chart(frame, (width) => {
    size = { width, height: Math.max(260, Math.min(440, Math.round(width * 0.62))) };
    Object.assign(canvas, { width: width * devicePixelRatio, height: size.height * devicePixelRatio });
    canvas.style.cssText += `;width:${width}px;height:${size.height}px`;
    zooming.extent([[0, 0], [width, size.height]]).translateExtent([[0, 0], [width, size.height]]);
    place = placing(places, size, n);
    draw();
    return canvas;
  });
  frame.body.append(legend, readout);
  recolour(draw);
  off.add(() => picture.on(".zoom", null));
  return draw;
}
