// Rollouts: filters, histogram of reward, and a list that grows by key.

import { address, alike, chip, count, duration, empty, fixed, h, mark, number, orDash, signed, time, visit } from "./dom.js";
import { kept } from "./kept.js";
import { VirtualList } from "./list.js";

const PAGE = 200;
const HINTS = {
  env: "gsm8k", state: "pending", outcome: "truncated", finish: "length", why: "same_scores", item: "17",
  step: "10..20", batch_no: "12", version: "12", reward: "0..0.5", diff_min: "0.1", q: "words of the completion",
  ...(kept && { mean: "0..0.5", spread: "0.01..", q: "words of item or messages" }), // of the group
};
const FILTERS = Object.keys(HINTS);
const when = (row) => `${row.gid}.${row.row}`;
const COLUMNS = [
  { title: "rollout", width: "4.6rem", cell: when },
  { title: "env", width: "minmax(4.5rem,1fr)", cell: (r) => orDash(r.env) },
  { title: "item", width: "minmax(5rem,1.4fr)", cell: (r) => orDash(r.item ?? r.group_id) },
  { title: "answer", width: "minmax(6rem,3fr)", wide: true, cell: (r) => orDash(r.answer), hint: "its first characters" },
  { title: "step", width: "3.2rem", num: true, sort: "step", cell: (r) => count(r.step ?? r.batch_no), hint: "step of the trainer; the batch where it reports none" },
  { title: "version", width: "4.6rem", num: true, wide: true, cell: (r) => versions(r), hint: "policy versions of its tokens" },
  { title: "stale", width: "3rem", num: true, wide: true, cell: (r) => number(r.staleness, 0), hint: "versions behind the policy" },
  { title: "reward", width: "4rem", num: true, sort: "reward", cell: (r) => fixed(r.reward) },
  { title: "advantage", width: "5.2rem", num: true, wide: true, cell: (r) => signed(r.advantage) },
  { title: "tokens", width: "4rem", num: true, sort: "n_tokens", cell: (r) => count(r.n_tokens) },
  { title: "turns", width: "3rem", num: true, wide: true, cell: (r) => count(r.turns) },
  { title: "finish", width: "4.4rem", wide: true, cell: (r) => orDash(r.finish_reason) },
  { title: "|Δ| max", width: "4.6rem", num: true, wide: true, sort: "diff_max", cell: (r) => fixed(r.diff_max), hint: "trainer minus sampler, log p" },
  { title: "took", width: "3.8rem", num: true, wide: true, cell: (r) => duration(r.generate_s), hint: "generation" },
  { title: "arrived", width: "5.4rem", num: true, sort: "arrived", wide: true, cell: (r) => time(r.arrived) },
  { title: "state", width: "minmax(5.8rem,.8fr)", cell: (r) => state(r) },
  ...["mean", "spread"].filter(() => kept)
    .map((name) => ({ title: name, width: "3.6rem", num: true, sort: name, hint: "of the group", cell: (r) => fixed(r[name]) })),
];

export const versions = (r) => (r.version_min === r.version_max ? count(r.version_max) : `${count(r.version_min)}–${count(r.version_max)}`);
const state = (r) => {
  const bad = r.why ?? (r.outcome === "ok" ? null : r.outcome);
  return mark(bad, [r.state, bad].filter(Boolean).join(": ") || "–");
};

export async function show(context) {
  const query = { sort: "-arrived", ...context.query };
  const go = (changes) => visit("rollouts", { ...context.query, ...changes });
  const list = new VirtualList({
    columns: COLUMNS, label: "Rollouts", sort: query.sort,
    href: (row) => address(`group/${row.gid}`, { row: row.row }),
    onEnd: () => more(), onSort: (sort) => go({ sort }),
  });
  context.signal.addEventListener("abort", () => list.end());
  const head = h("p", { class: "count", "aria-live": "polite" });
  const fresh = h("button", { class: "fresh", hidden: true, onclick: () => load() });
  const chart = h("div", { class: "hist" });
  const field = filterField(go);
  context.box.append(h("div", { class: "filters" }, chips(context.query, go), field), chart, h("div", { class: "above" }, head, fresh), list.node);

  let rows = [], next = null, busy = false, counted = null;
  const ask = (extra) => context.get("/explore/rollouts", { ...query, limit: PAGE, answer: 80, ...extra });
  async function load() {
    ({ rows, next, counted } = await ask({}));
    fresh.hidden = true;
    head.replaceChildren(h("b", {}, `${counted.exact ? "" : "over "}${count(counted.n)}`), counted.n === 1 ? " rollout" : " rollouts");
    list.cursor = -1;
    list.node.scrollTop = 0;
    list.set(rows, counted.exact ? counted.n : -1);
    if (!rows.length) list.inner.append(nothing(context.query));
  }
  async function more() {
    if (busy || !next) return;
    busy = true;
    try {
      const page = await ask({ after: next });
      rows = rows.concat(page.rows);
      next = page.next;
      list.set(rows, counted.exact ? counted.n : -1);
    } finally { busy = false; }
  }
  await load();
  histogram(context, chart, go).catch(() => {});
  context.later(async () => { // nothing moves under the pointer: new rows wait behind a button
    const now = await ask({ limit: 1, answer: 0 });
    const grown = now.counted.n - counted.n;
    const other = now.rows[0] && (!rows[0] || when(now.rows[0]) !== when(rows[0]));
    fresh.hidden = !(grown > 0 || (other && now.counted.n !== counted.n));
    fresh.replaceChildren(grown > 0 ? `${count(grown)} new` : "changed");
  });
  const first = () => context.box.querySelector(".filters input")?.focus();
  context.keys({
    "/": ["Filter", first],
    ...alike(["j", "ArrowDown"], "Next row", () => list.move(1)), ...alike(["k", "ArrowUp"], "Previous row", () => list.move(-1)),
    PageDown: ["A page down", () => list.move(25)], PageUp: ["A page up", () => list.move(-25)],
    Enter: ["Open the group", () => list.open()],
    r: ["Show new rows", () => load()], x: ["Clear the filters", () => { location.hash = "#/rollouts"; }],
  });
}

function nothing(query) {
  return FILTERS.some((name) => query[name])
    ? empty("No rollout matches.", "Remove a filter above (x clears all).")
    : empty("No rollout has arrived.", "Start an environment: atropos env run FILE serve. With --archive off, trained rollouts are not kept.");
}

function chips(query, go) {
  return FILTERS.filter((name) => query[name]).map((name) =>
    chip(`the filter ${name}`, () => go({ [name]: "" }), h("b", {}, name === "q" ? "text" : name), ` ${query[name]} `));
}

// One field for all filters: ``env:gsm8k reward:0..0.5``; other words search the completions.
function filterField(go) {
  const input = h("input", { type: "search", placeholder: "env:gsm8k reward:0..0.5 words", "aria-label": "Filter", spellcheck: false, autocomplete: "off" });
  const pick = h("select", { "aria-label": "Add a filter", onchange: () => {
    input.value = `${input.value} ${pick.value}:`.trimStart();
    input.placeholder = `${pick.value}:${HINTS[pick.value]}`;
    pick.value = "";
    input.focus();
  } }, h("option", { value: "" }, "filter…"), FILTERS.filter((f) => f !== "q").map((f) => h("option", { value: f }, `${f}:  ${HINTS[f]}`)));
  return h("form", { onsubmit: (event) => { event.preventDefault(); go(parsed(input.value)); } }, input, pick);
}

function parsed(text) {
  const found = {}, words = [];
  for (const [, name, value, word] of text.matchAll(/(?:(\w+):("[^"]*"|\S+))|(\S+)/g)) {
    if (name && FILTERS.includes(name)) found[name] = value.replaceAll('"', "");
    else words.push(word ?? `${name}:${value}`);
  }
  if (words.length) found.q = words.join(" ");
  return found;
}

async function histogram(context, chart, go) {
  const { sort, after, ...filters } = context.query;
  const { bins, nulls, sampled } = await context.get("/explore/histogram", { ...filters, field: "reward" });
  const most = Math.max(1, ...bins.map((bin) => bin.n));
  if (bins.length < 2) return;
  let from = null;
  const paint = (to) => columns.forEach((one, at) => one.classList.toggle("picked", from !== null && at >= Math.min(from, to) && at <= Math.max(from, to)));
  const take = (to) => {
    if (from === null) return;
    const [low, high] = [Math.min(from, to), Math.max(from, to)];
    from = null;
    go({ reward: `${bins[low].from}..${bins[high].to}` });
  };
  const columns = bins.map((bin, at) => h("button", {
    class: "bin", title: `${number(bin.from)} to ${number(bin.to)}: ${count(bin.n)}`,
    "aria-label": `reward ${number(bin.from)} to ${number(bin.to)}: ${count(bin.n)} rollouts`,
    vars: { "--share": `${(bin.n / most) * 100}%` },
    onpointerdown: () => { from = at; paint(at); }, onpointerenter: () => from !== null && paint(at), onpointerup: () => take(at),
    onkeydown: (event) => { if (event.key === "Enter") { from = at; take(at); } },
  }));
  addEventListener("pointerup", () => { from = null; paint(0); }, { signal: context.signal });
  chart.replaceChildren(h("span", { class: "num" }, number(bins[0].from, 2)), h("div", { class: "bins", role: "group", "aria-label": "Reward: drag over a range" }, columns),
    h("span", { class: "num" }, number(bins.at(-1).to, 2)), h("small", {}, `reward${nulls ? `, ${count(nulls)} without` : ""}${sampled ? ", of a sample" : ""}`));
}
