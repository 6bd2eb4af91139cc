// Tasks: of environments with a curriculum, by success over steps; games by the version of the opponent.

import { kept } from "./kept.js";
import { address, bar, choice, col, count, empty, escaped, facts, fixed, h, num, number, section, table, visit } from "./dom.js";

const SHOWN = 100; // tasks of an environment
const ORDERS = ["hardest", "easiest", "newest", "useful"];
const percent = (share) => `${(share * 100).toFixed(0)} %`;
const spaced = (name) => name.replaceAll("_", " ");

export async function show(context) {
  const { order = ORDERS[0], score } = context.query;
  const go = (changes) => visit("tasks", { ...context.query, ...changes });
  const [tasks, wins] = await Promise.all([context.optional("/explore/tasks", { order, limit: SHOWN }), context.optional("/explore/wins", { score })]);
  const envs = tasks?.envs ?? [], opponents = wins?.opponents ?? [];
  context.box.append(
    ...envs.map((own) => environment(own, !kept && choice("Order of the tasks", ORDERS, order, (order) => go({ order })))),
    ...(opponents.length ? [games(wins, !kept && choice("Score", wins.scores, score, (score) => go({ score })))] : []));
  if (!envs.length && !opponents.length) {
    context.box.append(empty("No curriculum and no opponents.", "An environment writes its tasks here if its settings have a curriculum, and the trainer a folder of checkpoints. Games are those of an endpoint with a version."));
  }
}

function environment(own, orders) {
  const pools = [...new Set(own.parts.flatMap((part) => Object.keys(part.pools)))].sort();
  const share = (part, pool) => (part.pools[pool] ?? 0) / part.groups;
  const retired = Object.entries(own.retired).map(([pool, n]) => `${n} ${spaced(pool)}`).join(", ");
  const hue = (at, share) => h("i", { class: `hue${at % 6}`, vars: { "--share": `${share * 100}%` } });
  return section(`Tasks of ${own.env}`,
    facts(["tasks", count(own.n_tasks)], ["groups", count(own.groups)], ["useful", percent(own.useful / Math.max(1, own.groups))],
      ["tokens a useful group", number(own.useful ? own.tokens / own.useful : null, 0)], retired && ["retired at the end", retired]),
    h("p", {}, pools.map((pool, at) => h("span", { class: "key" }, hue(at), spaced(pool)))),
    table([num("from step", (part) => count(part.step)), num("groups", (part) => count(part.groups)),
      num("useful", (part) => percent(part.useful / part.groups)), num("success", (part) => fixed(part.success, 2)),
      col(pools.length ? "pools" : "", (part) => { const said = pools.map((pool) => `${spaced(pool)} ${percent(share(part, pool))}`).join(", ");
        return h("div", { class: "phases", role: "img", title: escaped(said), "aria-label": escaped(said) }, pools.map((pool, at) => hue(at, share(part, pool)))); })],
    own.parts, { label: `Pools of ${own.env}` }),
    h("p", {}, orders, ` ${count(own.tasks.length)} of ${count(own.n_tasks)} tasks`),
    table([col("task", (task) => task.task), num("groups", (task) => count(task.groups)), num("useful", (task) => count(task.useful)),
      num("failed", (task) => count(task.failed)), num("success", (task) => fixed(task.success, 2)),
      col("over steps", (task) => over(task.over_steps)), col("pool", (task) => spaced(task.pool ?? ""))],
    own.tasks, { label: `Tasks of ${own.env}`, open: (task) => address(`item/${encodeURIComponent(task.task)}`, { env: own.env }) }));
}

// A bar for each part of the run in which the task was drawn.
const over = (values) => h("div", { class: "hist" }, h("div", { class: "bins small", role: "img", "aria-label": values.map((value) => number(value, 2)).join(" ") },
  values.map((value) => h("span", { class: value === null ? "grow" : "bin", title: number(value, 2), vars: { "--share": `${(value ?? 0) * 100}%` } }))));

const games = (wins, scores) => section("Games by the version of the opponent",
  h("p", {}, scores, wins.exact ? "" : " of the newest games alone: all took too long to read"),
  table([col("opponent", (line) => line.opponent), num("version", (line) => (line.version === null ? "present" : count(line.version))),
    num("games", (line) => count(line.games)), num("score", (line) => `${fixed(line.score)} ± ${fixed(line.stderr)}`),
    num("newest policy", (line) => count(line.newest)), col("", (line) => bar(line.score, { label: fixed(line.score) }))],
  wins.opponents, { label: "Games by the version of the opponent" }));
