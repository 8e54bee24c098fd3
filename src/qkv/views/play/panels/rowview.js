// @ts-check
// One token's row of W_E before and now, and the gradient that reached it; then all rows' gradients in one strip.

import { clear, h, newId, together } from "../../static/dom.js";
import { number, percent, plural } from "../../static/format.js";
import { figure } from "../../static/figure.js";
import { raster } from "../../static/raster.js";
import { bar, linear, robust } from "../../static/scale.js";
import { theme } from "../../static/theme.js";
import { ARMS, NAMES, norm, pair, steady } from "./pair.js";
import { values } from "./weightview.js";

export function rowView(host, race, pick) {
  const id = newId("token");
  const select = h("select", { id, onchange: () => (pick(Number(select.value)), draw()) });
  const frame = figure(host, { wide: true, title: h("span", null, h("label", { for: id }, "One row: W_E of "), select),
    caption: "One token's row at the start and now, and the difference, on one scale. Then the gradient of this row at the last step. The last strip shows the gradient norm of every row, in the order of the list." });
  const columns = pair(frame.body, "one row");
  const off = Object.fromEntries(ARMS.map((arm) => [arm, together()]));

  function build() {
    clear(select).append(...race.tokens.map((_, i) => h("option", { value: i }, race.show(i))));
  }
  function draw() {
    if (!race.seen) return;
    select.value = String(race.token);
    for (const arm of ARMS) one(arm, theme(host));
  }
  function one(arm, colours) {
    const { d_model: d, d_vocab } = race.made[arm].sizes;
    const body = columns[arm];
    if (race.playing && (body.contains(document.activeElement) || body.matches(":hover")) && body.dataset.token === String(race.token)) return;
    body.dataset.token = race.token;
    off[arm]();
    const row = (numbers) => numbers.slice(race.token * d, (race.token + 1) * d);
    const [now, change, gradient] = ["weights", "change", "gradient"].map((mode) => values(race, arm, "W_E", mode).numbers);
    const before = row(now).map((v, i) => v - row(change)[i]);
    const readout = h("p.readout", { "aria-live": "polite" });
    const strip = (name, numbers, scale, says) => {
      const panel = raster(off[arm], { label: `${NAMES[arm]}, ${name}`, rows: 1, columns: numbers.length, values: numbers, scale,
        tell: (_, i) => (readout.textContent = says(i)), leave: () => (readout.textContent = summary) });
      return [h("span.strip-name", null, name), panel.el];
    };
    const scale = linear(steady(robust([row(now), before], true).ends[1]), true);
    const slope = linear(steady(robust([row(gradient)], true).ends[1]), true);
    const lengths = Float64Array.from({ length: d_vocab }, (_, i) => norm(gradient.subarray(i * d, (i + 1) * d)));
    const reach = linear(steady(lengths.reduce((a, b) => Math.max(a, b), 0)));
    const moved = norm(row(change)) / norm(before);
    const summary = `${race.show(race.token)} occurs ${plural(race.counts[race.token], "time")} in the training data${race.countsNote}. ` +
      (moved === 0 ? "None of the numbers in its row has changed." : `Its row moved by ${percent(moved)} of its initial norm.`);
    const each = (name, numbers) => strip(name, numbers, scale, (i) => `number ${i}: before ${number(before[i])}, now ${number(row(now)[i])}`);
    clear(body).append(h("div.strips", null, each("before", before), each("now", row(now)), each("change", row(change)), h("span"), bar(scale, colours, "one weight"),
      strip("gradient", row(gradient), slope, (i) => `gradient of number ${i}: ${number(row(gradient)[i])}`), h("span"), bar(slope, colours, "gradient"),
      strip("all rows", lengths, reach, (i) => `${race.show(i)}: gradient of length ${number(lengths[i])}`), h("span"), bar(reach, colours, "length of the gradient of a row")), readout);
    readout.textContent = summary;
  }
  return { el: frame.el, draw, build };
}
