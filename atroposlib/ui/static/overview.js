// Overview: the flow of the run as boxes, the headline, and the processes with their reasons to wait.

import { bar, bytes, count, duration, empty, facts, fill, h, link, number, orDash, section, sparkline, table } from "./dom.js";

const SILENT_S = 15; // heartbeats come every 2 s
const WINDOW_S = 60; // of rates

const silent = (p) => p.age_s > SILENT_S && !p.details?.ended;

export async function show(context) {
  const seen = []; // [seconds, counters] of the last WINDOW_S
  const [boxes, rest] = [h("div", {}), h("div", {})];
  context.box.append(boxes, rest);
  await context.live(async () => {
    const status = await context.optional("/status");
    const [why, curves] = await Promise.all([context.optional("/explore/why").catch(() => null), context.optional("/explore/curves", { keys: "reward" }).catch(() => null)]);
    if (!status) { await archived(context, boxes, curves); return; }
    seen.push([performance.now() / 1000, counters(status)]);
    while (seen.at(-1)[0] - seen[0][0] > WINDOW_S) seen.shift();
    if (rest.contains(document.activeElement) && document.activeElement !== document.body) return; // a row in use stays
    fill(boxes, headline(status, curves, seen), finding(why, status), flow(status, seen));
    fill(rest, ...below(status, why));
  });
}

const sum = (list, of) => list.reduce((total, one) => total + (Number(of(one)) || 0), 0);
const counters = (s) => ({
  batches: s.batches_acked, version: s.policy_version,
  groups: sum(s.participants.filter((p) => p.role === "env"), (p) => p.details?.groups_sent),
});
export function rate(seen, name, per = 1) { // of a counter over the window; null before there is one
  if (seen.length < 2) return null;
  const [[then, before], [now, after]] = [seen[0], seen.at(-1)];
  return now - then < 3 ? null : Math.max(0, ((after[name] - before[name]) / (now - then)) * per);
}

function headline(s, curves, seen) {
  const reward = (curves?.series ?? []).filter((one) => one.key === "reward" && one.points.length);
  const perMin = rate(seen, "batches", 60);
  return h("div", { class: "headline" },
    big("step", count(s.current_step), perMin === null ? "" : `${number(perMin, 1)} per min`),
    big("policy version", count(s.policy_version), s.staleness?.in_queue ? `lag ${number((s.staleness.in_flight?.mean ?? 0) + s.staleness.in_queue.mean, 1)}` : ""),
    reward.slice(0, 4).map((one) => big(one.env ? `reward, ${one.env}` : "reward", number(one.points.at(-1)[1]), sparkline(one.points.slice(-80).map(([, y]) => y)))),
    big("state", s.state.toLowerCase(), `${count(s.batches_acked)} batches trained`));
}
const big = (name, value, note) => h("div", { class: "big" }, h("small", {}, name), h("b", {}, value), h("span", {}, note));

function finding(why, s) {
  const first = why?.findings?.[0];
  if (first) return h("p", { class: `finding ${first.severity}` }, h("b", {}, first.cause), " ", first.remedy, " ", link("#/why", `why${why.findings.length > 1 ? ` (${why.findings.length})` : ""}`));
  if (s.stalled?.length) return h("p", { class: "finding stuck" }, h("b", {}, "Silent: "), s.stalled.join(", "));
  if (s.blocked_reason) return h("p", { class: "finding waiting" }, h("b", {}, "Waits: "), s.blocked_reason);
  return why?.moving ? h("p", { class: "finding" }, why.moving) : null;
}

function flow(s, seen) {
  const of = (role) => s.participants.filter((p) => p.role === role && !p.details?.ended);
  const [envs, trainers, servers] = [of("env"), of("trainer"), of("inference")];
  const per = (value, unit) => (value === null ? "" : `${number(value, 1)} ${unit}`);
  const wait = (list) => [...list.filter(silent), ...list.filter((p) => p.waiting_on)].map((p) => (silent(p) ? `${p.name}: silent for ${duration(p.age_s)}` : p.waiting_on))[0];
  const versions = [...new Set(servers.map((p) => p.details?.version).filter((v) => v !== undefined))];
  return h("div", { class: "flow", role: "list", "aria-label": "Flow of the run" },
    step("environments", "environments", `${envs.length}`, `${count(sum(envs, (p) => p.details?.rollouts_running))} rollouts running`, wait(envs), envs),
    arrow(per(rate(seen, "groups"), "groups/s")),
    step("queue", "rollouts?state=pending", count(s.queued_sequences), `sequences, ${count(s.queue_size)} groups`, null, [], s.max_bytes ? bar(s.retained_bytes / s.max_bytes, { label: `${bytes(s.retained_bytes)} of ${bytes(s.max_bytes)} stored` }) : null),
    arrow(per(rate(seen, "batches", 60), "batches/min")),
    step("batches", "batches", count(s.batches_open), `open, ${count(s.leased_sequences)} sequences leased`, s.batches_dead ? `${s.batches_dead} dead` : null),
    arrow(""),
    step("trainer", "curves", trainers[0]?.phase ?? "absent", trainers[0] ? `heard ${duration(trainers[0].age_s)} ago` : "start: atropos train grpo", wait(trainers), trainers),
    arrow(per(rate(seen, "version", 60), "versions/min")),
    step("servers", "weights", servers.length ? count(servers.length) : "–", versions.length ? `hold version ${versions.sort().join(", ")}` : "no reports", wait(servers), servers));
}
const arrow = (label) => h("div", { class: "arrow", "aria-hidden": "true" }, h("small", {}, label), h("i", {}, "→"));
function step(title, to, value, note, wait, who = [], extra = null) {
  return h("a", { class: `box${wait ? " waits" : ""}${who.some(silent) ? " silent" : ""}`, href: `#/${to}`, role: "listitem" },
    h("small", {}, title), h("b", {}, value), h("span", {}, note), extra, wait && h("em", {}, wait));
}

function below(s, why) {
  const columns = [
    { title: "process", cell: (p) => h("b", {}, p.name) }, { title: "role", cell: (p) => p.role },
    { title: "phase", cell: (p) => h("span", { class: silent(p) ? "dim" : "" }, p.phase) },
    { title: "waits for", cell: (p) => h("span", { class: "bad" }, p.waiting_on ?? "") },
    { title: "heard", num: true, cell: (p) => h("span", { class: silent(p) ? "bad" : "" }, silent(p) ? `silent for ${duration(p.age_s)}` : p.details?.ended ? "ended" : `${duration(p.age_s)} ago`) },
  ];
  return [section("Processes", s.participants.length ? table(columns, s.participants, { label: "Processes" })
    : empty("No process has sent a heartbeat.", "Start a trainer and an environment: atropos train grpo ..., atropos env run FILE serve.")),
  section("Queue", facts(["dropped groups", count(s.dropped_groups)], ["dead groups", count(s.dead_groups)], ["buffered sequences", count(s.buffered_sequences)],
    ["stored", bytes(s.retained_bytes)], ["on disk", bytes(s.disk_bytes)], ["connections refused", count(s.connections_refused)]),
  (s.warnings ?? []).map((text) => h("p", { class: "finding warning" }, text))),
  why?.findings?.length > 1 ? section("Also", why.findings.slice(1, 4).map((one) => h("p", { class: `finding ${one.severity}` }, one.cause))) : null].filter(Boolean);
}

async function archived(context, boxes, curves) {
  const { runs } = await context.get("/explore/runs");
  fill(boxes, section("Runs", table([
    { title: "run", cell: (r) => h("b", {}, r.run_id) }, { title: "state", cell: (r) => orDash(r.state) },
    { title: "steps", num: true, cell: (r) => count(r.steps) }, { title: "groups", num: true, cell: (r) => count(r.groups) },
    { title: "rollouts", num: true, cell: (r) => count(r.rollouts) }, { title: "size", num: true, cell: (r) => bytes(r.bytes) },
    { title: "environments", cell: (r) => r.envs.join(", ") }, { title: "tokenizer", cell: (r) => (r.tokenizer_found ? r.tokenizer : h("span", { class: "bad" }, `${r.tokenizer ?? "unknown"}: not found`)) },
  ], runs, { open: () => "#/rollouts", label: "Runs" })), (curves?.series ?? []).filter((one) => one.key === "reward" && one.points.length).length
    ? h("div", { class: "headline" }, curves.series.filter((one) => one.key === "reward" && one.points.length).map((one) => big(`reward, ${one.env ?? "all"}`, number(one.points.at(-1)[1]), sparkline(one.points.map(([, y]) => y), 240, 40)))) : null);
}
