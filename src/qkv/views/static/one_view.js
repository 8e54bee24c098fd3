// @ts-check
// Attention by itself, without the page around it: in a file, or in a notebook.

import { h, together } from "./dom.js";
import attention from "./attention.js";
import { createModel } from "./model.js";
import { begin, sentence } from "./sentence.js";
import slider from "./slider.js";

/** The text, its heads and, of several steps, a slider in `el`; -> how to end them. @param {HTMLElement} el @param {any} payload @param {Function | null} ask */
export function oneView(el, payload, ask = null) {
  const steps = payload.kept.length ? payload.kept : payload.attention[0].steps;
  const model = createModel({ ...payload, ask, steps, step: payload.attention[0].steps.at(-1), address: null });
  const off = together();
  const place = h("section", { id: "attention" });
  begin(model);
  off.add(sentence({ model, el }));
  el.append(place);
  off.add(attention({ model, el: place }));
  if (steps.length > 1) {
    const bar = h("div.stepper");
    el.append(bar);
    off.add(slider({ model, el: bar }));
  }
  return off;
}
