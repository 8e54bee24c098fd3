// How the run was made, and how to make it again.

import { add, h } from "./dom.js";

function render({ model, el }) {
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
    h("dl.numbers", null, made.facts.map((fact) => h("div", null, h("dt", null, fact.label), h("dd", null, fact.value)))),
    made.events.length ? h("details", { open: made.events.length < 6 }, h("summary", null, "what happened on the way"),
      h("dl.numbers", null, made.events.map((event) => h("div", null, h("dt", null, event.label), h("dd", null, event.value))))) : null,
    made.config ? h("details", null, h("summary", null, "config.toml, as resolved"), h("pre.code", { tabindex: "0", "aria-label": "config.toml" }, made.config)) : null,
    made.files.length ? h("details", null, h("summary", null, "files and their sha256"),
      h("div.scroll", null, h("table.files", null, h("tbody", null, made.files.map((file) => h("tr", null, h("td", null, h("code", null, file.name)), h("td", null, h("code.hash", null, file.sha256)))))))) : null,
    h("p.small", null, made.written_by)]);
}

export default { render };
