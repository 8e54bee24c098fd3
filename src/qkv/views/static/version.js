// @ts-check
// The version of the payload's shape (views/host.py: VERSION).

import { h } from "./dom.js";

export const VERSION = 4;

// Whether this page reads a payload; else `main` says that it does not.
export function reads(main, { version }) {
  main.replaceChildren();
  if (version !== VERSION) main.append(h("p.missing", null, `This page reads payload version ${VERSION}; the data is version ${version}. Write the page again with the qkv that made it.`));
  return version === VERSION;
}
