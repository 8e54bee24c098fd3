// The playground: two arms train side by side in this page, from the same start on the same data, and are watched.

import { armControls, playBar, sharedControls } from "./controls.js";
import { baselines, inputCounts } from "./baselines.js";
import { h, inSight, newId } from "./dom.js";
import { token } from "./format.js";
import { save } from "./keep.js";
import { FIXED, sharing } from "./fits.js";
import { LESSONS } from "./lessons.js";
import { fromFiles, fromRoom } from "./loading.js";
import { losses } from "./losses.js";
import { ARMS, NAMES } from "./pair.js";
import { cosineView, movedView, writtenView } from "./otherviews.js";
import { patternView } from "./patternview.js";
import { Race } from "./race.js";
import { rowView } from "./rowview.js";
import { safetensors } from "./safetensors.js";
import { packText, unpackText } from "./packing.js";
import { LONGEST_TEXT, SHORTEST_TEXT, fresh, fromHash, toHash } from "./state.js";
import { sound, usual } from "./switches.js";
import { N_CTX, makeTask } from "./tasks.js";
import { onTheme } from "./theme.js";
import { weightView } from "./weightview.js";

const WRITES_EVERY = 1000; // milliseconds
const state = fresh();
const race = { given: null, playing: false, taken: 0, pace: 0, seen: null, curves: null, show: (id) => token(race.tokens[id]) };
let threads, views, bar, arms, shared, lessonBox, loadBox;
let [turn, wroteAt, busy, countedFor] = [0, 0, Promise.resolve(), ""];

function refuse(text) {
  if (text.length < SHORTEST_TEXT) return `This text has ${text.length} characters; at least ${SHORTEST_TEXT} are needed, so that a tenth of it can be kept aside. Paste a longer one.`;
  return text.length > LONGEST_TEXT ? `This text has ${text.length.toLocaleString("en-US")} characters; at most ${LONGEST_TEXT.toLocaleString("en-US")} fit here. Paste a part of it.` : "";
}

// The sentence that heads look at: the reader's, in tokens the model knows, or the task's own.
function sentence() {
  const own = [...state.sentence].map((c) => race.tokens.indexOf(c)).filter((id) => id >= 0).slice(0, N_CTX);
  return state.task === "text" && own.length > 1 ? own : race.task.sentence;
}

// Everything from the start: new arms, empty curves. Only the last of several resets that overlap goes on.
async function reset(upTo = 0) {
  const mine = ++turn;
  race.playing = false;
  document.documentElement.dataset.ready = "no";
  await busy.catch(() => {});
  if (mine !== turn) return;
  race.task = makeTask(state.task, state.seed, state.text, race.given?.tokens);
  race.tokens = race.task.tokens;
  count();
  race.countsNote = state.task === "text" || state.task === "addition" ? "" : " of 64 batches";
  const wanted = race.tokens.indexOf(state.token);
  race.token = wanted >= 0 ? wanted : race.counts.indexOf(Math.max(...race.counts));
  busy = (async () => {
    race.made = await threads.make(state, race.given);
    race.curves = Object.fromEntries(ARMS.map((arm) => [arm, { losses: [], validations: [] }]));
    Object.assign(race, { taken: 0, pace: 0, written: null });
    views.forEach((view) => view.build?.());
    await advance(0, true);
  })();
  await busy;
  race.playing = race.taken < upTo; // a link's steps are played too, and may be paused
  while (mine === turn && race.playing && race.taken < upTo) await (busy = advance(Math.min(threads.stretch(), upTo - race.taken), false));
  if (mine !== turn) return;
  race.playing = false;
  controls();
  document.documentElement.dataset.ready = "yes";
}

// What counting reaches, counted again only where there is something else to count.
function count() {
  const key = JSON.stringify([state.task, state.seed, race.tokens, state.task === "text" ? state.text : ""]);
  if (key === countedFor) return;
  countedFor = key;
  race.baselines = baselines(race.task);
  race.counts = inputCounts(race.task);
}

async function advance(steps, writes) {
  const began = performance.now();
  const answers = await threads.advance(steps, sentence(), writes || began - wroteAt > WRITES_EVERY);
  for (const arm of ARMS) {
    race.curves[arm].losses.push(...answers[arm].losses);
    race.curves[arm].validations.push(...answers[arm].validations);
  }
  race.taken = answers.a.taken;
  race.seen = { a: answers.a.seen, b: answers.b.seen };
  if (answers.a.written) [race.written, wroteAt] = [{ a: answers.a.written, b: answers.b.written }, performance.now()];
  if (steps) {
    const pace = (1000 * steps) / (performance.now() - began);
    race.pace = race.pace ? 0.8 * race.pace + 0.2 * pace : pace;
  }
  state.step = race.taken;
  views.forEach((view) => view.soon());
  bar.draw(race);
}

async function play() {
  if (race.playing) return pause();
  const mine = turn;
  race.playing = true;
  bar.draw(race);
  const lane = document.getElementById("race"); // who starts it from above wants to see it run
  if (lane.getBoundingClientRect().top > 0.7 * innerHeight) lane.scrollIntoView();
  const waits = { 1: 1000, 5: 200 };
  while (race.playing && mine === turn) {
    const slow = waits[state.speed];
    const began = performance.now();
    await (busy = advance(slow ? 1 : threads.stretch(), false));
    const rest = slow ? slow - (performance.now() - began) : 0;
    await new Promise((done) => setTimeout(done, Math.max(0, rest)));
  }
  if (mine === turn) remember();
}

async function oneStep() {
  await (busy = busy.then(() => advance(1, true)));
  remember();
}

async function pause() {
  race.playing = false;
  await busy;
  await (busy = advance(0, true));
  controls();
}

function remember() {
  if (!location.href.startsWith("about:")) history.replaceState(null, "", toHash(state)); // inside a report it has no address
}

function controls() {
  shared.draw();
  arms.draw();
  bar.draw(race);
  lessonBox.draw();
  loadBox.draw();
  views.forEach((view) => view.soon());
  remember();
}

async function change(values) {
  Object.assign(state, values, { step: 0 });
  if (values.text) state.packed = await packText(values.text).catch(() => null); // an old browser has no deflate
  controls();
  return reset();
}

// Inside a report or a live page there is no folder of answers beside it.
const inFrame = () => document.getElementById("qkv-given") !== null;
const answer = (name) => (inFrame() ? [h("code", null, `docs/answers/${name}.md`), " has the study's answer."] : [h("a", { href: `../answers/${name}.md` }, "The study's answer"), "."]);

function lessons(host) {
  const box = h("div.lesson", { "aria-live": "polite" });
  const chips = Object.entries(LESSONS).map(([name, lesson]) => h("button.chip", { type: "button", "data-lesson": name,
    onclick: () => ((race.given = null), change({ sentence: "", token: null, ...lesson.state, a: sound(lesson.state.a), b: sound(lesson.state.b), lesson: name })) }, lesson.question));
  host.append(h("div.chips.lessons", { role: "group", "aria-label": "lessons" }, chips), box);
  return {
    draw() {
      const lesson = Object.hasOwn(LESSONS, state.lesson ?? "") ? LESSONS[state.lesson] : null;
      chips.forEach((chip) => chip.setAttribute("aria-pressed", String(chip.dataset.lesson === state.lesson)));
      chips.forEach((chip) => chip.classList.toggle("on", chip.dataset.lesson === state.lesson));
      const paragraph = (name, text) => h("p", null, h("b", null, name), " ", text);
      box.replaceChildren(...(lesson ? [h("h2", null, lesson.question), paragraph("The switch.", lesson.turn), paragraph("Look for.", lesson.look),
        h("p", null, h("b", null, "Scale."), " ", lesson.scale, " ", answer(state.lesson))] : []));
    },
  };
}

// What a file of saved weights has to say besides, so that it can be loaded again.
function about(arm) {
  const { sizes } = race.made[arm];
  const { positions, scale, skip, shared } = state[arm];
  const settings = { ...FIXED, positions: positions ? "learned" : "none", scale, skip, changes: shared ? sharing(sizes.n_layers).join() : "", ...sizes, n_kv_heads: sizes.n_heads, d_head: sizes.d_model / sizes.n_heads };
  return JSON.stringify({ settings, tokens: state.task === "text" ? race.tokens : null });
}

// Both arms go on from the weights of a run: the same in both, until a switch differs.
function goOn(given) {
  race.given = given;
  const arm = sound({ ...usual(), ...given.arm });
  return change({ task: "text", layers: given.sizes.n_layers, sentence: "", token: null, lesson: null, a: arm, b: sound({ ...arm, W_E: "freeze" }) });
}

function load(host) {
  const id = newId("load");
  const wrong = h("p.wrong", { role: "alert" });
  const said = h("p", { role: "status" });
  const field = h("input", { id, type: "file", multiple: true, accept: ".safetensors,.toml,.json", onchange: async () => {
    wrong.textContent = "";
    try {
      await goOn(await fromFiles([...field.files]));
    } catch (error) {
      wrong.textContent = error.message;
    }
    field.value = "";
  } });
  const forget = h("button.chip", { type: "button", onclick: () => ((race.given = null), change({ layers: 2 })) }, "start from scratch again");
  host.append(h("h2", null, "Go on from a run"), h("p.small", null, "Both arms start from the weights of a small run of qkv (preset textbook, characters), from its folder: model.safetensors, config.toml and tokenizer.json, chosen together; or from a file that was saved here. They are read in this page and sent nowhere."),
    h("div.entry", null, h("label", { for: id }, "Files of the run"), field, wrong, said), forget);
  return { draw() {
    forget.hidden = !race.given;
    const { sizes, step, name } = race.given ?? {};
    said.textContent = race.given ? `Both arms go on from ${name}${step ? `, step ${step}` : ""}: ${sizes.n_layers} layer${sizes.n_layers === 1 ? "" : "s"}, d_model ${sizes.d_model}, ${sizes.n_heads} heads, ${sizes.d_vocab} characters. Optimizers start anew. A link does not carry the weights.` : "";
  } };
}

function keep(host) {
  const link = h("button.chip", { type: "button", onclick: async () => {
    remember();
    await navigator.clipboard?.writeText(location.href).then(() => (said.textContent = "copied"), () => (said.textContent = "copy the address of this page"));
  } }, "copy a link to this");
  const said = h("span.small", { role: "status" });
  const weights = (arm) => h("button.chip", { type: "button", "data-save": arm, onclick: () => {
    const bytes = safetensors(race.made[arm].entries, race.seen[arm].weights, { made_by: "qkv playground", step: String((race.given?.step ?? 0) + race.taken), seed: String(state.seed), task: state.task, playground: about(arm) });
    save(new Blob([bytes], { type: "application/octet-stream" }), `${state.task}-${arm}-step${race.taken}.safetensors`);
  } }, `weights of ${NAMES[arm]}`);
  host.append(h("h2", null, "Keep it"), h("p.small", null, "A link holds every setting, what you look at, your own text and the step: whoever opens it sees the same training, computed again in their own browser. A long text makes a long link. The weights are safetensors with the addresses of qkv."),
    h("div.chips", null, inFrame() ? null : link, ARMS.map(weights), said));
}

function sentenceField(host) {
  const field = h("input", { type: "text", maxlength: N_CTX, "aria-label": "sentence to look at", placeholder: "your own sentence, up to 32 characters",
    onchange: async () => {
      state.sentence = field.value;
      remember();
      if (race.playing) return;
      await busy;
      await (busy = advance(0, true));
    } });
  host.append(h("div.sentence-field", null, field));
  return { el: field, build: () => (field.hidden = state.task !== "text"), draw: () => document.activeElement === field || (field.value = state.sentence) };
}

function pick(id) {
  race.token = id;
  state.token = race.tokens[id];
  remember();
}

const armColours = (el) => Object.fromEntries(ARMS.map((arm) => [arm, getComputedStyle(el).getPropertyValue(`--arm-${arm}`).trim()]));

function build(main) {
  const rooms = Object.fromEntries(["lessons", "settings", "switches", "race", "writes", "inside", "load", "keep"].map((name) => [name, h(`section.play-room`, { id: name })]));
  const stepper = h("div.stepper");
  main.append(h("header", null, h("p.eyebrow", null, "qkv playground"), h("h1", null, "Train self-attention, change it, watch"),
    h("p.lead", null, "Two small Transformers learn in this page, side by side, from the same numbers on the same data. Turn a switch on one of them and press train: every number you see is computed here, now.")),
  h("div.stage", null, rooms.lessons, rooms.race), h("h2", null, "What they learn"), rooms.settings, h("h2", null, "What differs"), rooms.switches,
  rooms.writes, rooms.inside, rooms.load, rooms.keep, stepper);
  rooms.lessons.append(h("h2", null, "A question to begin with"));
  lessonBox = lessons(rooms.lessons);
  shared = sharedControls(rooms.settings, state, race, change, refuse);
  arms = armControls(rooms.switches, state, race, (arm, settings) => change({ [arm]: settings }));
  bar = playBar(stepper, state, { play, step: oneStep, reset: () => change({}), change: (name, value) => ((state[name] = value), remember()) });
  race.tokens = [];
  Object.assign(race, { task: {}, baselines: [], curves: { a: { losses: [], validations: [] }, b: { losses: [], validations: [] } } });
  const watched = () => state.watched;
  rooms.race.append(h("h2", null, "The race"));
  rooms.inside.append(h("h2", null, "Inside"));
  views = [losses(rooms.race, race, armColours), writtenView(rooms.writes, race), weightView(rooms.inside, race, watched, remember), cosineView(rooms.inside, race),
    patternView(rooms.inside, race, watched, remember), sentenceField(rooms.inside), rowView(rooms.inside, race, pick), movedView(rooms.inside, race)];
  for (const view of views) view.soon = inSight(view.el, view.draw);
  loadBox = load(rooms.load);
  keep(rooms.keep);
  onTheme(() => views.forEach((view) => view.soon()));
}

// The state that the address says.
async function fromAddress() {
  const said = fromHash(location.hash);
  const text = said.packed ? await unpackText(said.packed, LONGEST_TEXT) : "";
  Object.assign(state, said, text.length >= SHORTEST_TEXT ? { text } : { packed: null });
}

// Another link was opened in this tab; an anchor such as that of the skip link says nothing about the state.
async function follow() {
  if (!location.hash.includes("=")) return remember();
  race.given = null;
  await fromAddress();
  lessonBox.draw();
  return reset(state.step);
}

async function begin() {
  await fromAddress();
  build(document.getElementById("play"));
  threads = new Race(document.getElementById("worker").textContent);
  addEventListener("hashchange", follow);
  const room = document.getElementById("qkv-given");
  await (inFrame() ? goOn(fromRoom(JSON.parse(room.textContent))) : reset(state.step));
}

// To be looked at from the console, and by tests; the page around a frame pauses what it hides, and Escape leaves it.
globalThis.playground = { state, race, pause: () => race.playing && pause() };
if (parent !== globalThis) addEventListener("keydown", ({ key }) => key === "Escape" && globalThis.frameElement?.closest("dialog")?.close());
begin().catch((error) => document.getElementById("play").prepend(h("p.wrong", { role: "alert" }, `This page could not start: ${error.message}`)));
