// @ts-check
// The workbench: the list of runs, their curves in one picture, and the same matrix, head, row or sentence in all of them.

import { d3 } from "./vendor.js";
import { h, inSight, lastOnly, perFrame, say, scroll, table } from "./dom.js";
import { number, plural, whole } from "./format.js";
import { unpack } from "./decode.js";
import { entry } from "./entry.js";
import { ALIKE, band, betweenSeeds, grouped, summary } from "./groups.js";
import { createModel } from "./model.js";
import { overlay, smoothed } from "./overlay.js";
import list from "./runs_list.js";
import { reads } from "./version.js";
import { controls, view } from "./view.js";

const PALETTE = ["#3f7fbf", "#d9742b", "#2f9d84", "#b44a9a", "#8a7a1f", "#c23b4b", "#6a63c9", "#4a9b3a", "#a36a4a", "#6f7782"]; // 3 : 1 at least on light and dark
const CHUNK = 40; // runs whose curves are asked for at a time
const MOST_GROUPS = 30;
const NONE_DRAWN = "No run is drawn; check one in the list.";
const NAMES = { val_loss: "validation loss (nats per token or class)", bits_per_byte: "validation, bits per byte", loss: "training loss of each batch", lr: "learning rate", grad_norm: "gradient norm", metric: "metric of the task (accuracy, BLEU)" };
const SMOOTHING = [[0, "no smoothing"], [0.03, "smoothed over 3%"], [0.1, "smoothed over 10%"], [0.3, "smoothed over 30%"]];

const drawnRuns = (model) => model.get("runs").filter((run) => model.get("drawn").has(run.name));

// A colour by the group of a run where runs are grouped, else by its place among those that are drawn.
function colouring(model) {
  let [key, found] = [null, new Map()];
  return (run) => {
    const [group, drawn] = [model.get("group"), model.get("drawn")];
    if (key?.[0] !== group || key[1] !== drawn || key[2] !== model.get("runs")) {
      key = [group, drawn, model.get("runs")];
      const sets = group ? grouped(key[2], group, model.get("differing")).map(([, runs]) => runs) : drawnRuns(model).map((one) => [one]);
      found = new Map(sets.flatMap((runs, i) => runs.map((one) => [one.name, PALETTE[i % PALETTE.length]])));
    }
    return found.get(run.name) ?? "transparent";
  };
}

// Lines of the runs, or of their groups: mean and interval. `pointsOf(run)` is { x, y } or nothing.
function linesOf(model, pointsOf, asGroups, share = 0) {
  const found = drawnRuns(model).map((run) => ({ run, points: pointsOf(run) })).filter(({ points }) => points?.x.length);
  const line = ({ run, points: { x, y } }) => ({ name: run.name, run, colour: model.get("colourOf")(run), x, y: (share && smoothed(y, share)) || y });
  const lines = found.map(line);
  if (!asGroups) return lines;
  return groupsOf(model, found.map(({ run }) => run)).map(([words, runs]) => {
    const own = lines.filter((one) => runs.includes(one.run));
    return { name: `${words} (${plural(own.length, "run")})`, colour: own[0].colour, ...band(own) };
  });
}

const groupsOf = (model, runs) => grouped(runs, model.get("group") || ALIKE, model.get("differing"));

// What the groups are at the end, measured by how far seeds alone are apart.
function groupTable(model, valueOf, label) {
  const runs = drawnRuns(model).filter((run) => Number.isFinite(valueOf(run)));
  if (runs.length < 2) return null;
  const ruler = betweenSeeds(runs, valueOf);
  const groups = groupsOf(model, runs).map(([words, own]) => ({ words, ...summary(own.map(valueOf)) })).slice(0, MOST_GROUPS);
  const far = (group) => (ruler?.sd > 0 ? number((group.mean - groups[0].mean) / ruler.sd, 2) : "–");
  const said = ruler ? `Spread between seeds: ${number(ruler.sd)} (standard deviation over ${plural(ruler.n, "run")}, in ${plural(ruler.groups, "set")} that differ only in the seed). Seeds alone cause differences of this size.`
    : "No two of the drawn runs differ only in the seed, so there is no spread between seeds to compare with.";
  return [h("p.small", null, said), scroll(`groups at their last step: ${label}`, table(["group", "runs", "mean at the last step", "95% interval", "difference from the first, in seed SDs"],
    groups.map((group) => [group.words, whole(group.n), number(group.mean, 4), Number.isFinite(group.low) ? `${number(group.low, 4)} to ${number(group.high, 4)}` : "–", far(group)]), "groups"))];
}

const lastValue = (pointsOf) => (run) => pointsOf(run)?.y.at(-1) ?? NaN;

const AS_GROUPS = { key: "groups", label: "single runs or groups", options: [[false, "single runs"], [true, "groups: mean and 95% interval"]] };
const BY_SEED = "Groups are those chosen in the list, else runs that differ only in the seed. A mean is taken where all curves of its group have values, by linear interpolation; its interval is Student's t.";

const curves = view(({ model, figure, hear }) => {
  const preferred = model.get("caution") && !model.get("caution").includes("different tasks") ? "bits_per_byte" : "val_loss";
  const state = { quantity: preferred, log: false, smooth: 0, groups: false };
  let isChosen = false;
  const quantities = () => [...new Set(drawnRuns(model).flatMap((run) => Object.keys(model.get("curves").get(run.name) ?? {})))];
  const words = (name) => NAMES[name] ?? `${name.slice(4)} (your own)`;
  const frame = figure({ wide: true, title: "Curves", caption: `Values at the step under the cursor are listed, the lowest first. Of a long run each point is the mean of neighboring updates. ${BY_SEED}` });
  const choices = controls(state, () => [{ key: "quantity", label: "what is drawn", options: [...new Set([state.quantity, ...Object.keys(NAMES), ...quantities()])].filter((name) => name === state.quantity || quantities().includes(name)).map((name) => [name, words(name)]), most: 0 },
    { key: "log", label: "step axis", options: [[false, "steps"], [true, "steps, log"]] }, { key: "smooth", label: "smoothing", options: SMOOTHING, most: 0 }, AS_GROUPS], (key) => ((isChosen ||= key === "quantity"), soon()));
  const caution = h("p.missing", { role: "status" });
  const below = h("div");
  frame.body.before(choices.el, caution);
  const points = (run) => model.get("curves").get(run.name)?.[state.quantity];
  const redraw = overlay(frame, () => ({ lines: linesOf(model, points, state.groups, state.smooth), label: words(state.quantity), log: state.log, missing: model.get("drawn").size ? "None of the drawn runs has such values." : NONE_DRAWN }));
  frame.body.append(below);
  let known = "";
  const draw = () => {
    const there = quantities();
    if (!isChosen) state.quantity = [preferred, ...Object.keys(NAMES)].find((name) => there.includes(name)) ?? preferred;
    if (known !== (known = String(there))) choices.draw();
    caution.textContent = ["val_loss", "loss"].includes(state.quantity) ? model.get("caution") : "";
    caution.hidden = !caution.textContent;
    redraw();
    say(below, groupTable(model, lastValue(points), words(state.quantity)));
  };
  const soon = perFrame(draw);
  hear(["runs", "drawn", "group", "curves"], soon);
  draw();
});

const across = view(({ model, figure, hear, ask: may, el, off }) => {
  const kinds = [["grid", "a matrix or head"], ["row", "a row of W_E"], ["sentence", "a sentence"]].filter(([kind]) => kind === "grid" || may(kind));
  const state = { kind: "grid", measure: undefined, address: "", log: true, groups: false };
  const [found, typed] = [new Map(), { row: "", sentence: "" }]; // `found`: question -> name -> { when: how far the run was, got: what it gave, why: nothing }
  const key = () => (state.kind === "grid" ? `grid ${state.measure}` : `${state.kind} ${typed[state.kind]}`);
  const told = h("p.small", { role: "status" });
  const place = h("div");
  const form = (kind, label) => entry((text) => ((typed[kind] = text), load()), { label, button: "compare" });
  const forms = { row: form("row", "A row, such as W_E[the]"), sentence: form("sentence", "A sentence; runs with another tokenizer are left out") };
  const frame = figure({ wide: true, title: "One matrix, row or sentence in all drawn runs", caption: `Steps at which it was measured, or whose weights were kept. Heads are there where a run was trained with --watch full. ${BY_SEED}` });
  const foundOf = (run) => found.get(key())?.get(run.name);
  const addresses = () => [...new Set(drawnRuns(model).flatMap((run) => foundOf(run)?.got?.addresses ?? []))];
  const choices = controls(state, () => [kinds.length > 1 ? { key: "kind", label: "what is compared", options: kinds } : null,
    ...(state.kind === "grid" ? [{ key: "measure", label: "measure", options: model.get("measures").map((name) => [name, name]), most: 0 }, { key: "address", label: "matrix or head", options: addresses().map((a) => [a, a]), most: 0 }] : []),
    { key: "log", label: "step axis", options: [[true, "steps, log"], [false, "steps"]] }, AS_GROUPS], (changed) => (["kind", "measure"].includes(changed) ? load() : draw()));
  frame.body.before(choices.el, place, told);
  const below = h("div");
  const pointsOf = (run) => {
    const one = foundOf(run)?.got;
    return one?.addresses ? one.points(state.address) : one;
  };
  const label = () => (state.kind === "grid" ? `${state.measure} of ${state.address}` : state.kind === "row" ? `relative change of ${typed.row}` : "loss of the sentence, nats per token");
  const isUnasked = () => !(state.kind === "grid" ? state.measure : typed[state.kind]);
  const missing = () => {
    if (!model.get("drawn").size) return NONE_DRAWN;
    if (isUnasked()) return state.kind === "grid" ? "No matrix of the newest runs has been measured." : "Type what is to be compared.";
    return found.get(key())?.size ? "None of the drawn runs has such values." : "Values are being read.";
  };
  const redraw = overlay(frame, () => ({ lines: linesOf(model, pointsOf, state.groups), label: label(), log: state.log, missing: missing() }));
  frame.body.append(below);
  function draw() {
    if (state.kind === "grid" && !addresses().includes(state.address)) state.address = addresses().find((a) => /W_Q$/.test(a)) ?? addresses()[0] ?? "";
    const out = drawnRuns(model).filter((run) => foundOf(run)?.why);
    say(told, out.length ? `${plural(out.length, "run")} left out: ${out.slice(0, 3).map((run) => `${run.name} (${foundOf(run).why})`).join("; ")}${out.length > 3 ? " …" : ""}` : "");
    choices.draw();
    redraw();
    say(below, drawnRuns(model).some(pointsOf) ? [h("p.small", null, label()), groupTable(model, lastValue(pointsOf), label())] : null);
  }
  const newest = lastOnly();
  const load = () => newest(async () => {
    if (place.firstChild !== (forms[state.kind] ?? null)) say(place, forms[state.kind]);
    state.measure ??= model.get("measures").find((name) => name === "drift") ?? model.get("measures")[0];
    const at = key();
    const here = found.get(at) ?? found.set(at, new Map()).get(at);
    const when = (run) => `${run.state} ${run.steps}`;
    const changed = drawnRuns(model).filter((run) => here.get(run.name)?.when !== when(run));
    if (!changed.length || isUnasked()) return;
    const runs = state.kind === "sentence" ? drawnRuns(model) : changed; // the first says of which tokens
    const carried = model.get("grids")?.[state.measure];
    const answer = may(state.kind) ? await may(state.kind)(state.kind, { runs: runs.map((run) => run.name), measure: state.measure, address: typed.row, text: typed.sentence }) : { runs: carried ?? {}, left_out: {} };
    for (const run of runs) here.set(run.name, { when: when(run), got: answer.runs[run.name] && read(answer.runs[run.name]), why: answer.left_out[run.name] });
  }, draw, (error) => say(told, error.message));
  const seen = inSight(el, load, off);
  hear(["drawn", "runs"], seen);
  hear(["group"], draw);
  if (model.get("measures").length || kinds.length > 1) seen();
  else el.hidden = true;
});

// A curve, or a grid of them: { x, y }, or { addresses, points(address) }.
function read(packed) {
  if (!packed.addresses) return { x: unpack(packed.steps).values, y: unpack(packed.values).values };
  const [steps, values] = [unpack(packed.points.steps).values, unpack(packed.points.values)];
  return { addresses: packed.addresses, points: (address) => {
    const row = packed.addresses.indexOf(address);
    if (row < 0) return null;
    const own = [...values.part(row)];
    const there = own.map(Number.isFinite);
    return { x: [...steps].filter((_, i) => there[i]), y: own.filter((_, i) => there[i]) };
  } };
}

const readAll = (quantities) => Object.fromEntries(Object.entries(quantities).map(([name, points]) => [name, read(points)]));

// Points behind those that are there; where there are many, every two become one.
function joined(before, now) {
  const from = d3.bisectLeft(before.x, now.x[0]);
  const [x, y] = [[...before.x.subarray(0, from), ...now.x], [...before.y.subarray(0, from), ...now.y]];
  if (x.length < 2000) return { x: Int32Array.from(x), y: Float32Array.from(y) };
  const half = Math.ceil(x.length / 2);
  return { x: Int32Array.from({ length: half }, (_, i) => x[Math.min(2 * i + 1, x.length - 1)]), y: Float32Array.from({ length: half }, (_, i) => (y[2 * i] + (y[2 * i + 1] ?? y[2 * i])) / 2) };
}

// Curves of the runs that are drawn, then of all others, a few at a time; of those that train only what is new.
function loading(model, ask) {
  let busy = false;
  const told = h("p.small", { role: "status" });
  const wanted = () => {
    const missing = (runs) => runs.map((run) => run.name).filter((name) => !model.get("curves").has(name));
    const first = missing(drawnRuns(model));
    return (first.length ? first : missing(model.get("shown"))).slice(0, CHUNK);
  };
  const take = (names, answer, join) => {
    const held = model.get("curves");
    for (const name of names) {
      const [before, now] = [held.get(name) ?? {}, readAll(answer.runs[name] ?? {})];
      held.set(name, join ? { ...before, ...Object.fromEntries(Object.entries(now).map(([q, points]) => [q, before[q] && ["loss", "lr", "grad_norm"].includes(q) ? joined(before[q], points) : points])) } : now);
    }
    model.set("curves", new Map(held));
    const out = Object.entries(answer.left_out);
    if (out.length) say(told, `No curves of ${plural(out.length, "run")}: ${out[0][1]}${out.length > 1 ? " …" : ""}`);
  };
  const behind = (name) => model.get("curves").get(name)?.loss?.x.at(-1) ?? -1;
  // Gives when the answer came: what is done with it is the page's cost.
  const request = async (names, join) => {
    const answer = await ask("curves", { runs: Object.fromEntries(names.map((name) => [name, join ? behind(name) : -1])) });
    const since = performance.now();
    take(names, answer, join);
    return since;
  };
  async function all() {
    if (busy) return;
    busy = true;
    try {
      for (let names = wanted(); names.length; names = wanted()) await request(names, false);
    } catch (error) {
      say(told, error.message);
    }
    busy = false;
  }
  return { told, all, more: (names) => request(names, true), behind };
}

// The newest list, and new steps of drawn runs that train, as often as the purse allows.
function follow(model, { ask, listen, payload, spend }, load) {
  let [before, resting, live] = [model.get("edition"), false, []];
  const draw = async () => {
    const names = live.filter(([name, step]) => model.get("drawn").has(name) && model.get("curves").has(name) && step > load.behind(name)).map(([name]) => name);
    if (resting || document.hidden || !names.length) return;
    resting = true;
    const since = await load.more(names).catch(() => performance.now());
    await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
    setTimeout(() => ((resting = false), draw()), 1000 * Math.max(1, spend((performance.now() - since) / 1000)));
  };
  const anew = async () => {
    const trained = model.get("runs").filter((run) => run.state === "training").map((run) => run.name);
    const board = await payload();
    for (const name of ["differing", "caution", "measures", "runs"]) model.set(name, board[name]);
    const ended = board.runs.filter((run) => run.state !== "training" && trained.includes(run.name)).map((run) => run.name);
    if (ended.length) await load.more(ended);
    await load.all();
  };
  listen((data) => {
    const pulse = JSON.parse(data);
    if (pulse.edition !== before) anew().catch(() => (before = -1)); // the next pulse tries again
    before = pulse.edition;
    live = pulse.live;
    model.set("live", live);
    draw();
  }, (stands) => model.set("connected", stands));
}

/** @param {HTMLElement} main @param {any} board @param {{ ask: any, listen: any, payload: any, spend: any } | null} [server] */
export function openWorkbench(main, board, server = null) {
  document.documentElement.dataset.ready = "yes";
  if (!reads(main, board)) return undefined;
  const held = new Map(Object.entries(board.curves).map(([name, quantities]) => [name, readAll(quantities)]));
  const model = createModel({ ...board, curves: held, ask: server?.ask, shown: board.runs, drawn: new Set(), group: "", colourOf: null });
  model.set("colourOf", colouring(model));
  const [lead, caution] = [h("p.lead"), h("p.missing")];
  const tell = () => {
    const [runs, live] = [model.get("runs"), model.get("runs").filter((run) => run.state === "training").length];
    lead.textContent = `${plural(runs.length, "run")}${live ? `, ${whole(live)} in training` : ""}. Losses are the lowest on validation data, in nats per token (of labeled data per text, word, label, question or image), beside the best n-gram on the same text.`;
    caution.textContent = model.get("caution");
    caution.hidden = !caution.textContent;
  };
  main.append(h("p.eyebrow", null, "qkv · workbench"), h("h1", null, board.folder), lead, caution);
  model.on("change:runs", tell);
  tell();
  const section = (id, title, part) => {
    const el = h("section.section", { id }, h("h2", null, title));
    main.append(el);
    part({ model, el });
  };
  section("runs", "Runs", list);
  section("curves", "Curves", curves);
  section("across", "Across runs", across);
  if (!server) return undefined;
  const load = loading(model, server.ask);
  main.querySelector("#curves").append(load.told);
  model.on("change:drawn", load.all);
  load.all();
  return follow(model, server, load);
}
