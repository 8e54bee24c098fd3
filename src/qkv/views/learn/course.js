// @ts-check
// A panel of lessons that drives the page: each step sets the sentence, token, head, slider and switches, asks for a
// prediction, and then reveals the answer. #lesson=NAME opens one; the texts and numbers are in the page as data.

import { h, clear } from "../static/dom.js";

const lessons = JSON.parse(document.getElementById("lessons").textContent);
const panel = h("aside.course", { "aria-labelledby": "course-title" });
const state = { lesson: null, step: 0, chosen: "" };
const find = (selector) => /** @type {HTMLInputElement | null} */ (document.querySelector(selector));

// The slider at the first or the last step of the model that came with the page, whose numbers the answers tell.
function slide(at) {
  find("#back")?.click();
  const range = find('input[type="range"]');
  if (!range) return;
  range.value = at === "first" ? range.min : range.max;
  range.dispatchEvent(new Event("input"));
}

// The page as a step wants it, by the controls that a reader uses.
function drive({ sentence, token, head, at, switches = [] }) {
  const box = find("#sentence");
  if (!box) return;
  box.value = sentence;
  box.dispatchEvent(new Event("input"));
  slide(at);
  find(`[data-pick="i${token}"]`)?.click();
  find(`[data-pick="head${head}"]`)?.click();
  document.querySelector(switches.length ? "#retrain-title" : ".entry-row")?.scrollIntoView();
  for (const label of document.querySelectorAll(".switch-row label")) label.querySelector("input").checked = switches.includes(label.textContent.trim());
}

function show(step) {
  Object.assign(state, { step, chosen: "" });
  drive(state.lesson.steps[step].drive);
  draw(".choice");
}

// The answer is shown, and the page as it is after it.
function predicted(choice) {
  state.chosen = choice;
  const { then } = state.lesson.steps[state.step].drive;
  if (then) slide(then);
  draw(".revealed");
}

function draw(focused = "") {
  const { lesson, step, chosen } = state;
  if (!lesson) return void clear(panel).append(...menu());
  const { do: task, ask, choices, answer } = lesson.steps[step];
  const last = step + 1 === lesson.steps.length;
  clear(panel).append(h("h2", { id: "course-title" }, lesson.title), h("p.small", null, `Step ${step + 1} of ${lesson.steps.length}. ${lesson.aim}`), h("p", null, task), h("p", null, h("b", null, ask)),
    h("div.words", { role: "group", "aria-label": "your prediction" }, choices.map((choice) => h("button.word.choice", { type: "button", "aria-pressed": String(choice === chosen), onclick: () => predicted(choice) }, choice))),
    h("p.revealed", { role: "status", tabindex: -1 }, chosen ? h("span", null, h("b", null, "Answer. "), answer) : "Predict first; then the answer is shown."),
    h("div.words", null, h("button.quiet", { type: "button", onclick: () => (location.hash = "") }, "all lessons"),
      h("button.quiet", { type: "button", disabled: step === 0, onclick: () => show(step - 1) }, "back"),
      h("button.primary.next", { type: "button", disabled: !chosen, onclick: () => (last ? (location.hash = "") : show(step + 1)) }, last ? "done" : "next")));
  /** @type {HTMLElement | null} */ (focused && panel.querySelector(focused))?.focus({ preventScroll: true });
}

const menu = () => [h("h2", { id: "course-title" }, "Lessons"), h("p", null, "Each asks for a prediction and then shows the answer in the model above."),
  h("ol", null, lessons.map(({ name, title, minutes }) => h("li", null, h("a", { href: `#lesson=${name}` }, title), ` (${minutes} minutes)`)))];

function opened() {
  const name = /^#lesson=(\w+)$/.exec(location.hash)?.[1];
  state.lesson = lessons.find((lesson) => lesson.name === name) ?? null;
  panel.classList.toggle("open", state.lesson !== null);
  if (state.lesson) show(0);
  else draw();
}

document.querySelector("main").append(panel);
// The page is ready when its model is drawn; before, no lesson could drive it.
const wait = () => {
  if (document.documentElement.dataset.ready !== "yes") return void requestAnimationFrame(wait);
  addEventListener("hashchange", opened);
  opened();
};
wait();
