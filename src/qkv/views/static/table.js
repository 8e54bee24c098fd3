// Rows of W_E, the token table: frequent tokens, those that moved furthest and those never met, before and after.

import { h, together } from "./dom.js";
import { number, token, whole } from "./format.js";
import { unpack } from "./decode.js";
import { figure } from "./figure.js";
import { raster } from "./raster.js";
import { bar, robust } from "./scale.js";
import { onTheme, theme } from "./theme.js";
import { remade } from "./model.js";

const ROW_PIXELS = 18;

function make(model, el) {
  const rows = model.get("rows");
  if (!rows || !rows.last || !rows.shown.length) return () => {};
  const [start, last] = [unpack(rows.start), unpack(rows.last)];
  const width = last.shape[1];
  const scale = robust([last.values, ...(start ? [start.values] : [])], true);
  const readout = h("p.readout", { "aria-live": "polite" });
  const frame = figure(el, { wide: true, title: "Rows of W_E, weight by weight",
    caption: `One row per token, ${width} numbers each, every one as stored. Frequent tokens first${rows.shown.some((r) => r.why === "moved") ? ", then rows that moved furthest" : ""}${rows.shown.some((r) => r.why === "unseen") ? ", then tokens never met in training" : ""}.` });
  const arms = [start && ["before training", start], [rows.last_step === rows.step && !(rows.step < model.get("run").n_steps) ? "after" : `step ${whole(rows.last_step)}, the last kept`, last]].filter(Boolean);
  const legend = h("div");
  const off = together();
  const panels = arms.map(([name, array]) => {
    const panel = raster({
      label: `rows of W_E ${name}`, rows: rows.shown.length, columns: width, values: array.values, scale,
      tell: (row, column) => (readout.textContent = `W_E[${token(rows.shown[row].token)}], number ${column}: ` + arms.map(([n, a]) => `${n} ${number(a.at(row, column), a.digits)}`).join(", ")),
      leave: () => (readout.textContent = "Point at a cell for its number."),
    });
    panel.el.style.height = `${ROW_PIXELS * rows.shown.length}px`;
    off.add(panel.off);
    return panel;
  });
  readout.textContent = "Point at a cell for its number.";
  frame.body.append(legend, h("div.row-table", { style: `--panels:${arms.length}` },
    h("span"), arms.map(([name]) => h("span.map-arm", null, name)),
    h("div.row-names", { "aria-hidden": "true" }, rows.shown.map((row) => h("span", { style: `height:${ROW_PIXELS}px`, class: `row-name why-${row.why}` }, token(row.token)))),
    panels.map((panel) => panel.el)), readout);
  const drawLegend = () => legend.replaceChildren(bar(scale, theme(el), "one weight"));
  off.add(onTheme(drawLegend));
  drawLegend();
  off.add(frame.off);
  return off;
}

const render = ({ model, el }) => remade(model, ["rows"], el, (place) => make(model, place));

export default { render };
