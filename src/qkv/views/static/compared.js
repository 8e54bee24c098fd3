// A text before and after a change, side by side: loss, the prediction at the token that is followed, and the pattern of the
// head that is shown, with their difference.

import { h } from "./dom.js";
import { fixed, number, token } from "./format.js";
import { unpack } from "./decode.js";
import { takeAway } from "./keep.js";
import { raster } from "./raster.js";
import { bar, robust, squareRoot } from "./scale.js";

const side = (text) => unpack(text.top);

function predictions(base, text, position) {
  const where = `${text.causal ? "after" : "at"} ${token(text.tokens[position])} (${position})`;
  const row = (from) => from.top_tokens[position].slice(0, 5).map((name, rank) => `${token(name)} ${fixed(side(from).at(position, rank))}`).join("  ");
  return h("dl.numbers", null, h("div", null, h("dt", null, `before, ${where}`), h("dd", null, h("code", null, row(base)))), h("div", null, h("dt", null, `now, ${where}`), h("dd", null, h("code", null, row(text)))));
}

// -> { el, follow(position) }: the predictions are those of the token that is followed.
export function compared(off, { base, text, layer, head, colours }) {
  const panels = base.n_heads ? patterns(off, { base, text, layer, head, colours }) : null;
  const moved = text.loss === null ? null : h("p.sentence", null, `With ${text.changes.join(", ")} the loss of this text goes from ${number(base.loss, 4)} to ${number(text.loss, 4)} nats per token (${text.loss >= base.loss ? "+" : ""}${number(text.loss - base.loss)}).`);
  const made = text.changed.map((sentence) => h("p.small", null, sentence));
  const said = h("div");
  return { el: h("div.compared", null, moved, made, said, panels), follow: (position) => said.replaceChildren(predictions(base, text, position)) };
}

// The pattern of one head before, now, and their difference.
function patterns(off, { base, text, layer, head, colours }) {
  const n = text.tokens.length;
  const of = (from) => unpack(from.layers.find((l) => l.layer === layer).pattern).part(head);
  const hide = (values) => Float32Array.from(values, (v, i) => (text.causal && i % n > Math.floor(i / n) ? NaN : v));
  const [before, after] = [hide(of(base)), hide(of(text))];
  const difference = Float32Array.from(after, (v, i) => v - before[i]);
  const scale = squareRoot(1);
  const signed = robust([[...difference].filter(Number.isFinite)], true);
  const readout = h("p.readout", { "aria-live": "polite" });
  const panels = [["before", before, scale], ["now", after, scale], ["difference", difference, signed]].map(([name, values, use]) => {
    const panel = raster({ label: `pattern of L${layer}.H${head}, ${name}`, rows: n, columns: n, values, scale: use,
      tell: (q, k) => (readout.textContent = Number.isNaN(before[q * n + k]) ? "" : `${token(text.tokens[q])} (${q}) to ${token(text.tokens[k])} (${k}): before ${number(before[q * n + k])}, now ${number(after[q * n + k])}`) });
    off.add(panel.off);
    panel.el.style.aspectRatio = "1";
    const whole = h("div.panel", null, h("p.small", null, h("span", null, `pattern of L${layer}.H${head}, ${name}`), takeAway(() => whole, `L${layer}.H${head}.pattern-${name}`)), panel.el, bar(use, colours, name === "difference" ? "difference" : "attention"));
    return whole;
  });
  return [h("div.panels", null, panels), readout];
}
