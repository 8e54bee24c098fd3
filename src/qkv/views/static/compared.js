// @ts-check
// A text before and after a change, side by side: loss, the prediction at the token that is followed, and the pattern of the
// head that is shown, with their difference.

import { h, named } from "./dom.js";
import { fixed, number, token } from "./format.js";
import { unpack } from "./decode.js";
import { panels } from "./raster.js";
import { robust, squareRoot } from "./scale.js";

const side = (text) => unpack(text.top);

function predictions(base, text, position) {
  if (!text.top) return "";
  const [at, where] = text.pooled ? [0, `from ${text.pooled}`] : [position, `${text.causal ? "after" : "at"} ${token(text.tokens[position])} (${position})`];
  const row = (from) => from.top_tokens[at].slice(0, 5).map((name, rank) => `${token(name)} ${fixed(side(from).at(at, rank))}`).join("  ");
  return named("numbers", [[`before, ${where}`, h("code", null, row(base))], [`now, ${where}`, h("code", null, row(text))]]);
}

// -> { el, follow(position) }: the predictions are those of the token that is followed.
export function compared(off, { base, text, layer, head, colours }) {
  const pictures = base.n_heads ? patterns(off, { base, text, layer, head, colours }) : null;
  const moved = text.loss === null ? null : h("p.sentence", null, `With ${text.changes.join(", ")} the loss of this text goes from ${number(base.loss, 4)} to ${number(text.loss, 4)} nats per token (${text.loss >= base.loss ? "+" : ""}${number(text.loss - base.loss)}).`);
  const made = text.changed.map((sentence) => h("p.small", null, sentence));
  const said = h("div");
  return { el: h("div.compared", null, moved, made, said, pictures), follow: (position) => said.replaceChildren(predictions(base, text, position)) };
}

// The pattern of one head before, now, and their difference.
function patterns(off, { base, text, layer, head, colours }) {
  const n = text.tokens.length;
  const of = (from) => unpack(from.layers.find((l) => l.layer === layer).pattern).part(head);
  const hide = (values) => Float32Array.from(values, (v, i) => (text.causal && i % n > Math.floor(i / n) ? NaN : v));
  const [before, after] = [hide(of(base)), hide(of(text))];
  const difference = Float32Array.from(after, (v, i) => v - before[i]);
  /** @type {[string, any, any][]} */
  const parts = [["before", before, squareRoot(1)], ["now", after, squareRoot(1)], ["difference", difference, robust([[...difference].filter(Number.isFinite)], true)]];
  return panels(off, { address: `L${layer}.H${head}.pattern`, rows: n, columns: n, parts, colours, words: "attention", rest: "Point at a cell for its attention.",
    cellName: (q, k) => `${token(text.tokens[q])} (${q}) to ${token(text.tokens[k])} (${k})` });
}
