// @ts-check
// The host of a study's page: lays out its one section. `payload` stands in the file, or comes from the server of a live page.

import { h } from "./dom.js";
import { createModel } from "./model.js";
import study from "./study.js";
import { reads } from "./version.js";

let off = () => {};

export function openStudy(main, payload) {
  const titleOf = (summary) => summary.textContent.split(":")[0]; // counts come after it
  const opened = [...main.querySelectorAll("details[open] > summary")].map(titleOf);
  const [at, place] = [document.activeElement?.matches("summary") && titleOf(document.activeElement), scrollY];
  off();
  if (!reads(main, payload)) return;
  const section = h("section", { id: "study" });
  main.append(h("p.eyebrow", null, "qkv · study"), h("h1", null, payload.study.asks || payload.study.name), section);
  off = study({ model: createModel(payload), el: section });
  for (const summary of main.querySelectorAll("details > summary")) { // drawn again: what the reader had opened, and where they were
    summary.parentElement.open = opened.includes(titleOf(summary));
    if (titleOf(summary) === at) summary.focus({ preventScroll: true });
  }
  scrollTo({ top: place, behavior: "instant" });
  document.documentElement.dataset.ready = "yes";
}
