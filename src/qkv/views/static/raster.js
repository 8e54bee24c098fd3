// @ts-check
// A grid of numbers as a canvas with one pixel a cell, stretched by the style sheet: never a DOM node per cell.
// Pointer and arrow keys walk over the cells; `tell(row, column)` is called for the cell under them, `pick` on click or Enter.

import { h } from "./dom.js";
import { number } from "./format.js";
import { takeAway } from "./keep.js";
import { bar, lookUp } from "./scale.js";
import { theme, onTheme } from "./theme.js";

/** @import { Off } from "./dom.js" */
/** @import { Scale } from "./scale.js" */
/** @import { Colours } from "./theme.js" */

export function paint(canvas, values, rows, columns, scale, colours) {
  canvas.width = columns;
  canvas.height = rows;
  const context = canvas.getContext("2d");
  const image = context.createImageData(columns, rows);
  const map = lookUp(scale, colours);
  for (let i = 0; i < rows * columns; i++) {
    const value = values[i];
    if (!(value === value)) continue; // NaN stays transparent: not recorded is not zero
    const at = 4 * Math.max(0, Math.min(255, Math.round(scale.position(value) * 255)));
    image.data.set(map.subarray(at, at + 4), i * 4);
  }
  context.putImageData(image, 0, 0);
}

/**
 * `tell`, `pick` and `leave` are called with the cell that the pointer or the cursor is at; `style` is that of the element.
 * @typedef {object} Raster
 * @property {string} label
 * @property {number} rows
 * @property {number} columns
 * @property {ArrayLike<number>} values
 * @property {Scale} scale
 * @property {string} [style]
 * @property {(colours: Colours) => Colours} [tint]  other colours than the page's
 * @property {(row: number, column: number) => void} [tell]
 * @property {(row: number, column: number) => void} [pick]
 * @property {() => void} [leave]
 */

/** It is drawn until `off`, with what it is a part of. @param {Off} off @param {Raster} options */
export function raster(off, options) {
  let now = { ...options };
  const canvas = h("canvas", { "aria-hidden": "true" });
  const cursor = h("span.cursor", { hidden: true });
  const el = h("div.raster", options.style ? { style: options.style } : null, canvas, cursor);
  if (now.tell) {
    el.tabIndex = 0;
    el.setAttribute("role", "application");
    el.setAttribute("aria-roledescription", "heat map, arrow keys move");
  } else {
    el.setAttribute("role", "img");
  }
  el.setAttribute("aria-label", now.label);
  /** @type {[number, number] | null} */
  let at = null;

  function draw() {
    el.dataset.cells = `${now.rows}x${now.columns}`;
    const colours = theme(el);
    paint(canvas, now.values, now.rows, now.columns, now.scale, now.tint ? now.tint(colours) : colours);
  }
  function point(row, column) {
    at = row === null ? null : [row, column];
    cursor.hidden = at === null;
    if (at) {
      cursor.style.cssText = `left:${(column / now.columns) * 100}%;top:${(row / now.rows) * 100}%;` +
        `width:${100 / now.columns}%;height:${100 / now.rows}%`;
    }
  }
  /** @returns {[number, number]} */
  function cell(event) {
    const box = canvas.getBoundingClientRect();
    const clamp = (share, n) => Math.max(0, Math.min(n - 1, Math.floor(share * n)));
    return [clamp((event.clientY - box.top) / box.height, now.rows), clamp((event.clientX - box.left) / box.width, now.columns)];
  }
  function move(row, column) {
    point(row, column);
    now.tell(row, column);
  }
  if (now.tell) {
    el.addEventListener("pointermove", (event) => move(...cell(event)));
    for (const end of ["pointerleave", "blur"]) el.addEventListener(end, () => (point(null), now.leave?.()));
    el.addEventListener("click", (event) => (move(...cell(event)), now.pick?.(...at)));
    el.addEventListener("keydown", (event) => {
      const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
      if (step) {
        const [row, column] = at ? [at[0] + step[0], at[1] + step[1]] : [0, 0];
        move(Math.max(0, Math.min(now.rows - 1, row)), Math.max(0, Math.min(now.columns - 1, column)));
        event.preventDefault();
      } else if (event.key === "Enter" && at && now.pick) {
        now.pick(...at);
      }
    });
  }
  off.add(onTheme(draw));
  draw();
  return {
    el, canvas, point,
    update(changed) {
      now = { ...now, ...changed };
      if (changed.label) el.setAttribute("aria-label", changed.label);
      draw();
    },
  };
}

/**
 * Rasters of equal shape side by side on one readout, which says `rest` where the pointer is at no cell: `parts` are
 * [name, values, scale]. Each stands under its name, its colour bar below it, with a way to take all of it away; `overlay` is the
 * style of what stands over it. They are of `address`, and `cellName(row, column)` of a cell of it.
 * @param {Off} off @param {{ address: string, rows: number, columns: number, parts: any[][], colours: Colours, words: string, rest: string,
 *   cellName: (row: number, column: number) => string, digits?: number, overlay?: string | null }} options
 */
export function panels(off, { address, rows, columns, parts, colours, words, rest, cellName, digits = 3, overlay = null }) {
  const readout = h("p.readout", { "aria-live": "polite" }, rest);
  const style = `aspect-ratio:${Math.min(6, Math.max(0.75, columns / rows))}`;
  const panel = ([name, values, scale]) => {
    const { el } = raster(off, { label: `${address}, ${name}`, rows, columns, values, scale, style, leave: () => (readout.textContent = rest),
      tell: (row, column) => (readout.textContent = `${cellName(row, column)}: ` + parts.map(([n, v]) => `${n} ${number(v[row * columns + column], digits)}`).join(", ")) });
    if (overlay) el.append(h("span.overlay", { style: overlay }));
    const whole = h("div.panel", null, h("p.small", null, h("span", null, name), takeAway(() => whole, `${address}-${name}`)), el, bar(scale, colours, words));
    return whole;
  };
  return [h("div.panels", null, parts.map(panel)), readout];
}
