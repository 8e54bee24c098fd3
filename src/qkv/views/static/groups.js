// @ts-check
// Runs that belong together: which they are, their mean with its interval, and how far seeds alone are apart.

import { d3 } from "./vendor.js";

export const ALIKE = "(all but the seed)";

// Quantile 0.975 of Student's t for 1, 2, ... degrees of freedom; beyond them to a part in 10,000 by two terms of its expansion.
const T = [12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.306, 2.2622, 2.2281, 2.201, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.093, 2.086];
const Z = 1.959964;
const quantile = (df) => T[df - 1] ?? Z + (Z ** 3 + Z) / (4 * df) + (5 * Z ** 5 + 16 * Z ** 3 + 3 * Z) / (96 * df * df);

/**
 * Mean of independent values with its 95% interval by Student's t; of one value there is no interval.
 * @param {number[]} given @returns {{ n: number, mean: number, low: number, high: number, sd: number } | null}
 */
export function summary(given) {
  const values = given.filter(Number.isFinite);
  const n = values.length;
  if (!n) return null;
  const mean = d3.mean(values);
  const sd = n > 1 ? d3.deviation(values) : NaN;
  const reach = n > 1 ? (quantile(n - 1) * sd) / Math.sqrt(n) : NaN;
  return { n, mean, low: mean - reach, high: mean + reach, sd };
}

const short = (value) => (/^[/~.]/.test(value) ? value.split("/").at(-1) : value);
const last = (path) => path.split(".").at(-1);
export const settingsOf = (run, paths) => paths.filter((path) => path in run.settings).map((path) => `${last(path)}=${short(run.settings[path])}`).join(", ");

/** [[words, runs], ...] by a setting, or by all but the seed. @param {any[]} runs @param {string} path @param {string[]} differing */
export function grouped(runs, path, differing) {
  const others = differing.filter((p) => p !== "seed");
  const words = (run) => (path === ALIKE ? settingsOf(run, others) || "the same settings" : `${last(path)}=${short(run.settings[path] ?? "–")}`);
  return [...d3.group(runs, (run) => (path === ALIKE ? run.alike : run.settings[path])).values()].map((found) => [words(found[0]), found]);
}

/**
 * The standard deviation between runs that differ in the seed alone, pooled over their groups; null without any.
 * @param {any[]} runs @param {(run: any) => number} valueOf
 */
export function betweenSeeds(runs, valueOf) {
  let [squares, df, n, groups] = [0, 0, 0, 0];
  for (const found of d3.group(runs, (run) => run.alike).values()) {
    const values = found.map(valueOf).filter(Number.isFinite);
    if (values.length < 2) continue;
    squares += d3.variance(values) * (values.length - 1);
    df += values.length - 1;
    n += values.length;
    groups += 1;
  }
  return df ? { sd: Math.sqrt(squares / df), n, groups } : null;
}

/** `y` at each of `at` between the points of a curve, NaN outside it. */
export function between(x, y, at) {
  return at.map((step) => {
    const i = d3.bisectLeft(x, step);
    if (x[i] === step) return y[i];
    return i === 0 || i === x.length ? NaN : y[i - 1] + ((y[i] - y[i - 1]) * (step - x[i - 1])) / (x[i] - x[i - 1]);
  });
}

/**
 * Mean and interval of some curves over the steps of the shortest, as far as all reach.
 * @param {{ x: any, y: any }[]} lines
 */
export function band(lines) {
  const [from, to] = [d3.max(lines, (line) => line.x[0]), d3.min(lines, (line) => line.x.at(-1))];
  const steps = [...d3.least(lines, (line) => line.x.length).x].filter((step) => step >= from && step <= to);
  const values = lines.map((line) => between(line.x, line.y, steps));
  const found = steps.map((_, i) => summary(values.map((one) => one[i])));
  return { x: steps, y: found.map((s) => s.mean), low: found.map((s) => s.low), high: found.map((s) => s.high) };
}
