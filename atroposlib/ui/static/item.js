// One item across steps: groups, newest version first, and rewards.

import { address, col, count, empty, facts, fixed, h, link, num, number, put, sum, table, time } from "./dom.js";
import { chart } from "./chart.js";

const MAX_ROWS = 500;

export async function show(context) {
  const item = context.rest[0], { env } = context.query;
  const page = await context.get("/explore/rollouts", { item, env, sort: "-arrived", limit: MAX_ROWS });
  const groups = grouped(page.rows);
  put(context.box, h("h1", {}, `Item ${item}`), facts(["environment", env ?? "any"], ["groups", count(groups.length)], ["rollouts", count(page.rows.length)]));
  if (!groups.length) { context.box.append(empty("No rollout of this item.", "It was freed by retention, or has not been drawn.")); return; }
  const points = groups.filter((g) => g.version !== null).map((g) => [g.version, g.mean]).sort((a, b) => a[0] - b[0]);
  if (points.length > 1) context.box.append(chart({ title: "mean reward by policy version", points, dots: true, signal: context.signal }));
  context.box.append(table([
    col("group", (g) => link(address(`group/${g.gid}`), g.gid)),
    num("arrived", (g) => time(g.arrived)),
    num("step", (g) => count(g.step)), num("version", (g) => count(g.version)),
    num("mean", (g) => fixed(g.mean)), num("worst", (g) => fixed(Math.min(...g.rewards))),
    num("best", (g) => fixed(Math.max(...g.rewards))),
    num("tokens", (g) => number(g.tokens, 0)),
    col("rewards", (g) => h("code", {}, g.rewards.map((r) => number(r, 2)).join("  "))),
  ], groups, { open: (g) => address(`group/${g.gid}`), label: "Groups of this item" }));
}

function grouped(rows) {
  const byGid = new Map();
  for (const row of rows) {
    if (!byGid.has(row.gid)) byGid.set(row.gid, []);
    byGid.get(row.gid).push(row);
  }
  return [...byGid.values()].map((all) => {
    const rewards = all.map((r) => r.reward).filter((r) => r !== null).sort((a, b) => b - a);
    return { gid: all[0].gid, arrived: all[0].arrived, step: all[0].step, version: all[0].version_max, rewards,
      mean: sum(rewards, Number) / rewards.length, tokens: sum(all, (r) => r.n_tokens) / all.length };
  });
}
