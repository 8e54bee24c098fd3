// @ts-check
// The host of one view alone, as a file.

import { show } from "./carried.js";
import { h } from "./dom.js";
import { createModel } from "./model.js";
import attention from "./attention.js";
import { begin, sentence } from "./sentence.js";
import slider from "./slider.js";
import { VERSION } from "./version.js";

show(async (main, payload, numbers) => {
  await numbers;
  main.replaceChildren();
  main.classList.add("alone");
  document.documentElement.dataset.ready = "yes";
  if (payload.version !== VERSION) {
    main.append(h("p.missing", null, `This page reads payload version ${VERSION}; the data is version ${payload.version}.`));
    return;
  }
  const { steps } = payload.attention[0];
  const model = createModel({ ...payload, ask: null, steps, step: steps.at(-1), address: null });
  main.append(h("p.eyebrow", null, "qkv · attention"), h("h1", null, payload.name));
  const section = h("section", { id: "attention" });
  begin(model);
  sentence({ model, el: main });
  main.append(section);
  attention.render({ model, el: section });
  if (steps.length > 1) {
    const bar = h("div.stepper");
    main.append(bar);
    slider.render({ model, el: bar });
  }
});
