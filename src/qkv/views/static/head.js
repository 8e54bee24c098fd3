// @ts-check
// One head on one text, large: token to token with hover both ways, what each token receives, the entropy of each row, and
// the text itself shaded by what a token reads or by who reads it.

import { add, h, named, say } from "./dom.js";
import { fixed, number, percent, whole } from "./format.js";
import { unpack } from "./decode.js";
import { takeAway } from "./keep.js";
import { raster } from "./raster.js";
import { axis, margins } from "./margins.js";
import { theme } from "./theme.js";
import { isolated, leadingOf, namesOf, shade, strip } from "./tokens.js";
import { controls } from "./view.js";
import { LEAST, headName, longHead, square, sumsOf, withoutFirst } from "./reading.js";

const CELLS = 512; // along a side of a long text's picture

export function numbers(note) {
  const even = (text) => h("span.even", null, ` even: ${text}`);
  return h("div", null, h("p.small", null, "Means over the rows of this head. Uniform: the same for evenly spread attention."), named("numbers", [
    ...note.shares.map((share) => [`on ${share.name}`, [percent(share.share), even(percent(share.even))]]),
    ["entropy", [`${number(note.entropy_nats)} nats`, even(number(note.even_entropy_nats))]]]));
}

// What the head does with tokens, in words. `every` is its pattern, null of a long text; `state` as that of head.
function sentences(text, state, every) {
  const n = text.tokens.length;
  const names = namesOf(text.tokens);
  const called = (i) => `${isolated(names[i])} (${i})`;
  const hidden = (i, j) => text.causal && (state.way === "reads" ? j > i : i > j);
  // A share in words: of all that a token gives, or of what it leaves for others than the first, of which a small part holds one digit.
  const all = () => every === null || state.first;
  const left = (q) => 1 - every[q * n];
  const share = (q, p, places = 2) => fixed(p, all() ? places : left(q) < 0.2 ? 1 : 2);
  const little = (q) => `${called(q)} gives the others only ${fixed(left(q))}: too little to compare`;
  return {
    called, hidden,
    pair(q, k, row) {
      if (text.causal && k > q) return `${called(q)} may not see ${called(k)}: it is in the future`;
      const p = state.way === "reads" ? row[k] : row[q];
      if (Number.isNaN(p)) return k === 0 ? `${called(k)} is left out` : little(q);
      return `${called(q)} gives ${share(q, p, every === null ? 4 : 2)} of ${all() ? "its attention" : `its attention to others than the first (${fixed(left(q))})`} to ${called(k)}`;
    },
    row(i, row) {
      const said = leadingOf(row, { among: (j) => !hidden(i, j), say: (j) => `${called(j)} ${share(state.way === "reads" ? i : j, row[j])}` });
      if (state.way !== "reads") return `${called(i)} is ${all() || i ? `read by ${said || "no one"}` : "left out"}`;
      return !all() && left(i) < LEAST ? little(i) : `${called(i)} reads ${said || "all of them a little"}`;
    },
  };
}

// The pattern as a picture, its tokens along both sides: all of it, or of a long text, whose numbers `far` gives, a region.
// `tell(query, key)` is called for the cell under the pointer, `leave` when it goes, `failed` where numbers do not come.
// -> { el, hint, load, panel }
function pictureOf(off, { text, state, values, far, scale, tell, leave, failed }) {
  const n = text.tokens.length;
  const view = { top: 0, left: 0, block: far ? Math.ceil(n / CELLS) : 1 };
  const size = () => (far ? Math.min(CELLS, Math.ceil(n / view.block)) : n);
  const zoomed = () => far && view.block === 1 && n > CELLS;
  const place = (row, column) => [Math.min(n - 1, view.top + row * view.block), Math.min(n - 1, view.left + column * view.block)];
  const pick = (row, column) => {
    if (!far || n <= CELLS) return;
    const [q, k] = place(row, column);
    const corner = (i) => Math.max(0, Math.min(n - CELLS, i - CELLS / 2));
    Object.assign(view, zoomed() ? { top: 0, left: 0, block: Math.ceil(n / CELLS) } : { top: corner(q), left: corner(k), block: 1 });
    load();
  };
  const panel = raster(off, { label: `attention of layer ${state.layer} head ${state.head}, down queries, across keys`, rows: size(), columns: size(), style: "aspect-ratio:1",
    values: values ?? new Float32Array(size() * size()).fill(NaN), scale, tell: (row, column) => tell(...place(row, column)), pick, leave });
  const [down, across] = [axis("down"), axis("across")];
  const name = (from) => Array.from({ length: size() }, (_, i) => namesOf(text.tokens)[from + i * view.block] ?? "");
  const label = () => {
    down.show(name(view.top));
    across.show(name(view.left));
  };
  label();
  const hint = h("p.small");
  function load() {
    const cells = size();
    hint.textContent = n <= CELLS ? "" : zoomed() ? `Queries ${view.top}–${view.top + cells - 1}, keys ${view.left}–${view.left + cells - 1}, every number. Click for the whole.`
      : `Each cell is the largest of ${view.block} × ${view.block} shares. Click to zoom in.`;
    label();
    far.region(text, view.top, view.left, cells, view.block, (found) => panel.update({ values: found, rows: cells, columns: cells }), failed);
  }
  return { el: h("div.with-axes", null, across.el, down.el, panel.el), panel, hint, load };
}

// options: { text, at, state: { layer, head, query, way, first }, note, ask, scale, choose }; `choose(i)` makes a token that of the
// page. -> what shows another token
export function head(off, el, { text, at, state, note, ask, scale, choose }) {
  const n = text.tokens.length;
  const long = text.tile > 0;
  const name = headName(text, state);
  const far = long ? longHead(ask, { text: text.source, step: text.steps[0], layer: state.layer, head: state.head }) : null;
  const every = long ? null : square(text, at, state.layer, state.head);
  const values = () => (long ? null : state.first ? every : withoutFirst(every, n));
  const readout = h("p.readout", { "aria-live": "polite" });
  const failed = (error) => say(readout, error.message);
  const said = sentences(text, state, every);
  let asked = 0;
  const rest = () => look(state.query, null, true);
  const { el: picture, panel, hint, load } = pictureOf(off, { text, state, values: values(), far, scale, failed, leave: rest, tell: (q, k) => look(state.way === "reads" ? q : k, [q, k]) });
  const words = strip(text.tokens, (i, passing) => (passing ? look(i, null, true) : choose(i)), rest);
  const sides = h("div.margins");
  const drawMargins = (sums) => margins(sides, off, { sums, key: said.called, query: said.called, seenBy: (i) => (text.causal ? n - i : n), sees: (i) => (text.causal ? i + 1 : n),
    say: (told) => (readout.textContent = told), rest });

  // -> what token i reads (or who reads it), all numbers; a promise for a long text
  function line(i) {
    if (long) return far.line(i).then((found) => unpack(state.way === "reads" ? found.reads : found.read_by).values);
    const grid = values();
    return Float32Array.from({ length: n }, (_, j) => (state.way === "reads" ? grid[i * n + j] : grid[j * n + i]));
  }
  function look(i, pair = null, stay = false) {
    const mine = ++asked;
    const found = line(i);
    if (found instanceof Promise) found.then((row) => mine === asked && show(i, row, pair, stay), failed);
    else show(i, found, pair, stay);
  }
  function show(i, row, pair, stay) {
    if (!stay) words.show(i);
    const colours = theme(el);
    words.each((button, j) => {
      const isHidden = said.hidden(i, j);
      shade(button, isHidden || Number.isNaN(row[j]) ? 0 : scale.position(row[j]), colours, "transparent");
      button.classList.toggle("future", isHidden);
      button.classList.toggle("on", j === i);
      button.tabIndex = j === state.query ? 0 : -1;
      button.title = isHidden ? "" : fixed(row[j], 2);
    });
    if (!pair && !long) panel.point(i, i);
    readout.textContent = pair ? said.pair(...pair, row) : said.row(i, row);
  }
  const choices = controls(state, () => [{ key: "way", label: "direction", options: [["reads", "what it reads"], ["read", "who reads it"]] },
    long ? null : { key: "first", label: "first token", options: [[true, "all keys"], [false, "without the first"]] }], (key) => {
    if (key === "first") panel.update({ values: values() });
    look(state.query);
  });
  add(el, [h("h3", null, h("code", null, name), ` token by token${long ? `, ${whole(n)} of them` : ""}`, takeAway(() => el, () => `${name}.pattern`)),
    h("div.head-detail", null, h("div.panel", null, picture, hint, sides), h("div", null, choices.el, words.el, readout, note ? numbers(note) : null))]);
  if (long) {
    load();
    far.sums().then((found) => drawMargins({ received: unpack(found.received).values, entropy: unpack(found.entropy).values }), () => {});
  } else drawMargins(sumsOf(text, at, state));
  look(state.query);
  return look;
}
