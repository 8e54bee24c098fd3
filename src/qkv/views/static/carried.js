// The host of a file: what it shows stands in it, and nothing can be asked.

import { h } from "./dom.js";
import { openCarried } from "./decode.js";

// `open(main, payload)` draws the page. What cannot be opened is told in its place.
export async function show(open) {
  const main = document.querySelector("main");
  let payload;
  try {
    payload = await openCarried();
  } catch (error) {
    main.replaceChildren(h("p.missing", null, error.message));
    document.documentElement.dataset.ready = "yes";
    return;
  }
  open(main, payload);
}
