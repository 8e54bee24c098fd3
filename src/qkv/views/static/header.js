// Which run this is, in one glance: name, verdict, and the facts that size it.

import { h } from "./dom.js";
import { duration, large, whole } from "./format.js";

function render({ model, el }) {
  const run = model.get("run");
  const facts = [
    ["task", run.task], ["preset", run.preset],
    ["parameters", large(run.n_parameters)],
    [`${run.unit}s read`, large(run.n_tokens)],
    ["steps", whole(run.n_steps)],
    ["training took", duration(run.train_seconds)],
    ["on", run.machine],
    ...run.facts.map((fact) => [fact.label, fact.value]),
  ].filter(([, value]) => value);
  el.append(
    h("p.eyebrow", null, "qkv · report of a training run"),
    h("h1", null, run.name),
    h("p.verdict", null, run.verdict),
    h("dl.facts", null, facts.map(([label, value]) => h("div", null, h("dt", null, label), h("dd", null, value)))));
}

export default { render };
