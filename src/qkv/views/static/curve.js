// One matrix over the training: each measure as a curve, the random-label control beside it, its heads as thin
// lines, and the step of the slider as a rule.

import { d3, Plot } from "./vendor.js";
import { add, choice, clear, h, inSight, s, together } from "./dom.js";
import { number, tick, tickOfSteps, whole } from "./format.js";
import { unpack } from "./decode.js";
import { watch } from "./model.js";
import { chart, figure, plot, series } from "./figure.js";
import { CONTROL, described } from "./control.js";

// [{ step, x, value }] of one address in a section (map or grid), null arm or not; `x` is where a logarithmic scale has it.
export function seriesOf(section, measure, address, isNull) {
  const values = section && unpack((isNull ? section.null_values : section.values)[measure]);
  const row = values ? section.rows.findIndex((r) => r.address === address) : -1;
  const steps = section && (isNull ? section.null_steps : section.steps);
  return row < 0 ? [] : steps.map((step, i) => ({ step, x: Math.max(1, step), value: values.at(row, i), untrained: step === 0 })).filter((p) => Number.isFinite(p.value));
}

const baseOf = (address) => address.replace(/\.(?:H|KV)\d+\./, ".");

function render({ model, el }) {
  if (!model.get("map") && !model.get("grid")) return () => {};
  const off = together();
  let measure = "drift";
  const sections = () => [model.get("map"), model.get("grid")].filter(Boolean);
  const all = (address, isNull) => sections().map((section) => seriesOf(section, measure, address, isNull)).find((s) => s.length) ?? [];
  const offered = () => {
    const address = model.get("address");
    const names = sections().flatMap((section) => section.measures);
    return names.filter((m, i) => names.findIndex((other) => other.name === m.name) === i)
      .filter((m) => sections().some((section) => [address, baseOf(address)].some((a) => seriesOf(section, m.name, a, false).length)));
  };
  const title = h("span");
  const frame = figure(el, { wide: true, title, caption: `Steps on a logarithmic scale; the upright line is the step of the slider. Thin lines are the heads of this matrix, one each; dashed: ${described(model)}, where it was recorded.` });
  const controls = h("div.controls");
  frame.body.before(controls);
  const roleOf = (address) => sections().flatMap((section) => section.rows).find((row) => row.address === address)?.role ?? "norm";

  let measures = offered();
  let [plotted, now] = [null, null];
  // The rule at the slider's step moves; nothing else of the chart is drawn again for it.
  function follow() {
    if (!plotted) return;
    const x = plotted.scale("x").apply(Math.max(1, model.get("step")));
    now.setAttribute("x1", x);
    now.setAttribute("x2", x);
  }
  const redraw = chart(frame, (width, colours) => {
    const address = model.get("address");
    const base = baseOf(address);
    const heads = (model.get("grid")?.rows ?? []).filter((row) => baseOf(row.address) === base && row.address !== address)
      .map((row) => ({ address: row.address, points: all(row.address, false) })).filter((line) => line.points.length);
    const own = all(address, false);
    const parent = base === address ? [] : all(base, false);
    const null_ = all(address, true).length ? all(address, true) : all(base, true);
    const untrained = own.filter((p) => p.untrained);
    const label = measures.find((m) => m.name === measure)?.label ?? measure;
    title.replaceChildren(h("code", null, address), ` ${label} over the training`);
    const lines = [own, parent, null_, ...heads.map((line) => line.points)];
    const end = Math.max(2, d3.max(lines.flat(), (p) => p.step) ?? 2);
    const colour = colours.role[roleOf(address)];
    const named = [[own, base === address ? "this run" : address.split(".").at(-2), colour], [parent, "all heads", colours.soft], [null_, width < 520 ? "control" : CONTROL, colours.faint]].filter(([points]) => points.length);
    plotted = plot(colours, `${label} of ${address} over steps, ${number(own[0]?.value)} to ${number(own.at(-1)?.value)}`, {
      width, height: 210, marginLeft: 52, marginRight: width < 520 ? 92 : 130, marginBottom: 30, marginTop: 10,
      x: { type: "log", domain: [1, end], label: null, tickSize: 0, ticks: width < 520 ? 3 : 5, tickFormat: tickOfSteps },
      y: { label: null, ticks: 4, tickSize: 0, tickFormat: tick, zero: measure === "drift" },
      marks: [
        Plot.gridY({ stroke: colours.line, strokeOpacity: 1, ticks: 4 }),
        heads.map((line) => series(line.points, { x: "x", y: "value", stroke: colour, strokeOpacity: 0.35, strokeWidth: 1 })),
        Plot.ruleY(untrained, { y: "value", stroke: colours.faint, strokeDasharray: "1 4" }),
        Plot.text(untrained, { y: "value", frameAnchor: "right", dx: -4, dy: -6, textAnchor: "end", text: () => "no training", fill: colours.faint, fontSize: 10 }),
        series(null_, { x: "x", y: "value", stroke: colours.faint, strokeWidth: 1.5, strokeDasharray: "4 3" }),
        series(parent, { x: "x", y: "value", stroke: colours.soft, strokeWidth: 1.4 }),
        series(own, { x: "x", y: "value", stroke: colour, strokeWidth: 2.2 }),
        Plot.dot(own, { x: "x", y: "value", r: 1.8, fill: colour, title: (p) => `step ${whole(p.step)}: ${number(p.value)}`, tip: true }),
        named.map(([points, text, fill], i) => Plot.text(points.slice(-1), { x: "x", y: "value", text: () => text, dx: 7, dy: i === 0 ? -2 : points === null_ ? -9 : i * 9, textAnchor: "start", fill, stroke: colours.paper, strokeWidth: 4 })),
      ],
    });
    now = s("line", { y1: 10, y2: 180, stroke: colours.accent, "stroke-opacity": 0.5 });
    plotted.append(now);
    follow();
    return plotted;
  });
  function build() {
    measures = offered();
    if (!measures.some((m) => m.name === measure)) measure = measures[0]?.name ?? measure;
    frame.el.hidden = !measures.length;
    clear(controls);
    if (measures.length) add(controls, [measures.length > 5
      ? h("select", { "aria-label": "measure of the curve", onchange: (event) => ((measure = measures[event.target.selectedIndex].name), redraw()) }, measures.map((m) => h("option", { selected: m.name === measure }, m.label)))
      : choice("measure of the curve", measures.map((m) => [m.name, m.label]), measure, (name) => ((measure = name), redraw()))]);
    redraw();
  }
  const soon = inSight(el, redraw);
  off.add(soon.off);
  off.add(watch(model, "step", follow));
  for (const key of ["map", "grid"]) off.add(watch(model, key, soon));
  off.add(watch(model, "address", build));
  off.add(frame.off);
  build();
  return off;
}

export default { render };
