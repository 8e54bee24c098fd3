// @ts-check
// Where each head looks on a sentence, both arms side by side.

import { clear, h, together } from "../../static/dom.js";
import { fixed } from "../../static/format.js";
import { figure } from "../../static/figure.js";
import { paint, raster } from "../../static/raster.js";
import { bar, squareRoot } from "../../static/scale.js";
import { theme } from "../../static/theme.js";
import { ARMS, NAMES, pair } from "./pair.js";

// A head's pattern with the future left out: NaN is drawn as nothing.
function square(pattern, head, n) {
  const out = pattern.slice(head * n * n, (head + 1) * n * n);
  for (let q = 0; q < n; q++) for (let k = q + 1; k < n; k++) out[q * n + k] = NaN;
  return out;
}

// `watched()`: { a: [layer, head], b: [layer, head] }, part of the state; `chosen` is called when the reader changes it.
export function patternView(host, race, watched, chosen) {
  const frame = figure(host, { wide: true, title: "Where each head looks", caption: "Down: the attending token (query). Across: the token attended to (key). A row sums to 1; the empty half is the masked future. Choose a head to enlarge it." });
  const scale = squareRoot(1);
  const legend = h("div");
  const text = h("div.sentence-tokens");
  frame.body.append(text, legend);
  const columns = pair(frame.body, "attention");
  const drawn = Object.fromEntries(ARMS.map((arm) => [arm, { shape: "", large: "", thumbs: [], place: null, off: together() }]));

  function draw() {
    if (!race.seen) return;
    const colours = theme(host);
    text.replaceChildren(...race.seen.a.sentence.map((id) => h("span.word", null, race.show(id))));
    clear(legend).append(bar(scale, colours, "attention, square-root scale"));
    for (const arm of ARMS) one(arm, colours);
  }
  function one(arm, colours) {
    const { n_layers, n_heads } = race.made[arm].sizes;
    const n = race.seen[arm].sentence.length;
    const at = drawn[arm];
    if (at.shape !== `${n_layers}x${n_heads}`) Object.assign(at, { shape: `${n_layers}x${n_heads}`, large: "" }, grid(arm, n_layers, n_heads));
    const [layer, head] = [Math.min(watched()[arm][0], n_layers - 1), Math.min(watched()[arm][1], n_heads - 1)];
    at.thumbs.forEach(({ button, canvas, l, i }) => {
      paint(canvas, square(race.seen[arm].patterns[l], i, n), n, n, scale, colours);
      button.setAttribute("aria-pressed", String(l === layer && i === head));
    });
    const read = race.playing && (at.place.contains(document.activeElement) || at.place.matches(":hover"));
    if (read && at.large === `${layer} ${head} ${n}`) return; // do not take away what is being read
    at.large = `${layer} ${head} ${n}`;
    at.off();
    at.place.replaceChildren(...large(arm, layer, head, n));
  }
  // The small pictures of an arm, which stay as long as it has as many heads, so that a click or a key finds them.
  function grid(arm, n_layers, n_heads) {
    const thumbs = [];
    const place = h("div.head-large");
    const layers = Array.from({ length: n_layers }, (_, l) => [h("span.thumb-layer", null, `L${l}`), Array.from({ length: n_heads }, (_unused, i) => {
      const canvas = h("canvas", { "aria-hidden": "true" });
      const button = h("button.thumb", { type: "button", "aria-label": `${NAMES[arm]}, layer ${l}, head ${i}`, onclick: () => ((watched()[arm] = [l, i]), chosen(), draw()) }, canvas);
      thumbs.push({ button, canvas, l, i });
      return button;
    })]);
    clear(columns[arm]).append(h("div.heads", { style: `--heads:${n_heads}` }, h("span"), Array.from({ length: n_heads }, (_, i) => h("span.thumb-head", { "aria-hidden": "true" }, `H${i}`)), layers), place);
    return { thumbs, place };
  }
  function large(arm, layer, head, n) {
    const numbers = square(race.seen[arm].patterns[layer], head, n);
    const ids = race.seen[arm].sentence;
    const readout = h("p.readout", { "aria-live": "polite" });
    const panel = raster(drawn[arm].off, { label: `${NAMES[arm]}, attention of L${layer}.H${head}`, rows: n, columns: n, values: numbers, scale, style: "aspect-ratio:1",
      tell: (q, k) => (readout.textContent = k > q ? "in the future" : `${race.show(ids[q])} (${q}) gives ${fixed(numbers[q * n + k])} to ${race.show(ids[k])} (${k})`) });
    return [h("p.small", null, h("code", null, `L${layer}.H${head}`)), panel.el, readout];
  }
  return { el: frame.el, draw };
}
