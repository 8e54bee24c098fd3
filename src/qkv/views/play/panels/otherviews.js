// @ts-check
// What moved q, cosines of rows of W_E where words have kinds, and what the model writes. What a task has nothing for is hidden
// by `build`, at every new task: a drawing that hid itself would be out of sight, and never be asked to draw again.

import { clear, h, together } from "../../static/dom.js";
import { fixed, number } from "../../static/format.js";
import { figure } from "../../static/figure.js";
import { raster } from "../../static/raster.js";
import { bar, linear } from "../../static/scale.js";
import { theme } from "../../static/theme.js";
import { ARMS, NAMES, norm, pair } from "./pair.js";
import { values } from "./weightview.js";

const PARTS = [["encodings", "dx W_Q", "the encodings moved"], ["matrix", "x dW_Q", "the matrix moved"], ["both", "dx dW_Q", "both together"], ["all", "dq", "q moved in all"]];

export function movedView(host, race) {
  const frame = figure(host, { wide: true, title: "What moved q", caption: "Since the start, on the sentence above. The change of a layer's queries splits exactly: dq = dx W_Q + x dW_Q + dx dW_Q, where x is the input of W_Q (after the norm). Norms are relative to that of the initial q. Parts in different directions add up to less than the sum of their norms." });
  const columns = pair(frame.body, "what moved q");
  function draw() {
    if (!race.seen) return;
    const longest = Math.max(1e-9, ...ARMS.flatMap((arm) => race.seen[arm].moved.flatMap((m) => PARTS.map(([key]) => m[key]))));
    for (const arm of ARMS) {
      clear(columns[arm]).append(...race.seen[arm].moved.map((m, layer) => h("div.moved", null, h("p.small", null, h("b", null, `L${layer}`)),
        h("div.paths", null, PARTS.map(([key, formula, words]) => [h("span", null, h("code", null, formula), ` ${words}`),
          h("span.bar-of", { "aria-hidden": "true" }, h("span", { style: `width:${(100 * m[key]) / longest}%` })), h("span.amount", { "data-part": key }, number(m[key]))])))));
    }
  }
  return { el: frame.el, draw };
}

function cosines(numbers, ids, d) {
  const rows = ids.map((id) => numbers.subarray(id * d, (id + 1) * d));
  const lengths = rows.map((row) => norm(row));
  return (i, j) => rows[i].reduce((sum, v, k) => sum + v * rows[j][k], 0) / (lengths[i] * lengths[j]);
}

function means(numbers, d, { kinds, beside }) {
  const all = [...new Set([...kinds.flat(), ...beside.flat()])];
  const cos = cosines(numbers, all, d);
  const at = (id) => all.indexOf(id);
  const mean = (pairs) => pairs.reduce((sum, [i, j]) => sum + cos(at(i), at(j)), 0) / pairs.length;
  const pairsOf = (kind) => kind.flatMap((i, n) => kind.slice(n + 1).map((j) => [i, j]));
  return { share: mean(kinds.flatMap(pairsOf)), beside: mean(beside) };
}

export function cosineView(host, race) {
  const frame = figure(host, { wide: true, title: "Which rows of W_E are similar?", caption: "Cosines between rows of W_E, words in the order of their kinds: animals, people, drinks, foods, places. A property of this parametrization: a change of basis inside the model can alter these cosines but not its output." });
  const columns = pair(frame.body, "cosines");
  const off = together();
  function draw() {
    const { kinds, beside } = race.task;
    if (!race.seen || !kinds) return;
    const [ids, colours, scale] = [kinds.flat(), theme(host), linear(1, true)];
    off();
    for (const arm of ARMS) {
      const d = race.made[arm].sizes.d_model;
      const [now, first] = [values(race, arm, "W_E", "weights").numbers, race.made[arm].origin];
      const cos = cosines(now, ids, d);
      const table = Float64Array.from({ length: ids.length ** 2 }, (_, i) => cos(Math.floor(i / ids.length), i % ids.length));
      const readout = h("p.readout", { "aria-live": "polite" });
      const panel = raster(off, { label: `${NAMES[arm]}, cosines of rows of W_E`, rows: ids.length, columns: ids.length, values: table, scale, style: "aspect-ratio:1",
        tell: (i, j) => (readout.textContent = `${race.show(ids[i])} and ${race.show(ids[j])}: ${fixed(table[i * ids.length + j])}`) });
      const [before, after] = [means(first, d, { kinds, beside }), means(now, d, { kinds, beside })];
      const line = (label, key) => h("div", null, h("dt", null, label), h("dd", { "data-mean": key }, `${fixed(before[key])} → ${fixed(after[key])}`));
      clear(columns[arm]).append(h("div.head-large", null, panel.el), bar(scale, colours, "cosine"),
        h("dl.numbers", null, line("mean, words that share contexts", "share"), line("mean, words that stand together", "beside")), readout);
    }
  }
  return { el: frame.el, draw, build: () => (frame.el.hidden = !race.task.kinds) };
}

export function writtenView(host, race) {
  const frame = figure(host, { wide: true, title: "What it writes", caption: "The sentence and its continuation, sampled token by token from the model's probabilities." });
  const columns = pair(frame.body, "what is written");
  function draw() {
    if (!race.seen) return;
    const gap = race.task.name === "words" ? " " : "";
    const text = (ids) => ids.map((id) => race.tokens[id]).join(gap);
    for (const arm of ARMS) {
      if (race.written?.[arm]) clear(columns[arm]).append(h("div.sample", null, h("pre", { tabindex: "0" }, h("span.prompt", null, text(race.seen[arm].sentence) + gap), text(race.written[arm]))));
    }
  }
  return { el: frame.el, draw, build: () => (frame.el.hidden = race.task.name !== "text" && race.task.name !== "words") };
}
