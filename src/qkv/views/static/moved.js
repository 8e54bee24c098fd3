// @ts-check
// Which matrices moved, and how far in the random-label control? One band per kind of matrix, one dot per layer; the
// hollow rings below are the control. Drifts grow with updates, so the two are only ever drawn at the same step.

import { d3, Plot } from "./vendor.js";
import { add, clear, h, table } from "./dom.js";
import { fixed, number, tick, whole } from "./format.js";
import { unpack } from "./decode.js";
import { chart, plot, widthOf } from "./figure.js";
import { CONTROL, described, when } from "./control.js";
import { controls, view } from "./view.js";

// [{ kind, role, layer, address, run, null }] of every matrix at one step.
function pointsAt(map, step) {
  const [values, nulls] = [unpack(map.values.drift), unpack(map.null_values.drift)];
  const [column, nullColumn] = [map.steps.indexOf(step), nulls ? map.null_steps.indexOf(step) : -1];
  const finite = (v) => (Number.isFinite(v) ? v : null);
  return map.rows.map((row, i) => ({
    kind: row.kind, role: row.role, layer: row.layer, address: row.address, matrix: row.shape.length > 1,
    run: finite(values.at(i, column)), null: nullColumn >= 0 ? finite(nulls.at(i, nullColumn)) : null,
  })).filter((point) => point.matrix && point.run !== null);
}

// The last step with drifts, and the last that the control has too (undefined where there is none).
function stepsToShow(map) {
  const [values, nulls] = [unpack(map.values.drift), unpack(map.null_values.drift)];
  const has = (array, column) => column >= 0 && map.rows.some((_, row) => Number.isFinite(array.at(row, column)));
  const steps = map.steps.filter((step, column) => step > 0 && has(values, column));
  return { last: steps[steps.length - 1], both: nulls ? steps.filter((step) => has(nulls, map.null_steps.indexOf(step))).pop() : undefined };
}

function build({ model, el, figure }, { last, both }) {
  const map = model.get("map");
  const state = { step: both > 1 ? both : last }; // the optimizer alone sets the size of the first update, whatever the labels
  let points = pointsAt(map, state.step);
  const [title, caption, all] = [h("span"), h("span"), h("div.scroll")];
  const frame = figure({ title, caption });
  if (both !== undefined && both !== last) {
    const options = [[both, `step ${whole(both)}, with the ${CONTROL}`], [last, `step ${whole(last)}, the last`]];
    frame.body.before(controls(state, () => [{ key: "step", label: "step", options }], () => {
      points = pointsAt(map, state.step);
      words();
      redraw();
    }).el);
  }
  const hasNull = () => points.some((point) => point.null !== null);

  function words() {
    const { step } = state;
    title.textContent = `Drift of each matrix at step ${whole(step)}`;
    add(clear(caption), [h("b", null, "Drift"), " is the distance of a matrix from its start, relative to its initial norm (or, if it starts at zero, to the norm of a usual start). ",
      hasNull() ? [`Filled: this run at ${when(model, step)}, one dot per layer. Hollow: ${described(model)} at the same step. On the right: the median ratio of the two over layers.`]
        : both === undefined ? `One dot per layer. This run has no ${CONTROL} to compare with.` : `One dot per layer. The ${CONTROL} does not reach this step.`]);
    clear(all).append(table(["matrix", "this run", CONTROL, "ratio"],
      points.map((p) => [h("code", null, p.address), number(p.run), number(p.null), p.null > 0 ? fixed(p.run / p.null, 1) : "–"])));
  }
  words();
  const redraw = chart(frame, (width, colours) => {
    const kinds = [...new Set(points.map((point) => point.kind))];
    const ratio = (kind) => d3.median(points.filter((p) => p.kind === kind && p.null > 0), (p) => p.run / p.null);
    const role = (kind) => colours.role[points.find((p) => p.kind === kind).role];
    const nulls = points.filter((p) => p.null !== null);
    return plot(colours, `${title.textContent}, by kind of matrix`, {
      width, height: 34 * kinds.length + 34, marginLeft: widthOf(kinds, 0.4 * width, 8.4) + 14, marginRight: nulls.length ? 54 : 16, marginBottom: 26, marginTop: 6,
      x: { domain: [0, (d3.max(points, (p) => Math.max(p.run, p.null ?? 0)) || 1) * 1.03], ticks: width < 420 ? 3 : 5, label: null, tickSize: 0, tickFormat: tick },
      y: { domain: kinds, label: null, tickSize: 0, tickFormat: () => "" },
      marks: [
        Plot.gridX({ stroke: colours.line, strokeOpacity: 1, ticks: 5 }),
        Plot.text(kinds, { y: (k) => k, frameAnchor: "left", dx: -10, textAnchor: "end", text: (k) => k, fontSize: 13, fontWeight: 600, fill: role }),
        Plot.ruleY(kinds, { y: (k) => k, stroke: colours.line }),
        Plot.dot(nulls, { x: "null", y: "kind", dy: 6, r: 3.5, stroke: colours.faint, strokeWidth: 1.3, fill: colours.paper }),
        Plot.dot(points, { x: "run", y: "kind", dy: -6, r: 4.5, fill: (p) => colours.role[p.role], fillOpacity: 0.85,
          channels: { matrix: "address", "this run": (p) => number(p.run), [CONTROL]: (p) => number(p.null) },
          tip: { format: { x: false, y: false, fill: false } } }),
        nulls.length ? Plot.text(kinds, { y: (k) => k, frameAnchor: "right", dx: 8, textAnchor: "start", fill: colours.soft,
          text: (k) => (ratio(k) === undefined ? "" : `× ${fixed(ratio(k), 1)}`) }) : null,
      ],
    });
  });
  el.append(h("details.small", null, h("summary", null, "as a table"), all));
}

function needs(model) {
  const map = model.get("map");
  const steps = map?.values.drift ? stepsToShow(map) : null;
  return steps?.last !== undefined && steps;
}

export default view(build, { needs, redrawOn: ["map"] });
