// Answers of an exported page to the questions of its views: its file holds the rollouts.

import { kept } from "./kept.js";

const EQUAL = { env: "env", state: "state", outcome: "outcome", finish: "finish_reason", why: "why", item: "item" };
const known = (value) => value !== null && value !== undefined;
const within = (value, text) => {
  const [low, high] = text.includes("..") ? text.split("..") : [text, text];
  return known(value) && (low === "" || value >= Number(low)) && (high === "" || value <= Number(high));
};
const replyOf = (row, part = "") => kept.replies[`/explore/groups/${row.gid}${part}`];
const texts = (row) => [row.item, replyOf(row)?.rows.find((one) => one.row === row.row)?.completion,
  ...[replyOf(row, "/shared"), replyOf(row, `/rows/${row.row}`)?.messages].flatMap((list) => list ?? []).flatMap((one) => [one?.content ?? one, one?.tool_calls])]
  .filter(known).map((one) => (typeof one === "string" ? one : JSON.stringify(one)));
const holds = (row, words) => texts(row).some((text) => text.toLowerCase().includes(words));

for (const row of kept.rollouts) { // facts of its group, by which only an export can choose
  const { baseline = null, spread = null, rows = [] } = replyOf(row) ?? {};
  const messages = replyOf(row, `/rows/${row.row}`)?.messages ?? [];
  const answer = rows.find((one) => one.row === row.row)?.completion ?? messages.at(-1)?.content;
  Object.assign(row, { mean: baseline, spread, answer: typeof answer === "string" ? answer.slice(0, 80) : null });
}
const passes = (row, query) => Object.entries(EQUAL).every(([name, column]) => !query[name] || row[column] === String(query[name]))
  && ["step", "reward", "batch_no", "mean", "spread"].every((name) => !known(query[name]) || query[name] === "" || within(row[name], String(query[name])))
  && (!query.version || (known(row.version_min) && row.version_min <= Number(query.version) && row.version_max >= Number(query.version)))
  && (!query.diff_min || (known(row.diff_max) && row.diff_max >= Number(query.diff_min)))
  && (!query.q || holds(row, query.q.toLowerCase()));

function rollouts({ sort = "-arrived", after = 0, limit = 100, ...query }) {
  const name = sort.replace(/^-/, ""), column = name === "arrived" ? "gid" : name, sign = sort.startsWith("-") ? -1 : 1;
  const value = (row) => row[column] ?? (column === "n_tokens" ? texts(row).join("").length : null); // or characters
  const found = kept.rollouts.filter((row) => passes(row, query)).map((row) => [value(row), row]).filter(([one]) => known(one))
    .sort(([one, a], [other, b]) => sign * (one - other || a.gid - b.gid || a.row - b.row)).map(([, row]) => row);
  const end = Number(after) + limit;
  return { rows: found.slice(Number(after), end), next: end < found.length ? String(end) : null, counted: { n: found.length, exact: true } };
}

function histogram({ field, ...query }) {
  const rows = kept.rollouts.filter((row) => passes(row, query)), values = rows.map((row) => row[field]).filter(known);
  const low = values.reduce((a, b) => Math.min(a, b), Infinity), high = values.reduce((a, b) => Math.max(a, b), -Infinity), n = high > low ? 20 : 1, width = (high - low) / n || 1;
  const bins = values.length ? Array.from({ length: n }, (_, at) => ({ from: low + at * width, to: low + (at + 1) * width, n: 0 })) : [];
  for (const value of values) bins[Math.min(n - 1, Math.floor((value - low) / width))].n += 1;
  return { field, bins, nulls: rows.length - values.length, sampled: false };
}

kept.answer = (path, query) => {
  if (path === "/explore/rollouts") return rollouts(query);
  if (path === "/explore/histogram") return histogram(query);
  const reply = kept.replies[path];
  if (!reply) throw Object.assign(new Error("this file does not hold it"), { status: 404 });
  if (path === "/explore/curves") {
    const keys = (query.keys ?? "").split(",");
    return { keys: reply.keys, series: reply.series.filter((one) => keys.includes(one.key) && one.env === (query.env ?? one.env)) };
  }
  if (!path.includes("/rows/")) return reply;
  const [from, to] = [query.from ?? 0, Math.min(query.to ?? reply.to, reply.to)];
  const columns = Object.fromEntries(Object.entries(reply.columns).map(([name, values]) => [name, values && values.slice(from, to)]));
  const shared = kept.replies[path.replace(/rows\/\d+$/, "shared")] ?? []; // messages that all rows begin with
  return { ...reply, from, to, columns, messages: reply.messages && [...shared, ...reply.messages] };
};
