// @ts-check
// Rows of cells on one canvas, crisp at any size: what the grid of layers and matrices is drawn on. Pointer and arrow
// keys walk over the cells; `tell(cell)` is called for the one under them, `pick(cell)` on click or Enter. Cells stay where
// they are from step to step, so a step costs their colours alone, written as bytes: no element and no colour as text.

import { d3 } from "./vendor.js";
import { h } from "./dom.js";
import { lookUp } from "./scale.js";
import { onTheme, theme } from "./theme.js";

const BETWEEN = 7; // pixels between two matrices
const LINE = 3; // between two rows

function ink(colour) {
  const { r, g, b } = d3.rgb(colour);
  return new Uint32Array(new Uint8ClampedArray([r, g, b, 255]).buffer)[0];
}

// The cell above or below (`down` -1 or 1) that is nearest to `placed[at]`, in the next row that has any; `at` where none has.
export function neighbour(placed, at, down) {
  const { row, x } = placed[at];
  const ahead = d3.range(placed.length).filter((i) => (placed[i].row - row) * down > 0);
  const next = placed[down > 0 ? ahead[0] : ahead.at(-1)]?.row;
  return d3.least(ahead.filter((i) => placed[i].row === next), (i) => Math.abs(placed[i].x - x)) ?? at;
}

// The cell to which a key leads from the cell `at`; null for any other key.
function reached(key, placed, at) {
  const move = { ArrowLeft: -1, ArrowRight: 1 }[key];
  const down = { ArrowUp: -1, ArrowDown: 1 }[key];
  if (move === undefined && down === undefined) return null;
  if (at < 0) return 0;
  return move ? Math.max(0, Math.min(placed.length - 1, at + move)) : neighbour(placed, at, down);
}

// Every cell with its place, in pixels of the page: { ...cell, row, x, y, w, h }. Columns are told theirs, and share the width by weight.
function place(rows, columns, width, rowHeight) {
  const total = columns.reduce((sum, column) => sum + column.weight, 0);
  const room = width - BETWEEN * (columns.length - 1);
  let x = 0;
  for (const column of columns) {
    column.x = x;
    column.width = (room * column.weight) / total;
    x += column.width + BETWEEN;
  }
  return rows.flatMap((row, r) => row.cells.map((cell) => {
    const at = { ...cell, row: r, y: r * (rowHeight + LINE), h: rowHeight };
    if (cell.across) return { ...at, x: 0, w: width };
    const column = columns[cell.column];
    const each = column.width / cell.parts;
    const gap = each > 6 ? 1 : 0;
    return { ...at, x: column.x + each * cell.part, w: each - (cell.part + 1 < cell.parts ? gap : 0) };
  }));
}

// A canvas of as many pixels as the screen has, on which boxes [left, top, right, bottom] are filled -> { fill(values, scale, inks, empty) }
function surface(canvas, placed, width, height) {
  const ratio = globalThis.devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.height = `${height}px`;
  const image = canvas.getContext("2d").createImageData(canvas.width, canvas.height);
  const pixels = new Uint32Array(image.data.buffer);
  const boxes = new Int32Array(placed.length * 4);
  placed.forEach((cell, i) => boxes.set([cell.x, cell.y, Math.max(cell.x + cell.w, cell.x + 1 / ratio), cell.y + cell.h].map((side) => Math.round(side * ratio)), 4 * i));
  const line = image.width;
  return {
    fill(values, scale, map, empty) {
      for (let i = 0; i < placed.length; i++) {
        const value = values[i];
        const [left, top, right, bottom] = [boxes[4 * i], boxes[4 * i + 1], Math.min(line, boxes[4 * i + 2]), boxes[4 * i + 3]];
        const known = value - value === 0; // neither NaN nor infinite
        const colour = known ? map[Math.max(0, Math.min(255, Math.round(scale.position(value) * 255)))] : 0;
        for (let y = top; y < bottom; y++) pixels.fill(colour, y * line + left, y * line + right);
        if (known) continue;
        for (const y of [top, bottom - 1]) pixels.fill(empty, y * line + left, y * line + right); // an outline: not recorded is not zero
        for (let y = top; y < bottom; y++) pixels[y * line + left] = pixels[y * line + right - 1] = empty;
      }
      canvas.getContext("2d").putImageData(image, 0, 0);
    },
  };
}

// rows: [{ label, cells: [{ column, part, parts, across, address }] }]; columns: [{ label, role, weight }]. A cell that
// goes `across` belongs to no column and is as wide as all.
// `arranged(columns)` is told where the columns stand whenever that changes.
export function cells(off, { label, rowHeight, tell, pick, leave, arranged }) {
  const canvas = h("canvas", { "aria-hidden": "true" });
  const cursor = h("span.cursor", { hidden: true });
  const marks = h("span.cell-marks");
  const el = h("div.raster.cells", { tabindex: "0", role: "application", "aria-roledescription": "heat map, arrow keys move", "aria-label": label }, canvas, marks, cursor);
  let [rows, columns, scale, values, placed, at, chosen] = [[], [], null, [], [], -1, null];
  let [drawing, map, empty] = [null, null, 0];

  // Places, canvas and colours; then the values.
  function arrange() {
    const width = el.clientWidth;
    if (!width || !scale) return;
    placed = place(rows, columns, width, rowHeight);
    drawing = surface(canvas, placed, width, Math.max(1, rows.length * (rowHeight + LINE) - LINE));
    recolour();
    mark();
    arranged(columns);
  }
  function recolour() {
    const colours = theme(el);
    [map, empty] = [new Uint32Array(lookUp(scale, colours).buffer), ink(colours.line)]; // the 256 colours of the scale as pixels
    fill();
  }
  const fill = () => drawing?.fill(values, scale, map, empty);
  const box = (cell) => `left:${cell.x}px;top:${cell.y}px;width:${cell.w}px;height:${cell.h}px`;
  function mark() {
    marks.replaceChildren(...placed.filter((cell) => cell.address === chosen).map((cell) => h("span.cell-mark", { style: box(cell) })));
  }
  function point(index) {
    at = index;
    cursor.hidden = index < 0;
    if (index >= 0) {
      cursor.style.cssText = box(placed[index]);
      tell(placed[index]);
    }
  }
  function under(event) {
    const bounds = el.getBoundingClientRect();
    const [x, y] = [event.clientX - bounds.left, event.clientY - bounds.top];
    return placed.findIndex((cell) => x >= cell.x && x < cell.x + cell.w + 1 && y >= cell.y && y < cell.y + cell.h + LINE);
  }
  el.addEventListener("pointermove", (event) => point(under(event)));
  for (const end of ["pointerleave", "blur"]) el.addEventListener(end, () => (point(-1), leave()));
  el.addEventListener("click", (event) => {
    const index = under(event);
    if (index >= 0) pick(placed[index]);
  });
  el.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && at >= 0) return pick(placed[at]);
    const to = reached(event.key, placed, at);
    if (to === null) return undefined;
    event.preventDefault();
    return point(to);
  });
  const observer = new ResizeObserver(arrange);
  observer.observe(el);
  off.add(() => observer.disconnect());
  off.add(onTheme(() => drawing && recolour()));
  return {
    el, canvas,
    // What stands there, and its first values: [cell], row by row.
    show(next) {
      ({ rows, columns, scale, values } = next);
      arrange();
    },
    // Other values of the same cells.
    paint(next) {
      values = next;
      fill();
    },
    choose(address) {
      chosen = address;
      mark();
    },
  };
}
