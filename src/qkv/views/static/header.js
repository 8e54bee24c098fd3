// @ts-check
// Which run this is, in one glance: name, verdict, and the facts that size it.

import { add, h, named } from "./dom.js";
import { asOf } from "./as_of.js";
import { duration, large, number, whole } from "./format.js";
import { view } from "./view.js";

const TOKENS = ["character", "byte", "word"]; // units of a loss that are tokens; one of a text or an image is not

// How far a run is that trains while it is looked at; written only while `el` is in sight, since any frame costs the training.
function live({ model, follow }) {
  const line = h("p.live", { role: "status", hidden: true });
  const show = () => {
    const pulse = model.get("pulse");
    line.hidden = !pulse || pulse.finished;
    if (!line.hidden) line.textContent = model.get("connected") === false ? "The server has stopped; this page stays as it is." : !pulse.edition ? "The run is no longer in its folder; this page stays until another run is trained there." : `Training: step ${whole(pulse.step)}${pulse.loss === null ? "" : `, loss of its batch ${number(pulse.loss)}`}`;
  };
  follow(["pulse", "connected"], show);
  show(); // where the section is drawn again, what is known already
  return line;
}

function build(place) {
  const { model, el, off } = place;
  const run = model.get("run");
  /** @type {[string, string][]} */
  const all = [
    ["task", run.task], ["preset", run.preset],
    ["parameters", large(run.n_parameters)],
    [`${TOKENS.includes(run.unit) ? run.unit : "token"}s read`, large(run.n_tokens)],
    ["steps", whole(run.n_steps)],
    ["training took", duration(run.train_seconds)],
    ["on", run.machine],
    ...run.facts.map((fact) => [fact.label, fact.value]),
  ];
  const facts = all.filter(([, value]) => value);
  add(el, [
    h("p.eyebrow", null, model.get("host").kind === "page" ? "qkv · live page of a training run" : "qkv · report of a training run"),
    h("h1", null, run.name),
    h("p.verdict", null, run.verdict),
    model.get("host").kind === "page" ? live(place) : null,
    named("facts", facts)]);
  if (model.get("host").kind === "page") off.add(asOf(model, el, ["run"]));
}

export default view(build, { redrawOn: ["run"] });
