// A figure: title, picture, caption, and a way to keep it. Charts are drawn again when the width or the theme changes.

import { Plot } from "./vendor.js";
import { h, clear, together } from "./dom.js";
import { theme, onTheme } from "./theme.js";

// -> { el, body, tools, off }; `title` and `caption` are text or elements.
export function figure(host, { title, caption, wide }) {
  const tools = h("div.tools");
  const body = h("div.figure-body");
  const el = h(wide ? "figure.wide" : "figure", null,
    h("div.figure-head", null, h("p.figure-title", null, title), tools), body,
    caption ? h("figcaption", null, caption) : null);
  host.append(el);
  return { el, body, tools, off: together() };
}

// `draw(width, colours)` gives an element; it is asked again when the width or the theme changes.
export function chart(frame, draw, name) {
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
  frame.tools.append(h("button.quiet", {
    type: "button", title: "save this picture as SVG", onclick: () => saveSvg(slot.querySelector("svg"), name),
  }, "SVG"));
  redraw();
  return redraw;
}

// Plot with this page's type and colours; `label` is what a screen reader says.
export function plot(colours, label, options) {
  const made = Plot.plot({
    ...options,
    ariaLabel: label,
    style: { fontFamily: colours.font, fontSize: "12px", color: colours.soft, background: "transparent", overflow: "visible",
      ...options.style },
  });
  made.setAttribute("role", "img");
  made.querySelectorAll("g[aria-label]").forEach((group) => group.removeAttribute("aria-label"));
  made.style.setProperty("--plot-background", colours.panel);
  made.style.maxWidth = "100%";
  return made;
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

export function save(blob, file) {
  const address = URL.createObjectURL(blob);
  h("a", { href: address, download: file }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

function saveSvg(svg, name) {
  if (!svg) return;
  const copy = svg.cloneNode(true);
  const style = getComputedStyle(svg);
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.style.color = style.color;
  copy.style.fontFamily = style.fontFamily;
  copy.style.background = theme(svg).panel;
  save(new Blob([new XMLSerializer().serializeToString(copy)], { type: "image/svg+xml" }), `${name}.svg`);
}

export function savePng(canvas, name, enlarge = 8) {
  const big = document.createElement("canvas");
  big.width = canvas.width * enlarge;
  big.height = canvas.height * enlarge;
  const context = big.getContext("2d");
  context.imageSmoothingEnabled = false;
  context.drawImage(canvas, 0, 0, big.width, big.height);
  big.toBlob((blob) => blob && save(blob, `${name}.png`));
}
