// One head on one text, large: token to token with hover both ways, what each token receives, the entropy of each row, and
// the text itself shaded by what a token reads or by who reads it.

import { add, choice, clear, h, say, together } from "./dom.js";
import { fixed, number, percent, token, whole } from "./format.js";
import { unpack } from "./decode.js";
import { takeAway } from "./keep.js";
import { raster } from "./raster.js";
import { margins } from "./margins.js";
import { theme } from "./theme.js";
import { LEAST, headName, longHead, square, sumsOf, withoutFirst } from "./reading.js";

const STRIP = 128; // tokens of the text that stand beside the picture at once
const CELLS = 512; // along a side of a long text's picture

// What a head does most, where that stands out against even attention.
export function leading(note) {
  if (!note) return null;
  const best = note.shares.reduce((a, b) => (b.share - b.even > a.share - a.even ? b : a));
  return best.share - best.even > 0.15 ? best : null;
}

export function numbers(note) {
  const even = (text) => h("span.even", null, ` even: ${text}`);
  return h("div", null, h("p.small", null, "This head, a mean over its rows; even: the same of attention spread evenly."), h("dl.numbers", null,
    note.shares.map((share) => h("div", null, h("dt", null, `on ${share.name}`), h("dd", null, percent(share.share), even(percent(share.even))))),
    h("div", null, h("dt", null, "entropy"), h("dd", null, `${number(note.entropy_nats)} nats`, even(number(note.even_entropy_nats))))));
}

// options: { text, at, state: { layer, head, query, way, first }, note, ask, scale }; gives how to stop.
export function head(el, { text, at, state, note, ask, scale }) {
  const off = together();
  const n = text.tokens.length;
  const long = text.tile > 0;
  const name = headName(text, state);
  const far = long ? longHead(ask, { text: text.source, step: text.steps[0], layer: state.layer, head: state.head }) : null;
  const every = long ? null : square(text, at, state.layer, state.head);
  const values = () => (long ? null : state.first ? every : withoutFirst(every, n));
  const readout = h("p.readout", { "aria-live": "polite" });
  const called = (i) => `${token(text.tokens[i])} (${i})`;

  // the picture: all of it, or of a long text a region
  const view = { top: 0, left: 0, block: long ? Math.ceil(n / CELLS) : 1 };
  const cells = () => (long ? Math.min(CELLS, Math.ceil(n / view.block)) : n);
  const zoomed = () => long && view.block === 1 && n > CELLS;
  const place = (row, column) => [Math.min(n - 1, view.top + row * view.block), Math.min(n - 1, view.left + column * view.block)];
  let [pointed, asked] = [null, 0];
  const panel = raster({ label: `attention of layer ${state.layer} head ${state.head}, down queries, across keys`, rows: cells(), columns: cells(),
    values: long ? new Float32Array(cells() * cells()).fill(NaN) : values(), scale,
    tell: (row, column) => {
      const [q, k] = place(row, column);
      pointed = [q, k];
      look(state.way === "reads" ? q : k, [q, k]);
    },
    pick: (row, column) => {
      if (!long || n <= CELLS) return;
      const [q, k] = place(row, column);
      const corner = (i) => Math.max(0, Math.min(n - CELLS, i - CELLS / 2));
      Object.assign(view, zoomed() ? { top: 0, left: 0, block: Math.ceil(n / CELLS) } : { top: corner(q), left: corner(k), block: 1 });
      load();
    } });
  panel.el.style.aspectRatio = "1";
  off.add(panel.off);
  const hint = h("p.small");
  function load() {
    const size = cells();
    hint.textContent = n <= CELLS ? "" : zoomed() ? `Queries ${view.top}–${view.top + size - 1}, keys ${view.left}–${view.left + size - 1}, every number. Click for the whole.`
      : `A cell is the largest share among ${view.block} × ${view.block}. Click to look closer.`;
    far.region(text, view.top, view.left, size, view.block, (found) => panel.update({ values: found, rows: size, columns: size }), (error) => say(readout, error.message));
  }

  // sums along both sides
  const sides = h("div.margins");
  function drawMargins(sums) {
    margins(sides, off, { sums, key: called, query: called, seenBy: (i) => (text.causal ? n - i : n), sees: (i) => (text.causal ? i + 1 : n),
      say: (words) => (readout.textContent = words), rest: () => look(state.query) });
  }

  // the text
  const words = h("div.words");
  let [from, buttons] = [-1, []];
  function strip(around) {
    const start = n <= STRIP * 2 ? 0 : Math.max(0, Math.min(n - STRIP, around - STRIP / 2));
    if (start === from) return;
    from = start;
    const end = n <= STRIP * 2 ? n : start + STRIP;
    buttons = text.tokens.slice(start, end).map((t, j) => h("button.word", { type: "button", tabindex: "-1", onclick: () => look(start + j),
      onpointerenter: (event) => event.pointerType === "mouse" && look(start + j, null, true), onkeydown: (event) => arrow(event, start + j) }, token(t)));
    clear(words).append(...buttons);
  }
  function arrow(event, i) {
    const to = { ArrowLeft: i - 1, ArrowRight: i + 1, Home: 0, End: n - 1 }[event.key];
    if (to === undefined || to < 0 || to >= n) return;
    event.preventDefault();
    look(to);
    buttons[to - from]?.focus();
  }
  // -> what token i reads (or who reads it), all numbers; a promise for a long text
  function line(i) {
    if (long) return far.line(i).then((found) => unpack(state.way === "reads" ? found.reads : found.read_by).values);
    const grid = values();
    return Float32Array.from({ length: n }, (_, j) => (state.way === "reads" ? grid[i * n + j] : grid[j * n + i]));
  }
  function look(i, pair = null, stay = false) {
    state.query = i;
    const mine = ++asked;
    if (!pair) pointed = null;
    const found = line(i);
    if (found instanceof Promise) found.then((row) => mine === asked && shade(i, row, pair, stay), (error) => say(readout, error.message));
    else shade(i, found, pair, stay);
  }
  function hidden(i, j) {
    return text.causal && (state.way === "reads" ? j > i : i > j);
  }
  function shade(i, row, pair, stay) {
    if (!stay) strip(i);
    const colours = theme(el);
    buttons.forEach((word, b) => {
      const j = from + b;
      const p = row[j];
      const position = hidden(i, j) || Number.isNaN(p) ? 0 : scale.position(p);
      word.style.background = position > 0.02 ? colours.sequential(position) : "transparent";
      word.style.color = position > 0.02 ? colours.on(position) : "";
      word.classList.toggle("future", hidden(i, j));
      word.classList.toggle("on", j === i);
      word.tabIndex = j === i ? 0 : -1;
      word.title = hidden(i, j) ? "" : fixed(p, 2);
    });
    if (!pair && !long) panel.point(...(state.way === "reads" ? [i, i] : [i, i]));
    readout.textContent = pair ? sayPair(...pair, row) : sayRow(i, row);
  }
  // A share in words: of all that a token gives, or of what it leaves for others than the first, of which a small part holds one digit.
  const all = () => long || state.first;
  const left = (q) => 1 - every[q * n];
  const share = (q, p, places = 2) => fixed(p, all() ? places : left(q) < 0.2 ? 1 : 2);
  const little = (q) => `${called(q)} leaves ${fixed(left(q))} for others than the first: too little to tell where it goes`;
  function sayPair(q, k, row) {
    if (text.causal && k > q) return `${called(q)} may not see ${called(k)}: it is in the future`;
    const p = state.way === "reads" ? row[k] : row[q];
    if (Number.isNaN(p)) return k === 0 ? `${called(k)} is left out` : little(q);
    return `${called(q)} gives ${share(q, p, long ? 4 : 2)} of ${all() ? "its attention" : `what it leaves for others than the first (${fixed(left(q))})`} to ${called(k)}`;
  }
  function sayRow(i, row) {
    const most = [...row.keys()].filter((j) => !hidden(i, j) && row[j] > 0.005).sort((a, b) => row[b] - row[a]).slice(0, 3);
    const said = most.map((j) => `${called(j)} ${share(state.way === "reads" ? i : j, row[j])}`).join(", ");
    if (state.way !== "reads") return `${called(i)} is ${all() || i ? `read by ${said || "no one"}` : "left out"}`;
    return !all() && left(i) < LEAST ? little(i) : `${called(i)} reads ${said || "all of them a little"}`;
  }

  const again = () => {
    if (!long) panel.update({ values: values() });
    look(state.query);
  };
  add(el, [h("h3", null, h("code", null, name), ` token by token${long ? `, ${whole(n)} of them` : ""}`,
    takeAway(() => el, () => `${name}.pattern`)),
  h("div.head-detail", null, h("div.panel", null, panel.el, hint, sides),
    h("div", null, h("div.controls", null,
      choice("direction", [["reads", "what it reads"], ["read", "who reads it"]], state.way, (way) => ((state.way = way), look(state.query))),
      long ? null : choice("first token", [[true, "all keys"], [false, "without the first"]], state.first, (first) => ((state.first = first), again()))),
    words, readout, note ? numbers(note) : null))]);
  if (long) {
    load();
    far.sums().then((found) => drawMargins({ received: unpack(found.received).values, entropy: unpack(found.entropy).values }), () => {});
  } else drawMargins(sumsOf(text, at, state));
  look(state.query);
  return off;
}
