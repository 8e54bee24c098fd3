// A study: its verdict in a sentence, every effect on one axis with its interval and margin, loss curves of the arms with
// their t intervals, the arms as a table, and every training that was ever made for it.

import { d3, Plot } from "./vendor.js";
import { h, together } from "./dom.js";
import { DASH, fixed, number, plural, whole } from "./format.js";
import { apart, chart, figure, plot } from "./figure.js";

const COLOURS = ["Q", "K", "V", "O", "E", "MLP"]; // of the roles: told apart by everyone, in light and dark
const colourOf = (colours, i) => colours.role[COLOURS[i % COLOURS.length]];
const dashOf = (i) => (i < COLOURS.length ? null : "5 3");
const signed = (v) => (v === null ? DASH : `${v > 0 ? "+" : ""}${Math.abs(v) >= 0.001 || v === 0 ? fixed(v, 3) : number(v, 2)}`);
const between = (low, high) => (low === null ? DASH : `${signed(low)} to ${signed(high)}`);

function table(label, columns, rows) {
  return h("div.scroll", { tabindex: "0", role: "region", "aria-label": label }, h("table", null,
    h("thead", null, h("tr", null, columns.map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", null, rows.map((row) => h("tr", null, row.map((cell) => h("td", null, cell)))))));
}

// Effects of one unit on one axis; each one's band is its margin.
function forest(off, el, effects, unit) {
  const rows = effects.filter((e) => e.unit === unit && e.low !== null);
  if (!rows.length) return;
  const margins = [...new Set(rows.map((r) => r.margin))].sort((a, b) => a - b);
  const frame = figure(el, { wide: true, title: `Effects in ${unit}`, caption: `A dot is the mean over paired replicates, the line its 95 % interval, small dots single replicates. The band is the margin of ${margins.map((m) => number(m)).join(" or ")}, below which a difference was called trivial before the first training.` });
  chart(frame, (width, colours) => plot(colours, rows.map((r) => `${r.name} ${signed(r.effect)}, ${between(r.low, r.high)}`).join("; "), {
    width, height: 30 * rows.length + 40, marginLeft: Math.min(width * 0.42, 8 + 7 * d3.max(rows, (r) => r.name.length)), marginRight: 16, marginTop: 8, marginBottom: 28,
    x: { label: null, tickSize: 0, ticks: width < 520 ? 3 : 6, nice: true, domain: d3.extent([-margins.at(-1), margins.at(-1), ...rows.flatMap((r) => [r.low, r.high, ...r.values])]) },
    y: { domain: rows.map((r) => r.name), label: null, tickSize: 0, padding: 0 },
    marks: [
      Plot.barX(rows, { x1: (r) => -r.margin, x2: "margin", y: "name", fill: colours.mute, fillOpacity: 0.16 }),
      Plot.ruleX([0], { stroke: colours.faint }),
      Plot.dot(rows.flatMap((r) => r.values.map((value) => ({ name: r.name, value }))), { x: "value", y: "name", r: 2, fill: colours.mute }),
      Plot.ruleY(rows, { x1: "low", x2: "high", y: "name", stroke: (r) => (r === rows[0] ? colours.accent : colours.soft), strokeWidth: 2 }),
      Plot.dot(rows, { x: "effect", y: "name", r: 5, fill: (r) => (r === rows[0] ? colours.accent : colours.soft) }),
    ],
  }));
  off.add(frame.off);
}

// Mean validation loss of each arm with the t interval around it.
function curves(off, el, arms) {
  const shown = arms.map((arm, i) => ({ arm, i })).filter(({ arm }) => arm.steps.length > 1);
  if (!shown.length) return;
  const banded = shown.some(({ arm }) => arm.lows.some((v) => v !== null));
  const frame = figure(el, { wide: true, title: "Loss while training, nats",
    caption: `Mean validation loss of each arm's reported trainings, by step. ${banded ? "The band is the 95 % t interval of the mean; replicates that diverged are in the table." : "There are too few replicates for intervals, or no log to take them from."}` });
  chart(frame, (width, colours) => {
    const points = shown.flatMap(({ arm, i }) => arm.steps.map((step, j) => ({ i, name: arm.name, step, mean: arm.mean[j], low: arm.lows[j], high: arm.highs[j] })));
    const domain = d3.extent(points.flatMap((p) => [p.mean, p.low, p.high]).filter((v) => v !== null));
    const [height, top, bottom] = [Math.max(300, 20 * shown.length + 50), 12, 32];
    const y = d3.scaleLinear(domain, [height - bottom, top]);
    const ends = shown.map(({ arm }) => y(arm.mean.at(-1)));
    const places = apart(ends, 14, top, height - bottom);
    const made = plot(colours, `mean loss at the end: ${shown.map(({ arm }) => `${arm.name} ${fixed(arm.mean.at(-1), 3)}`).join(", ")}`, {
      width, height, marginTop: top, marginBottom: bottom, marginLeft: 42, marginRight: width < 520 ? 110 : 190,
      x: { label: null, tickSize: 0, ticks: 5, tickFormat: (v) => whole(v) }, y: { label: null, tickSize: 0, ticks: 5, domain, nice: false },
      marks: [
        Plot.gridY({ stroke: colours.line, strokeOpacity: 1, ticks: 5 }),
        shown.map(({ i }) => Plot.areaY(points.filter((p) => p.i === i && p.low !== null), { x: "step", y1: "low", y2: "high", fill: colourOf(colours, i), fillOpacity: 0.16 })),
        shown.map(({ i }) => Plot.line(points.filter((p) => p.i === i), { x: "step", y: "mean", stroke: colourOf(colours, i), strokeWidth: 2, strokeDasharray: dashOf(i) })),
        Plot.dot(points, { x: "step", y: "mean", r: 2.2, fill: (p) => colourOf(colours, p.i), tip: true, title: (p) => `${p.name}, step ${whole(p.step)}: ${fixed(p.mean, 3)} nats${p.low === null ? "" : ` (${fixed(p.low, 3)} to ${fixed(p.high, 3)})`}` }),
        shown.map(({ arm, i }, k) => Plot.text([points.findLast((p) => p.i === i)], { x: "step", y: "mean", text: () => arm.name, dx: 8, dy: places[k] - ends[k], textAnchor: "start", fill: colourOf(colours, i) })),
      ],
    });
    return made;
  });
  off.add(frame.off);
}

function rates(found) {
  const all = [...new Set(found)].sort((a, b) => a - b);
  return all.length ? (all.length === 1 ? number(all[0]) : `${number(all[0])} to ${number(all.at(-1))}`) : DASH;
}

function armTable(arms) {
  return table("arms of the study", ["arm", "what", "kept to the bit", "loss", "95 % interval", "sd", "n", "learning rates", "at the edge", "diverged"], arms.map((arm) => [
    arm.name, arm.what, arm.frozen.join(", ") || "nothing", fixed(arm.loss, 3), arm.low === null ? DASH : `${fixed(arm.low, 3)} to ${fixed(arm.high, 3)}`, fixed(arm.sd, 3),
    whole(arm.n), rates(arm.rates), `${arm.at_edge} of ${arm.n}`, `${arm.diverged} of ${arm.trainings}`]));
}

const effectTable = (effects) => table("effects of the study", ["effect", "mean", "95 % interval", "verdict", "n", "p (Holm)", "would see", "expected"], effects.map((e) => [
  h("span", { title: e.what }, `${e.name} (${e.unit})`), signed(e.effect), between(e.low, e.high), e.verdict, whole(e.n), number(e.p_holm, 2), number(e.detectable, 2), e.expected]));

function log(study) {
  if (!study.runs.length) return null;
  const roles = d3.rollups(study.runs, (v) => v.length, (run) => run.role).map(([role, n]) => `${n} to ${role}`).join(", ");
  return h("details", null, h("summary", null, `Every training ever made for it: ${whole(study.runs.length)} (${roles})`),
    table("every training", ["arm", "for", "replicate", "learning rate", "loss"], study.runs.map((run) => [run.arm, run.role, whole(run.replicate), number(run.lr), run.diverged ? "diverged" : fixed(run.loss, 4)])));
}

// How often it was run, in a sentence: nothing that was tried is left out.
function times(study) {
  const designs = study.designs.length;
  const before = designs > 1 ? `, after ${plural(designs - 1, "design")} of the same protocol with ${study.designs.slice(0, -1).join(", ")} replicates` : "";
  return `It was designed ${designs === 1 ? "once" : `${designs} times`} (with ${plural(study.designs.at(-1), "replicate")} now${before}) and trained ${whole(study.runs.length)} times in all, tuning of learning rates and trainings that diverged included.`;
}

function render({ model, el }) {
  const study = model.get("study");
  const off = together();
  el.append(...[study.missing ? h("p.missing", { role: "status" }, study.missing) : h("p.verdict.study-verdict", null, study.sentence),
    study.full_answer ? h("p", null, `The full run on this text said: ${study.full_answer}`) : null,
    study.runs.length ? h("p", null, times(study)) : null,
    study.effort ? h("p.small", null, `${study.effort}.`) : null,
    h("dl.facts", null, [["design", study.design.slice(0, 12)], ["text", study.source], ["computed with", study.software], ["kind", study.quick ? "quick run" : "full run"]]
      .filter(([, value]) => value).map(([name, value]) => h("div", null, h("dt", null, name), h("dd", null, value))))].filter(Boolean));
  if (study.effects.length) {
    el.append(h("h2", null, "Effects"));
    d3.groups(study.effects, (e) => e.unit).forEach(([unit]) => forest(off, el, study.effects, unit));
    el.append(effectTable(study.effects), ...study.not_reached.map((what) => h("p.small", null, `Not reached in the time: ${what}.`)));
  }
  if (study.arms.length) {
    el.append(h("h2", null, "Arms"));
    curves(off, el, study.arms);
    el.append(armTable(study.arms));
  }
  for (const [name, words] of [["What would show it to be wrong", study.falsified_by], ["What has been published", study.literature]]) if (words) el.append(h("h2", null, name), h("p", null, words));
  const all = log(study);
  if (all) el.append(h("h2", null, "The log"), all);
  return off;
}

export default { render };
