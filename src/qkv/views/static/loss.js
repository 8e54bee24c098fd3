// @ts-check
// Loss over the training: every batch, the whole validation text, and the lines it is read against.

import { d3, Plot } from "./vendor.js";
import { h, perFrame } from "./dom.js";
import { fixed, number, tick, tickOfSteps, whole } from "./format.js";
import { apart, chart, fitted, plot, series, shifted, widthOf } from "./figure.js";
import { smoothed } from "./overlay.js";
import { controls, view } from "./view.js";

const SMOOTH = 0.03; // of the number of points

// How many losses a picture of low..high leaves out, in a sentence.
/** @param {number[]} losses @param {number[]} range @param {string} unit */
function beyond(losses, [low, high], unit) {
  const [above, below] = [losses.filter((loss) => loss > high), losses.filter((loss) => loss < low)];
  const parts = [above.length && `${whole(above.length)} above it (highest ${fixed(d3.max(above), 3)} ${unit})`, below.length && `${whole(below.length)} below it (lowest ${fixed(d3.min(below), 3)} ${unit})`];
  const words = parts.filter(Boolean).join(" and ");
  return words ? ` Outside the picture: ${words}.` : "";
}

// What is drawn of the section: { loss, train, val, smooth, lastStep }.
function read(loss) {
  const points = (steps, values) => steps.map((step, i) => ({ step, loss: values[i] })).filter((p) => p.loss !== null);
  const [train, val] = [points(loss.train_steps, loss.train), points(loss.val_steps, loss.val)];
  const lastStep = Math.max(d3.max(train, (p) => p.step) ?? 0, d3.max(val, (p) => p.step) ?? 0);
  const means = smoothed(train.map((p) => p.loss), SMOOTH);
  return { loss, train, val, smooth: means ? train.map((p, i) => ({ step: p.step, loss: means[i] })) : [], lastStep };
}

function build({ model, figure, hear }) {
  let { loss, train, val, smooth, lastStep } = read(model.get("loss"));
  const [thinned, best, cut] = [h("span"), h("span"), h("span")];
  const say = () => {
    thinned.textContent = loss.thinned ? ` (${loss.thinned})` : "";
    best.textContent = loss.best_step !== null ? `; the ring marks the lowest, ${fixed(loss.best, 2)} nats at step ${whole(loss.best_step)}` : "";
  };
  say();
  const state = { log: false, bits: false };
  const inUnit = (nats) => (state.bits ? nats * loss.bits_per_byte_of_nat + loss.bits_per_byte_lost : nats);
  const frame = figure({
    wide: true, title: "Loss while training",
    caption: h("span", null, `The loss is in `, h("b", null, "nats"), ` per ${model.get("run").unit}: at a loss of x, the geometric mean of the probabilities of the right answers is e`, h("sup", null, "−x"), ". Thin line: each training batch, before the model learned from it",
      thinned, ". Dots: the whole validation data",
      best, ". Dashed: baselines on the same data.", cut),
  });
  frame.body.before(controls(state, () => [{ key: "log", label: "step axis", options: [[false, "steps"], [true, "steps, log"]] },
    loss.bits_per_byte_of_nat ? { key: "bits", label: "unit", options: [[false, "nats per token"], [true, "bits per byte"]] } : null], () => redraw()).el);
  const redraw = chart(frame, (width, colours) => {
    const { log, bits } = state;
    const height = Math.max(280, Math.min(420, width * 0.5));
    const [top, bottom] = [14, 34];
    const scaled = (p) => inUnit(p.loss);
    const lines = loss.baselines.map((b) => ({ ...b, y: bits && b.bits_per_byte !== null ? b.bits_per_byte : inUnit(b.nats) }));
    const right = Math.max(24, widthOf(lines.map((l) => `${l.label} ${number(l.y, 3)}`), width * (width < 520 ? 0.4 : 0.3)) + 16);
    const said = (l) => `${fitted(l.label, right - 16 - 6.6 * (number(l.y, 3).length + 1))} ${number(l.y, 3)}`;
    const floor = d3.min([...val.map(scaled), ...(smooth.length ? smooth : train).map(scaled), ...lines.map((l) => l.y)]);
    const ceiling = d3.max([...val.map(scaled), ...train.slice(0, 3).map(scaled), ...lines.map((l) => l.y)]);
    const domain = [floor - (ceiling - floor) * 0.06, ceiling + (ceiling - floor) * 0.02];
    cut.textContent = beyond(train.map(scaled), domain, bits ? "bits per byte" : "nats");
    const pixel = (y) => top + ((domain[1] - y) / (domain[1] - domain[0])) * (height - top - bottom);
    const places = apart(lines.map((l) => pixel(l.y)), 15, top + 4, height - bottom - 4);
    const x = log ? (p) => Math.max(1, p.step) : "step";
    const end = log ? Math.max(2, lastStep) : lastStep;
    return plot(colours, `loss from ${fixed(train[0]?.loss)} to ${fixed(loss.last)} nats over ${lastStep} steps`, {
      width, height, marginTop: top, marginBottom: bottom, marginRight: right, marginLeft: 46,
      x: { type: log ? "log" : "linear", domain: [log ? 1 : 0, end], label: null, ticks: width < 520 ? 4 : 6, tickSize: 0, tickFormat: tickOfSteps },
      y: { domain, label: null, ticks: 6, tickSize: 0, tickFormat: tick, nice: false },
      marks: [
        series(train, { x, y: scaled, stroke: colours.mute, strokeOpacity: smooth.length ? 0.45 : 1, strokeWidth: 1, clip: true }),
        Plot.line(smooth, { x, y: scaled, stroke: colours.soft, strokeWidth: 1.6, clip: true }),
        Plot.ruleY(lines, { y: "y", stroke: colours.faint, strokeDasharray: "5 4" }),
        Plot.text(lines, { x: () => end, y: "y", frameAnchor: "right", text: said, textAnchor: "start", dx: 12, fill: colours.soft, render: shifted(places, lines.map((l) => pixel(l.y))) }),
        Plot.line(val, { x, y: scaled, stroke: colours.accent, strokeWidth: 2 }),
        Plot.dot(val, { x, y: scaled, fill: colours.accent, r: 2.6, title: (p) => `step ${whole(p.step)}: validation ${number(scaled(p), 4)}`, tip: true }),
        Plot.dot(val.filter((p) => p.step === loss.best_step), { x, y: scaled, stroke: colours.accent, r: 7, strokeWidth: 1.6 }),
      ],
    });
  });
  const soon = perFrame(redraw);
  hear(["loss"], () => {
    if (model.get("loss")) ({ loss, train, val, smooth, lastStep } = read(model.get("loss")));
    say();
    soon();
  });
}

const has = (loss) => loss && [...loss.train, ...loss.val].some((value) => value !== null);
export default view(build, { needs: (model) => has(model.get("loss")) });
