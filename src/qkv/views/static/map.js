// @ts-check
// The map: every matrix (down), every recorded step (across), coloured by one measure, with the random-label control
// beside it on the same scale.

import { add, clear, h, together } from "./dom.js";
import { number, whole } from "./format.js";
import { stepIndex, unpack } from "./decode.js";
import { CONTROL, described, when } from "./control.js";
import { scaleOf } from "./grid.js";
import { raster } from "./raster.js";
import { bar } from "./scale.js";
import { theme } from "./theme.js";
import { controls, view } from "./view.js";

const ROW_PIXELS = 17;

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

// A group's names and, for each arm, its cells.
function groupRows(parts, host, map, measure, scale, arms, group, { tell, pick, leave }) {
  const name = (index) => {
    const row = map.rows[index];
    const title = `${row.address}  ${row.shape.join(" × ")}${row.unmoved ? "  did not move" : ""}${row.tied_to ? `  tied to ${row.tied_to}` : ""}`;
    return h("button.map-kind", { type: "button", tabindex: "-1", "data-address": row.address, style: `--role:var(--role-${row.role});height:${ROW_PIXELS}px`, title, onclick: () => pick(index) },
      row.kind, row.unmoved ? " ·0" : null);
  };
  host.append(h("span.map-layer", null, group.name), h("div.map-kinds", null, group.rows.map(name)));
  return arms.map((arm) => {
    const columns = arm.steps.length;
    const values = Float32Array.from({ length: group.rows.length * columns }, (_, i) => arm.values.at(group.rows[Math.floor(i / columns)], i % columns));
    const { el } = raster(parts, {
      label: `${measure.label} of ${group.name}, ${arm.name}`, rows: group.rows.length, columns, values, scale, style: `height:${ROW_PIXELS * group.rows.length}px`,
      tell: (row, column) => tell(group.rows[row], arm, column), pick: (row, column) => pick(group.rows[row], arm.steps[column]), leave,
    });
    const line = h("span.map-now");
    el.append(line);
    host.append(el);
    return { line, steps: arm.steps };
  });
}

function build({ model, el, off, figure, follow, hear, recolour }, found) {
  let map = found;
  const measures = map.measures.filter((m) => map.values[m.name]);
  const state = { measure: measures[0], all: false };
  const caption = h("span.map-caption");
  const frame = figure({ wide: true, title: "Every matrix, every recorded step", caption });
  const grid = h("div.map");
  const readout = h("p.readout", { "aria-live": "polite" });
  const legend = h("div");
  const hasGains = map.rows.some((row) => row.shape.length < 2);
  frame.body.before(controls(state, () => [{ key: "measure", label: "measure", options: measures.map((m) => [m, m.label]) },
    hasGains ? { key: "all", label: "rows", options: [[false, "matrices"], [true, "with gains and biases"]] } : null], () => draw()).el);
  frame.body.append(legend, grid, readout);
  const parts = together(off);
  let panels = [];
  const arms = () => {
    const { name } = state.measure;
    const of = (words, steps, values) => values && { name: words, steps, values: unpack(values) };
    return [of("this run", map.steps, map.values[name]), of(CONTROL, map.null_steps, map.null_values[name])].filter(Boolean);
  };
  function say(row, arm, column, both) {
    const text = (a) => {
      const i = a.steps.indexOf(arm.steps[column]);
      return i < 0 ? null : `${a.name} ${number(a.values.at(row, i))}`;
    };
    return `${map.rows[row].address}, step ${whole(arm.steps[column])}: ${state.measure.label} ${both.map(text).filter(Boolean).join(" · ")}`;
  }
  function rest() {
    const row = map.rows.findIndex((r) => r.address === model.get("address"));
    if (row < 0) return void (readout.textContent = "Point at a cell or use the arrow keys.");
    const both = arms();
    readout.textContent = say(row, both[0], stepIndex(map.steps, model.get("step")), both);
  }
  function pick(row, step) {
    model.set("address", map.rows[row].address);
    if (step !== undefined) model.set("step", step);
  }
  function draw() {
    const { measure, all } = state;
    const both = arms();
    const groups = groupsOf(map.rows, all);
    const shown = groups.flatMap((group) => group.rows);
    const present = both.flatMap((arm) => shown.flatMap((row) => [...arm.values.part(row)].filter(Number.isFinite)));
    const scale = scaleOf(measure.name, present);
    parts();
    clear(grid).style.setProperty("--arms", both.map((arm) => `${Math.max(2, arm.steps.length)}fr`).join(" "));
    add(grid, [h("span"), h("span"), both.map((arm) => h("span.map-arm", null, arm.name))]);
    const on = { tell: (row, arm, column) => (readout.textContent = say(row, arm, column, both)), pick, leave: rest };
    panels = groups.flatMap((group) => groupRows(parts, grid, map, measure, scale, both, group, on));
    add(grid, [h("span"), h("span"), both.map((arm) => axis(arm.steps, el.clientWidth < 560 ? 3 : 6))]);
    clear(legend).append(bar(scale, theme(el), measure.label));
    add(clear(caption), [h("b", null, measure.label), `: ${measure.meaning || measure.formula} Columns are the recorded steps, closer together early${map.thinned ? ` (${map.thinned})` : ""}. `,
      both.length > 1 ? `On the right: ${described(model)}, up to ${when(model, map.null_steps.at(-1))}, on the same color scale.` : ""]);
    move();
    mark();
  }
  function move() {
    for (const { line, steps } of panels) {
      const column = stepIndex(steps, model.get("step"));
      line.style.cssText = `left:${(column / steps.length) * 100}%;width:${100 / steps.length}%`;
      line.hidden = model.get("step") > steps[steps.length - 1];
    }
    rest();
  }
  function mark() {
    grid.querySelectorAll(".map-kind").forEach((button) => button.classList.toggle("on", button.dataset.address === model.get("address")));
    rest();
  }
  recolour(draw);
  follow(["step"], move);
  hear(["address"], mark);
  follow(["map"], () => {
    map = model.get("map") ?? map;
    draw();
  });
  draw();
}

export default view(build, { needs: (model) => model.get("map")?.rows.length && model.get("map") });
