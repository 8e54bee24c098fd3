// @ts-check
// Who writes the answer at the token that is followed, part by part; and another text beside the one that is shown: each
// activation is taken from it, one at a time, and the answer goes over or stays. Asked for by a button, since it costs a pass
// through the model for each layer and token.

import { Plot } from "./vendor.js";
import { h } from "./dom.js";
import { fixed, number, token } from "./format.js";
import { unpack } from "./decode.js";
import { chart, figure, plot, widthOf } from "./figure.js";
import { asked, dated } from "./entry.js";
import { namesOf } from "./tokens.js";

/** @import { Off } from "./dom.js" */

const KINDS = [
  ["stream", "What enters each layer", "The residual stream at one token: where the difference is, layer by layer."],
  ["mixer", "What attention adds", "Where attention moves it from other tokens."],
  ["mlp", "What the MLP adds", "Where the MLP computes it from what is already there."],
];
const ROW = 26; // pixels
const NARROW = 34; // pixels of a cell that has room for its number
const WIDE = 92; // pixels of one that has room for its nats as well

// Shares, each with the nats that it is of the difference between the two texts; nats alone where there is nothing to carry.
const cells = (packed, difference, caution) => {
  const { values, shape } = unpack(packed);
  const row = (share) => (caution ? { share: share * difference } : { share, nats: share * difference });
  return Array.from(values, (share, i) => ({ layer: `L${Math.floor(i / shape[1])}`, i: i % shape[1], ...row(share) }));
};

// Cells of values, the first layer on top; `name(i)` is a column's label, `told(i)` what a pointer is told of it; `top` has
// the strongest colour, numbers from `least` of it on are written.
function picture(off, el, { title, caption, rows, name, told, unit = "", top = 1, least = 0.05 }) {
  const layers = [...new Set(rows.map((row) => row.layer))];
  const columns = [...new Set(rows.map((row) => row.i))];
  const frame = figure(el, { title, caption }, off);
  chart(frame, (width, colours) => {
    const each = (width - 46) / columns.length;
    const longest = widthOf(columns.map(name), 110);
    const lies = longest < each - 6; // else labels stand aslant
    const fill = (row) => colours.diverging((Math.max(-1, Math.min(1, row.share / top)) + 1) / 2);
    return plot(colours, title, {
      width, height: ROW * layers.length + (lies ? 32 : 14 + 0.8 * longest), marginLeft: 38, marginRight: 8, marginTop: 4, marginBottom: lies ? 28 : 10 + 0.8 * longest,
      x: { domain: columns, tickFormat: name, label: null, tickSize: 0, padding: 0.06, tickRotate: lies ? 0 : -50 }, y: { domain: layers, label: null, tickSize: 0, padding: 0.06 },
      marks: [
        Plot.cell(rows, { x: "i", y: "layer", fill, stroke: colours.line, title: (row) => `${row.layer}, ${told(row.i)}: ${number(row.share)}${row.nats === undefined ? unit : ` (${number(row.nats)} nats)`}`, tip: true }),
        each >= NARROW ? Plot.text(rows.filter((row) => Math.abs(row.share) >= least * top), { x: "i", y: "layer", text: (row) => (row.nats !== undefined && each >= WIDE ? `${fixed(row.share)} (${fixed(row.nats)} nats)` : fixed(row.share)), fill: (row) => (Math.abs(row.share) > 0.6 * top ? colours.panel : colours.ink), pointerEvents: "none" }) : null,
      ],
    });
  });
}

function draw(off, el, found) {
  const [a, b] = found.answers.map(token);
  const difference = found.odds[0] - found.odds[1];
  const differs = (i) => found.tokens[i] !== found.others[i];
  const [names, others] = [namesOf(found.tokens), namesOf(found.others)];
  const name = (i) => (differs(i) ? `${names[i]}←${others[i]}` : names[i]);
  dated(el, found.step);
  el.append(h("p.sentence", null, found.causal ? "After " : "At ", h("code", null, names[found.position]), ": is it ", h("code", null, a), " or ", h("code", null, b),
    `? The log-odds of the first over the second are ${number(found.odds[0], 2)} nats for this text and ${number(found.odds[1], 2)} for the other, a difference of ${number(difference, 2)}. Each cell copies one activation from the other text and recomputes the rest${found.caution ? "." : ". A share of 0 leaves the answer unchanged; 1 makes it that of the other text. Point at a cell for the value in nats."}`));
  if (found.caution) el.append(h("p.sentence", null, found.caution));
  const scale = found.caution ? { unit: " nats", top: 0.5, least: 0.02 } : {};
  for (const [kind, title, caption] of KINDS) {
    if (found.shares[kind]) picture(off, el, { ...scale, title, caption, rows: cells(found.shares[kind], difference, found.caution), name, told: (i) => `${name(i)} (${i})` });
  }
  if (found.heads) picture(off, el, { ...scale, title: "What each head writes", caption: "z of one head, at all tokens at once: which heads carry the difference. Shares need not sum to 1.", rows: cells(found.heads, difference, found.caution), name: (i) => `H${i}`, told: (i) => `H${i}` });
}

function drawWritten(off, el, found) {
  const [a, b] = found.answers.map(token);
  const [heads, mixer, mlp] = [found.heads, found.mixer, found.mlp].map((packed) => (packed ? unpack(packed) : null));
  const n = heads ? heads.shape[1] : 0;
  const of = (values, i, per) => Array.from(values, (share, at) => ({ layer: `L${Math.floor(at / per)}`, i: i + (at % per), share }));
  const rows = [...(heads ? of(heads.values, 0, n) : of(mixer.values, 0, 1)), ...(mlp ? of(mlp.values, n || 1, 1) : [])];
  const names = [...(heads ? Array.from({ length: n }, (_, i) => `H${i}`) : ["mixer"]), "MLP"];
  dated(el, found.step);
  el.append(h("p.sentence", null, found.causal ? "After " : "At ", h("code", null, namesOf(found.tokens)[found.position]), " the model prefers ", h("code", null, a), " to ", h("code", null, b),
    ` by ${number(found.log_odds, 2)} nats. That is a sum: the row of W_E contributes ${number(found.embed, 2)}, the biases ${number(found.biases, 2)}, and each head and MLP the value shown here.`));
  picture(off, el, { title: "Who writes the answer", caption: "Log-odds that each part contributes, in nats, with the scale of the last norm held fixed (direct logit attribution). Indirect effects are not counted.",
    rows, name: (i) => names[i], told: (i) => names[i], unit: " nats", top: Math.max(...rows.map((row) => Math.abs(row.share))) || 1, least: 0.02 });
}

/** -> an element with a button; `question()` says on what, the followed token among it. @param {Off} off */
export function writing(ask, question, off) {
  const el = asked(off, { button: "who writes the answer at the followed token?", waiting: "Taking the answer apart …", question: () => ask("written", question()), draw: drawWritten });
  el.point = el.renew;
  return el;
}

/** -> an element; `question()` says on what. @param {Off} off */
export const patching = (ask, question, off) => asked(off, {
  button: "patch", waiting: "Patching …", question: (other) => ask("patch", { ...question(), other }), draw,
  other: { label: "Compare with another text: which layer, token and head carries the difference? (activation patching)", placeholder: "the same text with one word changed, equally many tokens" } });
