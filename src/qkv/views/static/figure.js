// @ts-check
// A figure: title, picture, caption, and a way to take it away. Charts are drawn again when the width or the theme changes.

import { Plot } from "./vendor.js";
import { h, clear, together } from "./dom.js";
import { spoken, takeAway } from "./keep.js";
import { theme, onTheme } from "./theme.js";

/** @import { Off } from "./dom.js" */
/** @import { Colours } from "./theme.js" */

/**
 * `title` and `caption` are text or elements; what is drawn in it ends with `off`.
 * @param {Element} host @param {{ title: any, caption?: any, wide?: boolean }} options @param {Off} [off]
 * @returns {{ el: HTMLElement, body: HTMLElement, off: Off }}
 */
export function figure(host, { title, caption, wide }, off = together()) {
  const body = h("div.figure-body");
  const name = h("p.figure-title", null, title);
  const el = h(wide ? "figure.wide" : "figure", null,
    h("div.figure-head", null, name, takeAway(() => el, () => spoken(name))), body,
    caption ? h("figcaption", null, caption) : null);
  host.append(el);
  return { el, body, off };
}

/**
 * `draw(width, colours)` gives an element; it is asked again when the width or the theme changes.
 * @param {{ body: HTMLElement, off: Off }} frame @param {(width: number, colours: Colours) => Element} draw
 */
export function chart(frame, draw) {
  const slot = h("div.chart");
  frame.body.append(slot);
  let width = 0;
  const redraw = () => {
    width = Math.floor(slot.clientWidth);
    if (width > 0) clear(slot).append(draw(width, theme(slot)));
  };
  const observer = new ResizeObserver(() => {
    if (Math.abs(slot.clientWidth - width) > 1) redraw();
  });
  observer.observe(slot);
  frame.off.add(() => observer.disconnect());
  frame.off.add(onTheme(redraw));
  redraw();
  return redraw;
}

// Plot with this page's type and colours; `label` is what a screen reader says.
export function plot(colours, label, options) {
  const made = Plot.plot({
    ...options,
    ariaLabel: label,
    style: { fontFamily: colours.font, fontSize: "12px", color: colours.soft, background: "transparent", overflow: "visible" },
  });
  made.setAttribute("role", "img");
  made.querySelectorAll("g[aria-label]").forEach((group) => group.removeAttribute("aria-label"));
  made.style.setProperty("--plot-background", colours.panel);
  made.style.maxWidth = "100%";
  return made;
}

// For Plot: a series as a line, one that is a single point as a dot.
export const series = (points, options) => points.length === 1 ? Plot.dot(points, { x: options.x, y: options.y, r: 3, fill: options.stroke }) : Plot.line(points, options);

// A label in so many pixels: as it is, else without what stands in brackets, else cut with an ellipsis.
export function fitted(label, pixels, each = 6.6) {
  const most = Math.max(4, Math.floor(pixels / each));
  const short = label.length > most ? label.replace(/ \(.*\)$/, "") : label;
  return short.length > most ? `${[...short].slice(0, most - 1).join("").trimEnd()}…` : short;
}

// Pixels that the longest of some labels takes, at most `most`.
export const widthOf = (labels, most, each = 6.6) => Math.min(most, Math.ceil(each * Math.max(0, ...labels.map((label) => label.length))));

// For Plot.text: a label in the middle over its point that would reach over an edge of the picture is drawn back into it.
export function inside(index, scales, values, dimensions, context, next) {
  const group = next(index, scales, values, dimensions, context);
  for (const text of group.children) {
    const [x] = text.getAttribute("transform").match(/-?[\d.]+/g).map(Number);
    const half = 3.6 * text.textContent.length;
    text.setAttribute("dx", Math.max(half - x, Math.min(0, dimensions.width - half - x)));
  }
  return group;
}

// Plot places labels at their values; this moves each text to where it does not cover its neighbour.
export function shifted(places, pixels) {
  return (index, scales, values, dimensions, context, next) => {
    const group = next(index, scales, values, dimensions, context);
    [...group.children].forEach((text, i) => text.setAttribute("dy", places[i] - pixels[i]));
    return group;
  };
}

// Put labels at least `gap` pixels apart, moving each as little as the order allows; gives the new pixel positions.
export function apart(positions, gap, low, high) {
  const order = positions.map((_, i) => i).sort((a, b) => positions[a] - positions[b]);
  const placed = order.map((i) => positions[i]);
  for (let i = 0; i < placed.length; i++) placed[i] = Math.max(placed[i], i ? placed[i - 1] + gap : low);
  for (let i = placed.length - 1; i >= 0; i--) {
    placed[i] = Math.min(placed[i], i < placed.length - 1 ? placed[i + 1] - gap : high);
  }
  const out = [];
  order.forEach((index, i) => (out[index] = placed[i]));
  return out;
}
