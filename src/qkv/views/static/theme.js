// Colours, read from the style sheet so that light and dark have one home. One colour per matrix role everywhere; one
// diverging map with a symmetric range for signed values; one sequential map for magnitudes and probabilities.

import { d3 } from "./vendor.js";

export const ROLES = ["E", "Q", "K", "V", "O", "MLP", "norm"];

export const ROLE_NAMES = {
  E: "tables in and out", Q: "queries", K: "keys", V: "values", O: "output of attention", MLP: "MLP", norm: "gains and biases",
};

const dark = () => matchMedia("(prefers-color-scheme: dark)");

const made = new Map();

// The colours where `el` stands; the same object as long as they stay the same.
export function theme(el) {
  const style = getComputedStyle(el.isConnected ? el : document.documentElement);
  const read = (name) => style.getPropertyValue(`--${name}`).trim();
  const key = ["paper", "ink", "sequential", "diverging"].map(read).join("|");
  if (!made.has(key)) made.set(key, colours(read));
  return made.get(key);
}

function colours(read) {
  const stops = (name) => read(name).split(/\s+/);
  const map = (name) => d3.piecewise(d3.interpolateLab, stops(name));
  return {
    ink: read("ink"), soft: read("ink-soft"), faint: read("ink-faint"), line: read("line"), paper: read("paper"),
    panel: read("panel"), accent: read("accent"), mute: read("mute"), font: read("sans"),
    role: Object.fromEntries(ROLES.map((role) => [role, read(`role-${role}`)])),
    sequential: map("sequential"), diverging: map("diverging"),
  };
}

// Call `redraw` when the reader's light or dark setting changes.
export function onTheme(redraw) {
  const query = dark();
  query.addEventListener("change", redraw);
  return () => query.removeEventListener("change", redraw);
}

// 256 colours of an interpolator as RGB bytes, for rasters; made once for each.
const tables = new WeakMap();

export function table(interpolate) {
  if (tables.has(interpolate)) return tables.get(interpolate);
  const colours = new Uint8ClampedArray(256 * 3);
  for (let i = 0; i < 256; i++) {
    const { r, g, b } = d3.rgb(interpolate(i / 255));
    colours.set([r, g, b], i * 3);
  }
  tables.set(interpolate, colours);
  return colours;
}
