// @ts-check
// What other packages show of a run: for each a heading, sentences, a picture and a table.

import { add, h, scroll, table } from "./dom.js";

export default function render({ model, el }) {
  for (const { heading, lead, picture, columns, rows } of model.get("own")) {
    add(el, [
      h("h3", null, heading),
      lead ? h("p", null, lead) : null,
      picture ? h("img", { alt: heading, src: `data:image/svg+xml,${encodeURIComponent(picture)}` }) : null,
      rows.length ? scroll(heading, table(columns, rows)) : null]);
  }
}
