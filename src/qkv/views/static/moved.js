// Which matrices moved, and what would random labels have moved? One band per kind of matrix, one dot per layer; the
// hollow rings below are the null at the same step.

import { d3, Plot } from "./vendor.js";
import { h } from "./dom.js";
import { fixed, number, whole } from "./format.js";
import { stepIndex, unpack } from "./decode.js";
import { chart, figure, plot } from "./figure.js";

// [{ kind, role, layer, address, run, null }] at the last step that both arms recorded.
export function atLastCommonStep(map, measure) {
  const values = unpack(map.values[measure]);
  const nulls = map.null_values[measure] ? unpack(map.null_values[measure]) : null;
  if (!values) return null;
  const recorded = (array, column) => map.rows.some((_, row) => Number.isFinite(array.at(row, column)));
  let column = map.steps.length - 1;
  while (column > 0 && !recorded(values, column)) column--;
  if (nulls) {
    const common = map.steps.filter((step, i) => map.null_steps.includes(step) && recorded(values, i));
    if (common.length) column = map.steps.indexOf(common[common.length - 1]);
  }
  const step = map.steps[column];
  const nullColumn = nulls && map.null_steps.includes(step) ? stepIndex(map.null_steps, step) : -1;
  const finite = (v) => (Number.isFinite(v) ? v : null);
  const points = map.rows.map((row, i) => ({
    kind: row.kind, role: row.role, layer: row.layer, address: row.address,
    run: finite(values.at(i, column)), null: nullColumn >= 0 ? finite(nulls.at(i, nullColumn)) : null, matrix: row.shape.length > 1,
  })).filter((point) => point.matrix && point.run !== null);
  return { step, points, hasNull: points.some((point) => point.null !== null) };
}

function render({ model, el }) {
  const map = model.get("map");
  const found = map && map.values.drift ? atLastCommonStep(map, "drift") : null;
  if (!found || !found.points.length) return () => {};
  const { step, points, hasNull } = found;
  const kinds = [...new Set(points.map((point) => point.kind))];
  const ratio = new Map(kinds.map((kind) => {
    const here = points.filter((point) => point.kind === kind && point.null > 0);
    return [kind, here.length ? d3.median(here, (point) => point.run / point.null) : null];
  }));
  const frame = figure(el, {
    title: `Drift at step ${whole(step)}`,
    caption: h("span", null, h("b", null, "Drift"), " is how far a matrix is from where it started, as a share of its size at the start: 1 means that it has moved by its own length. ",
      hasNull ? ["Filled: this run, a dot per layer. Hollow: the ", h("b", null, "null"), ", the same training on labels drawn at random, where there is nothing to learn from the text. On the right: the first over the second."]
        : "A dot per layer. This run has no random-label arm, so nothing here says how much of the movement is learning."),
  });
  chart(frame, (width, colours) => plot(colours, `drift at step ${step} by kind of matrix, this run and random labels`, {
    width, height: 34 * kinds.length + 34, marginLeft: 64, marginRight: hasNull ? 54 : 16, marginBottom: 26, marginTop: 6,
    x: { domain: [0, d3.max(points, (p) => Math.max(p.run, p.null ?? 0)) * 1.03], ticks: 5, label: null, tickSize: 0 },
    y: { domain: kinds, label: null, tickSize: 0, tickFormat: () => "" },
    marks: [
      Plot.gridX({ stroke: colours.line, strokeOpacity: 1, ticks: 5 }),
      Plot.text(kinds, { y: (k) => k, frameAnchor: "left", dx: -10, textAnchor: "end", text: (k) => k, fontSize: 13, fontWeight: 600,
        fill: (k) => colours.role[points.find((p) => p.kind === k).role] }),
      Plot.ruleY(kinds, { y: (k) => k, stroke: colours.line }),
      Plot.link(points.filter((p) => p.null !== null), { x1: "run", x2: "null", y1: "kind", y2: "kind", stroke: colours.line, strokeWidth: 0 }),
      Plot.dot(points.filter((p) => p.null !== null), { x: "null", y: "kind", dy: 6, r: 3.5, stroke: colours.faint, strokeWidth: 1.3, fill: colours.paper }),
      Plot.dot(points, { x: "run", y: "kind", dy: -6, r: 4.5, fill: (p) => colours.role[p.role], fillOpacity: 0.85,
        channels: { matrix: "address", "this run": (p) => number(p.run), "random labels": (p) => number(p.null) },
        tip: { format: { x: false, y: false, fill: false } } }),
      hasNull ? Plot.text(kinds, { y: (k) => k, frameAnchor: "right", dx: 8, textAnchor: "start", fill: colours.soft,
        text: (k) => (ratio.get(k) === null ? "" : `× ${fixed(ratio.get(k), 1)}`) }) : null,
    ],
  }), "drift-against-null");
  el.append(h("details.small", null, h("summary", null, "as a table"),
    h("div.scroll", null, h("table", null,
      h("thead", null, h("tr", null, ["matrix", "this run", hasNull && "random labels", hasNull && "ratio"].filter(Boolean).map((t) => h("th", null, t)))),
      h("tbody", null, points.map((p) => h("tr", null, h("td", null, h("code", null, p.address)), h("td", null, number(p.run)),
        hasNull && h("td", null, number(p.null)), hasNull && h("td", null, p.null > 0 ? fixed(p.run / p.null, 1) : "–"))))))));
  return frame.off;
}

export default { render };
