// @ts-check
// How a classifier decides on the validation texts (or words): which classes it takes for which, how far its confidence can be trusted, its
// most confident mistakes word by word, and the words that carry a decision beside their weights in the linear model.

import { Plot } from "./vendor.js";
import { h, scroll, table } from "./dom.js";
import { number, percent, plural, whole } from "./format.js";
import { chart, fitted, plot, widthOf } from "./figure.js";
import { theme } from "./theme.js";
import { view } from "./view.js";

const signed = (value) => (value === null ? "" : `${value < 0 ? "−" : "+"}${number(Math.abs(value), 2)}`);

// What has a class: a text or a word.
const unitOf = (found) => found.unit ?? "text";

function labels({ figure }, found) {
  const frame = figure({ title: "How well each label is found",
    caption: "Precision is the share of its answers that are right, recall the share of its labels that are found, and F1 their harmonic mean, over the validation texts. Of named entities, both ends must be right." });
  const share = (value) => (value === null ? "" : percent(value));
  frame.body.append(scroll("precision and recall of each label", table(["label", "number", "precision", "recall", "F1"], found.labels.map((row) => [row.label, whole(row.n), share(row.precision), share(row.recall), share(row.f1)]))));
}

function confusion(figure, found) {
  const rows = found.confusion.map((counts) => ({ counts, n: counts.reduce((a, b) => a + b, 0) }));
  const cells = rows.flatMap(({ counts, n }, i) => counts.map((count, j) => ({ label: found.classes[i], answer: found.classes[j], count, share: n ? count / n : 0 })));
  const frame = figure({ title: "Which class is taken for which",
    caption: `Each row is a label, each column an answer; the numbers are validation ${unitOf(found)}s (${whole(found.n)} in all). Color: the share of the row.` });
  chart(frame, (width, colours) => {
    const n = found.classes.length;
    const left = widthOf(found.classes, width * 0.3) + 14;
    const side = Math.min(84, (width - left - 6) / n);
    const fits = (name) => fitted(name, Math.max(18, side - 4));
    return plot(colours, `labels against answers: ${cells.map((c) => `${c.label} as ${c.answer} ${c.count}`).join(", ")}`, {
      width: left + side * n + 6, height: Math.min(side, 44) * n + 30, marginLeft: left, marginRight: 6, marginTop: 26, marginBottom: 4, padding: 0.04,
      x: { domain: found.classes, axis: "top", label: null, tickSize: 0, tickFormat: fits },
      y: { domain: found.classes, label: null, tickSize: 0, tickFormat: (name) => fitted(name, left - 12) },
      marks: [
        Plot.cell(cells, { x: "answer", y: "label", fill: (c) => colours.sequential(c.share), title: (c) => `${c.label}: ${plural(c.count, unitOf(found))} answered ${c.answer} (${percent(c.share)})`, tip: true }),
        Plot.text(cells, { x: "answer", y: "label", text: (c) => whole(c.count), fill: (c) => colours.on(c.share) }),
      ],
    });
  });
}

function reliability(figure, found) {
  const bins = found.reliability;
  const frame = figure({ title: "How often it is right, by its own confidence",
    caption: `${bins.length === 1 ? "One group" : `${bins.length} groups`} of about ${whole(bins[0].n)} validation ${unitOf(found)}s each. On the dashed line, confidence and accuracy are equal; a point below it is too confident. Lines are 95% intervals.` });
  chart(frame, (width, colours) => {
    const low = Math.min(...bins.map((bin) => Math.min(bin.low, bin.confidence)));
    const side = Math.min(width, 420);
    const axis = { domain: [Math.max(0, low - 0.02), 1], ticks: 5, tickFormat: percent, tickSize: 0, label: null };
    return plot(colours, bins.map((bin) => `confidence ${percent(bin.confidence)}: right in ${percent(bin.accuracy)}`).join(", "), {
      width: side, height: Math.round(side * 0.8), marginLeft: 46, marginBottom: 44, marginRight: 24, marginTop: 20,
      x: { ...axis, label: "mean confidence", labelAnchor: "center", labelArrow: "none" }, y: { ...axis, label: "accuracy", labelArrow: "none" },
      marks: [
        Plot.line([[axis.domain[0], axis.domain[0]], [1, 1]], { stroke: colours.faint, strokeDasharray: "5 4" }),
        Plot.ruleX(bins, { x: "confidence", y1: "low", y2: "high", stroke: colours.accent, strokeOpacity: 0.6 }),
        Plot.dot(bins, { x: "confidence", y: "accuracy", r: 4, fill: colours.accent, title: (bin) => `confidence ${percent(bin.confidence)}, right in ${percent(bin.accuracy)} of ${plural(bin.n, unitOf(found))}`, tip: true }),
      ],
    });
  });
}

// The text with each word on the color of what it adds to the answer.
function shaded(mistake, most, colours) {
  const [text, parts] = [[...mistake.text], []]; // in characters, as `start` counts
  let at = 0;
  for (const { word, start, model, linear } of mistake.words) {
    parts.push(text.slice(at, start).join(""));
    const position = 0.5 + Math.max(-0.5, Math.min(0.5, model / most / 2)) * 0.5;
    const said = `${word}: ${signed(model)}${linear === null ? "" : `, linear model alone ${signed(linear)}`}`;
    parts.push(h("mark", { title: said, style: `background:${colours.diverging(position)};color:inherit;border-radius:2px;padding:0 1px` }, word));
    at = start + [...word].length;
  }
  return [...parts, text.slice(at).join("")];
}

function mistakes(place, found) {
  if (!found.mistakes.length) {
    place.el.append(h("p", null, `None of the ${whole(found.n)} validation ${unitOf(found)}s has a wrong answer.`));
    return;
  }
  const frame = place.figure({ wide: true, title: "The most confident mistakes",
    caption: `The model answers ${plural(found.n_wrong, `validation ${unitOf(found)}`)} of ${whole(found.n)} wrong. ${unitOf(found) === "word" ? "The word is marked; point at it for the log-odds of the (wrong) answer." : "A word's color is what it adds to the log-odds of the (wrong) answer, compared with the text without that word; point at it for the number."}` });
  const most = Math.max(1e-9, ...found.mistakes.flatMap((one) => one.words.map((word) => Math.abs(word.model))));
  const list = h("div");
  frame.body.append(list);
  const draw = () => list.replaceChildren(...found.mistakes.map((one) => h("div.sample", null,
    h("p.sample-step", null, `${one.answer} (${percent(one.probability)}), labeled ${one.label}`), h("p", { style: "margin:.15rem 0 .6rem;overflow-wrap:anywhere" }, shaded(one, most, theme(place.el))))));
  place.recolour(draw);
  draw();
}

function carriers({ figure }, found) {
  const has = found.words.some((row) => row.linear !== null);
  const frame = figure({ title: "Words that carry a decision",
    caption: `What a word adds to the log-odds of an answer (nats): the mean over the texts with that answer, among ${whole(found.n_read)} validation texts, of the log-odds minus those without the word.${has ? " Beside it, the same of the linear model alone, and the weight of the word itself there (pairs and runs of letters have their own)." : ""}` });
  const columns = ["word", "answer", "texts", "model", ...(has ? ["linear model", "its weight"] : [])];
  frame.body.append(scroll("words that carry a decision", table(columns, found.words.map((row) => [row.word, row.answer, whole(row.n), signed(row.model), ...(has ? [signed(row.linear), signed(row.weight)] : [])]))));
}

function build(place, found) {
  if (found.labels) labels(place, found);
  confusion(place.figure, found);
  reliability(place.figure, found);
  mistakes(place, found);
  if (found.words.length) carriers(place, found);
}

export default view(build, { needs: (model) => model.get("decisions") });
