// @ts-check
// One head on an image: the picture, and beside it the picture again, shaded by what a patch (or what the answer is read from)
// attends to, who attends to it, or what every patch receives.

import { d3 } from "./vendor.js";
import { add, h, remembered } from "./dom.js";
import { fixed, number } from "./format.js";
import { unpack } from "./decode.js";
import { takeAway } from "./keep.js";
import { raster } from "./raster.js";
import { bar, squareRoot } from "./scale.js";
import { theme } from "./theme.js";
import { numbers } from "./head.js";
import { controls } from "./view.js";
import { headName, square, sumsOf } from "./reading.js";

// What a head does for the answer, by patch [row * column]: the class token's row, or the mean row of all patches.
export function pooledRow(text, values) {
  const { before, pooled } = text.picture;
  const n = text.tokens.length;
  if (pooled === "class") return values.slice(before, n);
  const mean = new Float32Array(n - before);
  for (let q = 0; q < n; q++) for (let k = before; k < n; k++) mean[k - before] += values[q * n + k] / n;
  return mean;
}

// The image itself on a canvas, a pixel of it a pixel.
export function photograph({ pixels }) {
  const [height, width, channels] = pixels.shape;
  const { values } = unpack(pixels);
  const canvas = h("canvas", { width, height, role: "img", "aria-label": "the image" });
  const image = canvas.getContext("2d").createImageData(width, height);
  for (let i = 0; i < width * height; i++) for (let c = 0; c < 4; c++) image.data[4 * i + c] = c === 3 ? 255 : values[i * channels + (channels > 1 ? c : 0)];
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

// Colours that let a picture through: none where nothing attends, and the more of one colour the more attention.
export const veil = remembered((colours) => {
  const { r, g, b } = d3.rgb(colours.diverging(0.85));
  return { ...colours, sequential: (position) => `rgba(${r}, ${g}, ${b}, ${0.85 * Math.max(0, Math.min(1, position))})` };
});

// The image with `layer` over its patches.
export function under(picture, layer) {
  const [left, top, right, bottom] = picture.frame;
  const [height, width] = picture.pixels.shape;
  layer.classList.add("over");
  layer.style.cssText = `left:${100 * left}%;top:${100 * top}%;width:${100 * (right - left)}%;height:${100 * (bottom - top)}%;aspect-ratio:auto`;
  return h("div.photograph", { style: `aspect-ratio:${width} / ${height}` }, photograph(picture), layer);
}

// Arguments as those of head.js.
export function patches(off, el, { text, at, state: { layer, head }, note }) {
  const { picture } = text;
  const [rows, columns] = picture.grid;
  const n = text.tokens.length;
  const every = square(text, at, layer, head);
  const received = sumsOf(text, at, { layer, head }).received.subarray(picture.before);
  const name = headName(text, { layer, head });
  const readout = h("p.readout", { "aria-live": "polite" });
  const whose = picture.pooled === "class" ? "the class token" : "the mean over patches";
  const called = (patch) => (patch === null ? whose : `patch ${Math.floor(patch / columns)},${patch % columns}`);
  let query = null; // what gives the answer
  const state = { way: "reads" };
  const asking = () => (query !== null ? query + picture.before : picture.pooled === "class" ? 0 : null);
  const shares = () => {
    const q = asking();
    if (state.way === "reads") return q === null ? pooledRow(text, every) : every.slice(q * n + picture.before, (q + 1) * n);
    if (state.way === "received" || q === null) return received;
    return Float32Array.from({ length: rows * columns }, (_, i) => every[(i + picture.before) * n + q]);
  };
  const say = (i) => {
    const share = shares()[i];
    readout.textContent = state.way === "received" || (state.way === "read" && asking() === null) ? `${called(i)} receives ${number(share)} in all, from ${n} positions`
      : state.way === "reads" ? `${called(query)} gives ${fixed(share)} of its attention to ${called(i)}` : `${called(i)} gives ${fixed(share)} of its attention to ${called(query)}`;
  };
  const scaled = (values) => squareRoot(Math.max(...values) || 1);
  const heat = raster(off, { label: `${name}: attention by patch`, rows, columns, tint: veil, values: shares(), scale: scaled(shares()), tell: (r, c) => say(r * columns + c), leave: () => rest() });
  const over = raster(off, { label: "the image; a patch of it asks", rows, columns, values: new Float32Array(rows * columns).fill(NaN), scale: squareRoot(1), tell: (r, c) => choose(r * columns + c) });
  const scaleBar = h("div");
  function draw() {
    const values = shares();
    heat.update({ values, scale: scaled(values) });
    scaleBar.replaceChildren(bar(scaled(values), veil(theme(el)), state.way === "received" ? "attention received" : "attention"));
    whole.classList.toggle("on", query === null);
    whole.setAttribute("aria-pressed", String(query === null));
    rest();
  }
  function rest() {
    const values = shares();
    const most = [...values.keys()].sort((a, b) => values[b] - values[a]).slice(0, 3).map((i) => `${called(i)} ${fixed(values[i])}`).join(", ");
    readout.textContent = state.way === "reads" ? `${called(query)} reads ${most}` : state.way === "read" && asking() !== null ? `${called(query)} is read by ${most}` : `most is received by ${most}`;
  }
  function choose(patch) {
    query = patch;
    if (patch === null) over.point(null);
    draw();
  }
  const whole = h("button.chip", { type: "button", "aria-pressed": "true", onclick: () => choose(null) }, whose);
  const choices = controls(state, () => [{ key: "way", label: "direction", options: [["reads", "what it reads"], ["read", "who reads it"], ["received", "received in all"]] }], draw).el;
  choices.prepend(whole);
  add(el, [h("h3", null, h("code", null, name), ` patch by patch`, takeAway(() => el, () => `${name}.pattern`)),
    choices,
    h("div.patches", null, h("div.panel", null, h("p.small", null, "point at a patch: it asks"), under(picture, over.el)),
      h("div.panel", null, h("p.small", null, "attention over the picture"), under(picture, heat.el), scaleBar), h("div", null, readout, note ? numbers(note) : null))]);
  draw();
}
