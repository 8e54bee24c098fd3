// The matrices themselves: a thumbnail for each, layers down and kinds across, at the snapshot nearest to the step; and
// one of them large, with the weights that moved most shown exactly.

import { add, choice, clear, h, perFrame, together } from "./dom.js";
import { number, shape, whole } from "./format.js";
import { stepIndex, unpack } from "./decode.js";
import { watch } from "./model.js";
import { figure, savePng } from "./figure.js";
import { paint, raster } from "./raster.js";
import { bar, robust } from "./scale.js";
import { onTheme, theme } from "./theme.js";

const MODES = { size: "size of the weights", change: "change since the start" };

const scaleOf = (items, mode) => robust(items.filter((item) => item[mode]).map((item) => unpack(item[mode]).values));

function exactBlock(item, colours, off) {
  const block = item.exact;
  if (!block) return null;
  const [start, last] = [unpack(block.start), unpack(block.last)];
  const readout = h("p.readout", { "aria-live": "polite" });
  const scale = robust([last.values, ...(start ? [start.values] : [])], true);
  const columns = block.columns.length;
  const parts = [start && ["start", start.values], ["last step", last.values]].filter(Boolean);
  const panels = parts.map(([name, values]) => {
    const panel = raster({
      label: `exact weights, ${name}`, rows: block.rows.length, columns, values, scale,
      tell: (row, column) => (readout.textContent = `${item.address}[${block.rows[row]}, ${block.columns[column]}]: ` +
        parts.map(([n, v]) => `${n} ${number(v[row * columns + column], last.digits)}`).join(", ")),
      leave: () => (readout.textContent = "Point at a cell for its weight."),
    });
    off.add(panel.off);
    panel.el.style.aspectRatio = `${columns} / ${block.rows.length}`;
    return h("div.panel", null, h("p.small", null, name), panel.el);
  });
  readout.textContent = "Point at a cell for its weight.";
  return h("div", null, h("h4", null, "Weights, one by one"), h("p.small", null, block.chosen),
    h("div.panels", null, panels), bar(scale, colours, "one weight"), readout);
}

function render({ model, el }) {
  const room = model.get("matrices");
  if (!room || !room.items.length) return () => {};
  const off = together();
  const map = model.get("map");
  const about = new Map((map ? map.rows : []).map((row) => [row.address, row]));
  const parse = (address) => ({ layer: address.match(/(?:^|\.)L(\d+)\./)?.[0]?.replace(/\.$/, "") ?? "", kind: address.replace(/^(?:(?:enc|dec)\.)?(?:L\d+\.)?/, "") });
  const places = room.items.map((item) => ({ item, ...parse(item.address) }));
  const layers = [...new Set(places.map((p) => p.layer))].filter(Boolean);
  const kinds = [...new Set(places.filter((p) => p.layer).map((p) => p.kind))];
  const tables = places.filter((p) => !p.layer);
  const hasChange = room.items.some((item) => item.change);
  let mode = hasChange ? "change" : "size";
  const scales = { size: scaleOf(room.items, "size"), change: hasChange ? scaleOf(room.items, "change") : null };
  const index = () => stepIndex(room.steps, model.get("step"));
  const role = (address) => `--role:var(--role-${about.get(address)?.role ?? "norm"})`;

  const caption = h("span");
  const frame = figure(el, { wide: true, title: h("span.snapshot-title"), caption });
  const legend = h("div");
  frame.body.before(h("div.controls", null, hasChange ? choice("what is shown", Object.entries(MODES).reverse(), mode, (m) => ((mode = m), drawAll())) : null));
  const thumbs = [];
  const thumb = (place) => {
    if (!place) return h("span.dash", null, "–");
    const canvas = h("canvas", { "aria-hidden": "true" });
    const button = h("button.thumb", { type: "button", style: role(place.item.address), onclick: () => model.set("address", place.item.address),
      "aria-label": `${place.item.address}, ${shape(place.item.shape)}` }, canvas);
    thumbs.push({ canvas, button, item: place.item });
    return button;
  };
  const grid = h("div.thumbs", { style: `--kinds:${kinds.length}` },
    h("span"), kinds.map((kind) => h("span.thumb-kind", { style: role(places.find((p) => p.kind === kind && p.layer).item.address) }, kind)),
    layers.map((layer) => [h("span.thumb-layer", null, layer), kinds.map((kind) => thumb(places.find((p) => p.layer === layer && p.kind === kind)))]));
  frame.body.append(legend, h("div.scroll", null,
    tables.length ? h("div.tables", null, tables.map((place) => h("div", null, h("span.thumb-kind", { style: role(place.item.address) }, place.kind), thumb(place)))) : null, grid));
  const detail = h("div.detail");
  el.append(detail);

  function drawAll() {
    const colours = theme(el);
    const scale = scales[mode];
    for (const { canvas, item } of thumbs) {
      const array = unpack(item[mode]);
      if (array) paint(canvas, array.part(index()), array.shape[1], array.shape[2], scale, colours);
    }
    clear(legend).append(bar(scale, colours, `root mean square, ${MODES[mode]}`));
    frame.el.querySelector(".snapshot-title").textContent = `Snapshot of step ${whole(room.steps[index()])}`;
    caption.textContent = `Each picture is one matrix, rows down, columns across, drawn in blocks: a cell is the root mean square of the weights in its block, so nothing cancels and nothing is skipped. One scale for all. ${room.left_out}`;
    drawDetail();
  }
  function drawDetail() {
    thumbs.forEach(({ button, item }) => button.setAttribute("aria-pressed", String(item.address === model.get("address"))));
    const place = places.find((p) => p.item.address === model.get("address")) ?? places[0];
    const { item } = place;
    const colours = theme(el);
    detailOff();
    const now = index();
    const pictures = [["size", 0, "size at the start"], ["size", now, `size at step ${whole(room.steps[now])}`], ["change", now, `change by step ${whole(room.steps[now])}`]]
      .filter(([kind, at]) => item[kind] && !(kind === "size" && at === 0 && now === 0 && room.steps[0] !== 0));
    const [rows, columns] = item.size.shape.slice(1);
    const readout = h("p.readout", { "aria-live": "polite" });
    const panels = pictures.map(([kind, at, name]) => {
      const array = unpack(item[kind]);
      const scale = robust([array.values]);
      const panel = raster({
        label: `${item.address}, ${name}`, rows, columns, values: array.part(at), scale,
        tell: (row, column) => {
          const span = (i, block, n) => `${i * block}–${Math.min(n, (i + 1) * block) - 1}`;
          readout.textContent = `rows ${span(row, item.block[0], item.shape[0])}, columns ${span(column, item.block[1], item.shape[1])}: ${name} ${number(array.at(at, row, column), array.digits)}`;
        },
        leave: () => (readout.textContent = item.reduction),
      });
      panel.el.style.aspectRatio = `${columns} / ${rows}`;
      detailOff.add(panel.off);
      return h("div.panel", null, h("p.small", null, name, h("button.quiet", { type: "button", onclick: () => savePng(panel.canvas, `${item.address}-${kind}`) }, "PNG")),
        panel.el, bar(scale, colours, "root mean square"));
    });
    readout.textContent = item.reduction;
    const row = about.get(item.address);
    add(clear(detail), [h("h3", { style: role(item.address) }, h("code.role", null, item.address), ` ${shape(item.shape)}`,
      row?.unmoved ? ", did not move at all" : "", row?.tied_to ? `, tied to ${row.tied_to}` : ""),
    h("p.small", null, `rows: ${item.axes[0]}; columns: ${item.axes[1]}`, item.n_heads > 1 ? `; ${item.n_heads} heads side by side along the ${item.head_axis ? "columns" : "rows"}` : ""),
    h("div.panels", null, panels), readout, exactBlock(item, colours, detailOff)]);
  }
  const detailOff = together();
  off.add(detailOff);
  off.add(onTheme(drawAll));
  off.add(watch(model, "address", drawDetail));
  let shown = index();
  const drawSoon = perFrame(drawAll);
  off.add(watch(model, "step", () => {
    if (index() !== shown) drawSoon();
    shown = index();
  }));
  drawAll();
  return off;
}

export default { render };
