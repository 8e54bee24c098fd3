// The live page's host: payload, rooms and answers come from the server that gave the page; its events say when the run
// has gone on.

import { h } from "./dom.js";
import { openWire } from "./decode.js";
import { allSteps, openPage } from "./rooms.js";
import { openStudy } from "./studied.js";

const AGAIN = 700; // milliseconds

async function ask(name, question) {
  const response = await fetch(`ask/${name}`, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(question) })
    .catch(() => null);
  if (!response) throw new Error("The server no longer answers; start it again with qkv view.");
  if (response.ok) return openWire(await response.arrayBuffer());
  const said = await response.text();
  try {
    throw new Error(JSON.parse(said).error);
  } catch (error) {
    throw error instanceof SyntaxError ? new Error(said.trim()) : error;
  }
}

// Rooms that changed between two pulses.
function changed(before, now) {
  const rooms = [];
  if (now.step > before.step || now.evaluations > before.evaluations) rooms.push("loss");
  if (now.recorded > before.recorded) rooms.push("map");
  if (now.snapshot > before.snapshot) rooms.push("grid", "matrices", "samples", "rows", "words");
  return rooms;
}

function follow(model) {
  const pending = new Set();
  let [told, busy] = [null, false];
  function take(values, pulse) {
    const following = model.get("step") === model.get("steps").at(-1);
    for (const [name, value] of Object.entries(values)) model.set(name, value);
    if (pulse.snapshot >= 0 && !model.get("kept").includes(pulse.snapshot)) model.set("kept", [...model.get("kept"), pulse.snapshot]);
    model.set("steps", allSteps({ map: model.get("map"), matrices: model.get("matrices"), kept: model.get("kept") }));
    if (following) model.set("step", model.get("steps").at(-1));
  }
  async function catchUp() {
    if (busy || !pending.size) return;
    busy = true;
    const pulse = told;
    try {
      const response = await fetch(`rooms?names=${[...pending].join(",")}`);
      if (response.ok) {
        const { stale, ...values } = await response.json();
        pending.clear();
        stale.forEach((name) => pending.add(name)); // not read again yet, to spare the training
        take(values, pulse);
      }
    } catch {
      // the next round tries again
    }
    busy = false;
    if (pending.size) setTimeout(catchUp, AGAIN);
  }
  const events = new EventSource("events");
  events.addEventListener("pulse", (event) => {
    const pulse = JSON.parse(event.data);
    const was = told;
    told = pulse;
    model.set("pulse", pulse);
    if (pulse.finished && was && !was.finished) return void location.reload(); // answers and baselines are written at the end
    (was ? changed(was, pulse) : pulse.finished ? [] : ["loss", "map"]).forEach((name) => pending.add(name));
    catchUp();
  });
  events.onerror = () => model.set("connected", false);
  events.onopen = () => model.set("connected", true);
}

async function payload() {
  const response = await fetch("payload");
  if (!response.ok) throw new Error(await response.text());
  return response.json();
}

// A study is small: its page is drawn again whenever a training has ended.
function followStudy(main) {
  let told = null;
  new EventSource("events").addEventListener("pulse", async (event) => {
    const was = told;
    told = event.data;
    if (was !== null && was !== told) openStudy(main, await payload());
  });
}

async function start() {
  const main = document.querySelector("main");
  try {
    const found = await payload();
    if (found.study) {
      openStudy(main, found);
      return followStudy(main);
    }
    const model = openPage(main, found, ask);
    if (model) follow(model);
  } catch (error) {
    main.replaceChildren(h("p.missing", null, `The folder could not be read: ${error.message}`));
  }
  return undefined;
}

start();
