// @ts-check
// The walk: from a row of W_E down to the loss in the text's color, and back up in red. Boxes hold vectors; between two boxes
// stand the formula of the step down and that of the step up, each with its number for the chosen token and head.

import { h, clear } from "../static/dom.js";
import { fixed, number, percent } from "../static/format.js";
import { paint } from "../static/raster.js";
import { linear, robust } from "../static/scale.js";
import { theme } from "../static/theme.js";
import { norm } from "./trace.js";

const f = (text) => h("code.f", null, text);
const size = (name, values) => h("span.live-number", null, `|${name}| = ${number(norm(values))}`);

// A vector as a strip of colors, one cell for each of its numbers.
function strip(label, values, host) {
  const canvas = h("canvas", { role: "img", "aria-label": `${label}: ${values.length} numbers, length ${number(norm(values))}`, title: values.map((v) => number(v, 2)).join("  ") });
  paint(canvas, values, 1, values.length, linear(robust([values], true).ends[1], true), theme(host));
  return canvas;
}

// Under each token that the query sees: its number, and the gradient of that.
const beside = (tokens, values, bars, form) => h("div.beside", null, values.map((v, j) => h("span", null, h("b", null, tokens[j]), h("span", null, form(v)), h("span.red", null, number(bars[j], 2)))));

const box = (name, what, ...rows) => h("div.box", null, h("h3", null, name, " ", h("span", null, what)), rows);
const line = (label, content, back = false) => h(back ? "div.vector.back" : "div.vector", null, h("span", null, label), content);
const arrow = (kind, sign, content) => h(`div.${kind}`, null, h("span.arrow", { "aria-hidden": "true" }, sign), h("div", null, content));
const step = (down, up) => h("div.step", null, arrow("down", "↓", down), arrow("up", "↑", up));

function matrixGradients(model, held) {
  const { shared } = model.wiring; // one matrix receives both products
  return (shared ? ["W_Q", "W_V"] : ["W_Q", "W_K", "W_V"]).map((name) => {
    const bar = name.toLowerCase().slice(2);
    const formula = shared && name === "W_Q" ? "∂L/∂W_Q = xᵀ (q̄ + k̄), as W_K = W_Q" : `∂L/∂${name} = xᵀ ${bar}̄`;
    return h("p", null, f(formula), size(`∂L/∂${name}`, model.G[`L0.${name}`]), held[name] ? h("em", null, ` ${name} is ${held[name] === "identity" ? "I" : "frozen"}: this is not applied, but ${bar}̄ ${name}ᵀ still flows down.`) : null);
  });
}

// The gradient of x in its parts, and how far their sum is from what the backward pass left there.
function parts(model, at) {
  const { q, k, v } = at.parts;
  const norms = model.wiring.norms;
  const sum = q.map((_, c) => q[c] + k[c] + v[c] + (norms ? 0 : at.around[c]));
  return [f(norms ? "x̄ = q̄ W_Qᵀ + k̄ W_Kᵀ + v̄ W_Vᵀ, then through the norm, + skip" : "x̄ = q̄ W_Qᵀ + k̄ W_Kᵀ + v̄ W_Vᵀ + skip"),
    h("table.parts", null, h("tbody", null, [["q̄ W_Qᵀ", q], ["k̄ W_Kᵀ", k], ["v̄ W_Vᵀ", v], ["skip", at.around], ...(norms ? [] : [["sum = x̄", sum]])].map(([name, values]) =>
      h("tr", null, h("th", { scope: "row" }, name), h("td", null, number(norm(values))))))),
    norms ? null : h("p.small", null, `These are lengths of vectors, which do not add up as the vectors do. The sum of the vectors differs from the gradient that backpropagation left in x by at most ${number(Math.max(...sum.map((s, c) => Math.abs(s - at.xBar[c]))), 1)}.`)];
}

function attention(at, tokens, top, i) {
  const root = "√d_head";
  return [
    step([f(`S_ij = q_i · k_j / ${root}`), h("span.live-number", null, `highest: ${fixed(at.scores[top])} for “${tokens[top]}”`)], [f(`q̄_i = Σ_j S̄_ij k_j / ${root}`), size("q̄", at.qBar)]),
    box("scores S", ["how well the q of “", tokens[i], "” matches each k; ", h("span.red", null, "below, S̄")], beside(tokens, at.scores, at.scoresBar, (v) => fixed(v))),
    step([f("A = softmax(S)"), h("span.live-number", null, `${percent(at.pattern[top])} on “${tokens[top]}”`)], [f("S̄_ij = A_ij (Ā_ij − Σ_m A_im Ā_im)"), size("S̄", at.scoresBar)]),
    box("pattern A", ["the attention; it sums to 1; ", h("span.red", null, "below, Ā")], beside(tokens, at.pattern, at.patternBar, (v) => `${fixed(100 * v, 0)}%`)),
    step([f("z_i = Σ_j A_ij v_j"), size("z", at.z)], [f("Ā_ij = z̄_i · v_j,   v̄_j = Σ_i A_ij z̄_i"), size("Ā", at.patternBar)]),
  ];
}

function prediction(shown, tokens, i, names) {
  const p = shown.probabilities[i];
  const target = shown.targets[i];
  const best = p.map((_, id) => id).sort((a, b) => p[b] - p[a]).slice(0, 5);
  return box("prediction", `the token after “${tokens[i]}”`,
    h("ol.predictions", null, best.map((id) => h("li", null, h("code", null, names[id]), h("span.bar-of", null, h("span", { style: `width:${p[id] * 100}%` })), h("span.amount", null, percent(p[id]))))),
    target < 0 ? h("p", null, "The last token has no successor here, so it is not asked and adds nothing to the loss.")
      : h("p", null, `The token that follows is “${names[target]}”: probability ${percent(p[target])}, loss −ln p = ${fixed(shown.losses[i])} nats. Mean of the sentence: `, h("b", null, `${fixed(shown.loss)} nats`), "."));
}

// Draw the walk into `host`: `shown` is a trace, `names` the vocabulary, `held` which kinds are held.
export function drawWalk(host, model, shown, ids, { i, head, names, held }) {
  const at = shown.at(i, head);
  const tokens = ids.map((id) => names[id]);
  const [asked, top] = [tokens[i], at.pattern.indexOf(Math.max(...at.pattern))];
  const both = (name, label, values, bar) => [line(name, strip(`${label}, forward`, values, host)), line(`${name}̄`, strip(`${label}, gradient`, bar, host), true)];
  const likely = shown.probabilities[i].indexOf(Math.max(...shown.probabilities[i]));
  const sure = shown.losses[i] < 0.05 ? " It is right and nearly certain, so almost no gradient comes back from here: move the slider to an earlier step to see more." : "";
  const positions = at.positions.map((j) => j + 1).join(", ");
  clear(host).append(
    h("p.summary", { role: "status" }, "From ", h("b", null, `“${asked}”`), `, head ${head} attends most to `, h("b", null, `“${tokens[top]}”`), ` (${percent(at.pattern[top])}). The model expects `, h("b", null, `“${names[likely]}”`), ` next (${percent(shown.probabilities[i][likely])}).${sure}`),
    box("W_E", `the row of “${asked}”`, both("e", "row of W_E", at.row, at.rowBar)),
    step([f(model.wiring.positions ? "x_i = W_E[t_i] + W_pos[i]" : "x_i = W_E[t_i]"), model.wiring.norms ? " then the norm" : null, size("x", at.x)],
      [f("∂L/∂W_E[t] = Σ x̄_i over the positions of token t"), h("span.live-number", null, `“${asked}” is at ${positions}; |∂L/∂W_E[t]| = ${number(norm(at.rowBar))}`), held.W_E ? h("em", null, " W_E is frozen: this is not applied.") : model.wiring.tied ? h("em", null, " W_U is tied to W_E: its gradient is in this number too.") : null]),
    box("x", "what enters attention", both("x", "x", at.x, at.xBar)),
    step([f("q = x W_Q,   k = x W_K,   v = x W_V"), h("p.small", null, "Linear: no activation follows."), size("q", at.q), size("k", at.k), size("v", at.v), h("div.up-block", null, matrixGradients(model, held))], parts(model, at)),
    box("q, k, v", `of “${asked}” in head ${head}`, both("q", "q", at.q, at.qBar), both("k", "k", at.k, at.kBar), both("v", "v", at.v, at.vBar)),
    ...attention(at, tokens, top, i),
    box("z", "the mixture of v that the head reads", both("z", "z", at.z, at.zBar)),
    step([f("o = z W_O, summed over heads"), size("o", at.out)], [f("z̄ = ō W_Oᵀ"), size("z̄", at.zBar)]),
    box("out", "what attention adds to the residual stream", both("o", "out", at.out, at.outBar)),
    step([f(`x + o, then ${model.sizes.n_layers > 1 ? "MLP and further layers" : "the MLP"}, then ${model.wiring.tied ? "W_Eᵀ" : "W_U"}`), h("span.live-number", null, `loss ${fixed(shown.loss)}`)], [f("∂L/∂logits_i = (softmax(logits_i) − onehot(t_{i+1})) / n"), size("∂L/∂logits", at.logitsBar)]),
    prediction(shown, tokens, i, names));
}
