// @ts-check
// Elements from plain values. Text becomes text nodes, so no string of a run (tokens, file names, samples) is ever read
// as markup; there is deliberately no way to pass any. Nor does one hide or turn what stands beside it: `visible`.

import { visible } from "./format.js";

const SVG = "http://www.w3.org/2000/svg";

/** @typedef {any} Child  an element, text, a list of these, or nothing */

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  add(element, children);
  return element;
}

/** @param {any} element @param {Child[]} children */
export function add(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(visible(String(child))));
  }
  return element;
}

/**
 * h("p.note", { id: "x", onclick: f }, "text", otherElement)
 * @param {string} tag @param {Record<string, any> | null} [attributes] @param {Child[]} children @returns {any}
 */
export function h(tag, attributes, ...children) {
  const [name, ...classes] = tag.split(".");
  const element = document.createElement(name);
  if (classes.length) element.className = classes.join(" ");
  return fill(element, attributes, children);
}

/** @param {string} tag @param {Record<string, any> | null} [attributes] @param {Child[]} children @returns {any} */
export function s(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

export function clear(element) {
  element.replaceChildren();
  return element;
}

const nameOf = (element) => element.getAttribute("aria-label") ?? element.textContent;

// `redraw` what is in `el`; where that took away what had the focus there, what bears its name has it next.
export function refocused(el, redraw) {
  const had = el.getRootNode().activeElement;
  const isHere = el.contains(had);
  const drawn = redraw();
  if (isHere && el.getRootNode().activeElement !== had) [...el.querySelectorAll(had.tagName)].find((one) => nameOf(one) === nameOf(had))?.focus({ preventScroll: true });
  return drawn;
}

// What an element says now, in place of what it said.
export const say = (element, ...children) => add(clear(element), children);

/** @typedef {(() => void) & { add: (stop: () => void) => () => void }} Off */

/**
 * Listeners that leave together, also with those of `within`: const off = together(); off.add(stop); ... return off;
 * @param {Off | null} [within] @returns {Off}
 */
export function together(within = null) {
  /** @type {(() => void)[]} */
  const stops = [];
  const off = () => stops.splice(0).forEach((stop) => stop());
  off.add = (stop) => (stops.push(stop), stop);
  within?.add(off);
  return off;
}

/**
 * Names and what they stand for, as a list of the class `kind`.
 * @param {string} kind @param {(Child[] | null | undefined | false)[]} rows @param {Record<string, any>} [attributes]
 */
export const named = (kind, rows, attributes) => h(`dl.${kind}`, attributes,
  rows.map((row) => row && h("div", null, h("dt", null, row[0]), h("dd", null, row[1]))));

/**
 * A table of cells; without names of columns it has no head.
 * @param {Child[]} columns @param {Child[][]} rows @param {string} [kind]  a class of the table
 */
export const table = (columns, rows, kind) => h(kind ? `table.${kind}` : "table", null,
  columns.length ? h("thead", null, h("tr", null, columns.map((name) => h("th", { scope: "col" }, name)))) : null,
  h("tbody", null, rows.map((row) => h("tr", null, row.map((cell) => h("td", null, cell))))));

/** What is wider than the page, in a place of its own that scrolls. @param {string} label @param {Child[]} children */
export const scroll = (label, ...children) => h("div.scroll", { tabindex: "0", role: "region", "aria-label": label }, children);

// A way to a place of the page that leaves step and matrix in its address; `first` is done on the way.
export const wayTo = (model, id, words, first = () => {}) => h("a", { href: `#${id}`, onclick: (event) => {
  event.preventDefault();
  first();
  model.set("section", id);
  document.getElementById(id).scrollIntoView();
} }, words);

// A row of mutually exclusive buttons; `options` is [[value, label], ...].
export function choice(label, options, value, pick) {
  const buttons = options.map(([option, text]) =>
    h("button", { type: "button", "aria-pressed": String(option === value), onclick: () => select(option) }, text));
  function select(option, silent) {
    options.forEach(([other], i) => buttons[i].setAttribute("aria-pressed", String(other === option)));
    if (!silent) pick(option);
  }
  const group = h("div.choice", { role: "group", "aria-label": label }, buttons);
  group.select = (option) => select(option, true);
  return group;
}

// `run` at most once a frame, however often it is asked for.
export function perFrame(run) {
  let asked = 0;
  return () => (asked ||= requestAnimationFrame(() => ((asked = 0), run())));
}

/**
 * `run` at most once a frame while `el` is in sight or near it, until `off`; else once when it comes there.
 * @param {Element} el @param {() => void} run @param {Off | null} [off]
 */
export function inSight(el, run, off = null) {
  let [seen, waiting] = [false, false];
  const perhaps = () => {
    if (seen && waiting) {
      waiting = false;
      run();
    }
  };
  const frame = perFrame(perhaps);
  const observer = new IntersectionObserver((entries) => {
    seen = entries[entries.length - 1].isIntersecting;
    frame();
  }, { rootMargin: "300px" });
  observer.observe(el);
  off?.add(() => observer.disconnect());
  return () => ((waiting = true), frame());
}

// `run` at once, then at most once in so many milliseconds, the last call always heard.
export function atMostEvery(milliseconds, run) {
  let [timer, again] = [0, false];
  const rest = () => {
    timer = 0;
    if (again) call();
  };
  function call() {
    if (timer) return void (again = true);
    again = false;
    timer = setTimeout(rest, milliseconds);
    run();
  }
  return call;
}

// `run` at the first of many calls, and again when there was none for so many milliseconds.
export function atEnds(milliseconds, run) {
  let [timer, more] = [0, false];
  return () => {
    more = timer !== 0;
    if (!more) run();
    clearTimeout(timer);
    timer = setTimeout(() => {
      timer = 0;
      if (more) run();
    }, milliseconds);
  };
}

// Of several calls of an asynchronous function only the last one's outcome counts.
export function lastOnly() {
  let calls = 0;
  return async (work, done, failed) => {
    const mine = ++calls;
    try {
      const outcome = await work();
      if (mine === calls) done(outcome);
    } catch (error) {
      if (mine === calls) failed(error);
    }
  };
}

// `make(of)`, made once for each object.
export function remembered(make) {
  const known = new WeakMap();
  return (of) => (known.has(of) ? known : known.set(of, make(of))).get(of);
}

let lastId = 0;
export const newId = (stem) => `${stem}-${++lastId}`;
