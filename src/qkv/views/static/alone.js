// @ts-check
// The host of one view alone, as a file.

import { show } from "./carried.js";
import { h } from "./dom.js";
import { oneView } from "./one_view.js";
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
  main.append(h("p.eyebrow", null, "qkv · attention"), h("h1", null, payload.name));
  oneView(main, payload);
});
