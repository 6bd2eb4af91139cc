// Overview: flow of the run, headline, processes and why they wait.

import { kept } from "./kept.js";
import { bar, bytes, col, count, duration, empty, facts, fill, h, link, mark, num, number, orDash, section, sparkline, sum, table } from "./dom.js";

const WINDOW_S = 60; // of rates
const CURVED = 80, TIMED = 20; // steps
const PHASES = { "waiting for rollouts": ["wait"], training: ["prepare", "train"], publishing: ["publish", "check"], other: ["save", "evaluate", "recovery"] };
const KEYS = ["reward", ...Object.values(PHASES).flat().map((name) => `seconds_${name}`)].join(",");

// The API has no line for a process that a successor replaced.
const saidOf = (s, p) => (s.verdict?.processes ?? []).find((line) => line.role === p.role && line.name === p.name);

export async function show(context) {
  const seen = []; // [seconds, counters] of the last WINDOW_S
  const [boxes, rest] = [h("div", {}), h("div", {})];
  let curves = null, drawn;
  context.box.append(boxes, rest);
  await context.live(async () => {
    const status = await context.optional("/status");
    if (!status || status.batches_acked !== drawn) { // curves change with a step
      drawn = status?.batches_acked;
      curves = await context.optional("/explore/curves", { keys: KEYS, from: Math.max(0, (status?.current_step ?? 0) - CURVED) }).catch(() => null);
    }
    if (!status) { await archived(context, boxes, curves); return; }
    seen.push([performance.now() / 1000, counters(status)]);
    while (seen.at(-1)[0] - seen[0][0] > WINDOW_S) seen.shift();
    if (rest.contains(document.activeElement) && document.activeElement !== document.body) return; // a row in use stays
    fill(boxes, headline(status, curves, seen), verdict(status), flow(status, seen), phases(curves));
    fill(rest, ...below(status));
  });
}

const counters = (s) => ({
  batches: s.batches_acked, version: s.policy_version,
  groups: sum(s.participants.filter((p) => p.role === "env"), (p) => p.details?.groups_sent),
});
function rate(seen, name, per = 1) { // of a counter over the window; null before there is one
  if (seen.length < 2) return null;
  const [[then, before], [now, after]] = [seen[0], seen.at(-1)];
  return now - then < 3 ? null : Math.max(0, ((after[name] - before[name]) / (now - then)) * per);
}

const rewards = (curves) => (curves?.series ?? []).filter((one) => one.key === "reward" && one.points.length);

function headline(s, curves, seen) {
  const perMin = rate(seen, "batches", 60), left = s.num_steps - s.current_step;
  const step_s = sum(spent(curves), ([, seconds]) => seconds) || 60 / (perMin || NaN);
  return h("div", { class: "headline" },
    big("step", count(s.current_step) + (s.num_steps ? ` of ${count(s.num_steps)}` : ""), [perMin !== null && `${number(perMin, 1)} per min`, left > 0 && step_s && `${duration(left * step_s)} left`].filter(Boolean).join(", ")),
    big("policy version", count(s.policy_version), s.staleness?.in_queue ? `lag ${number((s.staleness.in_flight?.mean ?? 0) + s.staleness.in_queue.mean, 1)}` : ""),
    rewards(curves).slice(0, 4).map((one) => big(one.env ? `reward, ${one.env}` : "reward", number(one.points.at(-1)[1]), sparkline(one.points.slice(-80).map(([, y]) => y)))),
    s.tokens?.useful != null && big("useful tokens", `${(s.tokens.useful * 100).toFixed(0)} %`, `of ${count(s.tokens.generated)} sampled`),
    big("state", s.state.toLowerCase(), `${count(s.batches_acked)} batches trained`));
}
// Mean seconds of a step by cause.
const spent = (curves) => Object.entries(PHASES).map(([cause, names]) => [cause, sum((curves?.series ?? []).filter((one) => names.includes(one.key.replace("seconds_", ""))),
  ({ points }) => sum(points.slice(-TIMED), ([, s]) => s) / Math.min(TIMED, points.length))]).filter(([, seconds]) => seconds);

function phases(curves) {
  const parts = spent(curves), all = sum(parts, ([, seconds]) => seconds);
  const hue = (at) => h("i", { class: `hue${at}`, vars: { "--share": `${(parts[at][1] / all) * 100}%` } });
  return parts.length > 0 && section("Time of the trainer, last steps", h("div", { class: "phases", "aria-hidden": "true" }, parts.map((_, at) => hue(at))),
    parts.map(([cause, seconds], at) => h("span", { class: "key" }, hue(at), `${cause} ${((seconds / all) * 100).toFixed(0)} % `, h("small", {}, `${duration(seconds)} a step`))));
}
const big = (name, value, note) => h("div", { class: "big" }, h("small", {}, name), h("b", {}, value), h("span", {}, note));

const COLORED = { stuck: "stuck", waiting: "waiting" }; // the others are as they should be
function verdict(s) {
  const said = s.verdict;
  if (!said) return null;
  const more = said.findings.length;
  return h("p", { class: `finding ${COLORED[said.state] ?? ""}` }, h("b", {}, `${said.state}: ${said.line}`), " ", said.remedy ?? "", " ", more > 0 && link("#/why", `why${more > 1 ? ` (${more})` : ""}`));
}

function flow(s, seen) {
  const of = (role) => s.participants.filter((p) => p.role === role && !p.details?.ended && saidOf(s, p));
  const [envs, trainers, servers] = [of("env"), of("trainer"), of("inference")];
  const per = (value, unit) => (value === null ? "" : `${number(value, 1)} ${unit}`);
  const silent = (list) => list.map((p) => saidOf(s, p)).find((one) => one.state === "silent");
  // A run that is not stuck waits on purpose: its processes take turns.
  const wait = (list) => (silent(list) ?? (s.verdict?.state !== "stuck" ? null : list.map((p) => saidOf(s, p)).find((one) => one.state === "waits")))?.text;
  const versions = [...new Set(servers.map((p) => p.details?.version).filter((v) => v !== undefined))];
  return h("div", { class: "flow", role: "list", "aria-label": "Flow of the run" },
    step("environments", "environments", `${envs.length}`, `${count(sum(envs, (p) => p.details?.rollouts_running))} rollouts running`, wait(envs), silent(envs)),
    arrow(per(rate(seen, "groups"), "groups/s")),
    step("queue", "rollouts?state=pending", count(s.queued_sequences), `sequences, ${count(s.queue_size)} groups`, null, false, s.max_bytes ? bar(s.retained_bytes / s.max_bytes, { label: `${bytes(s.retained_bytes)} of ${bytes(s.max_bytes)} stored` }) : null),
    arrow(per(rate(seen, "batches", 60), "batches/min")),
    step("batches", "batches", count(s.batches_open), `open, ${count(s.leased_sequences)} sequences leased`, s.batches_dead ? `${s.batches_dead} dead` : null),
    arrow(""),
    step("trainer", "curves", trainers[0]?.phase ?? "absent", trainers[0] ? `heard ${duration(trainers[0].age_s)} ago` : "start: atropos train grpo", wait(trainers), silent(trainers)),
    arrow(per(rate(seen, "version", 60), "versions/min")),
    step("servers", "weights", servers.length ? count(servers.length) : "–", versions.length ? `hold version ${versions.sort().join(", ")}` : "no reports", wait(servers), silent(servers)));
}
const arrow = (label) => h("div", { class: "arrow", "aria-hidden": "true" }, h("small", {}, label), h("i", {}, "→"));
function step(title, to, value, note, wait, silent = false, extra = null) {
  return h("a", { class: `box${wait ? " waits" : ""}${silent ? " silent" : ""}`, href: `#/${to}`, role: "listitem" },
    h("small", {}, title), h("b", {}, value), h("span", {}, note), extra, wait && h("em", {}, wait));
}

function below(s) {
  const columns = [
    col("process", (p) => h("b", {}, p.label)), col("role", (p) => p.role),
    col("now", (p) => h("span", { class: p.state === "silent" || p.state === "ended" ? "dim" : "" }, p.text)),
    num("", (p) => mark(p.state === "silent", p.state)),
  ];
  const processes = s.verdict?.processes ?? [];
  const more = s.verdict?.findings.slice(1, 4) ?? [];
  return [section("Processes", processes.length ? table(columns, processes, { label: "Processes" })
    : empty("No process has sent a heartbeat.", "Start a trainer and an environment: atropos train grpo ..., atropos env run FILE serve.")),
  section("Queue", facts(["dropped groups", count(s.dropped_groups)], ["dead groups", count(s.dead_groups)], ["buffered sequences", count(s.buffered_sequences)],
    ["stored", bytes(s.retained_bytes)], ["on disk", bytes(s.disk_bytes)], ["connections refused", count(s.connections_refused)]),
  (s.warnings ?? []).map((text) => h("p", { class: "finding warning" }, text))),
  more.length > 0 && section("Also", more.map((one) => h("p", { class: `finding ${one.severity}` }, one.cause)))];
}

async function archived(context, boxes, curves) {
  if (kept?.blocks) { fill(boxes, ...kept.report(context)); return; }
  const { runs } = await context.get("/explore/runs");
  fill(boxes, section("Runs", table([
    col("run", (r) => h("b", {}, r.run_id)), col("state", (r) => orDash(r.state)),
    num("steps", (r) => count(r.steps)), num("groups", (r) => count(r.groups)),
    num("rollouts", (r) => count(r.rollouts)), num("size", (r) => bytes(r.bytes)),
    col("environments", (r) => r.envs.join(", ")), col("tokenizer", (r) => (r.tokenizer_found ? r.tokenizer : mark(true, `${r.tokenizer ?? "unknown"}: not found`))),
  ], runs, { open: runs.length === 1 && (() => "#/rollouts"), label: "Runs" })), h("div", { class: "headline" }, rewards(curves).map((one) => big(`reward, ${one.env ?? "all"}`, number(one.points.at(-1)[1]), sparkline(one.points.map(([, y]) => y), 240, 40)))));
}
