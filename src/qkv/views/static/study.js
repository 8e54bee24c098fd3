// @ts-check
// A study: the answer, its effects as a picture, the math, how sure it is, what would change it. Folded: every effect, the
// arms with their loss curves, and every training that was ever made for it.

import { d3, Plot } from "./vendor.js";
import { add, h, named, scroll, table } from "./dom.js";
import { DASH, fixed, number, plural, tick, tickOfSteps, whole } from "./format.js";
import { apart, chart, fitted, plot, series, widthOf } from "./figure.js";
import { createModel } from "./model.js";
import { reads } from "./version.js";
import { view } from "./view.js";

const COLOURS = ["Q", "K", "V", "O", "E", "MLP"]; // of the roles: told apart by everyone, in light and dark
const colourOf = (colours, i) => colours.role[COLOURS[i % COLOURS.length]];
const DASHES = [null, "6 3", "1.5 3", "9 3 1.5 3"]; // one more each time that the colours begin again
const dashOf = (i) => DASHES[Math.floor(i / COLOURS.length) % DASHES.length];
const steps = (v) => (Math.abs(v) < 1 ? number(v, 2) : whole(v)); // they are counted
const size = (v, unit) => (unit === "steps" ? steps(v) : Math.abs(v) >= 0.001 || v === 0 ? fixed(v, 3) : number(v, 2));
const signed = (v, unit) => (v === null ? DASH : `${v > 0 ? "+" : ""}${size(v, unit)}`);
const between = (low, high, unit) => (low === null ? DASH : `${signed(low, unit)} to ${signed(high, unit)}`);

const tableOf = (label, columns, rows) => scroll(label, table(columns, rows));

// The furthest from 0 that anything drawn of some effects lies.
const reach = (rows) => d3.max(rows.flatMap((r) => [r.margin, r.low, r.high, ...r.values]), Math.abs);

// Effects that share an axis, and so a unit; each one's band is its margin.
function forest(figure, rows, title, first) {
  const margins = [...new Set(rows.map((r) => r.margin))].sort((a, b) => a - b);
  const frame = figure({ wide: true, title, caption: `A large dot is the estimate (the median of paired replicates), the line its 95% interval, small dots single replicates. The band is the margin of ${margins.map((m) => number(m)).join(" or ")}, below which a difference was called trivial before the first training.` });
  chart(frame, (width, colours) => {
    const [names, words] = [rows.map((r) => r.name), rows.map((r) => r.what)];
    const left = widthOf(words, 0.42 * width, 7.4); // a longer one takes another line
    const row = Math.max(30, 8 + 13 * Math.ceil((10 * d3.max(words, (what) => what.length)) / left));
    return plot(colours, rows.map((r) => `${r.what} ${signed(r.effect, r.unit)}, ${between(r.low, r.high, r.unit)}`).join("; "), {
      width, height: row * rows.length + 40, marginLeft: left + 8, marginRight: 16, marginTop: 8, marginBottom: 28,
      x: { label: null, tickSize: 0, ticks: width < 520 ? 3 : 6, tickFormat: tick, nice: true, domain: d3.extent([-margins.at(-1), margins.at(-1), ...rows.flatMap((r) => [r.low, r.high, ...r.values])]) },
      y: { domain: names, label: null, axis: null, padding: 0 },
      marks: [
        Plot.axisY({ label: null, tickSize: 0, lineWidth: left / 15, tickFormat: (_, i) => words[i] }),
        Plot.barX(rows, { x1: (r) => -r.margin, x2: "margin", y: "name", fill: colours.mute, fillOpacity: 0.16 }),
        Plot.ruleX([0], { stroke: colours.faint }),
        Plot.dot(rows.flatMap((r) => r.values.map((value) => ({ name: r.name, value }))), { x: "value", y: "name", r: 2, fill: colours.mute }),
        Plot.ruleY(rows, { x1: "low", x2: "high", y: "name", stroke: (r) => (r === first ? colours.accent : colours.soft), strokeWidth: 2 }),
        Plot.dot(rows, { x: "effect", y: "name", r: 5, fill: (r) => (r === first ? colours.accent : colours.soft) }),
      ],
    });
  });
  return frame.el;
}

// Some effects, those of one axis in one picture.
function forests(figure, effects, first) {
  const axes = d3.groups(d3.sort(effects.filter((e) => e.low !== null), (e) => e.axis), (e) => e.axis).map(([, rows]) => rows);
  return axes.map((rows) => {
    const { unit } = rows[0];
    const isLarger = axes.some((other) => other[0].unit === unit && reach(other) < reach(rows)); // of two axes of a unit
    return forest(figure, rows, `${isLarger ? "Larger effects" : "Effects"}: ${unit}`, first);
  });
}

// Mean validation loss of each arm with the t interval around it; arms that predict different things have an axis each.
function curves(figure, arms) {
  const groups = d3.groups(arms.filter((arm) => arm.steps.length), (arm) => arm.of);
  return groups.map(([of, shown]) => curvesOf(figure, groups.length > 1 ? `Loss while training, nats (${of})` : "Loss while training, nats", shown.map((arm, i) => ({ arm, i }))));
}

function curvesOf(figure, title, shown) {
  const banded = shown.some(({ arm }) => arm.lows.some((v) => v !== null));
  const frame = figure({ wide: true, title,
    caption: `Mean validation loss of each arm's reported trainings, by step. ${banded ? "The band is the 95% t interval of the mean; replicates that diverged are in the table." : "There are too few replicates for intervals, or no log to take them from."}` });
  chart(frame, (width, colours) => {
    const points = shown.flatMap(({ arm, i }) => arm.steps.map((step, j) => ({ i, name: arm.name, step, mean: arm.mean[j], low: arm.lows[j], high: arm.highs[j] })));
    const [low, high] = d3.extent(points.flatMap((p) => [p.mean, p.low, p.high]).filter((v) => v !== null));
    const domain = low < high ? [low, high] : [low - 0.5, high + 0.5];
    const [height, top, bottom] = [Math.max(300, 20 * shown.length + 50), 12, 32];
    const y = d3.scaleLinear(domain, [height - bottom, top]);
    const ends = shown.map(({ arm }) => y(arm.mean.at(-1)));
    const places = apart(ends, 14, top, height - bottom);
    const right = width < 520 ? 110 : 190;
    return plot(colours, `mean loss at the end: ${shown.map(({ arm }) => `${arm.name} ${fixed(arm.mean.at(-1), 3)}`).join(", ")}`, {
      width, height, marginTop: top, marginBottom: bottom, marginLeft: 42, marginRight: right,
      x: { label: null, tickSize: 0, ticks: width < 520 ? 3 : 5, tickFormat: tickOfSteps }, y: { label: null, tickSize: 0, ticks: 5, tickFormat: tick, domain, nice: false },
      marks: [
        Plot.gridY({ stroke: colours.line, strokeOpacity: 1, ticks: 5 }),
        shown.map(({ i }) => Plot.areaY(points.filter((p) => p.i === i && p.low !== null), { x: "step", y1: "low", y2: "high", fill: colourOf(colours, i), fillOpacity: 0.16 })),
        shown.map(({ i }) => series(points.filter((p) => p.i === i), { x: "step", y: "mean", stroke: colourOf(colours, i), strokeWidth: 2, strokeDasharray: dashOf(i) })),
        Plot.dot(points, { x: "step", y: "mean", r: 2.2, fill: (p) => colourOf(colours, p.i), tip: true, title: (p) => `${p.name}, step ${whole(p.step)}: ${fixed(p.mean, 3)} nats${p.low === null ? "" : ` (${fixed(p.low, 3)} to ${fixed(p.high, 3)})`}` }),
        shown.map(({ arm, i }, k) => Plot.text([points.findLast((p) => p.i === i)], { x: "step", y: "mean", text: () => fitted(arm.name, right - 10), dx: 8, dy: places[k] - ends[k], textAnchor: "start", fill: colourOf(colours, i) })),
      ],
    });
  });
  return frame.el;
}

function rates(found) {
  const all = [...new Set(found)].sort((a, b) => a - b);
  return all.length ? (all.length === 1 ? number(all[0]) : `${number(all[0])} to ${number(all.at(-1))}`) : DASH;
}

function armTable(arms) {
  return tableOf("arms of the study", ["arm", "what", "frozen (bit-identical)", "loss", "best n-gram, or what else is known", "95% interval", "sd", "n", "learning rates", "at the edge", "diverged"], arms.map((arm) => [
    arm.name, arm.what, arm.frozen.join(", ") || "nothing", fixed(arm.loss, 3), arm.known, arm.low === null ? DASH : `${fixed(arm.low, 3)} to ${fixed(arm.high, 3)}`, fixed(arm.sd, 3),
    whole(arm.n), rates(arm.rates), `${arm.at_edge} of ${arm.n}`, `${arm.diverged} of ${arm.trainings}`]));
}

const effectTable = (effects) => tableOf("effects of the study", ["effect", "estimate", "95% interval", "verdict", "n", "p (corrected)", "would see", "expected"], effects.map((e) => [
  `${e.what} (${e.unit})`, signed(e.effect, e.unit), h("span.together", null, between(e.low, e.high, e.unit)), e.verdict, whole(e.n), number(e.p_corrected, 2), e.unit === "steps" ? steps(e.detectable) : number(e.detectable, 2), e.expected]));

function log(study) {
  if (!study.runs.length) return null;
  const roles = d3.rollups(study.runs, (v) => v.length, (run) => run.role).map(([role, n]) => `${n} to ${role}`).join(", ");
  return h("details", null, h("summary", null, `Every training ever made for it: ${whole(study.runs.length)} (${roles})`),
    tableOf("every training", ["arm", "for", "replicate", "learning rate", "loss"], study.runs.map((run) => [run.arm, run.role, whole(run.replicate), number(run.lr), run.diverged ? "diverged" : fixed(run.loss, 4)])));
}

// How often it was run, in a sentence: nothing that was tried is left out.
function times(study) {
  const designs = study.designs.length;
  const before = designs > 1 ? `, after ${plural(designs - 1, "design")} of the same protocol with ${study.designs.slice(0, -1).join(", ")} replicates` : "";
  return `It was designed ${designs === 1 ? "once" : `${designs} times`} (with ${plural(study.designs.at(-1), "replicate")} now${before}) and trained ${whole(study.runs.length)} times in all, tuning of learning rates and trainings that diverged included.`;
}

const paragraphs = (lines) => lines.filter(Boolean).map((line) => h("p.small", null, line));
const folded = (title, ...inside) => h("details", null, h("summary", null, title), inside);
const formula = (line) => h("li", null, line.split("`").map((part, i) => (i % 2 ? h("code", null, part) : part))); // in code marks

function build({ model, el, figure }) {
  const study = model.get("study");
  const first = study.effects[0];
  const answers = study.effects.filter((e) => study.answers.includes(e.name));
  const [about, others] = [study.told.filter(([name]) => name.startsWith("What would")), study.told.filter(([name]) => !name.startsWith("What would"))];
  add(el, [study.missing ? h("p.missing", { role: "status" }, study.missing) : h("p.verdict", null, study.plain || study.sentence),
    study.plain ? h("p.small", null, study.brief) : null]);
  forests(figure, answers, first);
  add(el, [study.more ? h("p", null, study.more) : null,
    study.math.length ? [h("h2", null, "The math"), h("ul", null, study.math.map(formula))] : null]);
  if (first) add(el, [h("h2", null, "How sure we are, and for which models"), tableOf("effects that the answer is about", study.figures[0], study.figures.slice(1)), paragraphs([study.condition, study.counting,
    study.full_answer && `The full run on this text said: ${study.full_answer}`])]);
  if (about.length) add(el, [h("h2", null, "What would change the answer"), about.map(([name, words]) => h("p", null, `${name}: ${words}`))]);
  add(el, [h("h2", null, "Everything else")]);
  const [columns, ...rows] = study.accounts;
  if (columns) el.append(folded("Measures side by side", tableOf("measures side by side", columns, rows)));
  if (first) el.append(folded("Every effect, with its interval", forests(figure, study.effects, first), effectTable(study.effects)));
  if (study.arms.length) el.append(folded("Every arm", curves(figure, study.arms), armTable(study.arms)));
  add(el, others.map(([name, words]) => folded(name, h("p", null, words))));
  add(el, [folded("Notes on this run", paragraphs([study.plain && study.sentence, ...study.notes.map((note) => `${note}.`), ...study.not_reached.map((what) => `Not reached in time: ${what}.`), study.runs.length && times(study), study.effort && `${study.effort}.`]),
    named("facts", [["design", study.design.slice(0, 12)], ["text", study.source], ["computed with", study.software], ["kind", study.quick ? "quick run" : "full run"]].filter(([, value]) => value))), log(study)]);
}

const study = view(build);
let off = () => {};

// The page of a study: `payload` stands in the file, or comes from the server of a live page, again and again.
export function openStudy(main, payload) {
  const titleOf = (summary) => summary.textContent.split(":")[0]; // counts come after it
  const opened = [...main.querySelectorAll("details[open] > summary")].map(titleOf);
  const [at, place] = [document.activeElement?.matches("summary") && titleOf(document.activeElement), scrollY];
  off();
  if (!reads(main, payload)) return;
  const section = h("section", { id: "study" });
  main.append(h("p.eyebrow", null, "qkv · study"), h("h1", null, payload.study.asks || payload.study.name), section);
  off = study({ model: createModel(payload), el: section });
  for (const summary of main.querySelectorAll("details > summary")) { // drawn again: what the reader had opened, and where they were
    summary.parentElement.open = opened.includes(titleOf(summary));
    if (titleOf(summary) === at) summary.focus({ preventScroll: true });
  }
  scrollTo({ top: place, behavior: "instant" });
  document.documentElement.dataset.ready = "yes";
}
