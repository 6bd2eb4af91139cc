// Batches: the ledger, and one batch with its members.

import { post } from "./api.js";
import { address, bar, col, count, duration, empty, facts, fixed, h, link, mark, num, number, orDash, section, sum, table, time, visit } from "./dom.js";

const PAGE = 100;

export async function show(context) {
  if (context.rest[0]) { await one(context, context.rest[0]); return; }
  const place = h("div", {});
  const older = h("button", { class: "more", hidden: true, onclick: () => { tail = load(next); } }, "older batches");
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

const lease = (batch) => {
  if (batch.lease_until === null || batch.acked !== null) return "–";
  const left = batch.lease_until - Date.now() / 1000;
  return left < 0 ? mark(true, `ended ${duration(-left)} ago`) : `${duration(left)} left`;
};
const mix = (batch) => batch.envs.map((e) => `${e.env ?? "?"} ${e.sequences}`).join(", ");
const stale = (batch) => {
  const all = Object.entries(batch.staleness ?? {});
  const n = sum(all, ([, k]) => k);
  return n ? number(sum(all, ([v, k]) => v * k) / n, 1) : "–";
};
const COLUMNS = [
  num("batch", (b) => link(address(`batch/${b.no}`), b.no)), num("step", (b) => count(b.step)),
  col("state", (b) => mark(b.state === "dead", b.state)),
  num("deliveries", (b) => mark(b.epoch > 1, count(b.epoch)), "more than one: a lease ended before the ack"),
  num("lease", lease), num("ranks", (b) => (b.world_size > 1 ? `${b.ranks.length}/${b.world_size}` : "–"), "ranks that acked"),
  num("sequences", (b) => count(b.n_seq)), num("groups", (b) => count(b.groups)),
  num("staleness", stale), col("environments", mix),
  num("claimed", (b) => time(b.claimed)),
  num("step took", (b) => (b.claimed === null || b.acked === null ? "–" : duration(b.acked - b.claimed))),
];

function pin(step, pinned) {
  const button = h("button", { title: "keep its groups for good", onclick: async () => {
    await post(`/explore/steps/${step}/pin`, undefined, { kept: !pinned })
      .then((told) => label(told.pinned), (error) => button.replaceWith(h("small", { class: "bad" }, error.message)));
  } });
  const label = (now) => { pinned = now; button.textContent = now ? "unpin" : "pin"; };
  label(pinned);
  return button;
}

const revive = (no) => h("button", { onclick: ({ target }) => post(`/batches/${no}/revive`)
  .then(() => target.replaceWith("queued again"), (error) => target.replaceWith(mark(true, error.message))) }, "deliver again");

async function one(context, no) {
  const batch = await context.get(`/explore/batches/${no}`);
  context.box.append(h("h1", {}, `Batch ${no}`, h("small", {}, " ", link(address("rollouts", { batch_no: no }), "its rollouts")), " ", pin(batch.step ?? no, batch.pinned), batch.state === "dead" && revive(no)),
    facts(["step", count(batch.step)], ["state", batch.state], ["deliveries", count(batch.epoch)], ["generation", count(batch.generation)], ["lease", lease(batch)],
      ["sequences", count(batch.n_seq)], ["oldest version", count(batch.min_version)], ["ranks acked", `${batch.ranks.length} of ${orDash(batch.world_size)}`],
      ["claimed", time(batch.claimed)], ["acked", time(batch.acked)]),
    h("div", { class: "pair" },
      section("Composition", table([col("environment", (e) => orDash(e.env)), num("sequences", (e) => count(e.sequences)),
        col("", (e) => bar(e.sequences / batch.n_seq, { label: "share of the batch" }))], batch.envs)),
      section("Staleness", Object.keys(batch.staleness ?? {}).length ? table([num("versions behind", ([v]) => v), num("sequences", ([, n]) => count(n)),
        col("", ([, n]) => bar(n / batch.n_seq))], Object.entries(batch.staleness).sort((a, b) => a[0] - b[0])) : empty("Unknown.", "The groups carry no versions."))),
    section("Groups", table([num("group", (m) => link(address(`group/${m.gid}`), m.gid)), col("environment", (m) => orDash(m.env)),
      col("item", (m) => orDash(m.item)), num("sequences", (m) => count(m.n_seq)), num("mean reward", (m) => fixed(m.reward_mean)),
      num("spread", (m) => h("span", { class: m.reward_std === 0 ? "dim" : "" }, fixed(m.reward_std)))], batch.members, { open: (m) => address(`group/${m.gid}`), label: "Groups of the batch" })));
  context.keys({
    J: ["Next batch", () => visit(`batch/${Number(no) + 1}`)],
    K: ["Previous batch", () => visit(`batch/${Math.max(1, Number(no) - 1)}`)],
  });
}
