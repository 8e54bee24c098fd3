// The map: every matrix (down), every recorded step (across), coloured by one measure, with the null beside it on the
// same scale; and the curve of the matrix that was picked.

import { d3, Plot } from "./vendor.js";
import { add, choice, clear, h, perFrame, together } from "./dom.js";
import { number, whole } from "./format.js";
import { stepIndex, unpack } from "./decode.js";
import { watch } from "./model.js";
import { chart, figure, plot } from "./figure.js";
import { raster } from "./raster.js";
import { bar, root, suited } from "./scale.js";
import { onTheme, theme } from "./theme.js";

const ROW_PIXELS = 17;
const GROWS = new Set(["drift", "turn"]); // from 0 at the start: shown on a square-root scale

function groupsOf(rows, all) {
  const groups = [];
  rows.forEach((row, index) => {
    if (!all && row.shape.length < 2) return;
    const name = row.layer === null ? (groups.some((g) => g.layered) ? "out" : "in") : `${row.scope ? `${row.scope}.` : ""}L${row.layer}`;
    const last = groups[groups.length - 1];
    if (last && last.name === name) last.rows.push(index);
    else groups.push({ name, layered: row.layer !== null, rows: [index] });
  });
  return groups;
}

// Whether the last point of the null lies above the run's curve there: its label goes on that side.
function beyond(lines, points) {
  const last = points[points.length - 1];
  const there = lines[0].points.filter((p) => p.step <= last.step).pop();
  return !there || last.value > there.value;
}

// A few step labels under the columns, first and last among them.
function axis(steps, wanted) {
  const marks = new Set(Array.from({ length: Math.min(wanted, steps.length) }, (_, i) => Math.round((i * (steps.length - 1)) / (Math.max(2, Math.min(wanted, steps.length)) - 1))));
  return h("div.map-axis", { "aria-hidden": "true" }, [...marks].map((i) =>
    h("span", { style: `left:${((i + 0.5) / steps.length) * 100}%` }, steps[i] >= 10000 ? `${number(steps[i] / 1000)}k` : whole(steps[i]))));
}

function render({ model, el }) {
  const map = model.get("map");
  if (!map || !map.rows.length) return () => {};
  const off = together();
  const measures = map.measures.filter((m) => map.values[m.name]);
  let [measure, all] = [measures[0], false];
  const frame = figure(el, { wide: true, title: "Every matrix, every recorded step", caption: h("span.map-caption") });
  const grid = h("div.map");
  const readout = h("p.readout", { "aria-live": "polite" });
  const legend = h("div");
  const hasGains = map.rows.some((row) => row.shape.length < 2);
  frame.body.before(h("div.controls", null,
    choice("measure", measures.map((m) => [m, m.label]), measure, (m) => ((measure = m), draw(), redrawCurve())),
    hasGains ? choice("rows", [[false, "matrices"], [true, "with gains and biases"]], all, (v) => ((all = v), draw())) : null));
  frame.body.append(legend, grid, readout);

  let panels = [];
  const arms = () => [
    { name: "this run", steps: map.steps, values: unpack(map.values[measure.name]) },
    map.null_values[measure.name] && { name: "random labels: the null", steps: map.null_steps, values: unpack(map.null_values[measure.name]) },
  ].filter(Boolean);

  function say(row, arm, column, both) {
    const text = (a) => {
      const i = a.steps.indexOf(arm.steps[column]);
      return i < 0 ? null : `${a.name} ${number(a.values.at(row, i))}`;
    };
    return `${map.rows[row].address}, step ${whole(arm.steps[column])}: ${measure.label} ${both.map(text).filter(Boolean).join(" · ")}`;
  }
  function rest() {
    const row = map.rows.findIndex((r) => r.address === model.get("address"));
    if (row < 0) return void (readout.textContent = "Point at a cell, or walk with the arrow keys.");
    const both = arms();
    readout.textContent = say(row, both[0], stepIndex(map.steps, model.get("step")), both);
  }
  function pickRow(index) {
    model.set("address", map.rows[index].address);
  }
  function draw() {
    const colours = theme(el);
    const both = arms();
    const groups = groupsOf(map.rows, all);
    const shown = groups.flatMap((group) => group.rows);
    const present = both.flatMap((arm) => shown.flatMap((row) => [...arm.values.part(row)].filter(Number.isFinite)));
    const scale = GROWS.has(measure.name) ? root(d3.max(present)) : suited(present);
    panels.forEach((panel) => panel.off());
    panels = [];
    clear(grid).style.setProperty("--arms", both.map((arm) => `${Math.max(2, arm.steps.length)}fr`).join(" "));
    add(grid, [h("span"), h("span"), both.map((arm) => h("span.map-arm", null, arm.name))]);
    for (const group of groups) {
      grid.append(h("span.map-layer", null, group.name), h("div.map-kinds", null, group.rows.map((index) => {
        const row = map.rows[index];
        return h("button.map-kind", { type: "button", tabindex: "-1", "data-address": row.address, style: `--role:var(--role-${row.role});height:${ROW_PIXELS}px`,
          title: `${row.address}  ${row.shape.join(" × ")}${row.unmoved ? "  did not move" : ""}${row.tied_to ? `  tied to ${row.tied_to}` : ""}`, onclick: () => pickRow(index) },
        row.kind, row.unmoved ? " ·0" : null);
      })));
      for (const arm of both) {
        const columns = arm.steps.length;
        const values = Float32Array.from({ length: group.rows.length * columns }, (_, i) => arm.values.at(group.rows[Math.floor(i / columns)], i % columns));
        const panel = raster({
          label: `${measure.label} of ${group.name}, ${arm.name}`, rows: group.rows.length, columns, values, scale,
          tell: (row, column) => (readout.textContent = say(group.rows[row], arm, column, both)),
          pick: (row, column) => (pickRow(group.rows[row]), model.set("step", arm.steps[column])), leave: rest,
        });
        panel.el.style.height = `${ROW_PIXELS * group.rows.length}px`;
        panel.line = h("span.map-now");
        panel.steps = arm.steps;
        panel.el.append(panel.line);
        panels.push(panel);
        grid.append(panel.el);
      }
    }
    add(grid, [h("span"), h("span"), both.map((arm) => axis(arm.steps, el.clientWidth < 560 ? 3 : 6))]);
    clear(legend).append(bar(scale, colours, measure.label));
    add(clear(frame.el.querySelector(".map-caption")), [h("b", null, measure.label), `: ${measure.meaning || measure.formula} Columns are the recorded steps, closer together early${map.thinned ? ` (${map.thinned})` : ""}. `,
      both.length > 1 ? "On the right the same training on random labels, in the same colours: what movement looks like with nothing to learn." : ""]);
    follow();
    mark();
  }
  function follow() {
    for (const panel of panels) {
      const beyond = model.get("step") > panel.steps[panel.steps.length - 1];
      const column = stepIndex(panel.steps, model.get("step"));
      panel.line.style.cssText = `left:${(column / panel.steps.length) * 100}%;width:${100 / panel.steps.length}%`;
      panel.line.hidden = beyond;
    }
    rest();
  }
  function mark() {
    grid.querySelectorAll(".map-kind").forEach((button) =>
      button.classList.toggle("on", button.dataset.address === model.get("address")));
    rest();
  }

  const curveFrame = figure(el, { wide: true, title: h("span.curve-title"), caption: null });
  const redrawCurve = chart(curveFrame, (width, colours) => {
    const index = Math.max(0, map.rows.findIndex((r) => r.address === model.get("address")));
    const row = map.rows[index];
    curveFrame.el.querySelector(".curve-title").replaceChildren(h("code", null, row.address), ` ${measure.label} over the training`);
    const lines = arms().map((arm, i) => ({ arm, own: i === 0, points: arm.steps.map((step, j) => ({ step: Math.max(1, step), value: arm.values.at(index, j) })).filter((p) => Number.isFinite(p.value)) }));
    const end = d3.max(map.steps);
    return plot(colours, `${measure.label} of ${row.address} over steps`, {
      width, height: 200, marginLeft: 52, marginRight: width < 520 ? 96 : 130, marginBottom: 30, marginTop: 10,
      x: { type: "log", domain: [1, Math.max(2, end)], label: null, tickSize: 0, ticks: width < 520 ? 3 : 5, tickFormat: (v) => whole(v) },
      y: { label: null, ticks: 4, tickSize: 0, tickFormat: (v) => number(v, 2), zero: measure.name === "drift" },
      marks: [
        Plot.gridY({ stroke: colours.line, strokeOpacity: 1, ticks: 4 }),
        Plot.ruleX([Math.max(1, model.get("step"))], { stroke: colours.accent, strokeOpacity: 0.5 }),
        lines.map(({ own, points, arm }) => [
          Plot.line(points, { x: "step", y: "value", stroke: own ? colours.role[row.role] : colours.faint, strokeWidth: own ? 2.2 : 1.5, strokeDasharray: own ? null : "4 3" }),
          Plot.text(points.slice(-1), { x: "step", y: "value", text: () => (own ? "this run" : "random labels"), dx: 7, dy: own ? 0 : beyond(lines, points) ? -8 : 9, textAnchor: "start", fill: own ? colours.role[row.role] : colours.soft }),
        ]),
        Plot.dot(lines[0].points, { x: "step", y: "value", r: 1.6, fill: colours.role[row.role], title: (p) => `step ${whole(p.step)}: ${number(p.value)}`, tip: true }),
      ],
    });
  }, "matrix-over-steps");
  off.add(onTheme(draw));
  const curveSoon = perFrame(redrawCurve);
  off.add(watch(model, "step", () => (follow(), curveSoon())));
  off.add(watch(model, "address", () => (mark(), redrawCurve())));
  off.add(curveFrame.off);
  off.add(frame.off);
  off.add(() => panels.forEach((panel) => panel.off()));
  draw();
  return off;
}

export default { render };
