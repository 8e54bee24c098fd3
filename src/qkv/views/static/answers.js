// Answers before plots: the reader's questions, answered from this run in a sentence with its numbers, with the picture
// that shows it and what the same number would be if nothing had been learned.

import { h, together } from "./dom.js";
import { number } from "./format.js";
import ladder from "./ladder.js";
import moved from "./moved.js";
import rows from "./rows.js";
import samples from "./samples.js";

const PICTURES = { loss: ladder, embeddings: rows, matrices: moved, samples };

function behind(answer) {
  if (!answer.evidence.length && !answer.null) return null;
  return h("details", null, h("summary", null, "the numbers behind it"),
    answer.evidence.length ? h("dl.numbers", null, answer.evidence.map((item) =>
      h("div", null, h("dt", null, item.label), h("dd", null, number(item.value, 4), item.unit ? ` ${item.unit}` : null)))) : null,
    answer.null ? h("p.small", null, h("b", null, "Null. "), answer.null) : null);
}

function render({ model, el }) {
  const off = together();
  for (const answer of model.get("answers")) {
    const picture = h("div.answer-picture");
    el.append(h("article.answer", { id: `answer-${answer.key}` },
      h("div.answer-text", null,
        h("h3", null, answer.question),
        h("p.sentence", null, answer.sentence),
        answer.more.map((text) => h("p", null, text)),
        behind(answer)),
      picture));
    const view = PICTURES[answer.key];
    const stop = view && view.render({ model, el: picture });
    if (stop) off.add(stop);
    if (!picture.childElementCount) picture.remove();
  }
  return off;
}

export default { render };
