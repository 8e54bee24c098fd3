// @ts-check
// What moved first? For each kind of matrix the stretch of steps in which it did most of its moving: from a tenth to nine
// tenths of its final drift, with a dot where half was done; a median over layers.

import { d3, Plot } from "./vendor.js";
import { h } from "./dom.js";
import { tickOfSteps, whole } from "./format.js";
import { chart, plot, widthOf } from "./figure.js";
import { view } from "./view.js";

function build({ model, figure }, moving) {
  // a median over an even number of layers can lie between two steps: by the next one it was done
  const kinds = moving.map((k) => ({ ...k, tenth: Math.ceil(k.tenth), half: Math.ceil(k.half), nine_tenths: Math.ceil(k.nine_tenths) }));
  const last = d3.max(model.get("map").steps);
  const frame = figure({
    title: "When each kind of matrix did its moving",
    caption: h("span", null, "Each bar spans the steps at which 10% and 90% of the final drift were reached; the dot is 50%. Medians over layers."),
  });
  chart(frame, (width, colours) => plot(colours, `steps by which half of the drift was done: ${kinds.map((k) => `${k.kind} ${k.half}`).join(", ")}`, {
    width, height: 26 * kinds.length + 36, marginLeft: widthOf(kinds.map((k) => k.kind), 0.4 * width, 8.4) + 14, marginRight: 54, marginTop: 6, marginBottom: 30,
    x: { type: "log", domain: [Math.max(1, d3.min(kinds, (k) => k.tenth)), last], label: null, tickSize: 0, ticks: width < 420 ? 3 : 5, tickFormat: tickOfSteps },
    y: { domain: kinds.map((k) => k.kind), label: null, tickSize: 0, tickFormat: () => "" },
    marks: [
      Plot.gridX({ stroke: colours.line, strokeOpacity: 1 }),
      Plot.text(kinds, { y: "kind", frameAnchor: "left", dx: -10, textAnchor: "end", text: "kind", fontSize: 13, fontWeight: 600, fill: (k) => colours.role[k.role] }),
      Plot.ruleY(kinds, { y: "kind", x1: (k) => Math.max(1, k.tenth), x2: "nine_tenths", stroke: (k) => colours.role[k.role], strokeWidth: 6, strokeOpacity: 0.3, strokeLinecap: "round" }),
      Plot.dot(kinds, { y: "kind", x: (k) => Math.max(1, k.half), r: 5, fill: (k) => colours.role[k.role] }),
      Plot.text(kinds, { y: "kind", frameAnchor: "right", dx: 8, textAnchor: "start", text: (k) => whole(k.half), fill: colours.soft }),
    ],
  }));
}

export default view(build, { needs: (model) => model.get("map")?.moving.length > 1 && model.get("map").moving, redrawOn: ["map"] });
