// Two runs: settings with their places, code, figures at equal steps and tokens, paired tasks.

import { address, col, duration, empty, facts, h, link, mark, number, num, orDash, put, section, signed, table } from "./dom.js";
import { chosenRuns, keysOf, nav } from "./chosen.js";

const WORDS = { true: "same", false: "differs", null: "unknown" };
const pair = (equal) => (equal ? `${number(equal.a, 4)} → ${number(equal.b, 4)}` : "–");

export async function show(context) {
  const runs = await chosenRuns(context);
  nav(context, runs);
  const keys = keysOf(context.query), query = { runs: keys.join(",") };
  if (keys.length !== 2 || runs.length !== 2) {
    put(context.box, empty("Two runs are compared here.", "Choose two in the list of runs, then Diff of two."), link(address("", query), "to the runs"));
    return;
  }
  const told = await context.get("/workbench/diff", query);
  const sides = [["A", told.a], ["B", told.b]], { tasks } = told;
  put(context.box, h("h1", {}, `${told.a.name} → ${told.b.name}`),
    h("div", { class: "pair" }, sides.map(([side, one]) => section(`${side}: ${one.name}`, facts(["state", `${one.state}: ${one.line}`], ["steps", number(one.steps, 0)], ["sampled tokens", number(one.tokens, 0)], ["time", duration(one.seconds)])))),
    section("Settings that differ", told.settings.length ? table([
      col("setting", (row) => row.name), col("A", (row) => row.a), col("B", (row) => row.b), col("place in A", (row) => h("code", {}, orDash(row.place_a))), col("in B", (row) => h("code", {}, orDash(row.place_b))),
    ], told.settings, { label: "Settings that differ" }) : empty(told.settings_known.every(Boolean) ? "All settings are equal." : "A run has no settings on record.")),
    section("Code", table([col("part", (row) => row.name), col("A", (row) => orDash(row.a)), col("B", (row) => orDash(row.b)), col("", (row) => mark(row.same === false, WORDS[row.same]))], told.code, { label: "Code" })),
    section("Tasks, paired", tasks ? taskFacts(tasks) : empty("No pairs.", told.tasks_missing)),
    section("Figures", table([col("curve", (row) => row.key), num("last", (row) => `${number(row.last[0], 4)} → ${number(row.last[1], 4)}`),
      num("at equal steps", (row) => pair(row.step), "where the shorter run ends"), num("at equal tokens", (row) => pair(row.tokens))], told.figures, { label: "Figures" })),
    link(address("compare", query), "Curves of both"));
}

function taskFacts(tasks) {
  const interval = tasks.low === null ? "no interval from one task" : `${signed(tasks.low, 4)} to ${signed(tasks.high, 4)}`;
  const only = ["a", "b"].map((side) => [`only ${side.toUpperCase()} solves`, tasks[`only_${side}`].length]);
  const names = ["a", "b"].filter((side) => tasks[`only_${side}`].length).map((side) => h("details", {}, h("summary", {}, `solved by ${side.toUpperCase()} only`),
    h("div", { class: "points" }, tasks[`only_${side}`].slice(0, 200).map(([, task]) => h("span", {}, task)))));
  return [facts([tasks.metric, `${number(tasks.mean_a, 4)} → ${number(tasks.mean_b, 4)}`], ["difference", signed(tasks.difference, 4)], ["95% interval", interval], ["tasks", tasks.items],
    ["better", tasks.better], ["worse", tasks.worse], ...only, ["source", tasks.about_a === tasks.about_b ? tasks.about_a : `A ${tasks.about_a}, B ${tasks.about_b}`]), names];
}
