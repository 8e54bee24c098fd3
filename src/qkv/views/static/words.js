// @ts-check
// "Which Q do you mean?" Three things are called query; here they keep three names. The boxes are drawn to the shapes of
// this run and hold no numbers, because no number is shown that the run did not produce.

import { h, s } from "./dom.js";
import { whole } from "./format.js";

function box(x, y, width, height, style, label) {
  return [s("rect", { x, y, width, height, rx: 3, class: style }), s("text", { x: x + width / 2, y: y + height / 2 + 6, class: `box-name ${style}` }, label)];
}

function picture(sizes) {
  const { d_model: d, d_head: head } = sizes;
  const note = (x, y, text) => s("text", { x, y, class: "box-note" }, text);
  return s("svg", { viewBox: "0 0 430 176", role: "img", class: "which-q", "aria-label": `x of shape n by ${d}, times W_Q of shape ${d} by ${head}, gives q of shape n by ${head}` },
    box(6, 34, 132, 76, "box-x", "x"), note(72, 130, `n × ${whole(d)}`), note(72, 22, "input"),
    s("text", { x: 158, y: 79, class: "box-sign" }, "×"),
    box(180, 8, 64, 128, "box-w", "W_Q"), note(212, 156, `one head: ${whole(d)} × ${whole(head)}`), note(284, 20, "learned"),
    s("text", { x: 270, y: 79, class: "box-sign" }, "="),
    box(296, 34, 64, 76, "box-q", "q"), note(328, 130, `n × ${whole(head)}`), note(400, 76, "output"));
}

export default function render({ model, el }) {
  const { sizes, unit } = model.get("run");
  const [each, what, first] = unit === "image" ? ["n patches", "image", ["the values of a patch times the table ", h("code", null, "W_E")]] : ["n tokens", "text", ["a row of the table ", h("code", null, "W_E")]];
  el.append(h("div.aside", null,
    h("div", null, h("h2", null, "Which Q do you mean?"),
      h("p", null, "Three different things are called “the query”. On this page each has its own name; the same holds for keys and values."),
      h("dl.words-list", null,
        h("div", null, h("dt", null, h("code", null, "x")), h("dd", null, "the input: one vector for each of the ", each, ". In the first layer it is ", first, ", plus its position if the model adds one; in later layers it is the output of the layer below. It differs for every ", what, ".")),
        h("div", null, h("dt", null, h("code.q", null, "W_Q")), h("dd", null, "the learned weights: a matrix that is the same for every ", what, " and changes only in training. The same holds for ", h("code.k", null, "W_K"), " and ", h("code.v", null, "W_V"), ".")),
        h("div", null, h("dt", null, h("code.q", null, "q")), h("dd", null, "the output: the product x W_Q, computed for every ", what, ". In training it changes because W_Q changes, or because x does."))),
      h("p", null, unit === "image" ? "A patch" : "A token", " asks with its q and is found by its k: q · k is a ", h("b", null, "score"), ", and a softmax over the scores gives the ", h("b", null, "pattern"), ", the attention weights. They weight the v of all ", each.slice(2), "; ", h("code.o", null, "W_O"), " maps the sum back to width d_model.")),
    sizes.d_model && sizes.d_head ? picture(sizes) : null));
}
