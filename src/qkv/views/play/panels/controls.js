// @ts-check
// What the reader turns: the switches of each arm, the task, seed and speed, and play.

import { h, newId } from "../../static/dom.js";
import { RATES, SWITCHES, USUAL_RATE, differences, sound } from "../engine/switches.js";
import { BATCH, D_MODEL, N_CTX, TASKS } from "../engine/tasks.js";
import { ARMS, pair } from "./pair.js";

function select(label, options, value, pick, role) {
  const id = newId("switch");
  const field = h("select", { id, onchange: () => pick(options[field.selectedIndex][0]) },
    options.map(([option, text]) => h("option", { selected: option === value }, text)));
  return h("div.switch", { style: role ? `--role:var(--role-${role})` : null }, h("label", { for: id }, label), field);
}

// Draw anew what stands in `host`; who was at one of its fields stays there.
function stay(host, redraw) {
  const at = host.contains(document.activeElement) ? document.activeElement.closest("[data-switch]")?.getAttribute("data-switch") : null;
  redraw();
  if (at) host.querySelector(`[data-switch=${at}] select`)?.focus();
}

// The `qkv train` of the same arm: its sizes and switches, and what this page does otherwise than the preset.
export function command(arm, state) {
  const sizes = `n_layers=${state.layers},d_model=${D_MODEL},n_ctx=${N_CTX},batch_size=${BATCH}`;
  const parts = SWITCHES.map((s) => s.says(arm[s.name], state.layers)).filter(Boolean);
  const constant = "optimizer.clip=0,schedule.warmup_steps=0,schedule.decay_share=0";
  return ["qkv train my.txt --preset textbook --tokenizer char", `--set ${sizes}`, ...parts, `--set optimizer.lr=${arm.rate},${constant}`].join(" ");
}

export function armControls(host, state, race, change) {
  const columns = pair(host, "switches", (arm) => h("span.differs", { "data-arm": arm }));
  const fieldsOf = Object.fromEntries(ARMS.map((arm) => [arm, h("div.switches")]));
  const codes = Object.fromEntries(ARMS.map((arm) => [arm, h("pre.code", { tabindex: "0" })]));
  const same = Object.fromEntries(ARMS.map((arm) => [arm, h("details", null, h("summary", null, "this arm in qkv"), codes[arm],
    h("p.small", null, "From other random numbers, and float32: its losses will be close to these, not the same."))]));
  ARMS.forEach((arm) => columns[arm].append(fieldsOf[arm], same[arm]));
  function draw() {
    for (const arm of ARMS) {
      const now = state[arm];
      const pick = (name) => (value) => change(arm, sound({ ...now, [name]: value, ...(name === "optimizer" ? { rate: USUAL_RATE[value] } : {}) }));
      const fields = SWITCHES.map((s) => {
        const options = s.name === "heads" && race.given ? [[4, `${race.given.sizes.n_heads}, as in the run`], [1, "one"]] : s.options;
        const row = select(s.label, options, now[s.name], pick(s.name), s.role);
        row.dataset.switch = s.name;
        if (s.name === "W_K" && now.shared) row.querySelector("select").disabled = true;
        return row;
      });
      const rates = [...new Set([...RATES[now.optimizer], now.rate])].sort((a, b) => a - b).map((r) => [r, String(r)]);
      const rate = select("learning rate", rates, now.rate, pick("rate"));
      rate.dataset.switch = "rate";
      stay(fieldsOf[arm], () => fieldsOf[arm].replaceChildren(...fields, rate));
      same[arm].hidden = state.task !== "text" || race.given !== null;
      codes[arm].textContent = command(now, state);
      const says = differences(now);
      host.querySelector(`.differs[data-arm=${arm}]`).textContent = says.length ? says.join(", ") : "everything as usual";
    }
  }
  draw();
  return { draw };
}

const SPEEDS = [["1", "1 step a second"], ["5", "5 steps a second"], ["full", "as fast as it goes"]];

// on: { play, step, reset, change(name, value) }
export function playBar(host, state, on) {
  const play = h("button.play", { type: "button", onclick: on.play });
  const step = h("button.chip", { type: "button", onclick: on.step }, "one step");
  const reset = h("button.chip", { type: "button", onclick: on.reset }, "reset");
  const now = h("output.step-now", { "aria-live": "off" });
  const speed = h("span.speed-now");
  const pace = h("select", { "aria-label": "speed", onchange: () => on.change("speed", pace.value) }, SPEEDS.map(([value, text]) => h("option", { value }, text)));
  pace.value = state.speed;
  host.append(h("div.slider.playbar", null, play, step, reset, pace, speed, now));
  return {
    draw(race) {
      play.textContent = race.playing ? "❚❚ pause" : "► train";
      play.setAttribute("aria-label", race.playing ? "pause" : "train");
      pace.value = state.speed;
      step.disabled = race.playing;
      now.textContent = `step ${race.taken.toLocaleString("en-US")}`;
      speed.textContent = race.playing && race.pace ? `${race.pace.toFixed(race.pace < 10 ? 1 : 0)} steps/s, both arms` : "";
    },
  };
}

// Task, layers, seed; `refuse(text)` says what is wrong with a text, or nothing.
export function sharedControls(host, state, race, change, refuse) {
  const seedId = newId("seed");
  const seed = h("input", { id: seedId, type: "number", min: 0, max: 999999, step: 1, value: state.seed,
    onchange: () => {
      seed.value = Math.max(0, Math.min(999999, Math.round(Number(seed.value)) || 0));
      change({ seed: Number(seed.value) });
    } });
  const textId = newId("text");
  const wrong = h("p.wrong", { role: "alert" });
  const area = h("textarea", { id: textId, rows: 5, spellcheck: "false", oninput: () => (wrong.textContent = "") });
  const use = h("button.primary", { type: "button", onclick: () => {
    wrong.textContent = refuse(area.value);
    if (!wrong.textContent) change({ text: area.value, sentence: "", token: null });
  } }, "train on this text");
  const own = h("details.own", null, h("summary", null, "your own text"), h("div.entry", null, h("label", { for: textId }, "Paste any text, best some thousand characters; it stays on this page."), area, wrong, use));
  const fields = h("div.switches.shared", null, h("div"), h("div"), h("div.switch", null, h("label", { for: seedId }, "seed"), seed));
  const about = h("p.about");
  host.append(fields, about, own);
  const said = {}; // of the state, so that what the reader is typing stays
  function draw() {
    const choices = {
      task: select("task", Object.entries(TASKS).map(([name, task]) => [name, task.label]), state.task, (task) => change({ task, sentence: "", token: null })),
      layers: select("layers", race.given ? [[state.layers, String(state.layers)]] : [[1, "one"], [2, "two"]], state.layers, (layers) => change({ layers })),
    };
    stay(fields, () => Object.entries(choices).forEach(([name, field], i) => {
      field.dataset.switch = name;
      field.querySelector("select").disabled = race.given !== null; // a run brings its own
      fields.children[i].replaceWith(field);
    }));
    about.textContent = TASKS[state.task].about;
    own.hidden = state.task !== "text";
    if (said.seed !== state.seed) seed.value = said.seed = state.seed;
    if (said.text !== state.text) [area.value, wrong.textContent] = [said.text = state.text, ""];
  }
  draw();
  return { draw };
}
