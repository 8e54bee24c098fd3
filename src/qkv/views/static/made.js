// @ts-check
// How the run was made, and how to make it again.

import { add, h, named, table } from "./dom.js";

export default function render({ model, el }) {
  const made = model.get("made");
  const copied = h("span.small", { role: "status" });
  const copy = h("button.quiet", { type: "button", onclick: async () => {
    try {
      await navigator.clipboard.writeText(made.command);
      copied.textContent = "copied";
    } catch {
      copied.textContent = "select the line and copy it";
    }
  } }, "copy");
  add(el, [
    made.command ? h("div.command", null, h("pre", { tabindex: "0", "aria-label": "command that reproduces the run" }, made.command), copy, copied) : null,
    named("numbers", made.facts.map((fact) => [fact.label, fact.value])),
    made.events.length ? h("details", { open: made.events.length < 6 }, h("summary", null, "what happened on the way"),
      named("numbers", made.events.map((event) => [event.label, event.value]))) : null,
    made.config ? h("details", null, h("summary", null, "config.toml, as resolved"), h("pre.code", { tabindex: "0", "aria-label": "config.toml" }, made.config)) : null,
    made.files.length ? h("details", null, h("summary", null, "files and their sha256"),
      h("div.scroll", null, table([], made.files.map((file) => [h("code", null, file.name), h("code.hash", null, file.sha256)]), "files"))) : null,
    h("p.small", null, made.written_by)]);
}
