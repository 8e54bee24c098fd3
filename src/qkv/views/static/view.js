// @ts-check
// How every view of a page is made: what it has of the page, its state, the controls that change it, and when it is drawn again.

import { add, choice, clear, h, inSight, refocused, together } from "./dom.js";
import { figure } from "./figure.js";
import { watch } from "./model.js";
import { onTheme } from "./theme.js";

/** @import { Off } from "./dom.js" */
/** @import { Model } from "./model.js" */

/**
 * What a view is built with. `off` ends with it.
 * @typedef {object} Place
 * @property {Model} model
 * @property {HTMLElement} el
 * @property {Off} off
 * @property {(question: string) => Function | null} ask  who answers a question of that name; null where nobody does
 * @property {(options: { title: any, caption?: any, wide?: boolean }, host?: HTMLElement) => { el: HTMLElement, body: HTMLElement, off: Off }} figure
 * @property {(keys: string[], run: () => void) => void} follow  run when one of them changes, once `el` is in sight
 * @property {(keys: string[], run: () => void) => void} hear  run whenever one of them changes
 * @property {(draw: () => void) => void} recolour  run when the reader's light or dark setting changes
 */

/**
 * A view from `build`, which lays it out; nothing is laid out where `needs` gives nothing. Where one of the keys `redrawOn` changes,
 * all of it is made again.
 * @param {(place: Place, found: any) => void} build
 * @param {{ needs?: (model: Model) => any, redrawOn?: string[] }} options
 * @returns {(host: { model: Model, el: HTMLElement }) => Off}
 */
export function view(build, { needs = () => true, redrawOn = [] } = {}) {
  return ({ model, el }) => {
    const all = together();
    const parts = together(all);
    const place = redrawOn.length ? el.appendChild(h("div")) : el;
    const make = () => {
      parts();
      if (place !== el) clear(place);
      const found = needs(model);
      if (found) build(placeOf(model, place, parts), found);
    };
    for (const key of redrawOn) all.add(watch(model, key, make));
    make();
    return all;
  };
}

/** @returns {Place} */
function placeOf(model, el, off) {
  const hear = (keys, run) => keys.forEach((key) => off.add(watch(model, key, run)));
  return {
    model, el, off, hear,
    ask: (question) => (model.get("host").can.includes(question) ? model.get("ask") : null),
    figure: (options, host = el) => figure(host, options, off),
    follow: (keys, run) => hear(keys, inSight(el, run, off)),
    recolour: (draw) => void off.add(onTheme(draw)),
  };
}

/**
 * One control: `options` are [[value, words], ...]. More than `most` are a list, `named` by a word where its options alone say
 * too little.
 * @typedef {{ key: string, label: string, options: any[][], most?: number, named?: boolean }} Control
 */

/**
 * Controls that write into `state`: `offered` says which, as often as they are drawn; one that has no choice is left out.
 * @param {Record<string, any>} state
 * @param {() => (Control | null)[]} offered
 * @param {(key: string) => void} changed  called after the reader has chosen
 * @returns {{ el: HTMLElement, draw: () => HTMLElement }}
 */
export function controls(state, offered, changed) {
  const el = h("div.controls");
  const one = ({ key, label, options, most = Infinity, named = false }) => {
    const pick = (value) => {
      state[key] = value;
      changed(key);
    };
    if (options.length <= most) return choice(label, options, state[key], pick);
    const list = h("select", { "aria-label": label, onchange: (event) => pick(options[event.target.selectedIndex][0]) },
      options.map(([value, words]) => h("option", { selected: value === state[key] }, named ? value : words)));
    return named ? h("label.small", null, `${label} `, list) : list;
  };
  const draw = () => refocused(el, () => add(clear(el), offered().filter(Boolean).map(one)));
  draw();
  return { el, draw };
}
