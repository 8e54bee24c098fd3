// @ts-check
// What stands along the sides of a pattern: its tokens; and the sums over it, what each key receives in all and the entropy of
// each query's row.

import { add, clear, s } from "./dom.js";
import { number } from "./format.js";
import { raster } from "./raster.js";
import { bar, linear } from "./scale.js";
import { theme } from "./theme.js";

const ROOM = 26; // names along a side
const LONGEST = 9; // letters of one

/** The tokens along a side: as many names as have room, at the middle of their rows or columns. @param {"down" | "across"} way */
export function axis(way) {
  const el = s("svg", { class: `axis ${way}`, "aria-hidden": "true" });
  const one = (name, place) => (way === "down" ? s("text", { x: "100%", y: place, dx: -4, dy: "0.35em", "text-anchor": "end" }, name)
    : s("svg", { x: place, y: "100%", overflow: "visible" }, s("text", { transform: "rotate(-60)", dx: 4, dy: "0.3em" }, name)));
  return {
    el,
    /** @param {string[]} names  of all rows or columns */
    show(names) {
      const every = Math.ceil(names.length / ROOM);
      const short = (name) => (name.length > LONGEST ? `${[...name].slice(0, LONGEST - 1).join("")}…` : name);
      add(clear(el), names.map((name, i) => (i % every ? null : one(short(name), `${(100 * (i + 0.5)) / names.length}%`))));
    },
  };
}

// sums: { received, entropy, rounded }; `key(i)` and `query(i)` name a token, `seenBy(i)` and `sees(i)` count what the mask leaves;
// `say` is told in words, `rest` when the pointer leaves. Fills `el`.
export function margins(el, off, { sums, key, query, seenBy, sees, say, rest }) {
  const strip = (label, words, array, top, told) => {
    const part = raster(off, { label, rows: 1, columns: array.length, values: array, scale: linear(top), tell: (_, i) => say(told(i)), leave: rest });
    return [part.el, bar(linear(top), theme(el), words)];
  };
  const { received, entropy } = sums;
  const roughly = sums.rounded ? ", added up from shares of two digits" : "";
  const most = Math.max(2, ...Array.from(entropy, (_, i) => sees(i)));
  add(clear(el), [strip("attention received, by key", `attention that each token receives in all${roughly}`, received, Math.max(...received), (i) => `${key(i)} receives ${number(received[i])} in all, from ${seenBy(i)} tokens that may see it`),
    strip("entropy of each row, by query", `entropy of each token's row, nats${roughly}`, entropy, Math.log(most), (i) => `${query(i)}: entropy ${number(entropy[i])} nats; even attention would have ${number(Math.log(sees(i)))}`)]);
}
