// @ts-check
// Were the embeddings trained? How far each row of W_E moved against how often its token was met, and one row, weight by
// weight, before and after.

import { d3, Plot } from "./vendor.js";
import { h, newId, together } from "./dom.js";
import { number, plural, relative, tick, token, whole } from "./format.js";
import { unpack } from "./decode.js";
import { chart, fitted, inside, plot } from "./figure.js";
import { CONTROL, described, when } from "./control.js";
import { raster } from "./raster.js";
import { bar, robust } from "./scale.js";
import { theme } from "./theme.js";
import { controls, view } from "./view.js";

const WHY = { frequent: "met most often", moved: "moved furthest", unseen: "never met in training" };

function scatter({ model, figure }, rows) {
  const counts = unpack(rows.counts);
  if (!counts) return;
  const [last, then, nulls] = [unpack(rows.drift), unpack(rows.drift_then), unpack(rows.null_drift)];
  const state = { beside: nulls !== null && rows.null_step === rows.step };
  const pointsNow = () => rows.tokens.map((text, i) => ({
    text, count: counts.values[i], drift: (state.beside ? then : last).values[i], null: state.beside ? nulls.values[i] : null,
  })).filter((p) => Number.isFinite(p.drift));
  const hasUnseen = rows.n_unseen > 0;
  const [title, caption] = [h("span"), h("span")];
  const frame = figure({ title, caption });
  if (nulls && !state.beside) {
    const options = [[false, `step ${whole(rows.step)}, the last`], [true, `step ${whole(rows.null_step)}, with the ${CONTROL}`]];
    frame.body.before(controls(state, () => [{ key: "beside", label: "step", options }], () => (words(), redraw())).el);
  }
  function words() {
    const { beside } = state;
    title.textContent = `How far each row of W_E moved by step ${whole(beside ? rows.null_step : rows.step)}`;
    caption.textContent = ["Each dot is a token. Across: how often it occurs in the training text. Up: how far its row moved, relative to its initial norm. ",
      beside ? `Gray: the same rows in ${described(model)}, both at ${when(model, rows.null_step)}. ` : "", hasUnseen ? "Ringed, at the left edge: tokens that never occur. " : "", rows.drawn].join("");
  }
  words();
  const redraw = chart(frame, (width, colours) => {
    const points = pointsNow();
    const named = apart([...d3.sort(points, (p) => -p.drift).slice(0, 3), ...d3.sort(points, (p) => -p.count).slice(0, 3)]);
    const lowest = d3.min(points.filter((p) => p.count > 0), (p) => p.count) ?? 1;
    const place = (p) => (p.count > 0 ? p.count : lowest / 2.2);
    return plot(colours, `${title.textContent}, against how often its token was met`, {
      width, height: Math.max(220, Math.min(300, width * 0.55)), marginLeft: 40, marginBottom: 36, marginTop: 30, marginRight: 18,
      x: { type: "log", label: "times in the training text →", ticks: width < 420 ? 3 : 5, tickSize: 0, tickFormat: "~s" },
      y: { label: "↑ drift", ticks: 5, tickSize: 0, tickFormat: tick, domain: [0, (d3.max(points, (p) => Math.max(p.drift, p.null ?? 0)) || 1) * 1.05] },
      marks: [
        Plot.gridY({ stroke: colours.line, strokeOpacity: 1, ticks: 5 }),
        state.beside ? Plot.dot(points, { x: place, y: "null", r: 2, fill: colours.mute }) : null,
        Plot.dot(points.filter((p) => p.count === 0), { x: place, y: "drift", r: 6, stroke: colours.role.E }),
        Plot.text(points.filter((p) => p.count === 0).slice(0, 1), { x: place, y: "drift", dy: -14, textAnchor: "start", fill: colours.soft, stroke: colours.paper, strokeWidth: 4,
          text: () => (rows.largest_unseen_drift === 0 ? "never met: exactly 0" : "never met") }),
        Plot.dot(points, { x: place, y: "drift", r: points.length > 400 ? 2 : 3, fill: colours.role.E, fillOpacity: 0.75,
          channels: { token: (p) => token(p.text), met: (p) => whole(p.count), drift: (p) => number(p.drift), [CONTROL]: (p) => number(p.null) },
          tip: { format: { x: false, y: false } } }),
        Plot.text(named, { x: place, y: "drift", text: (p) => fitted(token(p.text), width / 5), dy: -9, fill: colours.ink, stroke: colours.paper, strokeWidth: 4, render: inside }),
      ],
    });
  });
}

// Those whose labels would not lie on one another: the earlier of two that are close stays.
function apart(points) {
  const top = d3.max(points, (p) => p.drift) || 1;
  const close = (a, b) => Math.abs(Math.log(a.count / b.count)) < 0.7 && Math.abs(a.drift - b.drift) < 0.08 * top;
  return points.filter((p, i) => p.count > 0 && !points.slice(0, i).some((other) => close(p, other)));
}

function strips({ model, el, off, figure, recolour }, rows) {
  const [start, last] = [unpack(rows.start), unpack(rows.last)];
  if (!last || !rows.shown.length) return;
  const width = last.shape[1];
  const id = newId("token");
  const select = h("select", { id, onchange: () => show(Number(select.value)) });
  for (const why of Object.keys(WHY)) {
    const here = rows.shown.map((row, i) => [row, i]).filter(([row]) => row.why === why);
    if (here.length) select.append(h("optgroup", { label: WHY[why] }, here.map(([row, i]) => h("option", { value: i }, token(row.token)))));
  }
  const body = h("div.strips");
  const readout = h("p.readout", { "aria-live": "polite" });
  const frame = figure({ title: h("span", null, h("label", { for: id }, "One row: W_E of "), select) });
  frame.body.append(body, readout);
  const scale = robust([last.values, ...(start ? [start.values] : [])], true);
  const first = Math.max(0, rows.shown.findIndex((row) => row.token_id === rows.example));
  let current = first;
  const panels = together(off);
  const by = rows.last_step === rows.step && !(rows.step < model.get("run").n_steps) ? "" : ` by step ${whole(rows.last_step)}, the last whose weights were kept`;

  function show(index) {
    current = index;
    const row = rows.shown[index];
    const colours = theme(el);
    const after = last.part(index);
    const parts = [[by ? `step ${whole(rows.last_step)}` : "after", after]];
    if (start) {
      const before = start.part(index);
      parts.unshift(["before", before]);
      parts.push(["change", Float32Array.from(after, (v, i) => v - before[i])]);
    }
    const same = start && d3.max(parts[2][1], Math.abs) === 0;
    panels();
    const strip = ([name, values]) => {
      const panel = raster(panels, {
        label: `the ${width} numbers of the row ${name}`, rows: 1, columns: width, values, scale,
        tell: (_, column) => (readout.textContent = `number ${column} of the row: ` + parts.map(([n, v]) => `${n} ${number(v[column], last.digits)}`).join(", ")),
        leave: () => (readout.textContent = summary),
      });
      return [h("span.strip-name", null, name), panel.el];
    };
    body.replaceChildren(...parts.flatMap(strip), h("span"), bar(scale, colours, "one weight"));
    const summary = [row.count === null ? "" : row.count === 0 ? "Never occurs in the training text. " : `Occurs ${plural(row.count, "time")} in the training text. `,
      !start ? "Its start was not kept." : same ? `None of its numbers changed${by}.` : row.drift === null ? "" : `Moved by ${relative(row.drift)} its initial norm${by}.`].join("");
    readout.textContent = summary;
  }
  recolour(() => show(current));
  select.value = String(first);
  show(first);
}

function build(place, rows) {
  scatter(place, rows);
  strips(place, rows);
}

export default view(build, { needs: (model) => model.get("rows"), redrawOn: ["rows"] });
