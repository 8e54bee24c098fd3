// @ts-check
// From a value to a colour: linear from 0, logarithmic, or square root for probabilities; always with a bar of numbers.

import { d3 } from "./vendor.js";
import { h } from "./dom.js";
import { number } from "./format.js";
import { table } from "./theme.js";

/** @import { Colours } from "./theme.js" */

/**
 * `position` is where on the colours a value lies, 0 to 1; `clipped` says that some lie beyond the ends.
 * @typedef {{ diverging: boolean, clipped?: boolean, ticks: number[], ends: number[], position: (value: number) => number }} Scale
 */

// From 0 to `top`, or from -top to top; `clipped` says that some values lie beyond the end and share its colour.
/** @returns {Scale} */
export function linear(top, diverging = false, clipped = false) {
  const hi = top || 1;
  return {
    diverging, clipped, ticks: diverging ? [-hi, 0, hi] : [0, hi / 2, hi], ends: [diverging ? -hi : 0, hi],
    position: (v) => (diverging ? (v / hi + 1) / 2 : v / hi),
  };
}

/** @param {number} lo @param {number} hi @returns {Scale} */
export function logarithmic(lo, hi) {
  const [a, b] = [Math.log10(lo), Math.log10(hi)];
  const ticks = [];
  for (let e = Math.ceil(a - 1e-9); e <= b + 1e-9; e++) ticks.push(10 ** e);
  while (ticks.length > 5) ticks.splice(0, ticks.length, ...ticks.filter((_, i) => i % 2 === 0));
  return {
    diverging: false, ticks: ticks.length > 1 ? ticks : [lo, hi], ends: [lo, hi],
    position: (v) => (v > 0 ? (Math.log10(v) - a) / (b - a || 1) : 0),
  };
}

// Linear up to where all but one value in a hundred lie, so that a few large ones do not empty the picture.
// `parts` are one or more arrays of finite numbers.
/** @param {any[]} parts @param {boolean} [diverging] */
export function robust(parts, diverging = false) {
  const n = parts.reduce((sum, part) => sum + part.length, 0);
  const every = Math.ceil(n / 8192); // enough of them to place the end of a scale
  const sizes = [];
  let top = 0;
  let i = 0;
  for (const part of parts) {
    for (const value of part) {
      const size = Math.abs(value);
      if (size > top) top = size;
      if (i++ % every === 0) sizes.push(size);
    }
  }
  sizes.sort((a, b) => a - b);
  const most = sizes[Math.floor(0.99 * (sizes.length - 1))];
  return most > 0 && top > 1.5 * most ? linear(most, diverging, true) : linear(top, diverging);
}

// A square root from 0: keeps small values visible without hiding differences among the large.
/** @param {number} top @param {number[]} [marked]  where its ticks are, as shares of `top` @returns {Scale} */
export function root(top, marked = [0, 0.25, 1]) {
  const hi = top || 1;
  return { diverging: false, ticks: marked.map((share) => share * hi), ends: [0, hi], position: (v) => Math.sqrt(Math.max(0, v) / hi) };
}

// The same of shares, most of which are small.
export const squareRoot = (top = 1) => root(top, [0, 0.05, 0.25, 1]);

// Signed where any value is below 0; else logarithmic where they span more than a factor of 50, or linear from 0.
export function suited(values) {
  const [least, hi] = d3.extent(values);
  if (least < 0) return robust([values], true);
  if (!(hi > 0)) return linear(1);
  const lo = d3.min(values, (v) => (v > 0 ? v : undefined));
  return hi / lo > 50 ? logarithmic(Math.max(lo, hi / 1e5), hi) : linear(hi);
}

export function lookUp(scale, colours) {
  return table(scale.diverging ? colours.diverging : colours.sequential);
}

/** A colour bar with its numbers. @param {Scale} scale @param {Colours} colours @param {string} label */
export function bar(scale, colours, label) {
  const map = scale.diverging ? colours.diverging : colours.sequential;
  const stops = Array.from({ length: 9 }, (_, i) => map(i / 8));
  const words = (tick) => `${scale.clipped && tick === scale.ends[1] ? "≥ " : scale.clipped && scale.diverging && tick === scale.ends[0] ? "≤ " : ""}${number(tick, 2)}`;
  const room = label ? 27 : 16; // characters: a bar without a label stands under a small picture
  const ticks = scale.ticks.map(words).join(" ").length <= room ? scale.ticks : [scale.ticks[0], scale.ticks.at(-1)];
  return h("div.bar", { role: "img", "aria-label": `colour scale: ${label}, from ${number(scale.ends[0])} to ${number(scale.ends[1])}` },
    h("span.bar-label", null, label),
    h("span.bar-scale", null,
      h("span.bar-strip", { "data-stops": stops.join("|"), style: `background:linear-gradient(90deg,${stops.join(",")})` }),
      h("span.bar-ticks", null, ticks.map((tick) =>
        h("span", { style: `left:${Math.min(1, Math.max(0, scale.position(tick))) * 100}%` }, words(tick))))));
}
