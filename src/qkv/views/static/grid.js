// @ts-check
// The signature picture: layers down, matrices across, heads as cells inside, coloured by one measure at the step of the
// slider. Beside it the random-label control, another run, or the same at a step that is held. Only between two steps of one run
// is the difference coloured: that of two runs has no unit while the spread between seeds is unknown, and is told as a number.

import { d3 } from "./vendor.js";
import { add, clear, h, refocused, together } from "./dom.js";
import { number, whole } from "./format.js";
import { stepIndex, unpack } from "./decode.js";
import { CONTROL, described, when } from "./control.js";
import { cells } from "./cells.js";
import { bar, linear, robust, root, suited } from "./scale.js";
import { theme } from "./theme.js";
import { controls, view } from "./view.js";

const GROWS = new Set(["drift", "turn"]); // from 0 at the start
const CIRCUITS = new Set(["QK", "OV", "pattern"]);
export const SOURCE = { function: "the function: a change of basis inside a head does not alter it", parametrisation: "this parametrization: a change of basis inside a head can alter it" };

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

// The scale of some values of a measure: a square root for those that grow from 0.
export const scaleOf = (name, present) => (GROWS.has(name) ? root(d3.max(present)) : suited(present));

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

// What of the page has measures.
export const sectionsOf = (model) => [model.get("map"), model.get("grid")].filter(Boolean);

// Measures that anything of the page has, each once.
export function measuresOf(model) {
  const all = sectionsOf(model).flatMap((section) => section.measures);
  return all.filter((m, i) => all.findIndex((other) => other.name === m.name) === i);
}

const drawnOf = (model) => measuresOf(model).filter((m) => sectionsOf(model).some((section) => section.values[m.name]));
const hasNull = (model) => sectionsOf(model).some((section) => section.null_steps?.length);
const everyOf = (model) => (model.get("grid")?.rows.length ? "every matrix and head" : "every matrix");

// All of one measure: the numbers of the run and of what stands `there` beside it, where each stands, and their scale.
function prepared(model, state) {
  const [map, grid, run] = ["map", "grid", "other"].map((key) => model.get(key));
  const { name } = state.measure;
  const numbers = arm(map, grid, name, false);
  const none = arm(map, grid, name, true);
  const another = run ? arm(run.map, run.grid, name, false) : { any: false, all: () => [] };
  const there = { null: none, run: another }[state.beside];
  const { columns, rowsOf } = layout(map, grid, numbers);
  const rows = rowsOf(numbers);
  const present = [...numbers.all(), ...(there?.all() ?? [])];
  const scale = scaleOf(name, present);
  const names = state.beside === "alone" || (there && !there.any) ? ["this run"] : state.beside === "held" ? ["this run", "beside", "difference"] : ["this run", "beside"];
  return { numbers, none, there, columns, rows, besideRows: there?.any ? rowsOf(there) : rows, scale, names };
}

// What stands beside: { name, value(address) -> [value, step], step } or null. A difference is only ever taken at an equal
// step: `equal`, the slider's or the last that both have; a held step is compared with the slider's on purpose.
function otherAt(step, model, { beside, held }, { numbers, there }) {
  if (beside === "held") {
    const [value, before] = [(address) => numbers.value(address, held), (address) => numbers.value(address, held)[0]];
    return { name: `held: step ${whole(held)}`, value, equal: step, difference: (address) => [numbers.value(address, step)[0] - before(address), step] };
  }
  if (!there?.any) return null;
  const at = Math.min(step, there.last);
  const name = beside === "run" ? `${model.get("other").name}, step ${whole(at)}` : `${CONTROL}, step ${whole(at)}${at < step ? ", its last" : ""}`;
  return { name, value: (address) => there.value(address, at), equal: at, difference: (address) => difference(numbers, there, address, at) };
}

// What the colours mean, in words.
function captionOf(model, { measure, beside }, { none, names }) {
  const grid = model.get("grid");
  const apart = "Point at a cell for its difference, taken at the last step at which both were measured. It has no color: two runs do not show how far seeds alone are apart. ";
  const control = !hasNull(model) ? `This run has no ${CONTROL} to compare with. ` : beside !== "null" ? ""
    : none.any ? `Next to it is ${described(model)}, which ends at ${when(model, none.last)}. ` : `It was not measured in the ${CONTROL}. `;
  return [h("b", null, measure.label), `: ${measure.meaning || measure.formula} ${names.length > 2 ? "The difference is the slider's step minus the held one. " : ""}${grid?.rows.length ? "Cells inside a matrix are its heads. " : ""}The color scale is the same at every step. `,
    control, names.length === 2 ? apart : "", beside === "run" ? "Two runs have different bases inside their heads, so head by head only measures of the function are comparable. " : "",
    grid?.rows.length ? `Values of heads: ${grid.origin}. ` : "", `A property ${measure.property_of in SOURCE ? `of ${SOURCE[measure.property_of]}` : ""}.`];
}

// One cell in words: its value, what stands beside it, and their difference.
function cellWords(model, state, made, beside, cell) {
  const step = model.get("step");
  const [value, at] = made.numbers.value(cell.address, step);
  const [second, then] = beside ? beside.value(cell.address) : [NaN, null];
  const [apart, when] = beside ? beside.difference(cell.address) : [NaN, null];
  const grid = model.get("grid");
  const ofHead = grid?.rows.some((row) => row.address === cell.address);
  const besideName = { held: "held", null: CONTROL, run: model.get("other")?.name }[state.beside];
  return [h("span", null, h("code", null, cell.address), ` ${state.measure.label} ${number(value)}`, at !== null && at !== step ? ` (taken at step ${whole(at)})` : ` at step ${whole(step)}`,
    Number.isFinite(second) ? ` · ${besideName} ${number(second)} at step ${whole(then)}` : "", Number.isFinite(apart) ? ` · difference ${number(apart)}${when === step ? "" : ` at step ${whole(when)}`}` : ""),
  h("span", null, CIRCUITS.has(cell.kind) ? `circuit of one head, ` : ofHead ? "one head, " : "whole matrix, ", ofHead ? grid.origin : "recorded while it trained")];
}

// A panel of cells under its heading: rows of the run, which have labels, and its `own`; `options` are those of cells.
function panelOf(off, host, kind, rows, own, options) {
  const heading = h("p.panel-name");
  const heads = h("div.cell-heads", { "aria-hidden": "true" });
  const arranged = (placed) => {
    heads.classList.toggle("slanted", placed.some((column) => column.label.length * 7 > column.width));
    heads.replaceChildren(...placed.map((column) => h("span", { style: `left:${column.x}px;--role:var(--role-${column.role})` }, column.label)));
  };
  const made = cells(off, { ...options, arranged });
  const labels = h("div.cell-labels", { "aria-hidden": "true", style: `--row:${options.rowHeight}px` },
    rows.map((row) => h("span", row.role ? { style: `--role:var(--role-${row.role})`, class: "role" } : null, row.label)));
  host.append(h("div.grid-panel", null, heading, heads, labels, made.el));
  return { ...made, heading, kind, rows: own, addresses: own.flatMap((row) => row.cells.map((cell) => cell.address)) };
}

// The values of a panel at a step, cell by cell.
function valuesOf({ kind, addresses }, numbers, step, beside) {
  const value = { run: (a) => numbers.value(a, step)[0], other: (a) => beside.value(a)[0], difference: (a) => beside.difference(a)[0] }[kind];
  return Float64Array.from(addresses, value);
}

// One scale for the difference at every step, so that play shows it grow: of some `steps`, the last among them.
function scaleOfDifference(panel, numbers, steps, other) {
  const every = Math.ceil(steps.length / 16);
  const some = steps.filter((_, i) => (steps.length - 1 - i) % every === 0);
  const all = some.flatMap((step) => [...valuesOf(panel, numbers, step, other(step))].filter(Number.isFinite));
  return all.length ? robust([all], true) : null;
}

// What may stand beside a run.
function besideOptions(model, { beside }) {
  const run = model.get("other");
  return [hasNull(model) || beside === "null" ? ["null", `beside the ${CONTROL}`] : null, ["held", "beside another step"], run ? ["run", `beside ${run.name}`] : null, ["alone", "alone"]].filter(Boolean);
}

function build({ model, el, off, figure, follow, hear, recolour }) {
  const state = { measure: drawnOf(model)[0], beside: hasNull(model) ? "null" : "alone", held: model.get("steps")[0] };
  const [title, caption, legend, panelsEl] = [h("span"), h("span"), h("div"), h("div.grid-panels")];
  const frame = figure({ wide: true, title, caption });
  const readout = h("p.readout.two", { "aria-live": "polite" });
  const hold = h("button.quiet", { type: "button", onclick: () => (Object.assign(state, { held: model.get("step") }), lay()) }, "hold this step");
  const choices = controls(state, () => [{ key: "measure", label: "measure", options: drawnOf(model).map((m) => [m, m.label]), most: 5 },
    { key: "beside", label: "compared with", options: besideOptions(model, state) }], () => lay());
  frame.body.before(choices.el);
  frame.body.append(legend, panelsEl, readout);
  const parts = together(off);
  let [made, panels, chosen] = [null, [], null];
  const other = (step = model.get("step")) => otherAt(step, model, state, made);

  function lay() {
    state.measure = drawnOf(model).find((m) => m.name === state.measure.name) ?? drawnOf(model)[0];
    made = prepared(model, state);
    const { rows, names } = made;
    hold.hidden = state.beside !== "held";
    parts();
    clear(panelsEl).style.setProperty("--beside", names.length - 1);
    panelsEl.classList.toggle("one", names.length === 1);
    const rowHeight = rows.length > 16 ? 13 : rows.length > 9 ? 17 : 24;
    panels = names.map((name, i) => {
      const on = { label: `${state.measure.label} of ${everyOf(model)}, ${name}`, rowHeight, tell, pick: (cell) => model.set("address", cell.address), leave: rest };
      return panelOf(parts, panelsEl, ["run", "other", "difference"][i], rows, i ? made.besideRows : rows, on);
    });
    refocused(choices.el, () => choices.draw().append(hold));
    place();
    choose();
  }
  // What stays from step to step: places, scales, legend and words.
  function place() {
    const colours = theme(el);
    const step = model.get("step");
    const beside = other();
    const bars = [bar(made.scale, colours, state.measure.label)];
    for (const panel of panels) {
      const different = panel.kind === "difference" ? scaleOfDifference(panel, made.numbers, model.get("steps"), other) : null;
      if (different) bars.push(bar(different, colours, `difference in ${state.measure.label}`));
      const scale = panel.kind === "difference" ? different ?? linear(1, true) : made.scale;
      panel.show({ rows: panel.rows, columns: made.columns.map((column) => ({ ...column })), scale, values: valuesOf(panel, made.numbers, step, beside) });
    }
    clear(legend).append(h("div.bars", null, bars));
    add(clear(caption), captionOf(model, state, made));
    label(step, beside);
  }
  function label(step, beside) {
    const words = { run: () => `this run, step ${whole(step)}`, other: () => beside.name, difference: () => `difference at step ${whole(beside.equal)}` };
    for (const panel of panels) panel.heading.textContent = words[panel.kind]();
    const measure = state.measure.label;
    title.textContent = `${measure[0].toUpperCase()}${measure.slice(1)} of ${everyOf(model)} at step ${whole(step)}`;
    rest();
  }
  // Another step: other values on the same places.
  function draw() {
    const step = model.get("step");
    const beside = other();
    for (const panel of panels) panel.paint(valuesOf(panel, made.numbers, step, beside));
    label(step, beside);
  }
  function tell(cell) {
    readout.replaceChildren(...cellWords(model, state, made, other(), cell));
  }
  function rest() {
    if (chosen) tell(chosen);
    else readout.textContent = "Point at a cell or use the arrow keys. Enter or a click opens the matrix below.";
  }
  function choose() {
    chosen = made.rows.flatMap((row) => row.cells).find((cell) => cell.address === model.get("address"));
    panels.forEach((panel) => panel.choose(model.get("address")));
    rest();
  }
  lay();
  follow(["step"], draw);
  hear(["address"], choose);
  follow(["map", "grid"], lay);
  recolour(place);
}

export default view(build, { needs: (model) => drawnOf(model).length });
