// @ts-check
// Each measure: formula, range, source, what it is a property of, what to compare it with, in words and in this run's
// numbers: without training, in the random-label control, and in the run at the same step.

import { d3 } from "./vendor.js";
import { h, named } from "./dom.js";
import { number, whole } from "./format.js";
import { unpack } from "./decode.js";
import { CONTROL } from "./control.js";
import { SOURCE, measuresOf, sectionsOf } from "./grid.js";

const OF = { ...SOURCE, parametrisation: `${SOURCE.parametrisation}, so it is never compared across seeds` };

// address -> value of everything that has the measure at that step of one arm.
function taken(sections, name, step, isNull) {
  return new Map(sections.flatMap((section) => {
    const values = unpack((isNull ? section.null_values : section.values)[name]);
    const column = values ? (isNull ? section.null_steps : section.steps).indexOf(step) : -1;
    return column < 0 ? [] : section.rows.map((row, i) => [row, values.at(i, column)]).filter(([row, value]) => (!row.shape || row.shape.length > 1) && Number.isFinite(value)).map(([row, value]) => [row.address, value]);
  }));
}

const middle = (values) => (values.length ? { n: values.length, value: d3.median(values) } : null);

// -> { untrained, labels, run, step, last, end }: medians, or null where a measure has none. Those of labels and run are of
// what has the measure in both arms at `step`: a kind of look that only one of them took there would shift its median.
export function nulls(sections, name) {
  const having = sections.filter((section) => section.values[name]);
  const every = (isNull) => [...new Set(having.flatMap((section) => (isNull ? section.null_steps : section.steps)))].sort((a, b) => b - a);
  const own = (step) => taken(having, name, step, false);
  let [step, labels, run] = [null, null, null];
  for (const at of every(true).filter((at) => at > 0)) {
    const [mine, theirs] = [own(at), taken(having, name, at, true)];
    const both = [...mine.keys()].filter((address) => theirs.has(address));
    if (!both.length) continue;
    [step, labels, run] = [at, ...[theirs, mine].map((found) => middle(both.map((address) => found.get(address))))];
    break;
  }
  const last = every(false).find((at) => own(at).size) ?? null;
  return { untrained: middle([...own(0).values()]), step, labels, run, last, end: last === null ? null : middle([...own(last).values()]) };
}

function beside(sections, name) {
  const found = nulls(sections, name);
  if (!found.end) return null;
  /** @returns {[string, string]} */
  const cell = (label, of) => [label, of ? number(of.value) : "–"];
  return named("numbers.nulls", [cell("no training", found.untrained),
    ...(found.step === null ? [cell(CONTROL, null)] : [cell(`${CONTROL}, step ${whole(found.step)}`, found.labels), cell(`this run, step ${whole(found.step)}`, found.run)]),
    cell(`this run, step ${whole(found.last)}`, found.end)], { "aria-label": `medians of ${name}` });
}

export default function render({ model, el }) {
  const sections = sectionsOf(model);
  const measures = measuresOf(model);
  if (!measures.length) return;
  el.append(h("p.small", null, "Medians over all matrices and heads with this measure. A dash means undefined or not measured."),
    h("div.measures", null, measures.map((m) => h("details", { id: `measure-${m.name}` },
      h("summary", null, h("b", null, m.label), m.meaning ? h("span.meaning", null, m.meaning) : null),
      beside(sections, m.name),
      named("numbers.tall", [["formula", m.formula && h("code.formula", null, m.formula)], ["range", m.range], ["a property of", OF[m.property_of] ?? m.property_of],
        ["compare with", m.null], ["informs", m.decision], ["source", m.source]].filter(([, value]) => value))))));
}
