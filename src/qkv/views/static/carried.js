// @ts-check
// The host of a file: what it shows stands in it, and nothing can be asked.

import { h } from "./dom.js";
import { openCarried } from "./decode.js";

// `open(main, payload, numbers)` draws the page; what needs arrays waits for the promise `numbers`. What cannot be opened is
// told in its place.
export async function show(open) {
  const main = document.querySelector("main");
  try {
    const { header, numbers } = openCarried();
    await Promise.all([open(main, header, numbers), numbers]);
  } catch (error) {
    main.replaceChildren(h("p.missing", null, error.message));
    document.documentElement.dataset.ready = "yes";
  }
}
