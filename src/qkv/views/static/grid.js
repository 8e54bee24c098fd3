// The signature picture: layers down, matrices across, heads as cells inside, coloured by one measure at the step of the
// slider. Beside it the random-label control, or the same at a step that is held, and the difference.

import { d3 } from "./vendor.js";
import { add, choice, clear, h, inSight, together } from "./dom.js";
import { number, whole } from "./format.js";
import { stepIndex, unpack } from "./decode.js";
import { watch } from "./model.js";
import { figure } from "./figure.js";
import { CONTROL, described, when } from "./control.js";
import { cells } from "./cells.js";
import { bar, linear, robust, root, suited } from "./scale.js";
import { onTheme, theme } from "./theme.js";

const GROWS = new Set(["drift", "turn"]); // from 0 at the start: a square-root scale
const CIRCUITS = new Set(["QK", "OV", "pattern"]);
const SOURCE = { function: "of the function: no change of basis inside a head alters it", parametrisation: "of this parametrisation: another basis inside a head could give another value" };

// Numbers of one arm: value(address, step) -> [value, the step it was taken at], the last at or before `step`. What was only
// looked at before the first update, in a run that made some, is left out.
export function arm(map, grid, measure, isNull) {
  const sources = [];
  const [stepsOf, updated] = [(section) => (isNull ? section.null_steps : section.steps), (step) => step > 0];
  const trained = [map, grid].some((section) => section && stepsOf(section).some(updated));
  for (const section of [grid, map]) {
    const values = section && unpack((isNull ? section.null_values : section.values)[measure]);
    const steps = section && stepsOf(section);
    const index = values && new Map(section.rows.map((row, i) => [row.address, i]).filter(([, i]) => values.part(i).some((v, at) => Number.isFinite(v) && (!trained || updated(steps[at])))));
    if (index?.size) sources.push({ values, steps, index, at: new Map() });
  }
  const column = ({ steps, at }, step) => {
    if (!at.has(step)) at.set(step, stepIndex(steps, step));
    return at.get(step);
  };
  return {
    any: sources.length > 0,
    last: Math.max(-1, ...sources.map((source) => source.steps[source.steps.length - 1])),
    has: (address) => sources.some((source) => source.index.has(address)),
    all: () => sources.flatMap((source) => [...source.values.values].filter(Number.isFinite)),
    value(address, step) {
      for (const source of sources) {
        const row = source.index.get(address);
        if (row === undefined) continue;
        for (let i = column(source, step); i >= 0; i--) {
          const value = source.values.values[row * source.steps.length + i];
          if (Number.isFinite(value) && source.steps[i] <= step) return [value, source.steps[i]];
        }
      }
      return [NaN, null];
    },
  };
}

// [a - b, step] of two arms' numbers of an address, both taken at one step: the last that both have up to `step`. NaN where
// that is none but the start, and `step` is beyond.
export function difference(a, b, address, step) {
  let [[x, i], [y, j]] = [a.value(address, step), b.value(address, step)];
  while (i !== j && i !== null && j !== null) {
    if (i > j) [x, i] = a.value(address, j);
    else [y, j] = b.value(address, i);
  }
  return i === null || j === null || (i === 0 && step > 0) ? [NaN, null] : [x - y, i];
}

const ORDER = ["W_Q", "W_K", "QK", "pattern", "W_V", "W_O", "OV", "W_gate", "W_in", "W_out"];
const rank = (kind) => (ORDER.includes(kind) ? ORDER.indexOf(kind) : ORDER.length);
const kindOf = (address) => address.slice(address.lastIndexOf(".") + 1);

// Where everything stands: the columns, and for any arm its rows of cells (heads, or the whole where it has no heads).
export function layout(map, grid, numbers) {
  const heads = d3.group(grid?.rows ?? [], (row) => row.place, (row) => row.kind);
  const matrices = (map?.rows ?? []).filter((row) => row.shape.length > 1);
  const layered = matrices.filter((row) => row.layer !== null);
  const places = [...new Set([...layered.map((row) => row.address.slice(0, row.address.lastIndexOf("."))), ...heads.keys()])];
  const kinds = [...new Set([...(grid?.rows ?? []).map((row) => row.kind), ...layered.map((row) => kindOf(row.address))])].sort((a, b) => rank(a) - rank(b));
  const here = (place, kind, arm) => {
    const parts = (heads.get(place)?.get(kind) ?? []).filter((head) => arm.has(head.address));
    const whole = matrices.find((matrix) => matrix.address === `${place}.${kind}` && arm.has(matrix.address));
    return parts.length ? parts : whole ? [whole] : [];
  };
  const columns = [];
  for (const kind of kinds) {
    const found = places.map((place) => here(place, kind, numbers));
    const widest = Math.max(...found.map((parts) => parts.length));
    if (widest) columns.push({ label: kind, role: found.find((parts) => parts.length)[0].role, weight: widest > 1 ? 1 : 0.5 });
  }
  if (!columns.length) columns.push({ label: "", role: "norm", weight: 1 });
  const rowsOf = (arm) => {
    const table = (row) => ({ label: row.kind, role: row.role, cells: arm.has(row.address) ? [{ column: 0, part: 0, parts: 1, across: true, address: row.address, kind: row.kind }] : [] });
    const tables = matrices.filter((row) => row.layer === null && numbers.has(row.address));
    const layers = places.map((place) => ({ label: place, cells: columns.flatMap(({ label }, column) =>
      here(place, label, arm).map((cell, part, all) => ({ column, part, parts: all.length, address: cell.address, kind: label }))) }));
    return [...tables.filter((row) => row.site !== "head").map(table), ...layers, ...tables.filter((row) => row.site === "head").map(table)];
  };
  return { columns, rowsOf };
}

function render({ model, el }) {
  if (!model.get("map") && !model.get("grid")) return () => {};
  const off = together();
  const sections = () => [model.get("map"), model.get("grid")];
  const measures = () => {
    const all = sections().flatMap((section) => section?.measures ?? []);
    return all.filter((m, i) => all.findIndex((other) => other.name === m.name) === i && sections().some((section) => section?.values[m.name]));
  };
  if (!measures().length) return () => {};
  const hasNull = () => sections().some((section) => section?.null_steps?.length);
  const state = { measure: measures()[0], beside: hasNull() ? "null" : "alone", held: model.get("steps")[0] };
  const title = h("span");
  const caption = h("span");
  const frame = figure(el, { wide: true, title, caption });
  const controls = h("div.controls");
  const legend = h("div");
  const panelsEl = h("div.grid-panels");
  const readout = h("p.readout.two", { "aria-live": "polite" });
  frame.body.before(controls);
  frame.body.append(legend, panelsEl, readout);
  const hold = h("button.quiet", { type: "button", onclick: () => (Object.assign(state, { held: model.get("step") }), build()) }, "hold this step");
  let [columns, rows, panels, numbers, none, another, scale, chosen] = [[], [], [], null, null, null, null, null];
  let isHead = () => false;
  const every = () => (model.get("grid")?.rows.length ? "every matrix and head" : "every matrix");
  const rowHeight = () => (rows.length > 16 ? 13 : rows.length > 9 ? 17 : 24);

  function drawControls() {
    const list = measures();
    const run = model.get("other");
    const offered = [hasNull() || state.beside === "null" ? ["null", `beside the ${CONTROL}`] : null, ["held", "beside another step"], run ? ["run", `beside ${run.name}`] : null, ["alone", "alone"]].filter(Boolean);
    add(clear(controls), [
      list.length > 5 ? h("select", { "aria-label": "measure", onchange: (event) => (Object.assign(state, { measure: measures()[event.target.selectedIndex] }), build()) }, list.map((m) => h("option", { selected: m.name === state.measure.name }, m.label)))
        : choice("measure", list.map((m) => [m.name, m.label]), state.measure.name, (name) => (Object.assign(state, { measure: measures().find((m) => m.name === name) }), build())),
      choice("compared with", offered, state.beside, (beside) => (Object.assign(state, { beside }), build())), hold]);
  }
  // What stands beside: { name, value(address) -> [value, step], step } or null. A difference is only ever taken at an equal
  // step: `equal`, the slider's or the last that both have; a held step is compared with the slider's on purpose.
  function other(step = model.get("step")) {
    if (state.beside === "held") return { name: `held: step ${whole(state.held)}`, value: (address) => numbers.value(address, state.held), equal: step, difference: (address) => [numbers.value(address, step)[0] - numbers.value(address, state.held)[0], step] };
    const there = { run: another, null: none }[state.beside];
    if (!there?.any) return null;
    const at = Math.min(step, there.last);
    const name = state.beside === "run" ? `${model.get("other").name}, step ${whole(at)}` : `${CONTROL}, step ${whole(at)}${at < step ? ", its last" : ""}`;
    return { name, value: (address) => there.value(address, at), equal: at, difference: (address) => difference(numbers, there, address, at) };
  }
  function build() {
    const [map, grid] = sections();
    state.measure = measures().find((m) => m.name === state.measure.name) ?? measures()[0];
    numbers = arm(map, grid, state.measure.name, false);
    none = arm(map, grid, state.measure.name, true);
    const run = model.get("other");
    another = run ? arm(run.map, run.grid, state.measure.name, false) : { any: false, all: () => [] };
    const made = layout(map, grid, numbers);
    columns = made.columns;
    rows = made.rowsOf(numbers);
    const besideRows = state.beside === "null" ? made.rowsOf(none) : state.beside === "run" && another.any ? made.rowsOf(another) : rows;
    const present = [...numbers.all(), ...(state.beside === "null" ? none.all() : state.beside === "run" ? another.all() : [])];
    scale = GROWS.has(state.measure.name) ? root(d3.max(present)) : suited(present);
    hold.hidden = state.beside !== "held";
    panels.forEach((panel) => panel.off());
    const names = state.beside === "alone" || (state.beside === "null" && !none.any) || (state.beside === "run" && !another.any) ? ["this run"] : ["this run", "beside", "difference"];
    clear(panelsEl).style.setProperty("--beside", names.length - 1);
    panelsEl.classList.toggle("one", names.length === 1);
    const heads_ = new Set((grid?.rows ?? []).map((row) => row.address));
    isHead = (address) => heads_.has(address);
    panels = names.map((name, i) => {
      const heading = h("p.panel-name");
      const heads = h("div.cell-heads", { "aria-hidden": "true" });
      const made_ = cells({ label: `${state.measure.label} of ${every()}, ${name}`, rowHeight: rowHeight(), tell: (cell) => tell(cell), pick: (cell) => model.set("address", cell.address), leave: rest,
        arranged: (placed) => {
          heads.classList.toggle("slanted", placed.some((column) => column.label.length * 7 > column.width));
          heads.replaceChildren(...placed.map((column) => h("span", { style: `left:${column.x}px;--role:var(--role-${column.role})` }, column.label)));
        } });
      const labels = h("div.cell-labels", { "aria-hidden": "true", style: `--row:${rowHeight()}px` }, rows.map((row) => h("span", row.role ? { style: `--role:var(--role-${row.role})`, class: "role" } : null, row.label)));
      panelsEl.append(h("div.grid-panel", null, heading, heads, labels, made_.el));
      return { ...made_, heading, heads, labels, kind: ["run", "other", "difference"][i], rows: i ? besideRows : rows, addresses: (i ? besideRows : rows).flatMap((row) => row.cells.map((cell) => cell.address)) };
    });
    drawControls();
    place();
    choose();
  }
  // The values of a panel at the slider's step, cell by cell.
  function valuesOf(panel, step, beside) {
    const value = { run: (a) => numbers.value(a, step)[0], other: (a) => beside.value(a)[0], difference: (a) => beside.difference(a)[0] }[panel.kind];
    return Float64Array.from(panel.addresses, value);
  }
  // One scale for the difference at every step, so that play shows it grow: of some steps, the last among them.
  function scaleOfDifference(panel) {
    const steps = model.get("steps");
    const every = Math.ceil(steps.length / 16);
    const some = steps.filter((_, i) => (steps.length - 1 - i) % every === 0);
    const all = some.flatMap((step) => [...valuesOf(panel, step, other(step))].filter(Number.isFinite));
    return all.length ? robust([all], true) : null;
  }
  // What stays from step to step: places, scales, legend and words.
  function place() {
    const colours = theme(el);
    const step = model.get("step");
    const beside = other();
    const bars = [bar(scale, colours, state.measure.label)];
    for (const panel of panels) {
      let use = scale;
      if (panel.kind === "difference") {
        const different = scaleOfDifference(panel);
        use = different ?? linear(1, true);
        if (different) bars.push(bar(use, colours, `difference in ${state.measure.label}`));
      }
      panel.show({ rows: panel.rows, columns: columns.map((column) => ({ ...column })), scale: use, values: valuesOf(panel, step, beside) });
    }
    clear(legend).append(h("div.bars", null, bars));
    const grid = model.get("grid");
    add(clear(caption), [h("b", null, state.measure.label), `: ${state.measure.meaning || state.measure.formula} ${panels.length > 1 ? "The difference is this run minus what it is compared with. " : ""}${grid?.rows.length ? "Cells inside a matrix are its heads. " : ""}Colours hold for all steps, so that play shows growth. `,
      !hasNull() ? `This run has no ${CONTROL} to be compared with. ` : state.beside === "null" ? none.any ? `Beside it is ${described(model)}, which ends at ${when(model, none.last)}. The two are only compared at an equal step: for each cell, the last at which both were measured. ` : `It was not measured in the ${CONTROL}. ` : "",
      state.beside === "run" ? "Two runs have other bases inside their heads: head by head, only measures of the function compare. " : "",
      grid?.rows.length ? `Numbers of heads: ${grid.origin}. ` : "", `A property ${SOURCE[state.measure.property_of] ?? ""}.`]);
    label(step, beside);
  }
  function label(step, beside) {
    for (const panel of panels) {
      panel.heading.textContent = panel.kind === "run" ? `this run, step ${whole(step)}` : panel.kind === "other" ? beside.name : `difference at step ${whole(beside.equal)}`;
    }
    title.textContent = `${state.measure.label[0].toUpperCase()}${state.measure.label.slice(1)} of ${every()} at step ${whole(step)}`;
    rest();
  }
  // Another step: other values on the same places.
  function draw() {
    const step = model.get("step");
    const beside = other();
    for (const panel of panels) panel.paint(valuesOf(panel, step, beside));
    label(step, beside);
  }
  function tell(cell) {
    const step = model.get("step");
    const [value, at] = numbers.value(cell.address, step);
    const beside = other();
    const [second, then] = beside ? beside.value(cell.address) : [NaN, null];
    const [apart, when] = beside ? beside.difference(cell.address) : [NaN, null];
    const ofHead = isHead(cell.address);
    readout.replaceChildren(h("span", null, h("code", null, cell.address), ` ${state.measure.label} ${number(value)}`, at !== null && at !== step ? ` (taken at step ${whole(at)})` : ` at step ${whole(step)}`,
      Number.isFinite(second) ? ` · ${{ held: "held", null: CONTROL, run: model.get("other")?.name }[state.beside]} ${number(second)} at step ${whole(then)}` : "", Number.isFinite(apart) ? ` · difference ${number(apart)}${when === step ? "" : ` at step ${whole(when)}`}` : ""),
    h("span", null, CIRCUITS.has(cell.kind) ? `circuit of one head, ` : ofHead ? "one head, " : "whole matrix, ", ofHead ? model.get("grid").origin : "recorded while it trained"));
  }
  function rest() {
    if (chosen) tell(chosen);
    else readout.textContent = "Point at a cell, or walk with the arrow keys; Enter or a click opens the matrix below.";
  }
  function choose() {
    chosen = rows.flatMap((row) => row.cells).find((cell) => cell.address === model.get("address"));
    panels.forEach((panel) => panel.choose(model.get("address")));
    rest();
  }
  const soon = inSight(el, draw);
  off.add(soon.off);
  off.add(watch(model, "step", soon));
  off.add(watch(model, "address", choose));
  const anew = inSight(el, build);
  off.add(anew.off);
  for (const key of ["map", "grid"]) off.add(watch(model, key, anew));
  off.add(onTheme(place));
  off.add(() => panels.forEach((panel) => panel.off()));
  build();
  return off;
}

export default { render };
