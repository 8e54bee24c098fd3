// @ts-check
// A picture to take away: what stands on the page, colour bar and title with it, as one SVG that needs nothing else, and the
// same as PNG. Text stays text, charts stay curves, rasters go in as images with one pixel a cell.

import { h, s } from "./dom.js";
import { theme } from "./theme.js";

const AWAY = ".tools, .controls, .readout, .quiet, .cursor, select:not(.figure-title select), input, textarea, summary, [hidden]"; // no part of a picture
const EDGE = 12;
const ENLARGE = 2; // pixels of a PNG to one of the page
const LARGEST = 8192; // along a side of a PNG

export function save(blob, file) {
  const address = URL.createObjectURL(blob);
  h("a", { href: address, download: file }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

// The lines of a text node as the page has broken them: [[words, box]].
function lines(node) {
  const found = [];
  const range = document.createRange();
  for (const word of node.data.matchAll(/\S+\s*/g)) {
    range.setStart(node, word.index);
    range.setEnd(node, word.index + word[0].trimEnd().length);
    const box = range.getBoundingClientRect();
    if (!box.width) continue;
    const last = found.at(-1);
    if (last && Math.abs(last[1].top - box.top) < 2) last[0] += word[0];
    else found.push([word[0], box]);
  }
  return found;
}

// What a node says: of a list, what is chosen in it.
export const spoken = (node) => node instanceof HTMLSelectElement ? node.selectedOptions[0]?.text ?? "" : node.data ?? [...node.childNodes].map(spoken).join("");

function textOf(node, at) {
  const isList = node.nodeType === Node.ELEMENT_NODE;
  const style = getComputedStyle(isList ? node : node.parentElement);
  const inset = isList ? parseFloat(style.paddingLeft) : 0;
  return (isList ? [[spoken(node), node.getBoundingClientRect()]] : lines(node)).map(([words, box]) => s("text", { x: at.x(box.left + inset), y: at.y(box.bottom) - box.height * 0.24, fill: style.color,
    "font-family": style.fontFamily, "font-size": style.fontSize, "font-weight": style.fontWeight }, words.trimEnd()));
}

function gradient(strip, box, at) {
  const id = `g${Math.random().toString(36).slice(2)}`;
  const stops = strip.dataset.stops.split("|");
  return [s("linearGradient", { id }, stops.map((stop, i) => s("stop", { offset: i / (stops.length - 1), "stop-color": stop }))),
    s("rect", { ...at.box(box), fill: `url(#${id})` })];
}

const opaque = (colour) => colour && colour !== "transparent" && !/,\s*0\)$/.test(colour);

// What one element looks like by itself: its ground and its edge.
function own(element, box, at) {
  const style = getComputedStyle(element);
  if (element.dataset.stops) return gradient(element, box, at);
  const ring = style.boxShadow.match(/^(rgba?\([^)]*\)|color\([^)]*\)) 0px 0px 0px ([\d.]+)px/);
  return [opaque(style.backgroundColor) ? s("rect", { ...at.box(box), fill: style.backgroundColor }) : null,
    ring ? s("rect", { ...at.box(box), fill: "none", stroke: ring[1], "stroke-width": ring[2] }) : null];
}

function walk(node, at) {
  if (node.nodeType === Node.TEXT_NODE) return textOf(node, at);
  if (node.nodeType !== Node.ELEMENT_NODE || node.matches(AWAY)) return [];
  const box = node.getBoundingClientRect();
  if (!box.width || !box.height || getComputedStyle(node).visibility === "hidden") return [];
  if (node instanceof HTMLSelectElement) return textOf(node, at);
  if (node instanceof HTMLCanvasElement) return s("image", { ...at.box(box), href: node.toDataURL(), preserveAspectRatio: "none", style: "image-rendering:pixelated" });
  if (node instanceof SVGSVGElement) {
    const copy = /** @type {SVGSVGElement} */ (node.cloneNode(true));
    const style = getComputedStyle(node);
    for (const [name, value] of Object.entries({ ...at.box(box), color: style.color, overflow: "visible" })) copy.setAttribute(name, value);
    copy.style.fontFamily = style.fontFamily;
    return copy;
  }
  return [own(node, box, at), [...node.childNodes].map((child) => walk(child, at))];
}

// The element as an SVG of its own.
export function drawn(element) {
  const bounds = element.getBoundingClientRect();
  const [width, height] = [Math.max(bounds.width, element.scrollWidth) + 2 * EDGE, bounds.height + 2 * EDGE].map(Math.ceil);
  const at = { x: (left) => left - bounds.left + EDGE, y: (top) => top - bounds.top + EDGE };
  at.box = (box) => ({ x: at.x(box.left), y: at.y(box.top), width: box.width, height: box.height });
  return s("svg", { xmlns: "http://www.w3.org/2000/svg", width, height, viewBox: `0 0 ${width} ${height}` },
    s("rect", { width, height, fill: theme(element).paper }), walk(element, at));
}

const bytes = (svg) => new Blob([new XMLSerializer().serializeToString(svg)], { type: "image/svg+xml" });

async function png(svg) {
  const address = URL.createObjectURL(bytes(svg));
  const image = new Image();
  image.src = address;
  await image.decode();
  const [width, height] = ["width", "height"].map((side) => Number(svg.getAttribute(side)));
  const enlarge = Math.min(ENLARGE, LARGEST / Math.max(width, height));
  const canvas = h("canvas", { width: Math.round(width * enlarge), height: Math.round(height * enlarge) });
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  URL.revokeObjectURL(address);
  return new Promise((done) => canvas.toBlob(done));
}

// Two buttons that take the picture of `element()` away, under a name: a text, or a function that gives one.
export function takeAway(element, name) {
  const file = () => (typeof name === "function" ? name() : name).replaceAll(/[^\w.-]+/g, "-").replaceAll(/^-+|-+$/g, "");
  const button = (kind, label, make) => h("button.quiet", { type: "button", title: `save this picture as ${kind}`, "data-keep": kind,
    onclick: async () => save(await make(drawn(element())), `${file()}.${label}`) }, kind);
  return h("span.tools", null, button("SVG", "svg", bytes), button("PNG", "png", png));
}
