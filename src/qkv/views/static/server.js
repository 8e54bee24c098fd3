// @ts-check
// The server of a live page: what it is asked, its events, and how often a training may be disturbed.

import { openWire } from "./decode.js";

const SHARE = 0.002; // of one core, that drawing anew may take from a training
const CREDIT = 0.1; // seconds that may be taken ahead

export async function ask(name, question) {
  const response = await fetch(`ask/${name}`, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(question) })
    .catch(() => null);
  if (!response) throw new Error("The server no longer answers; start it again with qkv view.");
  if (response.ok) return openWire(await response.arrayBuffer());
  throw await mistake(response);
}

// What the server says is wrong.
async function mistake(response) {
  const said = await response.text();
  try {
    return new Error(JSON.parse(said).error);
  } catch {
    return new Error(said.trim());
  }
}

// What drawing anew may cost a training: `spend(seconds)` gives in how many seconds it may be done again.
export function purse() {
  let [debt, since] = [0, performance.now()];
  return (seconds) => {
    const now = performance.now();
    debt = Math.max(0, debt - (SHARE * (now - since)) / 1000) + seconds;
    since = now;
    return Math.max(0, (debt - CREDIT) / SHARE);
  };
}

// Hear the server's pulses while the page is looked at: a browser has six connections for each host, and a hidden tab that
// kept one would stand in the way of the next. Whoever comes back hears the newest pulse first.
export function listen(heard, stands = (_) => {}) {
  let events = null;
  const tune = () => {
    if (document.hidden) {
      events?.close();
      events = null;
    } else if (!events) {
      events = new EventSource("events");
      events.addEventListener("pulse", ({ data }) => heard(data));
      events.onerror = () => stands(false);
      events.onopen = () => stands(true);
    }
  };
  document.addEventListener("visibilitychange", tune);
  tune();
}

export async function payload() {
  const response = await fetch("payload");
  if (!response.ok) throw await mistake(response);
  return response.json();
}
