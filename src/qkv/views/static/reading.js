// @ts-check
// One text's attention as numbers: whole patterns as they were sent, or, of a long text, the tiles and lines in sight.

import { lastOnly } from "./dom.js";
import { stepIndex, unpack } from "./decode.js";

const KEPT = 400; // tiles and lines

// The number of the text's own step that stands for `step`.
export const stepOf = (text, step) => stepIndex(text.steps, step);

export const noteOf = (text, at, layer, head) => text.heads[(at * text.n_layers + layer) * text.n_heads + head];

// A head as a full square [query_pos, key_pos]; what the mask forbids is NaN, drawn as nothing. Of a long text: blocks.
export function square(text, at, layer, head) {
  const array = unpack(text.patterns);
  const stored = array.part(at, layer, head);
  if (text.tile) return hideFuture(Float32Array.from(stored), array.shape[3], array.shape[4], text.causal, text.block);
  if (!text.causal) return stored; // with keys of their own, as many columns as keys
  const n = text.tokens.length;
  const full = new Float32Array(n * n).fill(NaN);
  for (let q = 0, i = 0; q < n; q++) for (let k = 0; k <= q; k++) full[q * n + k] = stored[i++];
  return full;
}

// [rows, columns] of what `square` gives.
export const sidesOf = (text) => (text.tile ? unpack(text.patterns).shape.slice(3) : [text.tokens.length, text.keys.length || text.tokens.length]);

const PLACES = { "": (layer) => `L${layer}`, enc: (layer) => `enc.L${layer}`, dec: (layer) => `dec.L${layer}`, cross: (layer) => `dec.L${layer}.cross` };

// The address of a head of this text's attention.
export const headName = (text, { layer, head }) => `${PLACES[text.site](layer)}.H${head}`;

// What a head does most, where that stands out against even attention.
export function leading(note) {
  if (!note) return null;
  const best = note.shares.reduce((a, b) => (b.share - b.even > a.share - a.even ? b : a));
  return best.share - best.even > 0.15 ? best : null;
}

// The head that does the most pronounced thing.
export function boldest(text) {
  const last = text.heads.slice(-text.n_layers * text.n_heads);
  return last.reduce((a, b) => ((leading(b)?.share ?? 0) > (a ? leading(a)?.share ?? 0 : 0) ? b : a), null);
}

// Blocks that lie in the future altogether.
function hideFuture(values, rows, columns, causal, block, top = 0, left = 0) {
  if (causal) for (let r = 0; r < rows; r++) for (let c = 0; c < columns; c++) {
    if (left + c * block > top + (r + 1) * block - 1) values[r * columns + c] = NaN;
  }
  return values;
}

// Every row without its first key, as shares of what is left: what a head does besides resting on the first token. A row that
// leaves less than `LEAST` has none: of so small a part the 256 steps of the whole tell nothing.
export const LEAST = 0.04;

export function withoutFirst(values, n) {
  const out = new Float32Array(values.length).fill(NaN);
  for (let q = 0; q < n; q++) {
    const left = 1 - values[q * n];
    if (left >= LEAST) for (let k = 1; k < n; k++) out[q * n + k] = values[q * n + k] / left;
  }
  return out;
}

// { received [key_pos], entropy [query_pos], rounded } of a head. Where a text came without them they are sums of what the
// page holds, which is `rounded`: 256 steps make even attention over many keys look less or more than even.
export function sumsOf(text, at, { layer, head }) {
  if (text.received && text.entropy) return { received: unpack(text.received).part(at, layer, head), entropy: unpack(text.entropy).part(at, layer, head), rounded: false };
  const values = square(text, at, layer, head);
  const [rows, columns] = sidesOf(text);
  const [received, entropy] = [new Float32Array(columns), new Float32Array(rows)];
  for (let q = 0; q < rows; q++) for (let k = 0; k < columns; k++) {
    const p = values[q * columns + k];
    if (!(p > 0)) continue;
    received[k] += p;
    entropy[q] -= p * Math.log(p);
  }
  return { received, entropy, rounded: unpack(text.patterns).digits < 3 };
}

// Asks for parts of one head on a long text, and keeps them.
export function longHead(ask, question) {
  const kept = new Map();
  const latest = lastOnly();
  const once = (key, name, more) => {
    if (!kept.has(key)) {
      kept.set(key, ask(name, { ...question, ...more }).catch((error) => (kept.delete(key), Promise.reject(error))));
      if (kept.size > KEPT) kept.delete(kept.keys().next().value);
    }
    return kept.get(key);
  };
  return {
    // The square from (top, left), `cells` along each side, each the largest of block x block.
    region(text, top, left, cells, block, done, failed) {
      const n = text.tokens.length;
      const tiles = [];
      for (let r = 0; r < cells; r += text.tile) for (let c = 0; c < cells; c += text.tile) {
        const [y, x] = [top + r * block, left + c * block];
        if (y < n && x < n && !(text.causal && x > y + text.tile * block)) tiles.push({ r, c, y, x });
      }
      latest(() => Promise.all(tiles.map((tile) => once(`${tile.y}.${tile.x}.${block}`, "tile", { top: tile.y, left: tile.x, block }))), (answers) => {
        const values = new Float32Array(cells * cells).fill(NaN);
        answers.forEach((answer, i) => {
          const array = unpack(answer.values);
          const [rows, columns] = array.shape;
          for (let r = 0; r < rows && tiles[i].r + r < cells; r++) {
            values.set(array.values.subarray(r * columns, r * columns + Math.min(columns, cells - tiles[i].c)), (tiles[i].r + r) * cells + tiles[i].c);
          }
        });
        done(hideFuture(values, cells, cells, text.causal, block, top, left));
      }, failed);
    },
    line: (position) => once(`line ${position}`, "line", { position }),
    sums: () => once("sums", "sums", {}),
  };
}
