// Rows of cells on one canvas, crisp at any size: what the grid of layers and matrices is drawn on. Pointer and arrow
// keys walk over the cells; `tell(cell)` is called for the one under them, `pick(cell)` on click or Enter.

import { h, together } from "./dom.js";
import { lookUp } from "./scale.js";
import { onTheme, theme } from "./theme.js";

const BETWEEN = 7; // pixels between two matrices
const LINE = 3; // between two rows

// rows: [{ label, cells: [{ column, part, parts, across, address, value }] }]; columns: [{ label, role, weight }]. A cell that
// goes `across` belongs to no column and is as wide as all.
export function cells({ label, rowHeight, tell, pick, leave }) {
  const off = together();
  const canvas = h("canvas", { "aria-hidden": "true" });
  const cursor = h("span.cursor", { hidden: true });
  const marks = h("span.cell-marks");
  const el = h("div.raster.cells", { tabindex: "0", role: "application", "aria-roledescription": "heat map, arrow keys move", "aria-label": label }, canvas, marks, cursor);
  let [rows, columns, scale, placed, at, chosen] = [[], [], null, [], -1, null];

  function place(width) {
    const total = columns.reduce((sum, column) => sum + column.weight, 0);
    const room = width - BETWEEN * (columns.length - 1);
    let x = 0;
    for (const column of columns) {
      column.x = x;
      column.width = (room * column.weight) / total;
      x += column.width + BETWEEN;
    }
    placed = rows.flatMap((row, r) => row.cells.map((cell) => {
      if (cell.across) return { ...cell, row: r, x: 0, y: r * (rowHeight + LINE), w: width, h: rowHeight };
      const column = columns[cell.column];
      const each = column.width / cell.parts;
      const gap = each > 6 ? 1 : 0;
      return { ...cell, row: r, x: column.x + each * cell.part, y: r * (rowHeight + LINE), w: each - (cell.part + 1 < cell.parts ? gap : 0), h: rowHeight };
    }));
  }
  function draw() {
    const width = el.clientWidth;
    if (!width || !scale) return;
    place(width);
    const height = Math.max(1, rows.length * (rowHeight + LINE) - LINE);
    const ratio = globalThis.devicePixelRatio || 1;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      canvas.style.height = `${height}px`;
    }
    const colours = theme(el);
    const map = lookUp(scale, colours);
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    for (const cell of placed) {
      if (!Number.isFinite(cell.value)) {
        context.strokeStyle = colours.line;
        context.strokeRect(cell.x + 0.5, cell.y + 0.5, Math.max(1, cell.w - 1), cell.h - 1);
        continue;
      }
      context.fillStyle = colourAt(map, cell.value);
      context.fillRect(cell.x, cell.y, cell.w, cell.h);
    }
    mark();
  }
  function colourAt(map, value) {
    const i = 3 * Math.max(0, Math.min(255, Math.round(scale.position(value) * 255)));
    return `rgb(${map[i]} ${map[i + 1]} ${map[i + 2]})`;
  }
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
  function nearest(row, x) {
    const row_ = placed.map((cell, i) => [cell, i]).filter(([cell]) => cell.row === row);
    return row_.reduce((a, b) => (Math.abs(b[0].x - x) < Math.abs(a[0].x - x) ? b : a))[1];
  }
  el.addEventListener("pointermove", (event) => point(under(event)));
  for (const end of ["pointerleave", "blur"]) el.addEventListener(end, () => (point(-1), leave()));
  el.addEventListener("click", (event) => {
    const index = under(event);
    if (index >= 0) pick(placed[index]);
  });
  el.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && at >= 0) return pick(placed[at]);
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const down = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (move === undefined && down === undefined) return undefined;
    event.preventDefault();
    if (at < 0) return point(0);
    if (move) return point(Math.max(0, Math.min(placed.length - 1, at + move)));
    return point(nearest(Math.max(0, Math.min(rows.length - 1, placed[at].row + down)), placed[at].x));
  });
  const observer = new ResizeObserver(draw);
  observer.observe(el);
  off.add(() => observer.disconnect());
  off.add(onTheme(draw));
  return {
    el, canvas, off,
    // What is drawn; also gives the columns their places, for labels.
    show(next) {
      ({ rows, columns, scale } = next);
      draw();
      return columns;
    },
    choose(address) {
      chosen = address;
      mark();
    },
  };
}
