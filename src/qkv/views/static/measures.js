// Each measure: formula, range, source, what it is a property of, and what it reads when nothing was learned.

import { h } from "./dom.js";

const OF = {
  function: "the function: it does not change when the bases inside the heads do",
  parametrisation: "this parametrisation: another basis inside a head could give another value for the same function, so it is never compared across seeds",
};

function render({ model, el }) {
  const map = model.get("map");
  if (!map || !map.measures.length) return;
  const line = (label, value) => (value ? h("div", null, h("dt", null, label), h("dd", null, value)) : null);
  el.append(h("div.measures", null, map.measures.map((m) => h("section", { id: `measure-${m.name}` },
    h("h3", null, m.label),
    m.meaning ? h("p", null, m.meaning) : null,
    h("dl.numbers.tall", null,
      m.formula ? h("div", null, h("dt", null, "formula"), h("dd", null, h("code.formula", null, m.formula))) : null,
      line("range", m.range), line("a property of", OF[m.property_of] ?? m.property_of), line("null", m.null), line("source", m.source))))));
}

export default { render };
