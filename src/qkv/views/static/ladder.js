// @ts-check
// Is the loss good? One line per thing that needs no Transformer, and this model among them.

import { d3, Plot } from "./vendor.js";
import { h } from "./dom.js";
import { fixed } from "./format.js";
import { chart, fitted, plot, widthOf } from "./figure.js";
import { view } from "./view.js";

const sentence = (text) => (text ? `${text[0].toUpperCase()}${text.slice(1)}.` : "");

function build({ model, figure }, loss) {
  const inBits = loss.best_bits_per_byte !== null && loss.baselines.every((b) => b.bits_per_byte !== null);
  const value = (row) => (inBits ? row.bits_per_byte : row.nats);
  const mine = { label: "this model", nats: loss.best, bits_per_byte: loss.best_bits_per_byte, mine: true, meaning: "lowest validation loss" };
  const rows = d3.sort([...loss.baselines, mine], (row) => -value(row));
  const words = (row) => inBits ? `${fixed(row.bits_per_byte)} bits · ${fixed(row.nats, 3)} nats` : `${fixed(row.nats, 3)} nats`;
  const { unit } = model.get("run");
  const title = inBits ? "Validation loss, bits per byte" : `Validation loss, nats per ${unit}`;
  const frame = figure({
    title,
    caption: h("span", null, "Lower is better. ", loss.baselines.map((row, i) => [i ? "; " : "", h("b", null, row.label), row.meaning === row.label ? "" : `: ${row.meaning}`]), ". ", sentence(loss.baselines_note)),
  });
  chart(frame, (width, colours) => {
    const left = widthOf(rows.map((r) => r.label), 0.4 * width);
    return plot(colours, `${title}: ${rows.map((r) => `${r.label} ${fixed(value(r))}`).join(", ")}`, {
    width, height: 30 * rows.length + 30, marginLeft: left + 12, marginRight: widthOf(rows.map(words), 170) + 14, marginBottom: 26, marginTop: 6,
    x: { domain: [0, d3.max(rows, value)], ticks: 4, label: null, tickSize: 0 },
    y: { domain: rows.map((r) => r.label), label: null, tickSize: 0, tickFormat: (label) => fitted(label, left) },
    marks: [
      Plot.gridX({ stroke: colours.line, strokeOpacity: 1, ticks: 4 }),
      Plot.ruleY(rows, { x1: 0, x2: value, y: "label", stroke: (r) => (r.mine ? colours.accent : colours.mute), strokeWidth: (r) => (r.mine ? 4 : 2) }),
      Plot.dot(rows, { x: value, y: "label", fill: (r) => (r.mine ? colours.accent : colours.mute), r: (r) => (r.mine ? 6 : 4) }),
      Plot.text(rows, { x: value, y: "label", text: words, textAnchor: "start", dx: 11, fill: (r) => (r.mine ? colours.ink : colours.soft), fontWeight: (r) => (r.mine ? 650 : 400) }),
    ],
    });
  });
}

const compares = (loss) => loss && loss.best !== null && loss.baselines.length;
export default view(build, { needs: (model) => compares(model.get("loss")) && model.get("loss"), redrawOn: ["loss"] });
