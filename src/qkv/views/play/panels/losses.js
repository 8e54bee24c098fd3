// @ts-check
// Loss of both arms over the steps, with the lines that counting alone reaches.

import { d3, Plot } from "../../static/vendor.js";
import { h } from "../../static/dom.js";
import { fixed, percent, whole } from "../../static/format.js";
import { apart, chart, figure, plot, shifted } from "../../static/figure.js";
import { ARMS, NAMES } from "./pair.js";

const MOST_POINTS = 240;
const NARROWEST = 180; // pixels: a frame that opens or closes is narrower for a moment
const BEGIN = "Press ► train: two curves will begin here";

// Means of neighbouring batches, at most MOST_POINTS of them.
function thinned(losses) {
  const width = Math.max(1, Math.ceil(losses.length / MOST_POINTS));
  const out = [];
  for (let i = 0; i < losses.length; i += width) {
    const part = losses.slice(i, i + width);
    out.push({ step: i + (part.length - 1) / 2, loss: part.reduce((a, b) => a + b, 0) / part.length });
  }
  return out;
}

function summary(race) {
  return ARMS.map((arm) => {
    const all = race.curves[arm].validations;
    const last = all.at(-1);
    if (!last) return "";
    const best = all.reduce((a, b) => (b.loss < a.loss ? b : a));
    if (!Number.isFinite(last.loss)) return `${NAMES[arm]}: diverged at step ${whole(last.step)} (its loss is not a number)`;
    const lower = best === last ? "" : `; lowest ${fixed(best.loss, 3)} at step ${whole(best.step)}`;
    return `${NAMES[arm]}: validation ${fixed(last.loss, 3)} nats, ${percent(last.accuracy)} right at step ${whole(last.step)}${lower}`;
  }).filter(Boolean);
}

// `most`: what lies beyond is drawn no further off; a path cannot hold every number.
function marks(race, colours, span, place, inside, top, most) {
  const colour = { a: colours.arm.a, b: colours.arm.b };
  const bounded = (points) => points.map((p) => ({ ...p, loss: Math.min(p.loss, most) }));
  const lines = ARMS.map((arm) => ({ arm, train: bounded(thinned(race.curves[arm].losses)), val: bounded(race.curves[arm].validations) }));
  return [
    Plot.ruleY(race.baselines, { y: "nats", stroke: colours.faint, strokeDasharray: "5 4" }),
    Plot.text(race.baselines, { x: () => span, y: "nats", text: (b) => `${b.label} ${fixed(b.nats)}`, textAnchor: "start", dx: 8, fill: colours.soft, render: place }),
    ...lines.map(({ arm, train }) => Plot.line(train, { x: "step", y: "loss", stroke: colour[arm], strokeWidth: 1, strokeOpacity: 0.45, clip: true })),
    ...lines.map(({ arm, val }) => Plot.line(val, { x: "step", y: "loss", stroke: colour[arm], strokeWidth: 2.2, strokeDasharray: arm === "b" ? "7 5" : null, clip: true })), // both are seen where they coincide
    ...(race.taken ? [] : [Plot.text([BEGIN], { frameAnchor: "middle", fontSize: 15, fill: colours.ink, stroke: colours.paper, strokeWidth: 9, lineWidth: Math.min(34, inside / 15) })]),
    ...lines.map(({ arm, val }) => Plot.dot(val.slice(-1).filter((v) => v.loss <= top), { x: "step", y: "loss", fill: colour[arm], r: 4 })),
  ];
}

export function losses(host, race, armColours) {
  const frame = figure(host, { wide: true, title: h("span", null, "Loss, nats per token: ", ARMS.map((arm) => [h(`span.key.key-${arm}`, null, NAMES[arm]), " "])),
    caption: h("span", null, "Loss per predicted token, in nats. Thick: validation data, arm B with gaps. Thin: each training batch before the model learned from it, averaged if there are many. Dashed: baselines on the same validation data (uniform, unigram, bigram and, if better, the best Kneser-Ney n-gram). Both arms read the same batches and share initial weights where they have the same matrix.") });
  const readout = h("p.readout.two", { "aria-live": "off" });
  const redraw = chart(frame, (width, colours) => {
    if (!race.seen || width < NARROWEST) return h("div.waiting", { style: "height:15rem" });
    const all = ARMS.flatMap((arm) => [...race.curves[arm].validations.map((v) => v.loss), ...thinned(race.curves[arm].losses).map((v) => v.loss)]);
    const nats = race.baselines.map((b) => b.nats);
    const top = Math.max(d3.max(nats) * 1.04, Math.min(d3.max(all) ?? 0, 2 * d3.max(nats)));
    const low = Math.max(0, (d3.min([...all, ...nats]) ?? 0) - 0.12);
    const span = Math.max(50, race.taken);
    const [marginLeft, marginRight] = [38, width < 520 ? 88 : 104];
    const [height, marginTop, marginBottom] = [Math.max(240, Math.min(340, width * 0.5)), 12, 40];
    const pixel = (v) => marginTop + ((top - v) / (top - low)) * (height - marginTop - marginBottom);
    const places = apart(nats.map(pixel), 15, marginTop, height - marginBottom);
    const place = shifted(places, nats.map(pixel));
    readout.replaceChildren(...summary(race).map((line) => h("span", null, line)));
    return plot(colours, `losses of both arms over ${race.taken} steps. ${summary(race).join("; ")}`, {
      width, height, marginTop, marginBottom, marginLeft, marginRight,
      x: { domain: [0, span], label: "step", labelArrow: "none", labelAnchor: "center", ticks: width < 520 ? 4 : 7, tickSize: 0, tickFormat: (v) => whole(v) },
      y: { domain: [low, top], label: null, ticks: 5, tickSize: 0 },
      marks: marks(race, { ...colours, arm: armColours(frame.el) }, span, place, width - marginLeft - marginRight, top, top + 9 * (top - low)),
    });
  });
  frame.body.append(readout);
  return { el: frame.el, draw: redraw };
}
