// @ts-check
// A question to Python from the page: a text or a button; what is wrong is told below it.

import { clear, h, inSight, lastOnly, newId, say, together } from "./dom.js";
import { whole } from "./format.js";

/** @import { Off } from "./dom.js" */

export const MOST = 20000;

// What is typed into `input` goes to `typed` when the form is sent, or by Enter; `said` tells how it goes.
function form(input, said, { label, button, waiting }, typed) {
  const send = async (event) => {
    event.preventDefault();
    if (!input.value) return;
    if ([...input.value].length > MOST) return void say(said, `The text has ${whole([...input.value].length)} characters; a page reads up to ${whole(MOST)}: shorten it.`);
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

const textarea = (stem, rows, placeholder) => h("textarea", { id: newId(stem), rows, dir: "auto", spellcheck: "false", placeholder });

/**
 * A place to type a text; `typed(text)` gives a promise whose failure is told below it.
 * @param {(text: string) => Promise<any>} typed @param {{ value?: string, label?: string, button?: string, rows?: number }} options
 */
export function entry(typed, { value = "", label = "Your own text", button = "look", rows = 2 } = {}) {
  const input = textarea("text", rows, "Type or paste a text");
  input.value = value;
  return form(input, h("p.small", { role: "status" }), { label, button, waiting: "Reading …" }, typed);
}

/** Under which weights a part of the page was computed, in words and for who looks for it. @param {HTMLElement} el @param {number} step */
export function dated(el, step) {
  el.dataset.step = String(step);
  el.append(h("p.small", null, `Weights of step ${whole(step)}.`));
}

/**
 * A question that costs something, and so is asked by a button: `question()` gives what comes back, `draw(off, body, found)` shows
 * it; with `other`, once a text was typed, which `question` is given. `renew(text)` of the element is called when what it is about
 * has changed: what was asked is asked again, and another text begins as a copy of the page's.
 * @param {Off} off @param {{ button: string, waiting: string, question: (other?: string) => Promise<any>, draw: (off: Off, body: HTMLElement, found: any) => void,
 *   other?: { label: string, placeholder: string } }} options
 */
export function asked(off, { button, waiting, question, draw, other }) {
  const parts = together(off);
  const body = h("div");
  const said = h("p.small", { role: "status" });
  const latest = lastOnly();
  let open = false;
  const empty = () => {
    parts();
    clear(body);
  };
  const take = (text) => new Promise((done, failed) => latest(() => question(text), (found) => {
    empty();
    open = true;
    said.textContent = "";
    draw(parts, body, found);
    done(found);
  }, (error) => (empty(), failed(error))));
  if (other) {
    const input = textarea("other", 1, other.placeholder);
    const el = h("div.way-back", null, form(input, said, { label: other.label, button, waiting }, take), body);
    el.renew = (text) => {
      if (open) say(said, "The text of the page has changed: change a word of it here.");
      open = false;
      empty();
      input.value = text;
    };
    return el;
  }
  const ask = () => {
    said.textContent = waiting;
    return take().catch((error) => say(said, error.message));
  };
  const el = h("div.way-back", null, h("div", null, h("button.primary", { type: "button", onclick: ask }, button), said), body);
  const soon = inSight(el, ask, off);
  el.renew = () => open && soon();
  return el;
}
