// The runs that a view is about: keys in its address, kept when another view is opened.

import { chip, empty, h, link, address, visit } from "./dom.js";

export const MAX_RUNS = 24;
const TINTS = 8;

let last = ""; // the links of the head have no keys
export const remember = (keys) => { last = keys.join(","); };

export function keysOf(query) {
  if (query.runs !== undefined) last = query.runs;
  return last.split(",").filter(Boolean);
}
export const tint = (at) => `--c${at % TINTS}`;
export const swatch = (at) => h("i", { class: "swatch", vars: { "--tint": `var(${tint(at)})` } });

// Without keys: the first of all runs.
export async function chosenRuns(context) {
  const { runs } = await context.get("/workbench/runs");
  const keys = keysOf(context.query), named = runs.filter((run) => keys.includes(run.key));
  return (named.length ? named : runs).slice(0, MAX_RUNS);
}

export function noRuns(context) {
  context.box.append(empty("No run is here.", "A run below this folder shows up within 5 s: atropos quickstart --model tiny --out FOLDER"));
}

export const runChips = (path, query, runs) => runs.map((run) => chip(run.name, () =>
  visit(path, { ...query, runs: runs.filter((one) => one !== run).map((one) => one.key).join(",") }), run.name));

export function nav(context, runs) { // keys that lead to the other views with the same runs
  const query = { runs: runs.map((run) => run.key).join(",") };
  const go = (path, words) => [words, () => visit(path, query)];
  context.keys({ r: go("", "Runs"), c: go("compare", "Compare"), t: go("tasks", "Tasks"), d: go("diff", "Diff") });
  return query;
}

const PAGE = /^\.\.\/run\/[0-9a-f]+\/ui\/$/;

export function pageLink(run, ...children) { // h() has addresses of this page only
  const node = h("a", { title: run.path }, ...children), href = `../run/${run.key}/ui/`;
  if (PAGE.test(href)) node.setAttribute("href", href);
  return node;
}

export const backLink = (path, query, text) => link(address(path, query), text);
