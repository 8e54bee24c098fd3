// @ts-check
// One matrix, opened from the grid: its weights at the step of the slider, beside its start and the change, and its
// spectrum. A report carries blocks of the weights and a small part exactly; where Python stands behind the page every
// weight is asked for, of a head or a circuit too.

import { d3, Plot } from "./vendor.js";
import { add, atMostEvery, clear, h, lastOnly, together } from "./dom.js";
import { number, shape, tick, tickOfSteps, whole } from "./format.js";
import { stepIndex, unpack, wholeOf } from "./decode.js";
import { chart, figure, plot } from "./figure.js";
import { panels } from "./raster.js";
import { robust } from "./scale.js";
import { theme } from "./theme.js";
import { view } from "./view.js";

const OF_WEIGHTS = { words: "one cell", rest: "Point at a cell for its weight." };
const headOf = (address) => address.match(/\.(H|KV)(\d+)\./);

// What a report holds of a whole matrix: blocks at the snapshots, and a part that is exact.
function carried(off, model, item, address, colours) {
  const section = model.get("matrices");
  const now = stepIndex(section.steps, model.get("step"));
  const [rows, columns] = item.size.shape.slice(1);
  const digits = unpack(item.size).digits;
  /** @type {[string, number, string][]} */
  const all = [["size", 0, "size at the start"], ["size", now, `size at step ${whole(section.steps[now])}`], ["change", now, `change by step ${whole(section.steps[now])}`]];
  const parts = all.filter(([kind], i) => item[kind] && !(i === 0 && (now === 0 || section.steps[0] !== 0)) && (kind === "size" || section.steps.length > 1)).map(([kind, at, name]) => [name, unpack(item[kind]).part(at), robust([unpack(item[kind]).values])]);
  const span = (i, block, n) => (block === 1 ? `${i}` : `${i * block}–${Math.min(n, (i + 1) * block) - 1}`);
  const head = headOf(address);
  const share = head && item.n_heads ? [100 * Number(head[2]) / item.n_heads, 100 / item.n_heads] : null;
  const overlay = share && (item.head_axis ? `left:${share[0]}%;width:${share[1]}%;top:0;bottom:0` : `top:${share[0]}%;height:${share[1]}%;left:0;right:0`);
  const cellName = (row, column) => `rows ${span(row, item.block[0], item.shape[0])}, columns ${span(column, item.block[1], item.shape[1])}`;
  return [h("p.small", null, item.reduction, overlay ? ` Outlined: ${address.split(".").at(-2)}.` : ""),
    ...panels(off, { ...OF_WEIGHTS, address: item.address, rows, columns, parts, digits, colours, cellName, overlay }), exactBlock(off, model, item, colours)];
}

function exactBlock(off, model, item, colours) {
  const block = item.exact;
  if (!block) return null;
  const [start, last] = [unpack(block.start), unpack(block.last)];
  const scale = robust([last.values, ...(start ? [start.values] : [])], true);
  const step = model.get("matrices").steps.at(-1);
  const parts = [start && step > 0 && ["start", start.values, scale], [`step ${whole(step)}${step < model.get("run").n_steps ? ", the last kept" : ""}`, last.values, scale]].filter(Boolean);
  return h("div.exact", null, h("h4", null, "Weights, one by one"), h("p.small", null, block.chosen),
    panels(off, { ...OF_WEIGHTS, address: "exact weights", rows: block.rows.length, columns: block.columns.length, parts, digits: last.digits, colours, cellName: (row, column) => `${item.address}[${block.rows[row]}, ${block.columns[column]}]` }));
}

// What Python gave: every weight.
function given(off, answer, colours) {
  const [now, start] = [unpack(answer.values), unpack(answer.start)];
  const [rows, columns] = now.shape;
  const scale = robust([now.values, ...(start ? [start.values] : [])], true);
  const change = start && Float32Array.from(now.values, (v, i) => v - start.values[i]);
  const parts = [start && [`step ${whole(answer.start_step)}`, start.values, scale], [`step ${whole(answer.step)}`, now.values, scale], change && ["change", change, robust([change], true)]].filter(Boolean);
  return [answer.notes.map((note) => h("p.small", null, note)),
    ...panels(off, { ...OF_WEIGHTS, address: answer.address, rows, columns, parts, digits: now.digits, colours, cellName: (row, column) => `${answer.address}[${row}, ${column}]` })];
}

// Singular values: [[label, values, now]].
function spectrum(off, el, address, lines) {
  const frame = figure(el, { title: `Spectrum of ${address}`, caption: "Singular values, largest first: how much the matrix stretches its strongest directions." }, off);
  chart(frame, (width, colours) => {
    const points = lines.flatMap(([label, values, now]) => [...values].map((value, i) => ({ label, now, rank: i + 1, value })));
    return plot(colours, `singular values of ${address}, largest ${number(lines.at(-1)[1][0])}`, {
      width, height: 200, marginLeft: 44, marginRight: 70, marginBottom: 34, marginTop: 8,
      x: { label: "rank →", tickSize: 0, ticks: 5, tickFormat: tickOfSteps, domain: [1, Math.max(2, d3.max(points, (p) => p.rank))] }, y: { label: null, tickSize: 0, ticks: 4, tickFormat: tick, zero: true },
      marks: [Plot.gridY({ stroke: colours.line, strokeOpacity: 1, ticks: 4 }),
        d3.groups(points, (p) => p.label).reverse().map(([, own]) => Plot.line(own, { x: "rank", y: "value", stroke: own[0].now ? colours.accent : colours.ink, strokeWidth: own[0].now ? 2.2 : 1.4, strokeDasharray: own[0].now ? null : "4 3" })),
        d3.groups(points, (p) => p.label).map(([label, own], i, all) => Plot.text(own.slice(-1), { x: "rank", y: "value", text: () => label, dx: 7, dy: all.length < 2 ? 0 : own[0].now ? -7 : 8, textAnchor: "start", fill: own[0].now ? colours.accent : colours.soft }))],
    });
  });
}

function carriedSpectrum(off, el, model, item) {
  const all = unpack(item.spectrum);
  if (!all) return;
  const section = model.get("matrices");
  const now = stepIndex(section.steps, model.get("step"));
  const lines = section.steps.map((step, i) => [i === 0 ? `step ${whole(step)}` : "", all.part(i), false, i]).filter(([, , , i]) => i === 0 && now > 0);
  spectrum(off, el, item.address, [...lines, [`step ${whole(section.steps[now])}`, all.part(now), true]]);
}

function build({ model, el, off, ask: may, follow, hear, recolour }) {
  const ask = may("matrix");
  const parts = together(off);
  const latest = lastOnly();
  const detail = h("div.detail", { id: "matrix" });
  el.append(detail);
  let drawn = "";

  function heading(address) {
    const rows = [...(model.get("map")?.rows ?? []), ...(model.get("grid")?.rows ?? [])];
    const row = rows.find((r) => r.address === address);
    const item = model.get("matrices")?.items.find((i) => i.address === wholeOf(address));
    return [h("h3", { style: `--role:var(--role-${row?.role ?? "norm"})` }, h("code.role", null, address), item && !headOf(address) ? ` ${shape(item.shape)}` : "",
      row?.unmoved ? ", did not move at all" : "", row?.tied_to ? `, tied to ${row.tied_to}` : ""),
    item ? h("p.small", null, `rows: ${item.axes[0]}; columns: ${item.axes[1]}`, item.n_heads > 1 ? `; ${item.n_heads} heads side by side along the ${item.head_axis ? "columns" : "rows"}` : "") : null];
  }
  function show(children, more = (_) => {}) {
    parts();
    add(clear(detail), [heading(model.get("address")), children(parts)]);
    more(parts);
  }
  function draw() {
    const address = model.get("address");
    if (!address) return;
    const colours = theme(el);
    const kept = model.get("kept");
    const item = model.get("matrices")?.items.find((i) => i.address === wholeOf(address));
    const key = `${address} ${ask ? kept[stepIndex(kept, model.get("step"))] : stepIndex(model.get("matrices")?.steps ?? [], model.get("step"))}`;
    if (key === drawn) return;
    drawn = key;
    if (ask && !address.endsWith(".pattern")) {
      latest(() => ask("matrix", { address, step: model.get("step") }), (answer) => show((stop) => given(stop, answer, theme(el)), (stop) => {
        if (answer.spectrum) spectrum(stop, detail, address, [...(answer.start_spectrum ? [[`step ${whole(answer.start_step)}`, unpack(answer.start_spectrum).values, false]] : []), [`step ${whole(answer.step)}`, unpack(answer.spectrum).values, true]]);
      }), (error) => show(() => h("p.missing", null, error.message)));
    } else if (item) {
      show((stop) => carried(stop, model, item, address, colours), (stop) => carriedSpectrum(stop, detail, model, item));
    } else {
      show(() => h("p.small", null, address.endsWith(".pattern") ? "A pattern has no weights: it is computed for each text. See the attention section below."
        : `${address} is a product of two matrices and is not stored; a live page computes it: qkv view RUN.`));
    }
  }
  follow(["step", "matrices"], atMostEvery(200, draw)); // weights and a spectrum are too much for every frame of a drag
  recolour(() => {
    drawn = "";
    draw();
  });
  hear(["address"], draw);
  draw();
}

export default view(build, { needs: (model) => model.get("matrices") || (model.get("ask") && model.get("host").can.includes("matrix")) });
