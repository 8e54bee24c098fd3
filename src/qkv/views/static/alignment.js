// One head of cross-attention, large: what is written down, the source across, hover both ways. A word of either side shades
// the other: where it is read from, or what it is read for.

import { add, h, together } from "./dom.js";
import { fixed, token } from "./format.js";
import { takeAway } from "./keep.js";
import { margins } from "./margins.js";
import { raster } from "./raster.js";
import { numbers } from "./head.js";
import { headName, square, sumsOf } from "./reading.js";
import { theme } from "./theme.js";

// options as those of head.js; gives how to stop.
export function alignment(el, { text, at, state, note, scale }) {
  const off = together();
  const [rows, columns] = [text.tokens.length, text.keys.length];
  const values = square(text, at, state.layer, state.head);
  const name = headName(text, state);
  const readout = h("p.readout", { "aria-live": "polite" });
  const called = (tokens, i) => `${token(tokens[i])} (${i})`;
  let shown = { side: "written", i: Math.min(state.query, rows - 1) };

  const panel = raster({ label: `${name}: attention, down what is written, across the source`, rows, columns, values, scale,
    tell: (q, k) => {
      look("written", q, true);
      sides.source[k].classList.add("on");
      readout.textContent = `while writing ${called(text.tokens, q)}, ${fixed(values[q * columns + k], 2)} of the attention is on ${called(text.keys, k)}`;
    },
    leave: () => look(shown.side, shown.i) });
  panel.el.style.aspectRatio = `${columns} / ${rows}`;
  off.add(panel.off);

  const strip = (side, tokens) => tokens.map((t, i) => h("button.word", { type: "button", tabindex: "-1", onclick: () => look(side, i),
    onpointerenter: (event) => event.pointerType === "mouse" && look(side, i, true), onpointerleave: () => look(shown.side, shown.i),
    onkeydown: (event) => arrow(event, side, i, tokens.length) }, token(t)));
  const sides = { written: strip("written", text.tokens), source: strip("source", text.keys) };
  function arrow(event, side, i, n) {
    const to = { ArrowLeft: i - 1, ArrowRight: i + 1, Home: 0, End: n - 1 }[event.key];
    if (to === undefined || to < 0 || to >= n) return;
    event.preventDefault();
    look(side, to);
    sides[side][to].focus();
  }
  // Shade the other side by token i of `side`; `passing` leaves alone what was chosen.
  function look(side, i, passing = false) {
    if (!passing) {
      shown = { side, i };
      if (side === "written") state.query = i;
    }
    const colours = theme(el);
    const other = side === "written" ? "source" : "written";
    const row = Float32Array.from(sides[other], (_, j) => (side === "written" ? values[i * columns + j] : values[j * columns + i]));
    sides[side].forEach((word, j) => {
      word.style.background = word.style.color = "";
      word.classList.toggle("on", j === i);
      if (!passing) word.tabIndex = j === i ? 0 : -1;
    });
    sides[other].forEach((word, j) => {
      const position = scale.position(row[j]);
      word.style.background = position > 0.02 ? colours.sequential(position) : "";
      word.style.color = position > 0.02 ? colours.on(position) : "";
      word.classList.remove("on");
      if (!passing) word.tabIndex = j ? -1 : 0;
    });
    const most = [...row.keys()].filter((j) => row[j] > 0.005).sort((a, b) => row[b] - row[a]).slice(0, 3);
    const told = most.map((j) => `${called(other === "source" ? text.keys : text.tokens, j)} ${fixed(row[j])}`).join(", ");
    readout.textContent = side === "written" ? `while writing ${called(text.tokens, i)} it reads ${told}` : `${called(text.keys, i)} is read while writing ${told || "nothing"}`;
  }

  const around = h("div.margins");
  margins(around, off, { sums: sumsOf(text, at, state), key: (i) => called(text.keys, i), query: (i) => `while writing ${called(text.tokens, i)}`,
    seenBy: () => rows, sees: () => columns, say: (words) => (readout.textContent = words), rest: () => look(shown.side, shown.i) });
  add(el, [h("h3", null, h("code", null, name), " token by token", takeAway(() => el, () => `${name}.pattern`)),
    h("div.head-detail", null, h("div.panel", null, panel.el, around),
      h("div", null, h("p.strip-title", null, "what is written"), h("div.words", { "data-side": "written" }, sides.written),
        h("p.strip-title", null, "the source"), h("div.words", { "data-side": "source" }, sides.source), readout, note ? numbers(note) : null))]);
  look(shown.side, shown.i);
  return off;
}
