// @ts-check
// One matrix over the training: each measure as a curve, the random-label control beside it, its heads as thin
// lines, and the step of the slider as a rule.

import { d3, Plot } from "./vendor.js";
import { h, s } from "./dom.js";
import { number, tick, tickOfSteps, whole } from "./format.js";
import { unpack, wholeOf } from "./decode.js";
import { chart, plot, series } from "./figure.js";
import { CONTROL, described } from "./control.js";
import { measuresOf, sectionsOf } from "./grid.js";
import { controls, view } from "./view.js";

// [{ step, x, value }] of one address in a section (map or grid), null arm or not; `x` is where a logarithmic scale has it.
export function seriesOf(section, measure, address, isNull) {
  const values = section && unpack((isNull ? section.null_values : section.values)[measure]);
  const row = values ? section.rows.findIndex((r) => r.address === address) : -1;
  const steps = section && (isNull ? section.null_steps : section.steps);
  return row < 0 ? [] : steps.map((step, i) => ({ step, x: Math.max(1, step), value: values.at(row, i), untrained: step === 0 })).filter((p) => Number.isFinite(p.value));
}

// What is drawn of one measure of an address: its own line, that of all heads where it is one, the control's, and its heads'.
function linesOf(model, measure, address) {
  const all = (of, isNull) => sectionsOf(model).map((section) => seriesOf(section, measure, of, isNull)).find((line) => line.length) ?? [];
  const base = wholeOf(address);
  const heads = (model.get("grid")?.rows ?? []).filter((row) => wholeOf(row.address) === base && row.address !== address)
    .map((row) => all(row.address, false)).filter((points) => points.length);
  const control = all(address, true);
  return { own: all(address, false), parent: base === address ? [] : all(base, false), null_: control.length ? control : all(base, true), heads };
}

function drawn(width, colours, { address, label, isDrift, role }, { own, parent, null_, heads }) {
  const untrained = own.filter((p) => p.untrained);
  const end = Math.max(2, d3.max([own, parent, null_, ...heads].flat(), (p) => p.step) ?? 2);
  const colour = colours.role[role];
  const named = [[own, wholeOf(address) === address ? "this run" : address.split(".").at(-2), colour], [parent, "all heads", colours.soft], [null_, width < 520 ? "control" : CONTROL, colours.ink]].filter(([points]) => points.length);
  return plot(colours, `${label} of ${address} over steps, ${number(own[0]?.value)} to ${number(own.at(-1)?.value)}`, {
    width, height: 210, marginLeft: 52, marginRight: width < 520 ? 92 : 130, marginBottom: 30, marginTop: 10,
    x: { type: "log", domain: [1, end], label: null, tickSize: 0, ticks: width < 520 ? 3 : 5, tickFormat: tickOfSteps },
    y: { label: null, ticks: 4, tickSize: 0, tickFormat: tick, zero: isDrift },
    marks: [
      Plot.gridY({ stroke: colours.line, strokeOpacity: 1, ticks: 4 }),
      heads.map((points) => series(points, { x: "x", y: "value", stroke: colour, strokeOpacity: 0.35, strokeWidth: 1 })),
      Plot.ruleY(untrained, { y: "value", stroke: colours.faint, strokeDasharray: "1 4" }),
      Plot.text(untrained, { y: "value", frameAnchor: "right", dx: -4, dy: -6, textAnchor: "end", text: () => "no training", fill: colours.faint, fontSize: 10 }),
      series(own, { x: "x", y: "value", stroke: colour, strokeWidth: 2.2 }),
      series(parent, { x: "x", y: "value", stroke: colours.soft, strokeWidth: 1.4, strokeDasharray: "1 4" }), // on top, with gaps: seen where curves coincide
      series(null_, { x: "x", y: "value", stroke: colours.ink, strokeWidth: 1.5, strokeDasharray: "4 3" }),
      Plot.dot(own, { x: "x", y: "value", r: 1.8, fill: colour, title: (p) => `step ${whole(p.step)}: ${number(p.value)}`, tip: true }),
      named.map(([points, text, fill], i) => Plot.text(points.slice(-1), { x: "x", y: "value", text: () => text, dx: 7, dy: i === 0 ? -2 : points === null_ ? -9 : i * 9, textAnchor: "start", fill, stroke: colours.paper, strokeWidth: 4 })),
    ],
  });
}

function build({ model, figure, follow, hear }) {
  const state = { measure: "drift" };
  const offered = () => {
    const address = model.get("address");
    return measuresOf(model).filter((m) => sectionsOf(model).some((section) => [address, wholeOf(address)].some((a) => seriesOf(section, m.name, a, false).length)));
  };
  const title = h("span");
  const frame = figure({ wide: true, title, caption: `Steps on a logarithmic scale; the vertical line is the slider's step. Thin lines are the heads of this matrix. Dashed: ${described(model)}, where recorded.` });
  let measures = offered();
  let [plotted, now] = [null, null];
  // The rule at the slider's step moves; nothing else of the chart is drawn again for it.
  function move() {
    if (!plotted) return;
    const x = plotted.scale("x").apply(Math.max(1, model.get("step")));
    now.setAttribute("x1", x);
    now.setAttribute("x2", x);
  }
  const redraw = chart(frame, (width, colours) => {
    const address = model.get("address");
    const label = measures.find((m) => m.name === state.measure)?.label ?? state.measure;
    title.replaceChildren(h("code", null, address), ` ${label} over the training`);
    const role = sectionsOf(model).flatMap((section) => section.rows).find((row) => row.address === address)?.role ?? "norm";
    plotted = drawn(width, colours, { address, label, isDrift: state.measure === "drift", role }, linesOf(model, state.measure, address));
    now = s("line", { y1: 10, y2: 180, stroke: colours.accent, "stroke-opacity": 0.5 });
    plotted.append(now);
    move();
    return plotted;
  });
  const choices = controls(state, () => [measures.length ? { key: "measure", label: "measure of the curve", options: measures.map((m) => [m.name, m.label]), most: 5 } : null], redraw);
  frame.body.before(choices.el);
  function choose() {
    measures = offered();
    if (!measures.some((m) => m.name === state.measure)) state.measure = measures[0]?.name ?? state.measure;
    frame.el.hidden = !measures.length;
    choices.draw();
    redraw();
  }
  choose();
  hear(["step"], move);
  follow(["map", "grid"], redraw);
  hear(["address"], choose);
}

export default view(build, { needs: (model) => model.get("map") || model.get("grid") });
