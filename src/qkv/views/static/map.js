// The map: every matrix (down), every recorded step (across), coloured by one measure, with the random-label control
// beside it on the same scale.

import { d3 } from "./vendor.js";
import { add, choice, clear, h, inSight, together } from "./dom.js";
import { number, whole } from "./format.js";
import { stepIndex, unpack } from "./decode.js";
import { watch } from "./model.js";
import { figure } from "./figure.js";
import { CONTROL, described, when } from "./control.js";
import { raster } from "./raster.js";
import { bar, root, suited } from "./scale.js";
import { onTheme, theme } from "./theme.js";

const ROW_PIXELS = 17;
const GROWS = new Set(["drift", "turn"]); // from 0 at the start: shown on a square-root scale

// Rows that stand together: what comes in, each layer, what goes out; a decoder's own tables come in after an encoder.
export function groupsOf(rows, all) {
  const groups = [];
  const isOut = (row) => row.site === "head" || (row.site !== "embed" && groups.some((g) => g.layered));
  rows.forEach((row, index) => {
    if (!all && row.shape.length < 2) return;
    const name = row.layer === null ? (isOut(row) ? "out" : "in") : `${row.scope ? `${row.scope}.` : ""}L${row.layer}`;
    const last = groups[groups.length - 1];
    if (last && last.name === name) last.rows.push(index);
    else groups.push({ name, layered: row.layer !== null, rows: [index] });
  });
  return groups;
}

// A few step labels under the columns, first and last among them.
function axis(steps, wanted) {
  const marks = new Set(Array.from({ length: Math.min(wanted, steps.length) }, (_, i) => Math.round((i * (steps.length - 1)) / (Math.max(2, Math.min(wanted, steps.length)) - 1))));
  return h("div.map-axis", { "aria-hidden": "true" }, [...marks].map((i) =>
    h("span", { style: `left:${((i + 0.5) / steps.length) * 100}%` }, steps[i] >= 10000 ? `${number(steps[i] / 1000)}k` : whole(steps[i]))));
}

function render({ model, el }) {
  let map = model.get("map");
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
    choice("measure", measures.map((m) => [m, m.label]), measure, (m) => ((measure = m), draw())),
    hasGains ? choice("rows", [[false, "matrices"], [true, "with gains and biases"]], all, (v) => ((all = v), draw())) : null));
  frame.body.append(legend, grid, readout);

  let panels = [];
  const arms = () => [
    { name: "this run", steps: map.steps, values: unpack(map.values[measure.name]) },
    map.null_values[measure.name] && { name: CONTROL, steps: map.null_steps, values: unpack(map.null_values[measure.name]) },
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
      both.length > 1 ? `On the right ${described(model)} up to ${when(model, map.null_steps.at(-1))}, in the same colors.` : ""]);
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

  off.add(onTheme(draw));
  const soon = inSight(el, follow);
  off.add(soon.off);
  off.add(watch(model, "step", soon));
  off.add(watch(model, "address", mark));
  const anew = inSight(el, draw);
  off.add(anew.off);
  off.add(watch(model, "map", () => {
    map = model.get("map") ?? map;
    anew();
  }));
  off.add(frame.off);
  off.add(() => panels.forEach((panel) => panel.off()));
  draw();
  return off;
}

export default { render };
