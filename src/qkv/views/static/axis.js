// @ts-check
// The tokens along a side of a picture: as many names as have room, at the middle of their rows or columns.

import { add, clear, s } from "./dom.js";

const ROOM = 26; // names along a side
const LONGEST = 9; // letters of one

/** @param {"down" | "across"} way */
export function axis(way) {
  const el = s("svg", { class: `axis ${way}`, "aria-hidden": "true" });
  const one = (name, place) => (way === "down" ? s("text", { x: "100%", y: place, dx: -4, dy: "0.35em", "text-anchor": "end" }, name)
    : s("svg", { x: place, y: "100%", overflow: "visible" }, s("text", { transform: "rotate(-60)", dx: 4, dy: "0.3em" }, name)));
  return {
    el,
    /** @param {string[]} names  of all rows or columns */
    show(names) {
      const every = Math.ceil(names.length / ROOM);
      const short = (name) => (name.length > LONGEST ? `${name.slice(0, LONGEST - 1)}…` : name);
      add(clear(el), names.map((name, i) => (i % every ? null : one(short(name), `${(100 * (i + 0.5)) / names.length}%`))));
    },
  };
}
