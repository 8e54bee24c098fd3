// @ts-check
// The host of one view alone, as a file.

import { show } from "./carried.js";
import { h } from "./dom.js";
import { oneView } from "./one_view.js";
import { reads } from "./version.js";

show((main, payload) => {
  main.classList.add("alone");
  document.documentElement.dataset.ready = "yes";
  if (!reads(main, payload)) return;
  main.append(h("p.eyebrow", null, "qkv · attention"), h("h1", null, payload.name));
  oneView(main, payload);
});
