// What the reader turns: the switches of each arm, the task, seed and speed, and play.

import { h, newId } from "./dom.js";
import { RATES, SWITCHES, USUAL_RATE, differences, sound } from "./switches.js";
import { TASKS } from "./tasks.js";
import { ARMS, pair } from "./pair.js";

function select(label, options, value, pick, role) {
  const id = newId("switch");
  const field = h("select", { id, onchange: () => pick(options[field.selectedIndex][0]) },
    options.map(([option, text]) => h("option", { selected: option === value }, text)));
  return h("div.switch", { style: role ? `--role:var(--role-${role})` : null }, h("label", { for: id }, label), field);
}

// The option of `qkv train` that asks for the same arm.
export function command(arm, state) {
  const sizes = `n_layers=${state.layers},d_model=32`;
  const parts = SWITCHES.map((s) => s.says(arm[s.name], state.layers)).filter(Boolean);
  return ["qkv train my.txt --preset textbook --tokenizer char", `--set ${sizes}`, ...parts, `--set optimizer.lr=${arm.rate}`].join(" ");
}

export function armControls(host, state, race, change) {
  const columns = pair(host, "switches", (arm) => h("span.differs", { "data-arm": arm }));
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
      columns[arm].replaceChildren(h("div.switches", null, fields, rate),
        state.task === "text" && !race.given ? h("details", null, h("summary", null, "the same in qkv"), h("pre.code", { tabindex: "0" }, command(now, state))) : "");
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
      speed.textContent = race.pace ? `${race.pace.toFixed(race.pace < 10 ? 1 : 0)} steps/s, both arms` : "";
    },
  };
}

// Task, layers, seed; `refuse(text)` says what is wrong with a text, or nothing.
export function sharedControls(host, state, race, change, refuse) {
  const seedId = newId("seed");
  const seed = h("input", { id: seedId, type: "number", min: 0, max: 999999, step: 1, value: state.seed,
    onchange: () => change({ seed: Math.max(0, Math.min(999999, Math.round(Number(seed.value)) || 0)) }) });
  const textId = newId("text");
  const area = h("textarea", { id: textId, rows: 5, spellcheck: "false" });
  const wrong = h("p.wrong", { role: "alert" });
  const use = h("button.primary", { type: "button", onclick: () => {
    wrong.textContent = refuse(area.value);
    if (!wrong.textContent) change({ text: area.value, sentence: "", token: null });
  } }, "train on this text");
  const own = h("details.own", null, h("summary", null, "your own text"), h("div.entry", null, h("label", { for: textId }, "Paste any text, best some thousand characters; it stays on this page."), area, wrong, use));
  const fields = h("div.switches.shared");
  const about = h("p.about");
  host.append(fields, about, own);
  function draw() {
    fields.replaceChildren(
      select("task", Object.entries(TASKS).map(([name, task]) => [name, task.label]), state.task, (task) => change({ task, sentence: "", token: null })),
      select("layers", race.given ? [[state.layers, String(state.layers)]] : [[1, "one"], [2, "two"]], state.layers, (layers) => change({ layers })),
      h("div.switch", null, h("label", { for: seedId }, "seed"), seed));
    fields.firstChild.dataset.switch = "task";
    fields.children[1].dataset.switch = "layers";
    for (const field of [...fields.children].slice(0, 2)) field.querySelector("select").disabled = race.given !== null; // a run brings its own
    seed.value = state.seed;
    about.textContent = TASKS[state.task].about;
    own.hidden = state.task !== "text";
    area.value = state.text;
  }
  draw();
  return { draw };
}
