// A place to type a text; `typed(text)` gives a promise whose failure is told below it.

import { h, newId, say } from "./dom.js";

export const MOST = 20000;

export function entry(typed, { value = "", label = "Your own text", button = "look" } = {}) {
  const id = newId("text");
  const said = h("p.small", { role: "status" });
  const input = h("textarea", { id, rows: 2, maxlength: MOST, spellcheck: "false", placeholder: "Type or paste a text" });
  input.value = value;
  const send = async (event) => {
    event.preventDefault();
    if (!input.value) return;
    said.textContent = "Reading …";
    try {
      await typed(input.value);
      said.textContent = "";
    } catch (error) {
      say(said, error.message);
    }
  };
  input.addEventListener("keydown", (event) => event.key === "Enter" && !event.shiftKey && send(event));
  return h("form.entry", { onsubmit: send }, h("label.small", { for: id }, label), input, h("button.primary", { type: "submit" }, button), said);
}
