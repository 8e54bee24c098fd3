// @ts-check
// Train again in the page, from the same initial weights and on the same batches: one model as it is, one with the reader's switches.

import { h, clear } from "../static/dom.js";
import { fixed, whole } from "../static/format.js";
import { plot, series } from "../static/figure.js";
import { theme } from "../static/theme.js";
import { usual } from "../play/engine/switches.js";
import { Race } from "../play/race.js";

const STEPS = 300;
const RATE = 1e-2;
export const SWITCHES = [
  { name: "W_E", value: "freeze", label: "freeze W_E", says: "with W_E frozen" },
  { name: "W_Q", value: "identity", label: "W_Q = I", says: "with W_Q = I" },
  { name: "tied", value: true, label: "tie W_U to W_E", says: "with W_U tied to W_E" },
];

// `base`: { text, tokens, sizes, weights } with tokens as single characters; `seen(step, weights, made)` for each look; returns what stops it.
export function retraining(host, base, sentence, seen) {
  const boxes = SWITCHES.map(({ label }) => h("input", { type: "checkbox", id: `switch-${label.replaceAll(/\W/g, "")}` }));
  const button = h("button.primary", { type: "button", onclick: () => (training ? stop() : void train()) }, `Train ${STEPS} steps`);
  const chart = h("div.chart");
  const told = h("p.told", { role: "status" });
  let [training, stopped, race] = [false, false, null]; // until the loop has ended, the workers are not another's
  const stop = () => void (stopped = true);

  const arms = () => {
    const plain = { ...usual(), norms: false, rate: RATE };
    const chosen = SWITCHES.filter((_, i) => boxes[i].checked);
    return { chosen, a: plain, b: { ...plain, ...Object.fromEntries(chosen.map(({ name, value }) => [name, value])) } };
  };
  async function train() {
    const { chosen, a, b } = arms();
    race ??= new Race(document.getElementById("worker").textContent);
    [training, stopped] = [true, false];
    button.textContent = "Stop";
    const lines = { a: [], b: [] };
    try {
      const made = await race.make({ task: "text", text: base.text, seed: 1, layers: 1, a, b }, base);
      for (let taken = 0; !stopped && taken < STEPS;) {
        const stretch = Math.min(race.stretch(), STEPS - taken);
        const answers = await race.advance(stretch, sentence(), false);
        if (stopped) break;
        taken = answers.b.taken;
        for (const arm of ["a", "b"]) lines[arm].push(...answers[arm].validations.map(({ step, loss }) => ({ step, loss })));
        seen(taken, answers.b.seen.weights, made.b);
        draw(lines, chosen, taken);
      }
    } catch (error) {
      told.textContent = `The training stopped: ${error.message}`;
    }
    training = false;
    button.textContent = `Train ${STEPS} steps`;
  }
  function draw(lines, chosen, taken) {
    const colours = theme(host);
    const mark = (points, stroke) => series(points, { x: "step", y: "loss", stroke });
    clear(chart).append(plot(colours, "validation loss of both models", { width: Math.max(280, Math.min(620, chart.clientWidth)), height: 190, x: { label: "step" }, y: { label: "validation loss (nats)" },
      marks: [mark(lines.a, colours.ink), mark(lines.b, colours.role.Q)] }));
    const how = chosen.length ? chosen.map(({ says }) => says).join(" and ") : "the same again (no switch is on)";
    const [plain, changed] = [lines.a.at(-1).loss, lines.b.at(-1).loss];
    told.replaceChildren(h("b.key-plain", null, "All trained"), ` (black): ${fixed(plain, 3)} nats per word. `, h("b.key-changed", null, how[0].toUpperCase() + how.slice(1)), ` (blue): ${fixed(changed, 3)}. Step ${whole(taken)} of ${whole(STEPS)}, one seed.`);
  }
  host.append(h("div.switch-row", null, boxes.map((box, i) => h("label", null, box, " ", SWITCHES[i].label)), button), told, chart);
  return stop;
}
