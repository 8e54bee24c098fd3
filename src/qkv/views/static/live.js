// @ts-check
// The live page's host: payload, sections and answers come from the server that gave the page; its events say when the run
// has gone on.

import { h, lastOnly } from "./dom.js";
import { allSteps, empty, openPage } from "./sections.js";
import { ask, listen, payload, purse } from "./server.js";
import header from "./header.js";
import loss from "./loss.js";
import { createModel } from "./model.js";
import { openStudy } from "./study.js";

const LEAST = 1; // seconds between two rounds

// Where the sections stand that a run in training changes: read again while one of these is in sight. The slider stands
// everywhere, and its steps come with the map.
const PLACES = { run: ["head"], answers: ["answers"], ledger: ["answers"], loss: ["loss", "answers"], map: ["grid", "map", "answers", "stepper"], grid: ["grid"], matrices: ["matrices"], samples: ["answers"], rows: ["matrices", "words"], words: ["words"] };

// Sections that changed between two pulses; a training goes back where its loss has spiked.
export function changed(before, now) {
  const sections = [];
  if (now.step !== before.step || now.evaluations !== before.evaluations) sections.push("loss");
  if (now.evaluations !== before.evaluations) sections.push("run", "answers", "ledger");
  if (now.recorded !== before.recorded) sections.push("map");
  if (now.snapshot !== before.snapshot) sections.push("grid", "matrices", "samples", "rows", "words");
  return sections;
}

// Ids of the sections that the reader has in sight; `more()` is called when there are others.
function sections(more) {
  const seen = new Set(["stepper"]);
  const observer = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) seen[isIntersecting ? "add" : "delete"](target.id);
    more();
  });
  document.querySelectorAll("section.section, .page-head").forEach((section) => observer.observe(section));
  document.addEventListener("visibilitychange", more);
  return (name) => !document.hidden && PLACES[name].some((id) => seen.has(id));
}

const drawn = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));

// What a page is laid out by, once: sections with something in them, whether there is a slider, measures to choose among.
const laid = (model) => [Object.keys(PLACES).filter((name) => !empty(model.get(name))).length, Number(model.get("steps").length > 1),
  ...["map", "grid"].map((name) => model.get(name)?.measures.length ?? 0)];

const typing = () => document.activeElement?.matches("textarea, input:not([type=range])");

// The same view, laid out again; one that followed the training to its last step goes on to do so. Of another run only
// the section is the same.
function again(following, isAnother = false) {
  const asked = new URLSearchParams(location.hash.slice(1));
  if (following || isAnother) asked.delete("step");
  if (isAnother) asked.delete("addr");
  history.replaceState(null, "", `#${asked}`);
  location.reload();
}

function follow(model) {
  const pending = new Set();
  const spend = purse();
  let [told, busy, timer, opened] = [model.get("pulse"), false, 0, false]; // what the payload was read at; hidden, a page hears nothing
  const inSight = sections(() => catchUp());
  const before = laid(model);
  const isFollowing = () => !model.get("steps").length || model.get("step") === model.get("steps").at(-1);
  const held = (name) => name === "answers" && document.activeElement?.closest("#answers"); // who reads there keeps the place
  const wanted = (name) => (inSight(name) && !held(name)) || (!document.hidden && empty(model.get(name))); // a section without data may have no place yet
  function take(values) {
    const following = isFollowing();
    for (const [name, value] of Object.entries(values)) model.set(name, value);
    model.set("steps", allSteps({ map: model.get("map"), matrices: model.get("matrices"), kept: model.get("kept") }));
    if (laid(model).some((n, i) => n > before[i]) && !typing()) return again(following);
    if (following) model.set("step", model.get("steps").at(-1));
  }
  // Ask for what has changed and is looked at, the longest waiting first; then rest for as long as that was worth.
  async function catchUp() {
    const names = [...pending].filter(wanted);
    if (busy || timer || !names.length) return;
    busy = true;
    let wait = 0;
    try {
      const response = await fetch(`sections?names=${names.join(",")}`);
      if (response.ok) {
        const { wait: spare, as_of: read, ...values } = await response.json();
        model.set("asOf", { ...model.get("asOf"), ...read });
        Object.keys(values).forEach((name) => pending.delete(name));
        const since = performance.now();
        take(values);
        await drawn();
        wait = Math.max(spare, opened ? spend((performance.now() - since) / 1000) : 0); // the first round belongs to opening the page
        opened = true;
      }
    } catch {
      // the next round tries again
    }
    busy = false;
    timer = setTimeout(() => ((timer = 0), catchUp()), 1000 * Math.max(LEAST, wait));
  }
  listen((data) => {
    const pulse = JSON.parse(data);
    const was = told;
    told = pulse;
    document.documentElement.dataset.now = pulse.step;
    model.set("pulse", pulse);
    if (!pulse.edition) return pending.clear(); // the folder was taken away, perhaps to be trained anew
    if (pulse.edition !== was.edition) return again(true, true);
    if (pulse.finished && !was.finished) return again(isFollowing()); // answers and baselines are written at the end
    changed(was, pulse).forEach((name) => pending.add(name));
    catchUp();
  }, (stands) => model.set("connected", stands));
}

// A study is small: its page is drawn again whenever a training has ended, one that ended before the first pulse too. Where
// it cannot be read, the next pulse tries again.
function followStudy(main, found) {
  let [told, shown] = [null, JSON.stringify(found)];
  const newest = lastOnly();
  const draw = (study) => {
    if (JSON.stringify(study) !== shown) openStudy(main, study);
    shown = JSON.stringify(study);
  };
  listen((data) => {
    if (data === told) return;
    told = data;
    newest(payload, draw, () => (told = null));
  });
}

// The head of the page and its losses, for as long as all else is being read.
async function openFirst(main) {
  const found = await fetch("first").then((response) => response.json()).catch(() => ({}));
  if (!found.run) return;
  const model = createModel({ ...found, host: { kind: "first", can: [] } });
  const [head, section] = [h("header.page-head"), h("section.section", { "data-step": found.as_of }, h("h2", null, "Is it learning?"))];
  main.replaceChildren(head, h("p.missing", { role: "status" }, "Reading the rest of the run …"), section);
  header({ model, el: head });
  loss({ model, el: section });
}

async function start() {
  const main = document.querySelector("main");
  try {
    await openFirst(main);
    const found = await payload();
    if (found.study) {
      openStudy(main, found);
      return followStudy(main, found);
    }
    const model = openPage(main, found, ask);
    if (model) follow(model);
  } catch (error) {
    main.replaceChildren(h("p.missing", null, `The folder could not be read: ${error.message}`));
  }
  return undefined;
}

start();
