// @ts-check
// A question to Python from the page: a text or a button; what is wrong is told below it.

import { clear, h, newId, say, together } from "./dom.js";

/** @import { Off } from "./dom.js" */

export const MOST = 20000;

// What is typed into `input` goes to `typed` when the form is sent, or by Enter; `said` tells how it goes.
function form(input, said, { label, button, waiting }, typed) {
  const send = async (event) => {
    event.preventDefault();
    if (!input.value) return;
    said.textContent = waiting;
    try {
      await typed(input.value);
      said.textContent = "";
    } catch (error) {
      say(said, error.message);
    }
  };
  input.addEventListener("keydown", (event) => event.key === "Enter" && !event.shiftKey && send(event));
  return h("form.entry", { onsubmit: send }, h("label.small", { for: input.id }, label), input, h("button.primary", { type: "submit" }, button), said);
}

const textarea = (stem, rows, placeholder) => h("textarea", { id: newId(stem), rows, maxlength: MOST, spellcheck: "false", placeholder });

/**
 * A place to type a text; `typed(text)` gives a promise whose failure is told below it.
 * @param {(text: string) => Promise<any>} typed @param {{ value?: string, label?: string, button?: string }} options
 */
export function entry(typed, { value = "", label = "Your own text", button = "look" } = {}) {
  const input = textarea("text", 2, "Type or paste a text");
  input.value = value;
  return form(input, h("p.small", { role: "status" }), { label, button, waiting: "Reading …" }, typed);
}

/**
 * A question that costs something, and so is asked by a button: `question()` gives what comes back, `draw(off, body, found)` shows
 * it; with `other`, once a text was typed, which `question` is given.
 * @param {Off} off @param {{ button: string, waiting: string, question: (other?: string) => Promise<any>, draw: (off: Off, body: HTMLElement, found: any) => void,
 *   other?: { label: string, placeholder: string } }} options
 */
export function asked(off, { button, waiting, question, draw, other }) {
  const parts = together();
  const body = h("div");
  const said = h("p.small", { role: "status" });
  off.add(parts);
  const take = async (text) => {
    const found = await question(text);
    parts();
    clear(body);
    said.textContent = "";
    draw(parts, body, found);
  };
  if (other) return h("div.way-back", null, form(textarea("other", 1, other.placeholder), said, { label: other.label, button, waiting }, take), body);
  const ask = async () => {
    said.textContent = waiting;
    await take().catch((error) => say(said, error.message));
  };
  return h("div.way-back", null, h("div", null, h("button.primary", { type: "button", onclick: ask }, button), said), body);
}
