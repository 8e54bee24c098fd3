// @ts-check
// What comes next: every token's probability, and what temperature, top-k and top-p make of it, as `qkv predict` draws it.

import { add, clear, h, inSight, lastOnly, newId, say } from "./dom.js";
import { fixed, number, plural, token, whole } from "./format.js";
import { unpack } from "./decode.js";
import { dated } from "./entry.js";

/** @import { Off } from "./dom.js" */

const SHOWN = 12;

/**
 * softmax(logits / temperature), cut to the `topK` largest (0: all; equals of the last stay), then to the fewest that hold `topP` of it,
 * and made to sum to 1. Temperature 0 takes the largest.
 * @param {ArrayLike<number>} logits  largest first @param {{ temperature: number, topK: number, topP: number }} how @returns {Float64Array}
 */
export function distribution(logits, { temperature, topK, topP }) {
  const n = logits.length;
  const p = new Float64Array(n);
  const last = logits[topK > 0 && topK < n ? topK - 1 : n - 1];
  for (let i = 0; i < n && logits[i] >= last; i++) p[i] = temperature === 0 ? Number(i === 0) : Math.exp((logits[i] - logits[0]) / temperature);
  const sum = () => p.reduce((a, b) => a + b, 0);
  const share = topP < 1 ? topP * sum() : Infinity;
  let before = 0;
  for (let i = 0; i < n; i++) {
    const own = p[i];
    if (i > 0 && before >= share) p[i] = 0;
    before += own;
  }
  const total = sum();
  return p.map((one) => one / total);
}

// A number to choose, with what it is now in words.
function dial(label, attributes, state, key, said, changed) {
  const id = newId("dial");
  const output = h("output", { for: id }, said(state[key]));
  const input = h("input", { id, type: "range", ...attributes, value: state[key], oninput: () => {
    state[key] = Number(input.value);
    output.textContent = said(state[key]);
    changed();
  } });
  return h("div.dial", null, h("label", { for: id }, label), input, output);
}

/**
 * The next token's distribution at the page's token: `ask("next", { position })` answers, `position()` says where.
 * @param {(name: string, more: object) => Promise<any>} ask @param {() => number} position @param {Off} off
 */
export function nextToken(ask, position, off) {
  const state = { temperature: 1, topK: 0, topP: 1 };
  const latest = lastOnly();
  const [dials, body, said] = [h("div.dials"), h("div"), h("p.small", { role: "status" })];
  let found = null;
  function draw() {
    if (!found) return;
    const logits = unpack(found.logits).values;
    const [plain, now] = [distribution(logits, { temperature: 1, topK: 0, topP: 1 }), distribution(logits, state)];
    const left = now.filter((p) => p > 0).length;
    const bar = (p, kind) => h(`span.bar-of.${kind}`, null, h("span", { style: `width:${p * 100}%` }));
    add(clear(body), [
      h("ol.predictions.next", null, found.tokens.slice(0, SHOWN).map((name, i) => h(now[i] > 0 ? "li" : "li.cut", null, h("code", { title: token(name) }, token(name)), bar(now[i], "now"), h("span.amount", null, fixed(now[i], 3)), h("span.plain", { title: "softmax of the logits alone" }, fixed(plain[i], 3))))),
      h("p.small", null, `${left < logits.length ? `${plural(left, "token")} of ${whole(logits.length)} can be drawn` : `All ${plural(logits.length, "token")} can be drawn`}; entropy ${number(now.reduce((sum, p) => (p > 0 ? sum - p * Math.log(p) : sum), 0))} nats. Left: with these settings; right: the softmax of the logits alone.`)]);
    dated(body, found.step);
  }
  const look = () => latest(() => ask("next", { position: position() }), (answer) => {
    found = answer;
    draws();
    say(said);
    draw();
  }, (error) => {
    found = null;
    clear(body);
    say(said, error.message);
  });
  function draws() {
    if (dials.children.length) return;
    add(dials, [dial("temperature", { min: 0, max: 2, step: 0.05 }, state, "temperature", (v) => fixed(v, 2), draw),
      dial("top-k", { min: 0, max: Math.min(100, found.logits.shape[0]), step: 1 }, state, "topK", (v) => (v ? whole(v) : "off"), draw),
      dial("top-p", { min: 0.05, max: 1, step: 0.05 }, state, "topP", (v) => (v < 1 ? fixed(v, 2) : "off"), draw)]);
  }
  const el = h("div.next-token", null, h("h4", null, "The next token"), said, dials, body);
  el.renew = el.point = inSight(el, look, off);
  return el;
}
