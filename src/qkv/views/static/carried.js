// @ts-check
// The host of a file: what it shows stands in it, and nothing can be asked.

import { h } from "./dom.js";
import { openCarried } from "./decode.js";

// `open(main, payload)` draws the page when its arrays are there; one that is `early` is given the promise of them and waits itself.
// What cannot be opened is told in its place.
export async function show(open, early = false) {
  const main = document.querySelector("main");
  try {
    const { header, numbers } = openCarried();
    if (early) open(main, header, numbers);
    await numbers;
    if (!early) open(main, header);
  } catch (error) {
    main.replaceChildren(h("p.missing", null, error.message));
    document.documentElement.dataset.ready = "yes";
  }
}
