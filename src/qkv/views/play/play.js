// @ts-check
// The playground: two arms train side by side in this page, from the same start on the same data, and are watched.

import { armControls, playBar, sharedControls } from "./panels/controls.js";
import { baselines, inputCounts } from "./engine/baselines.js";
import { h, inSight, newId } from "../static/dom.js";
import { plural, token, whole } from "../static/format.js";
import { save } from "../static/keep.js";
import { FIXED, sharing } from "../static/fits.js";
import { LESSONS } from "./lessons.js";
import { fromFiles, fromSection } from "./loading.js";
import { losses } from "./panels/losses.js";
import { ARMS, NAMES } from "./panels/pair.js";
import { cosineView, movedView, writtenView } from "./panels/otherviews.js";
import { patternView } from "./panels/patternview.js";
import { Race } from "./race.js";
import { rowView } from "./panels/rowview.js";
import { safetensors } from "./safetensors.js";
import { packText, unpackText } from "./packing.js";
import { LONGEST_TEXT, SHORTEST_TEXT, fresh, fromHash, toHash } from "./state.js";
import { sound, usual } from "./engine/switches.js";
import { N_CTX, charactersIn, makeTask } from "./engine/tasks.js";
import { onTheme } from "../static/theme.js";
import { weightView } from "./panels/weightview.js";

const WRITES_EVERY = 1000; // milliseconds
const state = fresh();
const race = { given: null, playing: false, taken: 0, pace: 0, seen: null, curves: null, show: (id) => token(race.tokens[id]) };
let threads, views, bar, arms, shared, lessonBox, loadBox, keepBox;
let [turn, lap, wroteAt] = [0, 0, 0];
/** @type {Promise<any>} */
let busy = Promise.resolve();
let countedFor = { key: "", baselines: [], counts: new Float64Array(0) };

// What is wrong with a text, or nothing; of a run that is gone on from only the characters count that are its tokens.
function refuse(text, given = race.given) {
  const [all, known] = [charactersIn(text), given ? charactersIn(text, given.tokens) : null];
  const has = known === null || known === all ? `This text has ${plural(all, "character")}` : `Of this text ${plural(known, "character")} ${known === 1 ? "is" : "are"} known to the run`;
  if ((known ?? all) < SHORTEST_TEXT) return `${has}; at least ${SHORTEST_TEXT} are needed, so that a tenth of it can be kept aside. Paste a longer one.`;
  return all > LONGEST_TEXT ? `This text has ${plural(all, "character")}; at most ${whole(LONGEST_TEXT)} fit here. Paste a part of it.` : "";
}

// The sentence that heads look at: the reader's, in tokens the model knows, or the task's own.
function sentence(task = race.task) {
  const own = [...state.sentence].map((c) => task.tokens.indexOf(c)).filter((id) => id >= 0).slice(0, N_CTX);
  return task.name === "text" && own.length > 1 ? own : task.sentence;
}

// Everything from the start: new arms, empty curves. Only the last of several resets that overlap goes on.
async function reset(upTo = 0) {
  const mine = ++turn;
  race.playing = false;
  document.documentElement.dataset.ready = "no";
  await busy.catch(() => {});
  if (mine !== turn) return;
  await (busy = renew());
  race.playing = race.taken < upTo; // a link's steps are played too, and may be paused
  while (mine === turn && race.playing && race.taken < upTo) {
    const [began, before] = [performance.now(), race.taken];
    await (busy = advance(Math.min(threads.stretch(), upTo - before), false));
    paced(race.taken - before, began);
  }
  if (mine !== turn) return;
  race.playing = false;
  controls();
  document.documentElement.dataset.ready = "yes";
}

// New arms at step 0. All that is drawn is exchanged at once, when the last of it is there: a frame between would show the ids
// of one task as tokens of another.
async function renew() {
  const [given, seed] = [race.given, state.seed];
  const task = makeTask(state.task, seed, state.text, given?.tokens);
  const counts = counted(task, seed);
  const made = await threads.make(state, given);
  const answers = await threads.advance(0, sentence(task), true);
  const wanted = task.tokens.indexOf(state.token);
  const curves = Object.fromEntries(ARMS.map((arm) => [arm, { losses: [], validations: [] }]));
  Object.assign(race, counts, { task, tokens: task.tokens, made, curves, seed, first: given?.step ?? 0, pace: 0, written: null,
    countsNote: ["text", "addition"].includes(task.name) ? "" : " of 64 batches", token: wanted >= 0 ? wanted : counts.counts.indexOf(Math.max(...counts.counts)) });
  views.forEach((view) => view.build?.());
  take(answers);
}

// What counting reaches, counted again only where there is something else to count.
function counted(task, seed) {
  const key = JSON.stringify([task.name, seed, task.tokens, task.name === "text" ? state.text : ""]);
  if (key !== countedFor.key) countedFor = { key, baselines: baselines(task), counts: inputCounts(task) };
  return { baselines: countedFor.baselines, counts: countedFor.counts };
}

async function advance(steps, writes) {
  take(await threads.advance(steps, sentence(), writes || performance.now() - wroteAt > WRITES_EVERY));
}

// Steps a second since `began`, waiting included, smoothed.
function paced(steps, began) {
  const pace = (1000 * steps) / (performance.now() - began);
  race.pace = race.pace ? 0.8 * race.pace + 0.2 * pace : pace;
}

function take(answers) {
  for (const arm of ARMS) {
    race.curves[arm].losses.push(...answers[arm].losses);
    race.curves[arm].validations.push(...answers[arm].validations);
  }
  race.taken = answers.a.taken;
  race.seen = { a: answers.a.seen, b: answers.b.seen };
  if (answers.a.written) [race.written, wroteAt] = [{ a: answers.a.written, b: answers.b.written }, performance.now()];
  state.step = race.taken;
  views.forEach((view) => view.soon());
  bar.draw(race);
}

async function play() {
  if (race.playing) return pause();
  const [mine, own] = [turn, ++lap]; // a loop that still waits when it is paused and played again ends there
  const current = () => mine === turn && own === lap;
  race.playing = true;
  bar.draw(race);
  const lane = document.getElementById("race"); // who starts it from above wants to see it run
  if (lane.getBoundingClientRect().top > 0.7 * innerHeight) lane.scrollIntoView();
  const waits = { 1: 1000, 5: 200 };
  while (race.playing && current()) {
    const slow = waits[state.speed];
    const [began, before] = [performance.now(), race.taken];
    await (busy = advance(slow ? 1 : threads.stretch(), false));
    const rest = slow ? slow - (performance.now() - began) : 0;
    await new Promise((done) => setTimeout(done, Math.max(0, rest)));
    if (current()) paced(race.taken - before, began);
  }
  if (current()) remember();
}

async function oneStep() {
  await (busy = busy.then(() => advance(1, true)));
  remember();
}

async function pause() {
  race.playing = false;
  bar.draw(race);
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
  keepBox.draw();
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
  let said = "";
  return {
    draw() {
      const lesson = Object.hasOwn(LESSONS, state.lesson ?? "") ? LESSONS[state.lesson] : null;
      const left = lesson !== null && ["task", "layers", "a", "b"].some((key) => JSON.stringify(state[key]) !== JSON.stringify(lesson.state[key]));
      chips.forEach((chip) => chip.setAttribute("aria-pressed", String(chip.dataset.lesson === state.lesson)));
      chips.forEach((chip) => chip.classList.toggle("on", chip.dataset.lesson === state.lesson));
      if (said === `${state.lesson} ${left}`) return; // a live region speaks whenever it is filled
      said = `${state.lesson} ${left}`;
      const paragraph = (name, text) => h("p", null, h("b", null, name), " ", text);
      box.replaceChildren(...(lesson ? [h("h2", null, lesson.question), left ? h("p.left", null, "The settings are no longer those of this question; choose it again to go back to them.") : "",
        paragraph("The switch.", lesson.turn), paragraph("Look for.", lesson.look),
        h("p", null, h("b", null, "Scale."), " ", lesson.scale, " ", answer(state.lesson))] : []));
    },
  };
}

// What a file of saved weights has to say besides, so that it can be loaded again.
function about(arm) {
  const { sizes, wiring: { positions, scale, skip, shared } } = race.made[arm];
  const settings = { ...FIXED, positions: positions ? "learned" : "none", scale, skip, changes: shared ? sharing(sizes.n_layers).join() : "", ...sizes, n_kv_heads: sizes.n_heads, d_head: sizes.d_model / sizes.n_heads };
  return JSON.stringify({ settings, tokens: race.task.name === "text" ? race.tokens : null });
}

// Both arms go on from the weights of a run: the same in both, until a switch differs.
function goOn(given) {
  const wrong = refuse(state.text, given);
  if (wrong) throw new Error(`${wrong} That is done under “your own text”; then choose the files again.`);
  race.given = given;
  const arm = sound({ ...usual(), ...given.arm });
  return change({ task: "text", layers: given.sizes.n_layers, sentence: "", token: null, lesson: null, a: arm, b: sound({ ...arm, W_E: "freeze" }) });
}

// How much of the text is no token of the run, and what becomes of it.
function strange() {
  const [text, known] = [charactersIn(state.text), charactersIn(state.text, race.given.tokens, false)];
  const rest = charactersIn(state.text, race.given.tokens) === text ? "read as one, unknown" : "left out";
  return known < text ? ` Of the text, ${plural(text - known, "character")} in ${whole(text)} ${text - known === 1 ? "is" : "are"} none of these and ${rest}.` : "";
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
  host.append(h("h2", null, "Go on from a run"), h("p.small", null, "Both arms start from the weights of a small qkv run (preset textbook, characters). Choose model.safetensors, config.toml and tokenizer.json from its folder together, or a file saved here. They are read in this page and sent nowhere."),
    h("div.entry", null, h("label", { for: id }, "Files of the run"), field, wrong, said), forget);
  return { draw() {
    forget.hidden = !race.given;
    const { sizes, step, name } = race.given ?? {};
    said.textContent = race.given ? `Both arms go on from ${name}${step ? `, step ${step}` : ""}: ${sizes.n_layers} layer${sizes.n_layers === 1 ? "" : "s"}, d_model ${sizes.d_model}, ${sizes.n_heads} heads, ${sizes.d_vocab} characters. The optimizers start from scratch. A link does not carry the weights.${strange()}` : "";
  } };
}

function keep(host) {
  const link = h("button.chip", { type: "button", onclick: async () => {
    remember();
    const copied = await navigator.clipboard?.writeText(location.href).then(() => true, () => false); // none where the page came over plain http
    said.textContent = copied ? "copied" : "copy the address of this page";
  } }, "copy a link to this");
  const said = h("span.small", { role: "status" });
  const weights = (arm) => h("button.chip", { type: "button", "data-save": arm, onclick: () => {
    const [step, task] = [race.first + race.taken, race.task.name];
    const bytes = safetensors(race.made[arm].entries, race.seen[arm].weights, { made_by: "qkv playground", step: String(step), seed: String(race.seed), task, playground: about(arm) });
    save(new Blob([bytes], { type: "application/octet-stream" }), `${task}-${arm}-step${step}.safetensors`);
  } }, `weights of ${NAMES[arm]}`);
  host.append(h("h2", null, "Keep it"), h("p.small", null, "A link holds every setting, what you look at, your own text and the step: anyone who opens it sees the same training, recomputed in their own browser. A long text makes a long link. Weights are saved as safetensors, with qkv's addresses as names."),
    h("div.chips", null, inFrame() ? null : link, ARMS.map(weights), said));
  return { draw: () => (said.textContent = "") };
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
  return { el: field, build: () => (field.hidden = race.task.name !== "text"), draw: () => document.activeElement === field || (field.value = state.sentence) };
}

function pick(id) {
  race.token = id;
  state.token = race.tokens[id];
  remember();
}

const armColours = (el) => Object.fromEntries(ARMS.map((arm) => [arm, getComputedStyle(el).getPropertyValue(`--arm-${arm}`).trim()]));

function build(main) {
  const sections = Object.fromEntries(["lessons", "settings", "switches", "race", "writes", "inside", "load", "keep"].map((name) => [name, h(`section.play-section`, { id: name })]));
  const stepper = h("div.stepper");
  main.append(h("header", null, h("p.eyebrow", null, "qkv playground"), h("h1", null, "Train self-attention, change it, watch"),
    h("p.lead", null, "Two small Transformers learn in this page, side by side, from the same numbers on the same data. Turn a switch on one of them and press train. Every number is computed here and now.")),
  h("div.stage", null, sections.lessons, sections.race), h("h2", null, "What they learn"), sections.settings, h("h2", null, "What differs"), sections.switches,
  sections.writes, sections.inside, sections.load, sections.keep, stepper);
  sections.lessons.append(h("h2", null, "A question to begin with"));
  lessonBox = lessons(sections.lessons);
  shared = sharedControls(sections.settings, state, race, change, refuse);
  arms = armControls(sections.switches, state, race, (arm, settings) => change({ [arm]: settings }));
  bar = playBar(stepper, state, { play, step: oneStep, reset: () => change({}), change: (name, value) => ((state[name] = value), remember()) });
  Object.assign(race, { task: {}, tokens: [], baselines: [], curves: { a: { losses: [], validations: [] }, b: { losses: [], validations: [] } } });
  const watched = () => state.watched;
  sections.race.append(h("h2", null, "The race"));
  sections.inside.append(h("h2", null, "Inside"));
  views = [losses(sections.race, race, armColours), writtenView(sections.writes, race), weightView(sections.inside, race, watched, remember), cosineView(sections.inside, race),
    patternView(sections.inside, race, watched, remember), sentenceField(sections.inside), rowView(sections.inside, race, pick), movedView(sections.inside, race)];
  for (const view of views) view.soon = inSight(view.el, view.draw);
  loadBox = load(sections.load);
  keepBox = keep(sections.keep);
  onTheme(() => views.forEach((view) => view.soon()));
}

// The state that the address says.
async function fromAddress() {
  const said = fromHash(location.hash);
  const text = said.packed ? await unpackText(said.packed) : "";
  Object.assign(state, said, text && !refuse(text, null) ? { text } : { packed: null });
}

// Another link was opened in this tab; an anchor such as that of the skip link says nothing about the state.
async function follow() {
  if (!location.hash.includes("=")) return remember();
  race.given = null;
  await fromAddress();
  const upTo = state.step;
  controls();
  return reset(upTo);
}

async function begin() {
  await fromAddress();
  build(document.getElementById("play"));
  threads = new Race(document.getElementById("worker").textContent);
  addEventListener("hashchange", follow);
  const section = document.getElementById("qkv-given");
  await (inFrame() ? goOn(fromSection(JSON.parse(section.textContent))) : reset(state.step));
}

// To be looked at from the console, and by tests; the page around a frame pauses what it hides, and Escape leaves it.
globalThis.playground = { state, race, pause: () => race.playing && pause() };
if (parent !== window) addEventListener("keydown", ({ key }) => key === "Escape" && globalThis.frameElement?.closest("dialog")?.close());
begin().catch((error) => document.getElementById("play").prepend(h("p.wrong", { role: "alert" }, `This page could not start: ${error.message}`)));
