// @ts-check
// Colours, read from the style sheet so that light and dark have one home. One colour per matrix role everywhere; one
// diverging map with a symmetric range for signed values; one sequential map for magnitudes and probabilities.

import { d3 } from "./vendor.js";
import { remembered } from "./dom.js";

export const ROLES = ["E", "Q", "K", "V", "O", "MLP", "norm"];

const made = new Map();

// Where colours are read for what is not in the page yet: the page itself, or inside another page the place of the view.
let home = document.documentElement;
export const liveIn = (el) => (home = el);

/**
 * The colours where `el` stands; the same object as long as they stay the same.
 * @param {Element} el @returns {Colours}
 */
export function theme(el) {
  const style = getComputedStyle(el.isConnected ? el : home);
  const read = (name) => style.getPropertyValue(`--${name}`).trim();
  const key = ["paper", "ink", "sequential", "diverging"].map(read).join("|");
  if (!made.has(key)) made.set(key, colours(read));
  return made.get(key);
}

/**
 * Colours as CSS writes them; `role` by role of a matrix; the maps from 0 to 1, and what can be read `on` the sequential one.
 * @typedef {{ ink: string, soft: string, faint: string, line: string, paper: string, panel: string, accent: string, mute: string,
 *   font: string, role: Record<string, string>, sequential: (position: number) => string, diverging: (position: number) => string,
 *   on: (position: number) => string }} Colours
 */

// Black is read on what is lighter than LIGHT, white on the rest: at 4.5 : 1 at least, even on the middle of a map, where anything
// softer than these two is less than text needs (WCAG 2.1, 1.4.3).
const LIGHT = 49.4; // of CIELAB, where both stand out as much

/** @returns {Colours} */
function colours(read) {
  const stops = (name) => read(name).split(/\s+/);
  const [sequential, diverging] = ["sequential", "diverging"].map((name) => d3.piecewise(d3.interpolateLab, stops(name)));
  return {
    ink: read("ink"), soft: read("ink-soft"), faint: read("ink-faint"), line: read("line"), paper: read("paper"),
    panel: read("panel"), accent: read("accent"), mute: read("mute"), font: read("sans"),
    role: Object.fromEntries(ROLES.map((role) => [role, read(`role-${role}`)])),
    sequential, diverging, on: (position) => (d3.lab(sequential(Math.min(1, position))).l > LIGHT ? "#000000" : "#ffffff"),
  };
}

// Call `redraw` when the reader's light or dark setting changes.
export function onTheme(redraw) {
  const query = matchMedia("(prefers-color-scheme: dark)");
  query.addEventListener("change", redraw);
  return () => query.removeEventListener("change", redraw);
}

// 256 colours of an interpolator as RGBA bytes, for rasters; made once for each.
export const table = remembered((interpolate) => {
  const colours = new Uint8ClampedArray(256 * 4);
  for (let i = 0; i < 256; i++) {
    const { r, g, b, opacity } = d3.rgb(interpolate(i / 255));
    colours.set([r, g, b, 255 * opacity], i * 4);
  }
  return colours;
});
