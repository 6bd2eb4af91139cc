// Batches: the ledger as a list, and one batch with its composition and members.

import { address, bar, count, duration, empty, facts, fixed, h, link, number, orDash, section, table, time } from "./dom.js";

const PAGE = 100;

export async function show(context) {
  if (context.rest[0]) { await one(context, context.rest[0]); return; }
  const place = h("div", {});
  const older = h("button", { type: "button", class: "more", hidden: true, onclick: () => { tail = load(next); } }, "older batches");
  context.box.append(place, older);
  let rows = [], next = null, tail = null;
  async function load(after) {
    const page = await context.get("/explore/batches", { after, limit: PAGE });
    const known = new Map(rows.map((row) => [row.no, row]));
    for (const row of page.batches) known.set(row.no, row);
    rows = [...known.values()].sort((a, b) => b.no - a.no);
    if (after || next === null) next = page.next;
    older.hidden = next === null;
    if (place.contains(document.activeElement)) return;
    place.replaceChildren(rows.length ? table(COLUMNS, rows, { open: (b) => address(`batch/${b.no}`), label: "Batches" })
      : empty("No batch has formed.", "A batch forms from queued groups once the trainer claims it; Overview shows what is queued."));
  }
  await context.live(() => load());
  await tail;
}

export const lease = (batch) => {
  if (batch.lease_until === null || batch.acked !== null) return "–";
  const left = batch.lease_until - Date.now() / 1000;
  return left < 0 ? h("span", { class: "bad" }, `ended ${duration(-left)} ago`) : `${duration(left)} left`;
};
const mix = (batch) => batch.envs.map((e) => `${e.env ?? "?"} ${e.sequences}`).join(", ");
const stale = (batch) => {
  const all = Object.entries(batch.staleness ?? {});
  const n = all.reduce((sum, [, k]) => sum + k, 0);
  return n ? number(all.reduce((sum, [v, k]) => sum + Number(v) * k, 0) / n, 1) : "–";
};
const COLUMNS = [
  { title: "batch", num: true, cell: (b) => link(address(`batch/${b.no}`), b.no) }, { title: "step", num: true, cell: (b) => count(b.step) },
  { title: "state", cell: (b) => h("span", { class: b.state === "dead" ? "bad" : "" }, b.state) },
  { title: "deliveries", num: true, cell: (b) => h("span", { class: b.epoch > 1 ? "bad" : "" }, count(b.epoch)), hint: "more than one: a lease ended before the ack" },
  { title: "lease", num: true, cell: lease }, { title: "ranks", num: true, cell: (b) => (b.world_size > 1 ? `${b.ranks.length}/${b.world_size}` : "–"), hint: "ranks that acked" },
  { title: "sequences", num: true, cell: (b) => count(b.n_seq) }, { title: "groups", num: true, cell: (b) => count(b.groups) },
  { title: "staleness", num: true, cell: stale }, { title: "environments", cell: mix },
  { title: "claimed", num: true, cell: (b) => time(b.claimed) },
  { title: "step took", num: true, cell: (b) => (b.claimed === null || b.acked === null ? "–" : duration(b.acked - b.claimed)) },
];

async function one(context, no) {
  const batch = await context.get(`/explore/batches/${no}`);
  context.box.append(h("h1", {}, `Batch ${no}`, h("small", {}, " ", link(address("rollouts", { batch_no: no }), "its rollouts"))),
    facts(["step", count(batch.step)], ["state", batch.state], ["deliveries", count(batch.epoch)], ["generation", count(batch.generation)], ["lease", lease(batch)],
      ["sequences", count(batch.n_seq)], ["oldest version", count(batch.min_version)], ["ranks acked", `${batch.ranks.length} of ${orDash(batch.world_size)}`],
      ["claimed", time(batch.claimed)], ["acked", time(batch.acked)]),
    h("div", { class: "pair" },
      section("Composition", table([{ title: "environment", cell: (e) => orDash(e.env) }, { title: "sequences", num: true, cell: (e) => count(e.sequences) },
        { title: "", cell: (e) => bar(e.sequences / batch.n_seq, { label: "share of the batch" }) }], batch.envs)),
      section("Staleness", Object.keys(batch.staleness ?? {}).length ? table([{ title: "versions behind", num: true, cell: ([v]) => v }, { title: "sequences", num: true, cell: ([, n]) => count(n) },
        { title: "", cell: ([, n]) => bar(n / batch.n_seq) }], Object.entries(batch.staleness).sort((a, b) => a[0] - b[0])) : empty("Unknown.", "The groups carry no versions."))),
    section("Groups", table([{ title: "group", num: true, cell: (m) => link(address(`group/${m.gid}`), m.gid) }, { title: "environment", cell: (m) => orDash(m.env) },
      { title: "item", cell: (m) => orDash(m.item) }, { title: "sequences", num: true, cell: (m) => count(m.n_seq) }, { title: "mean reward", num: true, cell: (m) => fixed(m.reward_mean) },
      { title: "spread", num: true, cell: (m) => h("span", { class: m.reward_std === 0 ? "dim" : "" }, fixed(m.reward_std)) }], batch.members, { open: (m) => address(`group/${m.gid}`), label: "Groups of the batch" })));
  context.keys({
    J: ["Next batch", () => { location.hash = address(`batch/${Number(no) + 1}`); }],
    K: ["Previous batch", () => { location.hash = address(`batch/${Math.max(1, Number(no) - 1)}`); }],
  });
}
