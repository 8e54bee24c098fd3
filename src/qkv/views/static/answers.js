// @ts-check
// Answers before plots: first every question with its answer in a line, then each with the numbers behind it, the picture
// that shows it, and what to compare it with.

import { h, named, wayTo } from "./dom.js";
import { asOf } from "./as_of.js";
import { view } from "./view.js";
import { number } from "./format.js";
import ladder from "./ladder.js";
import ledger from "./ledger.js";
import moved from "./moved.js";
import order from "./order.js";
import rows from "./rows.js";
import samples from "./samples.js";

// [picture, what it is of]
/** @type {Record<string, [Function, string]>} */
const PICTURES = { loss: [ladder, "loss"], embeddings: [rows, "rows"], matrices: [moved, "map"], ledger: [ledger, "ledger"], order: [order, "map"], samples: [samples, "samples"] };

// Said better by the picture beside it than by a sentence that repeats it.
const INSTEAD = {
  samples: (model) => model.get("samples")[0].continues
    ? "Gray: the beginning of a validation text. Black: how the model continues it at each step."
    : `Gray: ${model.get("samples")[0].given}, from the validation data. Below it: the model's output at each step.`,
};

// Where an answer is about one matrix or head: a way to its section.
function link(model) {
  const known = new Set((model.get("map")?.rows ?? []).map((row) => row.address));
  const heads = new Set((model.get("grid")?.rows ?? []).map((row) => row.address));
  const to = (address, section, words) => h("p.small", null, wayTo(model, section, `${address} ${words}`, () => model.set("address", address)));
  return (answer) => answer.key === "heads" && document.getElementById("attention") ? to(answer.address, "attention", "and every other head, on a text")
    : known.has(answer.address) ? to(answer.address, "map", "at every step") : heads.has(answer.address) ? to(answer.address, "grid", "in the grid") : null;
}

const opened = new Set(); // answers whose numbers are unfolded, also once they are read again

function behind(answer) {
  if (!answer.evidence.length && !answer.null) return null;
  const { key } = answer;
  return h("details", { open: opened.has(key), ontoggle: ({ target }) => opened[target.open ? "add" : "delete"](key) }, h("summary", null, "the numbers behind it"),
    answer.evidence.length ? named("numbers", answer.evidence.map((item) => [item.label, number(item.value, 4)])) : null,
    answer.null ? h("p.small", null, h("b", null, "Compare. "), answer.null) : null);
}

const EARLY = new Set(["loss", "order", "samples"]); // drawn from words alone

function build({ model, el, off }) {
  const later = model.get("later") ?? ((_, draw) => draw());
  const toSection = link(model);
  const answers = model.get("answers");
  if (answers.length > 1) el.append(named("in-short", answers.map(({ key, question, brief, sentence }) => [wayTo(model, `answer-${key}`, question), brief || sentence])));
  for (const answer of answers) {
    const article = h("article.answer", { id: `answer-${answer.key}` });
    el.append(article);
    later(article, () => drawn(answer, article), { early: EARLY.has(answer.key) });
  }
  function drawn(answer, article) {
    const picture = h("div.answer-picture");
    const [shown, key] = PICTURES[answer.key] ?? [];
    article.append(picture); // in the page before it is drawn: charts take their width from it
    if (shown) {
      off.add(shown({ model, el: picture }));
      off.add(asOf(model, picture, [key]));
    }
    const isDrawn = picture.querySelector("figure, .sample") !== null;
    const text = isDrawn && INSTEAD[answer.key] ? [h("p", null, INSTEAD[answer.key](model))]
      : [h("p.sentence", null, answer.sentence), answer.more.map((line) => h("p", null, line))];
    article.prepend(h("div.answer-text", null, h("h3", null, answer.question), h("div", null, text, toSection(answer), behind(answer))));
    if (!isDrawn) {
      picture.remove();
      article.classList.add("plain");
    }
  }
}

export default view(build, { redrawOn: ["answers"] });
