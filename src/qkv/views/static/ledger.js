// @ts-check
// Which matrix earned the loss? One bar for each, by the nats that its own movement took off the loss of a fixed probe;
// to the left of the line what raised it. Beneath, what the account leaves over.

import { d3, Plot } from "./vendor.js";
import { h } from "./dom.js";
import { number, whole } from "./format.js";
import { chart, plot } from "./figure.js";
import { controls, view } from "./view.js";

const MOST = 16;

// The largest either way, in the order of what they earned; the rest as one sum, so that the bars still add up.
export function largest(rows, most = MOST) {
  if (rows.length <= most) return rows;
  const chosen = new Set(d3.sort(rows, (row) => -Math.abs(row.nats)).slice(0, most - 1));
  const others = rows.filter((row) => !chosen.has(row));
  return [...rows.filter((row) => chosen.has(row)), { address: `${others.length} others`, role: "norm", nats: d3.sum(others, (row) => row.nats) }];
}

function build({ figure }, ledger) {
  const state = { by: "matrices" };
  const share = Math.abs(ledger.error / ledger.change);
  const frame = figure({
    title: "Change of the loss due to each matrix's movement, nats",
    caption: h("span", null, `From step ${whole(ledger.first_step)} to ${whole(ledger.last_step)} the loss of the probe batch changed by ${number(ledger.change, 3)} nats. The matrices together account for it to within ${number(Math.abs(ledger.error), 2)} nats (${number(100 * share, 2)}%), over ${whole(ledger.n_entries)} entries. A matrix that does not move counts as 0.`),
  });
  /** @type {[string, string][]} */
  const found = [["matrices", "matrices"], ["heads", "heads"], ["kinds", "kinds of matrices"]];
  const lists = found.filter(([key]) => ledger[key].length);
  const draw = chart(frame, (width, colours) => {
    const shown = largest(ledger[state.by]).map((row) => ({ ...row, earned: -row.nats }));
    return plot(colours, `nats earned: ${shown.map((row) => `${row.address} ${number(row.earned, 3)}`).join(", ")}`, {
      width, height: 22 * shown.length + 34, marginLeft: 96, marginRight: 68, marginTop: 4, marginBottom: 28,
      x: { domain: [Math.min(0, d3.min(shown, (row) => row.earned)), Math.max(0, d3.max(shown, (row) => row.earned))], label: null, tickSize: 0, ticks: width < 420 ? 3 : 5, nice: true },
      y: { domain: shown.map((row) => row.address), label: null, tickSize: 0, tickFormat: () => "" },
      marks: [
        Plot.gridX({ stroke: colours.line, strokeOpacity: 1 }),
        Plot.barX(shown, { y: "address", x: "earned", fill: (row) => colours.role[row.role], fillOpacity: (row) => (row.earned < 0 ? 0.4 : 0.85), insetTop: 2, insetBottom: 2 }),
        Plot.ruleX([0], { stroke: colours.soft }),
        Plot.text(shown, { y: "address", frameAnchor: "left", dx: -10, textAnchor: "end", text: "address", fontSize: 12, fill: (row) => colours.role[row.role] }),
        Plot.text(shown, { y: "address", frameAnchor: "right", dx: 8, textAnchor: "start", text: (row) => number(row.earned, 3), fill: colours.soft }),
      ],
    });
  });
  if (lists.length > 1) frame.body.before(controls(state, () => [{ key: "by", label: "earned by", options: lists }], draw).el);
}

export default view(build, { needs: (model) => model.get("ledger"), redrawOn: ["ledger"] });
