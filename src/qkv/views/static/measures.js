// Each measure: formula, range, source, what it is a property of, what it reads when nothing was learned, in words and in
// this run's numbers: without training, on random labels, and in the run at the same step.

import { d3 } from "./vendor.js";
import { h } from "./dom.js";
import { number, whole } from "./format.js";
import { unpack } from "./decode.js";

const OF = {
  function: "the function: it does not change when the bases inside the heads do",
  parametrisation: "this parametrisation: another basis inside a head could give another value for the same function, so it is never compared across seeds",
};

// The median over everything that has the measure at that step of one arm (of several, the last one defined before it).
function middle(rooms, name, step, isNull) {
  const found = rooms.flatMap((room) => {
    const values = unpack((isNull ? room.null_values : room.values)[name]);
    const steps = values && (isNull ? room.null_steps : room.steps);
    const column = values ? steps.indexOf(step) : -1;
    return column < 0 ? [] : room.rows.map((row, i) => [row, values.at(i, column)]).filter(([row]) => !row.shape || row.shape.length > 1).map(([, value]) => value);
  }).filter(Number.isFinite);
  return found.length ? { n: found.length, value: d3.median(found) } : null;
}

// -> { untrained, labels, run, step, last, end }: medians, or null where a measure has none.
export function nulls(rooms, name) {
  const having = rooms.filter((room) => room.values[name]);
  const defined = (isNull) => [...new Set(having.flatMap((room) => (isNull ? room.null_steps : room.steps)))].sort((a, b) => b - a)
    .filter((step) => middle(having, name, step, isNull));
  const [own, none] = [defined(false), defined(true)];
  const step = none.find((at) => own.includes(at) && at > 0) ?? null;
  return {
    untrained: middle(having, name, 0, false), step,
    labels: step === null ? null : middle(having, name, step, true), run: step === null ? null : middle(having, name, step, false),
    last: own[0] ?? null, end: own.length ? middle(having, name, own[0], false) : null,
  };
}

function beside(rooms, name) {
  const found = nulls(rooms, name);
  if (!found.end) return null;
  const cell = (label, of) => h("div", null, h("dt", null, label), h("dd", null, of ? number(of.value) : "–"));
  return h("dl.numbers.nulls", { "aria-label": `medians of ${name}` },
    cell("no training", found.untrained),
    found.step === null ? cell("random labels", null) : [cell(`random labels, step ${whole(found.step)}`, found.labels), cell(`this run, step ${whole(found.step)}`, found.run)],
    cell(`this run, step ${whole(found.last)}`, found.end));
}

function render({ model, el }) {
  const rooms = [model.get("map"), model.get("grid")].filter(Boolean);
  const all = rooms.flatMap((room) => room.measures);
  const measures = all.filter((m, i) => all.findIndex((other) => other.name === m.name) === i);
  if (!measures.length) return;
  const line = (label, value) => (value ? h("div", null, h("dt", null, label), h("dd", null, value)) : null);
  el.append(h("p.small", null, "Numbers are medians over all matrices and heads that have the measure; a dash is undefined or was not taken."),
    h("div.measures", null, measures.map((m) => h("details", { id: `measure-${m.name}` },
      h("summary", null, h("b", null, m.label), m.meaning ? h("span.meaning", null, m.meaning) : null),
      beside(rooms, m.name),
      h("dl.numbers.tall", null,
        m.formula ? h("div", null, h("dt", null, "formula"), h("dd", null, h("code.formula", null, m.formula))) : null,
        line("range", m.range), line("a property of", OF[m.property_of] ?? m.property_of), line("null", m.null), line("informs", m.decision), line("source", m.source))))));
}

export default { render };
