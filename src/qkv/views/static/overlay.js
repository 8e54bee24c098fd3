// @ts-check
// Many curves over steps in one picture, with the values of all of them under the cursor.

import { d3, Plot } from "./vendor.js";
import { h, newId, s, say, scroll, table } from "./dom.js";
import { number, tick, tickOfSteps, whole } from "./format.js";
import { chart, plot } from "./figure.js";

/** @import { Off } from "./dom.js" */
/** @typedef {{ name: string, colour: string, x: any, y: any, low?: number[], high?: number[] }} Line  `low` and `high`: of a mean */

const LISTED = 12;

/** Running means over a share of the points; null where that is no more than single ones. @param {ArrayLike<number>} values @param {number} share */
export function smoothed(values, share) {
  const n = values.length;
  const half = Math.round((n * share) / 2);
  if (half < 2) return null;
  const sums = new Float64Array(n + 1);
  for (let i = 0; i < n; i++) sums[i + 1] = sums[i] + values[i];
  return Array.from(values, (_, i) => {
    const reach = Math.min(half, i, n - 1 - i);
    return (sums[i + reach + 1] - sums[i - reach]) / (2 * reach + 1);
  });
}

// Where a picture of these lines begins and ends; a few values far above the others lie outside it.
function ranges(lines, log) {
  const end = Math.max(1, d3.max(lines, (line) => line.x.at(-1)) ?? 1);
  const some = lines.flatMap(({ y, low, high }) => [...(low ?? []), ...(high ?? [])].filter(Number.isFinite).concat([...y])); // no more than 400 a line
  const sorted = Float64Array.from(some).sort();
  const [bottom, top, most] = [sorted[0] ?? 0, sorted.at(-1) ?? 1, sorted[Math.floor(0.995 * (sorted.length - 1))] ?? 1];
  const ceiling = top > most + 2 * (most - bottom) ? most : top;
  const room = (ceiling - bottom) * 0.04 || Math.abs(bottom) * 0.05 || 1;
  return { x: log ? [1, Math.max(2, end)] : [0, end], y: [bottom - room, ceiling + room], beyond: lines.filter(({ y }) => y.some((v) => v > ceiling + room)).length };
}

const at = (value) => Math.round(value * 10) / 10;

// A mark for Plot: every line as one path, its interval as an area under it.
const drawn = (lines, log) => (index, scales, values, { marginTop }) => {
  const x = (step) => at(scales.x(log ? Math.max(1, step) : step));
  const y = (value) => at(Math.max(marginTop - 4, scales.y(value)));
  const path = (xs, ys) => {
    let d = "";
    for (let i = 0; i < xs.length; i++) d += `${i ? "L" : "M"}${x(xs[i])},${y(ys[i])}`;
    return d;
  };
  const width = lines.length > 30 ? 1 : 1.6;
  return s("g", { fill: "none", "stroke-linejoin": "round" }, lines.map((line) => {
    const reached = line.low?.every(Number.isFinite);
    return [reached && s("path", { d: `${path(line.x, line.high)}${path([...line.x].reverse(), [...line.low].reverse()).replace("M", "L")}Z`, fill: line.colour, "fill-opacity": 0.18 }),
      line.x.length > 1 ? s("path", { d: path(line.x, line.y), stroke: line.colour, "stroke-width": line.low ? 2.2 : width }) : line.x.length && s("circle", { cx: x(line.x[0]), cy: y(line.y[0]), r: 3, fill: line.colour })];
  }));
};

// Of each line its name and its value at the last step that is not after `step`; the lowest first.
function valuesAt(lines, step) {
  const found = lines.map((line) => ({ line, i: d3.bisectRight(line.x, step) - 1 })).filter(({ line, i }) => i >= 0 && step <= line.x.at(-1))
    .map(({ line, i }) => ({ line, value: line.y[i], low: line.low?.[i], high: line.high?.[i] }));
  return found.sort((a, b) => a.value - b.value);
}

const swatch = (colour) => h("span.swatch", { style: `background:${colour}` });

/**
 * The picture, drawn again by the function that comes back. `get` says what is drawn.
 * @param {{ body: HTMLElement, off: Off }} frame @param {() => { lines: Line[], label: string, log: boolean, missing: string }} get
 */
export function overlay(frame, get) {
  let [lines, label, scale, rule, end] = [/** @type {Line[]} */ ([]), "", null, null, 1];
  const [said, told] = [h("div.under-cursor"), h("p.small", { role: "status" })];
  const range = h("input", { type: "range", min: 0, max: 1000, value: 1000, id: newId("cursor"), oninput: () => point(stepOf(Number(range.value) / 1000)) });
  const stepOf = (share) => (scale ? Math.round(scale.invert(d3.interpolateNumber(...scale.range)(share))) : 0);
  function point(step) {
    if (!scale) return;
    const place = scale.apply(Math.max(scale.domain[0], Math.min(end, step)));
    rule.setAttribute("x1", place);
    rule.setAttribute("x2", place);
    range.setAttribute("aria-valuetext", `step ${whole(step)}`);
    const found = valuesAt(lines, step);
    const more = found.length - LISTED;
    say(said, h("p.small", null, `Step ${whole(step)}${found.length ? "" : ": no curve has a value here"}`), found.length ? scroll(`values under the cursor: ${label}`, table([], found.slice(0, LISTED).map(({ line, value, low, high }) =>
      [[swatch(line.colour), " ", line.name], number(value, 4), Number.isFinite(low) ? `${number(low, 4)} to ${number(high, 4)}` : ""]))) : null, more > 0 ? h("p.small", null, `and ${whole(more)} more, all higher`) : null);
  }
  const below = h("p.cursor-line", null, h("label.small", { for: range.id }, "step under the cursor"), range);
  const redraw = chart(frame, (width, colours) => {
    const asked = get();
    label = asked.label;
    lines = asked.lines.filter((line) => line.x.length);
    said.hidden = below.hidden = !lines.length;
    told.textContent = "";
    scale = null;
    if (!lines.length) return h("p.missing", null, asked.missing);
    const { x, y, beyond } = ranges(lines, asked.log);
    if (beyond) told.textContent = `${whole(beyond)} of ${whole(lines.length)} curves have values above the picture.`;
    const height = Math.max(260, Math.min(420, width * 0.5));
    const made = plot(colours, `${label} over steps of ${whole(lines.length)} curves`, {
      width, height, marginTop: 12, marginBottom: 30, marginLeft: 52, marginRight: 14,
      x: { type: asked.log ? "log" : "linear", domain: x, label: null, ticks: width < 520 ? 4 : 7, tickSize: 0, tickFormat: tickOfSteps },
      y: { domain: y, label: null, ticks: 6, tickSize: 0, tickFormat: tick },
      marks: [Plot.gridY({ stroke: colours.line, strokeOpacity: 1, ticks: 6 }), drawn(lines, asked.log)],
    });
    scale = made.scale("x");
    end = x[1];
    rule = s("line", { y1: 12, y2: height - 30, stroke: colours.accent, "stroke-opacity": 0.6 });
    made.append(rule);
    made.addEventListener("pointermove", (event) => {
      const box = made.getBoundingClientRect();
      const [from, to] = scale.range;
      const share = Math.max(0, Math.min(1, (((event.clientX - box.left) * width) / box.width - from) / (to - from)));
      range.value = String(Math.round(share * 1000));
      point(stepOf(share));
    });
    point(stepOf(Number(range.value) / 1000));
    return made;
  });
  frame.body.append(below, told, said);
  return redraw;
}

