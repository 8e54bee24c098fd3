// @ts-check
// The way back: how much of this text's gradient reaches each token and each matrix, by which path, and what one small step
// of gradient descent would buy. Asked for by a button, since it costs a backward pass in float64.

import { Plot } from "./vendor.js";
import { h, scroll, table } from "./dom.js";
import { number, percent, whole } from "./format.js";
import { unpack } from "./decode.js";
import { chart, figure, plot } from "./figure.js";
import { asked, dated } from "./entry.js";
import { namesOf } from "./tokens.js";

/** @import { Off } from "./dom.js" */

const PATHS = [["skip", "ink-faint", "around the block"], ["V", "role-V", "through v"], ["Q", "role-Q", "through q"], ["K", "role-K", "through k"], ["mix", "role-O", "through what replaces attention"], ["MLP", "role-MLP", "through the MLP"]];
const MOST_PARTS = 14;

function byToken(off, el, back) {
  const reached = unpack(back.reached).values;
  const rows = namesOf(back.tokens).map((label, i) => ({ i, label, value: reached[i] }));
  const frame = figure(el, { title: "Gradient that reaches each token", caption: "Norm of the gradient of this text's loss at the input of the first layer, token by token (nats per unit). It is what would change the token's row of W_E." }, off);
  chart(frame, (width, colours) => plot(colours, "length of the gradient at each token", {
    width, height: 150, marginLeft: 44, marginRight: 10, marginBottom: 30, marginTop: 8,
    x: { domain: rows.map((r) => r.i), tickFormat: (i) => (rows.length <= 48 ? rows[i].label : ""), label: null, tickSize: 0 }, y: { label: null, ticks: 3, tickSize: 0 },
    marks: [Plot.gridY({ stroke: colours.line, strokeOpacity: 1, ticks: 3 }), Plot.barY(rows, { x: "i", y: "value", fill: colours.role.E, title: (r) => `${r.label} (${r.i}): ${number(r.value)}`, tip: true, insetLeft: 1, insetRight: 1 })],
  }));
}

function byPath(el, back) {
  const shares = (path) => PATHS.map(([name, colour, words]) => ({ name, colour, words, share: path.shares[name] })).filter((part) => part.share !== null && part.share !== undefined);
  el.append(h("h4", null, "By which path"), h("p.small", null, "The gradient at the input of each block is a sum over the paths it can take. Shares are signed, and those of a block sum to 1."),
    h("div.paths", null, back.paths.map((path) => [h("code", null, path.address), h("span.path-bar", null, shares(path).filter((part) => part.share > 0).map((part) =>
      h("span", { style: `flex-grow:${part.share};background:var(--${part.colour})`, title: `${part.words}: ${percent(part.share)}` }))),
    h("span.small", null, shares(path).map((part) => `${part.name} ${number(part.share, 2)}`).join(", "))])),
    h("p.small", null, "Share of the gradient by the number of sublayers it passed through: ", Object.entries(back.crossed).map(([n, share]) => `${n}: ${number(share, 2)}`).join(", "), "."));
}

function byMatrix(el, back) {
  el.append(h("h4", null, "What one step would change"),
    h("p.small", null, `One small step of gradient descent on this text (learning rate ${number(back.rate)}) lowers its loss by ${number(-back.actual)} nats; the first-order estimate is ${number(-back.first_order)}. Below, each matrix moves alone.`),
    scroll("gradient of each matrix", table(["matrix", "|g|", "|g| / |W|", "first order, nats", "actual, nats"], back.parts.slice(0, MOST_PARTS).map((part) =>
      [h("code", null, part.address), ...[part.grad_norm, part.norm > 0 ? part.grad_norm / part.norm : null, part.first_order, part.actual].map((v) => number(v, 3))]))),
    back.parts.length > MOST_PARTS ? h("p.small", null, `The ${MOST_PARTS} matrices with the largest gradients, of ${whole(back.parts.length)}.`) : null);
}

/** -> an element with a button; `question()` says on what. @param {Off} off */
export const wayBack = (ask, question, off) => asked(off, {
  button: "the way back: follow the gradient", waiting: "Following the gradient …", question: () => ask("backward", question()),
  draw(parts, body, back) {
    dated(body, back.step);
    byToken(parts, body, back);
    byPath(body, back);
    byMatrix(body, back);
  },
});
