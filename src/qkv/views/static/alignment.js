// @ts-check
// One head of cross-attention, large: what is written down, the source across, hover both ways. A word of either side shades
// the other: where it is read from, or what it is read for.

import { add, h } from "./dom.js";
import { fixed } from "./format.js";
import { takeAway } from "./keep.js";
import { axis, margins } from "./margins.js";
import { raster } from "./raster.js";
import { numbers } from "./head.js";
import { headName, square, sumsOf } from "./reading.js";
import { theme } from "./theme.js";
import { isolated, leadingOf, namesOf, shade, word } from "./tokens.js";

// Arguments as those of head.js.
export function alignment(off, el, { text, at, state, note, scale }) {
  const [rows, columns] = [text.tokens.length, text.keys.length];
  const values = square(text, at, state.layer, state.head);
  const name = headName(text, state);
  const readout = h("p.readout", { "aria-live": "polite" });
  const called = (tokens, i) => `${isolated(namesOf(tokens)[i])} (${i})`;
  let shown = { side: "written", i: Math.min(state.query, rows - 1) };

  const panel = raster(off, { label: `${name}: attention, down what is written, across the source`, rows, columns, values, scale, style: `aspect-ratio:${columns} / ${rows}`,
    tell: (q, k) => {
      look("written", q, true);
      sides.source[k].classList.add("on");
      readout.textContent = `while writing ${called(text.tokens, q)}, ${fixed(values[q * columns + k], 2)} of the attention is on ${called(text.keys, k)}`;
    },
    leave: () => look(shown.side, shown.i) });

  const strip = (side, tokens) => namesOf(tokens).map((name, i) => word(name, i, tokens.length, { look: (to, passing) => look(side, to, passing), at: (to) => sides[side][to],
    leave: () => look(shown.side, shown.i) }));
  const sides = { written: strip("written", text.tokens), source: strip("source", text.keys) };
  // Shade the other side by token i of `side`; `passing` leaves alone what was chosen.
  function look(side, i, passing = false) {
    if (!passing) {
      shown = { side, i };
      if (side === "written") state.query = i;
    }
    const colours = theme(el);
    const other = side === "written" ? "source" : "written";
    const row = Float32Array.from(sides[other], (_, j) => (side === "written" ? values[i * columns + j] : values[j * columns + i]));
    sides[side].forEach((button, j) => {
      button.style.background = button.style.color = "";
      button.classList.toggle("on", j === i);
      if (!passing) button.tabIndex = j === i ? 0 : -1;
    });
    sides[other].forEach((button, j) => {
      shade(button, scale.position(row[j]), colours);
      button.classList.remove("on");
      if (!passing) button.tabIndex = j ? -1 : 0;
    });
    const told = leadingOf(row, { say: (j) => `${called(other === "source" ? text.keys : text.tokens, j)} ${fixed(row[j])}` });
    readout.textContent = side === "written" ? `while writing ${called(text.tokens, i)} it reads ${told}` : `${called(text.keys, i)} is read while writing ${told || "nothing"}`;
  }

  const [down, across] = [axis("down"), axis("across")];
  down.show(namesOf(text.tokens));
  across.show(namesOf(text.keys));
  const around = h("div.margins");
  margins(around, off, { sums: sumsOf(text, at, state), key: (i) => called(text.keys, i), query: (i) => `while writing ${called(text.tokens, i)}`,
    seenBy: () => rows, sees: () => columns, say: (words) => (readout.textContent = words), rest: () => look(shown.side, shown.i) });
  add(el, [h("h3", null, h("code", null, name), " token by token", takeAway(() => el, () => `${name}.pattern`)),
    h("div.head-detail", null, h("div.panel", null, h("div.with-axes", null, across.el, down.el, panel.el), around),
      h("div", null, h("p.strip-title", null, "what is written"), h("div.words", { "data-side": "written" }, sides.written),
        h("p.strip-title", null, "the source"), h("div.words", { "data-side": "source" }, sides.source), readout, note ? numbers(note) : null))]);
  look(shown.side, shown.i);
}
