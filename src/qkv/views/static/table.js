// @ts-check
// Rows of W_E, the token table: frequent tokens, those that moved furthest and those never met, before and after.

import { h } from "./dom.js";
import { number, token, whole } from "./format.js";
import { unpack } from "./decode.js";
import { raster } from "./raster.js";
import { bar, robust } from "./scale.js";
import { theme } from "./theme.js";
import { view } from "./view.js";

const ROW_PIXELS = 18;
const REST = "Point at a cell for its number.";

function build({ model, el, off, figure, recolour }, rows) {
  const [start, last] = [unpack(rows.start), unpack(rows.last)];
  const width = last.shape[1];
  const scale = robust([last.values, ...(start ? [start.values] : [])], true);
  const readout = h("p.readout", { "aria-live": "polite" }, REST);
  const frame = figure({ wide: true, title: "Rows of W_E, weight by weight",
    caption: `One row per token, ${width} numbers each, every one as stored. Frequent tokens first${rows.shown.some((r) => r.why === "moved") ? ", then rows that moved furthest" : ""}${rows.shown.some((r) => r.why === "unseen") ? ", then tokens never met in training" : ""}.` });
  const name = rows.last_step === rows.step && !(rows.step < model.get("run").n_steps) ? "after" : `step ${whole(rows.last_step)}, the last kept`;
  const arms = [start && { name: "before training", array: start }, { name, array: last }].filter(Boolean);
  const legend = h("div");
  const panels = arms.map(({ name, array }) =>
    raster(off, {
      label: `rows of W_E ${name}`, rows: rows.shown.length, columns: width, values: array.values, scale, style: `height:${ROW_PIXELS * rows.shown.length}px`,
      tell: (row, column) => (readout.textContent = `W_E[${token(rows.shown[row].token)}], number ${column}: ` + arms.map((arm) => `${arm.name} ${number(arm.array.at(row, column), arm.array.digits)}`).join(", ")),
      leave: () => (readout.textContent = REST),
    }));
  frame.body.append(legend, h("div.row-table", { style: `--panels:${arms.length}` },
    h("span"), arms.map(({ name }) => h("span.map-arm", null, name)),
    h("div.row-names", { "aria-hidden": "true" }, rows.shown.map((row) => h("span", { style: `height:${ROW_PIXELS}px`, class: `row-name why-${row.why}` }, token(row.token)))),
    panels.map((panel) => panel.el)), readout);
  const drawLegend = () => legend.replaceChildren(bar(scale, theme(el), "one weight"));
  recolour(drawLegend);
  drawLegend();
}

export default view(build, { needs: (model) => model.get("rows")?.last && model.get("rows").shown.length && model.get("rows"), redrawOn: ["rows"] });
