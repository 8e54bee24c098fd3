// @ts-check
// Words: a token's neighbours in W_E at any step, a map of the rows that moves with the slider, and how alike words are in x,
// q, k and v, with what another basis inside a head would make of it.

import { d3 } from "./vendor.js";
import { add, atMostEvery, clear, h, lastOnly, newId, say, scroll, table, together } from "./dom.js";
import { fixed, number, token, whole } from "./format.js";
import { stepIndex, unpack } from "./decode.js";
import { plane } from "./plane.js";
import { raster } from "./raster.js";
import { bar, linear } from "./scale.js";
import { theme } from "./theme.js";
import { controls, view } from "./view.js";
import { namesOf } from "./tokens.js";

// What a reader would call a word: 2, a letter: 1, anything else: 0.
const wordlike = (text) => (/^\s*\p{L}{2,}$/u.test(text) ? 2 : /^\s*\p{L}$/u.test(text) ? 1 : 0);

function neighboursOf(section, at, chosen) {
  const [nearest, cosines] = [unpack(section.nearest).part(at, chosen), unpack(section.cosines).part(at, chosen)];
  return [...nearest].map((i, rank) => [section.tokens[i], cosines[rank]]).filter(([, cosine]) => Number.isFinite(cosine));
}

const listed = (pairs, nothing) => (pairs.length ? h("ol.near", null, pairs.map(([name, cosine]) => h("li", null, h("code", null, token(name)), " ", h("span.amount", null, fixed(cosine))))) : h("p.small", null, nothing));

// The neighbours of the page's token, or of one of the most frequent.
function near({ model, ask: may, figure, follow }, section, state) {
  const ask = may("near");
  const id = newId("token");
  const select = h("select", { id, onchange: () => state.choose(Number(select.value)) }, section.tokens.map((t, i) => h("option", { value: i }, token(t))));
  const [start, now, other] = [h("div"), h("div"), h("div")];
  const frame = figure({ title: h("span", null, h("label", { for: id }, "Neighbours in W_E of "), select),
    caption: `Rows of W_E with the largest cosine to this one, among the ${whole(section.tokens.length)} most frequent of ${whole(section.n_rows)} tokens. Static: one row per token, whatever the text. The nearest of as many random directions of that width has about ${fixed(section.null_cosine)}.` });
  frame.body.append(h("div.near-columns", null, start, now, other));
  const latest = lastOnly();
  const draw = () => {
    const at = stepIndex(section.steps, model.get("step"));
    select.value = String(state.token);
    const column = (place, i) => add(clear(place), [h("p.small", null, `step ${whole(section.steps[i])}`), listed(neighboursOf(section, i, state.token), "a row of zeros is near nothing")]);
    column(start, 0);
    column(now, at);
  };
  // The token that is followed on the page: here too where it is among these, and among all where Python can be asked.
  const pointed = () => {
    const name = model.get("sentence")?.tokens[model.get("position")];
    if (name === undefined) return;
    if (section.tokens.includes(name)) state.choose(section.tokens.indexOf(name));
    if (ask) latest(() => ask("near", { text: name, step: model.get("step") }), (found) => {
      other.dataset.step = String(found.step);
      add(clear(other), [h("p.small", null, h("code", null, token(found.token)), `, step ${whole(found.step)}, among all; random directions have ${fixed(found.null_cosine)}`), listed(found.tokens.map((t, i) => [t, unpack(found.cosines).values[i]]), "a row of zeros is near nothing")]);
    }, (error) => add(clear(other), [h("p.small", null, error.message)]));
  };
  follow(["sentence", "position"], pointed);
  if (ask) follow(["step"], atMostEvery(200, pointed));
  return [draw, pointed];
}

// Three words and the cosines between them, in each of x, q, k and v.
function trio({ model, el, off, figure }, section) {
  const { n, x, heads, other_basis: other } = section.trio;
  const first = [...section.tokens.slice(0, n).keys()].sort((a, b) => wordlike(section.tokens[b]) - wordlike(section.tokens[a]) || a - b);
  const state = { words: [0, 1, 2].map((i) => first[Math.min(i, n - 1)]), head: 0 };
  const [inX, inHeads, inOther] = [unpack(x), unpack(heads), unpack(other)];
  const nHeads = inHeads.shape[2];
  const selects = state.words.map((word, i) => h("select", { "aria-label": `word ${i + 1}`, onchange: (event) => ((state.words[i] = event.target.selectedIndex), draw()) },
    section.tokens.slice(0, n).map((t, j) => h("option", { selected: j === word }, token(t)))));
  const frame = figure({ title: "Three words in x, q, k and v", caption: h("span", null, "Cosines between three words, each read alone, in the first layer: of the encodings ", h("b", null, "x"), ", and of what one head makes of them. ",
    other ? "A warning: in q and k only their products count. A change of basis inside the head leaves every score the same and can set these cosines to almost anything; the row “same function, other basis” shows one, drawn at random." : "A warning: cosines in q and k belong to the basis inside the head. Here rotary positions or QK-norm tie that basis down in part; do not compare them across runs.") });
  const body = h("div.trio");
  const legend = h("div");
  const choices = controls(state, () => [nHeads > 1 ? { key: "head", label: "head", options: d3.range(nHeads).map((i) => [i, `H${i}`]) } : null], () => draw()).el;
  choices.prepend(...selects);
  frame.body.append(choices, body, legend);
  const parts = together(off);
  function draw() {
    parts();
    const at = stepIndex(section.steps, model.get("step"));
    const colours = theme(el);
    const scale = linear(1, true);
    const names = state.words.map((i) => token(section.tokens[i]));
    const pairs = (value) => Float32Array.from({ length: 9 }, (_, i) => value(state.words[Math.floor(i / 3)], state.words[i % 3]));
    const tables = [["x", pairs((a, b) => inX.at(at, a, b))], ...["q", "k", "v"].map((name, s) => [name, pairs((a, b) => inHeads.at(at, s, state.head, a, b))]),
      ...(inOther ? ["q", "k"].map((name, s) => [`${name}, same function, other basis`, pairs((a, b) => inOther.at(at, s, state.head, a, b))]) : [])];
    const roles = { x: "ink", q: "role-Q", k: "role-K", v: "role-V" };
    clear(body).append(...tables.map((/** @type {any} */ [name, values]) => {
      const panel = raster(parts, { label: `cosines in ${name}`, rows: 3, columns: 3, values, scale, style: "aspect-ratio:1" });
      const figures = table([], [[0, 1], [0, 2], [1, 2]].map(([a, b]) => [h("code", null, `${names[a]} ${names[b]}`), fixed(values[a * 3 + b])]));
      return h("div.trio-one", { style: `--role:var(--${roles[name[0]]})` }, h("p.stage-name", null, h("b", null, name)), panel.el, figures);
    }));
    clear(legend).append(bar(scale, colours, `cosine, step ${whole(section.steps[at])}`));
  }
  return draw;
}

// The page's token and what it is near to after each layer.
function context({ model, ask: may, figure, follow }) {
  const ask = may("context");
  if (!ask) return;
  const [body, said] = [h("div"), h("p.small", { role: "status" })];
  const latest = lastOnly();
  const show = () => {
    const { source, tokens } = model.get("sentence") ?? {};
    if (!source) return;
    latest(() => ask("context", { text: source, position: model.get("position"), step: model.get("step") }), (found) => {
      const [nearest, cosines, means] = [unpack(found.nearest), unpack(found.cosines), unpack(found.mean_cosine)];
      const names = namesOf(found.tokens);
      body.dataset.step = String(found.step);
      say(said, found.tokens.length < tokens.length ? `The first ${whole(found.tokens.length)} of its ${whole(tokens.length)} tokens.` : "");
      add(clear(body), [h("h4", null, h("code", null, names[found.position]), ` (${found.position})`),
        scroll("contextual neighbours by layer", table([`layer, step ${whole(found.step)}`, "nearest tokens of this text, by cosine", "mean of all pairs"], found.layers.map((layer, l) =>
          [h("code", null, layer), [...nearest.part(l)].map((j, rank) => [h("code", null, `${names[j]} (${j})`), ` ${fixed(cosines.at(l, rank))}  `]), number(means.values[l])]), "context"))]);
    }, (error) => {
      clear(body);
      say(said, error.message);
    });
  };
  const frame = figure({ title: "Contextual neighbours", caption: "Contextual vectors are what a token has become after each layer, different in every text. Hold a cosine against the mean of all pairs: deep vectors of one text are often all alike." });
  frame.body.append(said, body);
  follow(["sentence", "position"], show);
  follow(["step"], atMostEvery(200, show));
  show();
}

function build(place, section) {
  const { el, follow, recolour } = place;
  const best = Math.max(...section.tokens.map(wordlike));
  const the = section.tokens.findIndex((token) => token.trim() === "the");
  const state = { token: the >= 0 ? the : section.tokens.findIndex((token) => wordlike(token) === best), choose: (i) => ((state.token = i), draw()) };
  const [left, right] = [h("div"), h("div")];
  el.append(h("div.two-columns", null, left, right));
  const within = (side) => ({ ...place, figure: (options) => place.figure(options, side) });
  const [neighbours, pointed] = near(within(left), section, state);
  const draws = [neighbours, plane(within(right), section, state), section.trio ? trio(place, section) : () => {}];
  const draw = () => draws.forEach((part) => part());
  context(place);
  follow(["step"], draw);
  recolour(draw);
  draw();
  pointed();
}

export default view(build, { needs: (model) => model.get("words"), redrawOn: ["words"] });
