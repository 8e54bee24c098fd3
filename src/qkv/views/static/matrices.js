// @ts-check
// The matrices themselves: a thumbnail for each, layers down and kinds across, at the snapshot nearest to the step. A click
// opens one large (matrix.js).

import { clear, h } from "./dom.js";
import { number, shape, whole } from "./format.js";
import { stepIndex, unpack } from "./decode.js";
import { paint } from "./raster.js";
import { bar, linear, robust } from "./scale.js";
import { theme } from "./theme.js";
import { controls, view } from "./view.js";

const MODES = { size: "size of the weights", change: "change since the start" };

const scaleOf = (items, mode) => robust(items.filter((item) => item[mode]).map((item) => unpack(item[mode]).values));

// The kinds of matrices, each with its own scale at all steps, or one that all share. -> { of(place), top(kind) }
function scalesOf(places, mode, common) {
  const shared = common ? scaleOf(places.map(({ item }) => item), mode) : null;
  const own = new Map([...new Set(places.map(({ kind }) => kind))].map((kind) => [kind, shared ?? scaleOf(places.filter((p) => p.kind === kind).map(({ item }) => item), mode)]));
  const top = (kind) => `${number(own.get(kind).ends[1], 2)}${own.get(kind).clipped ? " or more" : ""}`;
  return { shared, of: ({ kind }) => own.get(kind), top };
}

function build({ model, el, figure, follow, hear, recolour }, section) {
  const about = new Map((model.get("map")?.rows ?? []).map((row) => [row.address, row]));
  const parse = (address) => { // of an encoder-decoder a layer is that of one of both: `enc.L0`
    const layer = address.match(/^((?:enc\.|dec\.)?L\d+)\./)?.[1] ?? "";
    return { layer, kind: layer ? address.slice(layer.length + 1) : address };
  };
  const places = section.items.map((item) => ({ item, ...parse(item.address) }));
  const layers = [...new Set(places.map((p) => p.layer))].filter(Boolean);
  const kinds = [...new Set(places.filter((p) => p.layer).map((p) => p.kind))];
  const tables = places.filter((p) => !p.layer);
  const hasChange = section.steps.length > 1 && section.items.some((item) => item.change);
  const state = { mode: hasChange ? "change" : "size", common: false };
  const made = new Map(); // scales by what is shown
  const scales = ({ mode, common }) => {
    if (!made.has(`${mode} ${common}`)) made.set(`${mode} ${common}`, scalesOf(places, mode, common));
    return made.get(`${mode} ${common}`);
  };
  const index = () => stepIndex(section.steps, model.get("step"));
  const role = (address) => `--role:var(--role-${about.get(address)?.role ?? "norm"})`;

  const [title, caption] = [h("span.snapshot-title"), h("span")];
  const frame = figure({ wide: true, title, caption });
  const legend = h("div");
  frame.body.before(controls(state, () => [hasChange ? { key: "mode", label: "what is shown", options: [["change", MODES.change], ["size", MODES.size]] } : null,
    { key: "common", label: "color scale", options: [[false, "a scale for each kind"], [true, "one scale for all"]] }], () => draw()).el);
  const [thumbs, tops] = [[], []];
  const heading = (kind, address) => {
    const top = h("span.thumb-top");
    tops.push({ top, kind });
    return h("span.thumb-kind", { style: role(address) }, kind, top);
  };
  const thumb = (place) => {
    if (!place) return h("span.dash", null, "–");
    const canvas = h("canvas", { "aria-hidden": "true" });
    const button = h("button.thumb", { type: "button", style: role(place.item.address), onclick: () => (model.set("address", place.item.address), document.querySelector("#matrix")?.scrollIntoView({ block: "nearest" })),
      "aria-label": `${place.item.address}, ${shape(place.item.shape)}` }, canvas);
    thumbs.push({ canvas, button, place });
    return button;
  };
  const grid = h("div.thumbs", { style: `--kinds:${kinds.length}` },
    h("span"), kinds.map((kind) => heading(kind, places.find((p) => p.kind === kind && p.layer).item.address)),
    layers.map((layer) => [h("span.thumb-layer", null, layer), kinds.map((kind) => thumb(places.find((p) => p.layer === layer && p.kind === kind)))]));
  frame.body.append(legend, h("div.scroll", null,
    tables.length ? h("div.tables", null, tables.map((place) => h("div", null, heading(place.kind, place.item.address), thumb(place)))) : null, grid));

  function draw() {
    const colours = theme(el);
    const { shared, of, top } = scales(state);
    for (const { canvas, place } of thumbs) {
      const array = unpack(place.item[state.mode]);
      if (array) paint(canvas, array.part(index()), array.shape[1], array.shape[2], of(place), colours);
    }
    for (const one of tops) one.top.textContent = shared ? "" : `1 = ${top(one.kind)}`;
    clear(legend).append(bar(shared ?? linear(1), colours, `root mean square, ${MODES[state.mode]}${shared ? "" : " (1: the number under each name)"}`));
    title.textContent = `Snapshot of step ${whole(section.steps[index()])}`;
    caption.textContent = `Each picture is one matrix, rows down and columns across. A cell is the root mean square of a block of weights. ${shared ? "All share one scale, at every step." : "Each kind of matrix has its own scale, in all layers and at every step: compare colors within a kind only."}`;
    press();
  }
  function press() {
    thumbs.forEach(({ button, place }) => button.setAttribute("aria-pressed", String(place.item.address === model.get("address"))));
  }
  recolour(draw);
  hear(["address"], press);
  let shown = index();
  follow(["step"], () => {
    if (index() !== shown) draw();
    shown = index();
  });
  draw();
}

export default view(build, { needs: (model) => model.get("matrices")?.items.length && model.get("matrices"), redrawOn: ["matrices"] });
