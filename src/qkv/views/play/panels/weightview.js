// @ts-check
// Every matrix of both arms as a heat map: its weights, its change since the start, or the gradient that reached it.

import { choice, clear, h, together } from "../../static/dom.js";
import { number, shape } from "../../static/format.js";
import { figure } from "../../static/figure.js";
import { paint, raster } from "../../static/raster.js";
import { bar, linear, robust } from "../../static/scale.js";
import { theme } from "../../static/theme.js";
import { ARMS, NAMES, pair, rms, steady } from "./pair.js";

const MODES = [["weights", "weights"], ["change", "change since the start"], ["gradient", "gradient"]];
const ROLE = { W_E: "E", W_pos: "E", W_U: "E", W_Q: "Q", W_K: "K", W_V: "V", W_O: "O", W_in: "MLP", W_out: "MLP" };
const KINDS = ["W_Q", "W_K", "W_V", "W_O", "W_in", "W_out"];
const HOW = { freeze: "frozen", identity: "identity" };

// One matrix of an arm as numbers of the chosen mode.
export function values(race, arm, address, mode) {
  const entry = race.made[arm].entries.find((e) => e.address === address);
  if (!entry) return null;
  const part = (numbers) => numbers.subarray(entry.start, entry.start + entry.size);
  const now = part(race.seen[arm].weights);
  if (mode === "weights") return { entry, numbers: now };
  if (mode === "gradient") return { entry, numbers: part(race.seen[arm].gradients) };
  const first = part(race.made[arm].origin);
  return { entry, numbers: now.map((v, i) => v - first[i]) };
}

// `watched`: { mode, address }, part of the state; `chosen` is called when the reader changes it.
export function weightView(host, race, watched, chosen) {
  const legend = h("div");
  const frame = figure(host, { wide: true, title: "The matrices", caption: "Rows down, columns across. All share one scale, except the two large ones. Below each: its root mean square. A frozen matrix gets no update, but its gradient at the last step is still shown. Choose one to read its numbers." });
  const modes = choice("what is shown", MODES, watched().mode, (mode) => ((watched().mode = mode), chosen(), draw()));
  frame.body.append(h("div.controls", null, modes), legend);
  const columns = pair(frame.body, "matrices");
  const detail = h("div.detail");
  frame.body.append(detail);
  const thumbs = new Map();
  const off = together();

  function thumb(arm, address) {
    const entry = race.made[arm].entries.find((e) => e.address === address);
    if (!entry) return h("span.dash", null, "–");
    const canvas = h("canvas", { "aria-hidden": "true" });
    const note = h("span.thumb-note");
    const button = h("button.thumb", { type: "button", style: `--role:var(--role-${ROLE[entry.kind]})`, "data-address": address, "aria-label": `${NAMES[arm]}, ${address}`,
      onclick: () => ((watched().address = address), chosen(), draw()) }, canvas, note);
    thumbs.set(`${arm} ${address}`, { arm, address, canvas, note, button });
    return button;
  }
  const name = (kind) => h("span.thumb-kind", { style: `--role:var(--role-${ROLE[kind]})` }, kind);
  function build() {
    thumbs.clear();
    for (const arm of ARMS) {
      const { n_layers } = race.made[arm].sizes;
      clear(columns[arm]).append(
        h("div.tables", null, ["W_E", "W_pos", "W_U"].map((kind) => h("div", null, name(kind), thumb(arm, kind)))),
        h("div.scroll", null, h("div.thumbs.small-thumbs", { style: `--kinds:${KINDS.length}` }, h("span"), KINDS.map(name),
          Array.from({ length: n_layers }, (_, layer) => [h("span.thumb-layer", null, `L${layer}`), KINDS.map((kind) => thumb(arm, `L${layer}.${kind}`))]))));
    }
  }
  function draw() {
    if (!race.seen) return;
    const [colours, shown] = [theme(host), watched()];
    modes.select(shown.mode);
    const all = [...thumbs.values()].map((t) => ({ ...t, ...values(race, t.arm, t.address, shown.mode) }));
    const { ends, clipped } = robust(all.map((t) => t.numbers), true);
    const scale = linear(steady(ends[1]), true, clipped);
    for (const { arm, address, entry, numbers, canvas, note, button } of all) {
      paint(canvas, numbers, entry.shape[0], entry.shape[1], scale, colours);
      const how = HOW[race.made[arm].held[entry.kind]];
      const size = number(rms(numbers), 2);
      note.textContent = how && shown.mode !== "gradient" ? `${size} ${how}` : size;
      button.setAttribute("aria-label", `${NAMES[arm]}, ${address}, ${shown.mode}: root mean square ${size}${how ? `, ${how}` : ""}`);
      button.setAttribute("aria-pressed", String(address === shown.address));
    }
    clear(legend).append(bar(scale, colours, MODES.find(([m]) => m === shown.mode)[1]));
    large(colours);
  }
  function large(colours) {
    const shown = watched();
    if (race.playing && (detail.contains(document.activeElement) || detail.matches(":hover"))) return; // do not take away what is being read
    off();
    const readout = h("p.readout", { "aria-live": "polite" }, "Point at a cell, or use the arrow keys, to read one number.");
    const panels = ARMS.map((arm) => {
      const found = values(race, arm, shown.address, shown.mode);
      if (!found) return h("div.panel", null, h("p.small", null, `${NAMES[arm]} has no ${shown.address} of its own`));
      const [rows, across] = found.entry.shape;
      const { ends, clipped } = robust([found.numbers], true);
      const scale = linear(steady(ends[1]), true, clipped);
      const line = (row) => (shown.address === "W_E" ? `row ${race.show(row)}` : `row ${row}`);
      const panel = raster(off, { label: `${NAMES[arm]}, ${shown.address}`, rows, columns: across, values: found.numbers, scale, style: `aspect-ratio:${across} / ${rows}`,
        tell: (row, column) => (readout.textContent = `${NAMES[arm]}, ${shown.address}, ${line(row)}, column ${column}: ${number(found.numbers[row * across + column], 4)}`) });
      return h("div.panel", null, h("p.small", null, `${NAMES[arm]}: ${shape(found.entry.shape)}`), panel.el, bar(scale, colours, shown.mode));
    });
    clear(detail).append(h("h3", null, h("code.role", { style: `--role:var(--role-${ROLE[shown.address.replace(/^L\d\./, "")]})` }, shown.address)), h("div.panels", null, panels), readout);
  }
  return { el: frame.el, draw, build };
}
