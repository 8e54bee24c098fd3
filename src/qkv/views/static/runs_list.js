// @ts-check
// The list of runs: filtered, sorted, in groups; which of them are drawn, notes and stars.

import { d3 } from "./vendor.js";
import { add, atMostEvery, clear, h, newId, refocused, say, scroll } from "./dom.js";
import { number, plural, whole } from "./format.js";
import { ALIKE, grouped, settingsOf, summary } from "./groups.js";
import { view } from "./view.js";

const MOST = 100; // rows at a time
export const FIRST = 12; // runs that are drawn at first

const COLUMNS = [
  ["name", "run", (run) => run.name], ["task", "task", (run) => run.task], ["loss", "loss", (run) => run.loss], ["ngram", "best n-gram", (run) => run.ngram],
  ["steps", "steps", (run) => -run.steps], ["when", "written", () => 0], ["state", "state", (run) => run.state], ["starred", "★", (run) => -run.starred],
];

const OPERATORS = { "=": (a, b) => a === b, "!=": (a, b) => a !== b, ">": (a, b) => a > b, "<": (a, b) => a < b, ">=": (a, b) => a >= b, "<=": (a, b) => a <= b };

// What a run says of a name: one of its own columns, or a setting by the end of its path.
function valueOf(run, name, differing) {
  if (["name", "task", "loss", "ngram", "steps", "state", "note", "starred"].includes(name)) return run[name];
  const path = differing.find((p) => p === name || p.endsWith(`.${name}`));
  if (!path) throw new Error(`No setting that differs is called ${name}; there are ${differing.map((p) => p.split(".").at(-1)).join(", ") || "none"}.`);
  return run.settings[path];
}

/**
 * Whether a run fits a filter: words of its name or note, and conditions such as `seed=3`, `lr>0.01`, `state!=finished`.
 * @param {string} text @param {string[]} differing @returns {(run: any) => boolean}
 */
export function matching(text, differing) {
  const tests = (text.match(/\S+/g) ?? []).map((word) => {
    const asked = word.match(/^([\w.]+)(!=|>=|<=|=|>|<)(.+)$/);
    if (!asked) return (run) => `${run.name} ${run.note}`.toLowerCase().includes(word.toLowerCase());
    const [, name, operator, wanted] = asked;
    const isNumber = wanted.trim() !== "" && Number.isFinite(Number(wanted));
    return (run) => {
      const value = valueOf(run, name, differing);
      if (value === undefined || value === null) return operator === "!=";
      const both = isNumber && Number.isFinite(Number(value));
      return OPERATORS[operator](both ? Number(value) : String(value), both ? Number(wanted) : wanted);
    };
  });
  return (run) => tests.every((test) => test(run));
}

// Runs that fit, in the order that was asked for.
function chosen(model, state) {
  const runs = model.get("runs").filter(matching(state.filter, model.get("differing")));
  const key = COLUMNS.find(([name]) => name === state.sort)[2];
  const sorted = state.sort === "when" ? runs : d3.sort(runs, key); // they come the newest first
  return state.down ? sorted.reverse() : sorted;
}

function build({ model, el, ask: may, hear }) {
  const state = { filter: "", sort: "when", down: false, most: MOST };
  const note = may("note");
  const [body, told, count] = [h("div"), h("p.small", { role: "alert" }), h("p.small", { role: "status" })];
  const id = newId("filter");
  const filter = h("input", { type: "text", id, spellcheck: "false", placeholder: "name, note, seed=3, loss<2", oninput: atMostEvery(120, () => ((state.filter = filter.value), choose())) });
  const group = h("select", { onchange: () => model.set("group", group.value) });
  const draw = (names) => model.set("drawn", new Set(names));
  el.append(h("div.list-controls", null, h("label.small", { for: id }, "Filter ", filter), h("label.small", null, "Group by ", group),
    h("div.choice", { role: "group", "aria-label": "which runs are drawn" }, h("button", { type: "button", onclick: () => draw(model.get("shown").map((run) => run.name)) }, "Draw all in the list"),
      h("button", { type: "button", onclick: () => draw([]) }, "Draw none"))), told, count, body);
  const keep = async (run, change) => {
    Object.assign(run, change);
    told.textContent = "";
    await note("note", { run: run.name, note: run.note, starred: run.starred }).catch((error) => say(told, error.message));
  };
  const star = (run) => h("button.star", { type: "button", "aria-pressed": String(run.starred), "aria-label": `star ${run.name}`, disabled: !note, onclick: (event) => {
    keep(run, { starred: !run.starred });
    event.target.setAttribute("aria-pressed", String(run.starred));
    event.target.textContent = run.starred ? "★" : "☆";
  } }, run.starred ? "★" : "☆");
  const noted = (run) => (note ? h("input.note", { type: "text", value: run.note, maxlength: 2000, "aria-label": `note on ${run.name}`, onchange: (event) => keep(run, { note: event.target.value }) }) : run.note);
  const drawBox = (run) => h("input", { type: "checkbox", "aria-label": `draw ${run.name}`, checked: model.get("drawn").has(run.name), onchange: (event) => {
    const names = new Set(model.get("drawn"));
    names[event.target.checked ? "add" : "delete"](run.name);
    model.set("drawn", names);
  } });
  const row = (run) => h("tr", null, h("td", null, drawBox(run), star(run), h("span.swatch", { "data-run": run.name, style: `background:${model.get("colourOf")(run)}` }), " ", run.name), h("td", null, run.task), h("td", null, number(run.loss)), h("td", null, number(run.ngram)),
    h("td", null, whole(run.steps)), h("td", null, run.when), h("td", null, run.state), h("td.differs", null, settingsOf(run, model.get("differing"))), h("td", null, noted(run)));
  const head = (/** @type {any} */ [name, words]) => h("th", { scope: "col", "aria-sort": state.sort === name ? (state.down ? "descending" : "ascending") : null }, h("button", { type: "button", onclick: () => {
    Object.assign(state, { sort: name, down: state.sort === name && !state.down });
    choose();
  } }, words));
  function groupRow(/** @type {any} */ [words, runs]) {
    const found = summary(runs.map((run) => run.loss ?? NaN));
    const loss = found ? `: loss ${number(found.mean)}${Number.isFinite(found.low) ? ` (95% interval ${number(found.low)} to ${number(found.high)})` : ""}` : "";
    return h("tr.group", null, h("th", { scope: "colgroup", colspan: 9 }, `${words}, ${plural(runs.length, "run")}${loss}`));
  }
  function lay() {
    const runs = model.get("shown").slice(0, state.most);
    const path = model.get("group");
    const rows = path ? grouped(runs, path, model.get("differing")).flatMap((found) => [groupRow(found), ...found[1].map(row)]) : runs.map(row);
    const left = model.get("shown").length - runs.length;
    refocused(body, () => add(clear(body), [h("div.list", null, scroll("list of runs", h("table.runs", null, h("thead", null, h("tr", null, COLUMNS.slice(0, 7).map(head), h("th", { scope: "col" }, "what differs"), h("th", { scope: "col" }, "note"))), h("tbody", null, rows)))),
      left > 0 ? h("button.quiet", { type: "button", onclick: () => ((state.most += MOST), lay()) }, `show ${Math.min(left, MOST)} more`) : null]));
  }
  function choose() {
    told.textContent = "";
    try {
      model.set("shown", chosen(model, state));
    } catch (error) {
      return say(told, error.message);
    }
    const [all, shown] = [model.get("runs").length, model.get("shown").length];
    count.textContent = shown === all ? plural(all, "run") : `${whole(shown)} of ${plural(all, "run")}`;
    return lay();
  }
  function offer() {
    const paths = model.get("differing");
    clear(group).append(...["", ...(paths.includes("seed") ? [ALIKE] : []), ...paths].map((path) => h("option", { value: path, selected: path === model.get("group") }, path === "" ? "nothing" : path === ALIKE ? "all settings but the seed" : path)));
  }
  const typing = () => document.activeElement?.closest("table.runs input[type=text]");
  hear(["runs"], () => {
    offer();
    if (typing()) document.activeElement.addEventListener("blur", () => setTimeout(choose), { once: true });
    else choose();
  });
  hear(["group"], lay);
  hear(["live"], () => model.get("live").forEach(([name, step]) => {
    const steps = body.querySelector(`[data-run="${CSS.escape(name)}"]`)?.closest("tr").children[4];
    if (steps && steps.textContent !== whole(step)) steps.textContent = whole(step);
  }));
  hear(["drawn", "group"], () => {
    const names = model.get("drawn");
    const byName = new Map(model.get("runs").map((run) => [run.name, run]));
    body.querySelectorAll("tr:not(.group)").forEach((line) => {
      const [box, mark] = [line.querySelector("input[type=checkbox]"), line.querySelector(".swatch")];
      if (!box || !byName.has(mark.dataset.run)) return;
      box.checked = names.has(mark.dataset.run);
      mark.style.background = model.get("colourOf")(byName.get(mark.dataset.run));
    });
  });
  offer();
  choose();
  if (!model.get("drawn").size) draw(model.get("shown").slice(0, FIRST).map((run) => run.name));
}

export default view(build);
