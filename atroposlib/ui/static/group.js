// One group: samples side by side, baseline, life, difference of two samples.

import { conversation, pictures, sharedMessages } from "./conversation.js";
import { address, alike, bytes, count, duration, empty, escaped, facts, fixed, h, link, mark, number, orDash, prose, put, section, signed, time, visit } from "./dom.js";
import { versions } from "./rollouts.js";

const MAX_WORDS = 1500; // of each side of a difference: the table has the square of it

export async function show(context) {
  const gid = context.rest[0];
  const group = await context.get(`/explore/groups/${gid}`);
  const rows = [...group.rows].sort((a, b) => (b.reward ?? -Infinity) - (a.reward ?? -Infinity) || a.row - b.row);
  const most = Math.max(1e-9, ...rows.map((r) => Math.abs(r.advantage ?? 0)));
  const shared = await addMessages(context, rows);
  let cursor = Math.max(0, rows.findIndex((r) => String(r.row) === context.query.row));
  const picked = new Set();
  const changes = h("div", {});
  const cards = rows.map((row, at) => card(row, { gid, most, pick: (on) => { if (on) picked.add(at); else picked.delete(at); compare(); } }));
  const compare = () => {
    const [a, b] = [...picked].slice(-2).map((at) => rows[at]);
    changes.replaceChildren(a && b ? difference(a, b) : "");
  };
  put(context.box,
    h("h1", {}, `Group ${gid}`, group.item !== null && h("small", {}, " ", link(address(`item/${encodeURIComponent(group.item)}`, { env: group.env }), `item ${group.item} across steps`))),
    facts(["environment", orDash(group.env)], ["state", group.state],
      ["batch", group.batch_no === null ? "–" : link(address(`batch/${group.batch_no}`), group.batch_no)],
      ["step", group.step === null ? "–" : link(address("rollouts", { step: group.step }), group.step)],
      ["baseline", number(group.baseline)], ["spread", number(group.spread)], ["samples", count(rows.length)],
      ["size", bytes(group.n_bytes)], group.group_id && ["group id", group.group_id]),
    life(group.life),
    group.spread === 0 && empty("All rewards are equal.", "Advantages relative to the group are 0: it teaches nothing unless the estimator compares across groups."),
    shared.length > 0 ? section("Prompt", conversation(shared)) : prompts(rows), h("div", { class: "cards", role: "list", "aria-label": "Samples, best reward first" }, cards), changes);
  const move = (by) => {
    cards[cursor]?.classList.remove("cursor");
    cursor = Math.max(0, Math.min(cards.length - 1, cursor + by));
    cards[cursor]?.classList.add("cursor");
    if (by) cards[cursor]?.scrollIntoView({ block: "nearest", inline: "nearest" });
  };
  move(0);
  const open = () => visit(`tokens/${gid}/${rows[cursor].row}`);
  context.keys({
    ...alike(["j", "ArrowRight"], "Next sample", () => move(1)), ...alike(["k", "ArrowLeft"], "Previous sample", () => move(-1)),
    ...alike(["Enter", "t"], "Tokens of the sample", open),
    d: ["Pick for the difference of two", () => cards[cursor]?.querySelector("input").click()],
    i: ["The item across steps", () => { if (group.item !== null) visit(`item/${encodeURIComponent(group.item)}`, { env: group.env }); }],
    J: ["Next group", () => visit(`group/${Number(gid) + 1}`)],
    K: ["Previous group", () => visit(`group/${Math.max(0, Number(gid) - 1)}`)],
  });
}

// Messages of rows without text; returns those before the first answer that all have.
async function addMessages(context, rows) {
  if (rows.every((row) => row.completion !== null)) return [];
  const path = (row) => `/explore/groups/${row.gid}/rows/${row.row}`;
  const replies = await Promise.all(rows.map((row) => context.optional(path(row), { from: 0, to: 0 })));
  const lists = replies.map((one) => one?.messages ?? []);
  const n = Math.max(0, sharedMessages(lists));
  rows.forEach((row, at) => Object.assign(row, { said: lists[at].slice(n), images: replies[at]?.images }));
  return (lists[0] ?? []).slice(0, n);
}
const textOf = ({ completion, said = [] }) => completion
  ?? said.map((one) => (typeof one?.content === "string" ? one.content : JSON.stringify(one?.content ?? one))).join("\n");

function life(events) {
  return events?.length > 0 && h("ol", { class: "life", "aria-label": "Life of the group" }, events.map((one, at) =>
    h("li", { title: time(one.at) }, h("b", {}, one.event), " ", h("small", {}, at ? `+${duration(one.at - events[at - 1].at)}` : time(one.at)))));
}

function prompts(rows) {
  if (rows.some((row) => row.said?.length)) return null; // each card shows its own
  const texts = [...new Set(rows.map((r) => r.prompt).filter((t) => t !== null && t !== undefined))];
  if (!texts.length) return empty("No text.", "The tokenizer of this run was not found on this machine: ids are in the view of the tokens.");
  if (texts.length > 1) return null; // each card shows its own
  return section("Prompt", prose(texts[0], 2000));
}

function card(row, { gid, most, pick }) {
  const share = row.advantage === null ? 0 : Math.abs(row.advantage) / most;
  const trained = address(`tokens/${gid}/${row.row}`);
  return h("article", { class: "card", role: "listitem" },
    h("header", {}, h("b", { class: `num ${["bad", "", "good"][Math.sign(row.reward) + 1]}` }, fixed(row.reward)),
      h("span", { class: `adv ${row.advantage < 0 ? "neg" : "pos"}`, title: "advantage", vars: { "--share": `${share * 50}%` } }, signed(row.advantage)),
      h("span", { class: "grow" }), h("label", { title: "pick two for their difference (d)" }, h("input", { type: "checkbox", onchange: (event) => pick(event.target.checked) }), "diff"),
      link(trained, `tokens of ${row.row}`)),
    facts(["tokens", count(row.n_tokens)], ["trained", count(row.n_trained)], ["version", versions(row)],
      row.turns !== null && row.turns > 1 && ["turns", count(row.turns)], row.tool_calls && ["tools", count(row.tool_calls)],
      ["finish", orDash(row.finish_reason)], row.outcome && row.outcome !== "ok" && ["outcome", mark(true, row.outcome)],
      row.logprob_mean !== null && ["log p", number(row.logprob_mean, 2)], row.diff_max !== null && ["|Δ| max", number(row.diff_max)],
      row.clipped_share !== null && ["clipped", `${(row.clipped_share * 100).toFixed(1)} %`],
      row.why && ["why", mark(true, row.why)],
      ...Object.entries(row.metrics ?? {}).map(([name, value]) => [name, typeof value === "number" ? number(value) : String(value)]),
      ...Object.entries(row.timings ?? {}).map(([name, value]) => [name, duration(value)])),
    row.judge && h("details", {}, h("summary", {}, "judge"), prose(row.judge)),
    pictures(row.images), row.said?.length ? conversation(row.said)
      : row.completion === null ? empty("No text.", "Tokens has the ids.") : prose(row.completion, 2000));
}

// --- difference of two completions, by words

export function words(a, b) { // [[kind, text]]: "=" in both, "-" in a only, "+" in b only
  const [x, y] = [a, b].map((text) => (text ?? "").split(/(\s+)/).slice(0, MAX_WORDS));
  const wide = y.length + 1;
  const best = new Uint16Array((x.length + 1) * wide);
  for (let i = x.length - 1; i >= 0; i -= 1) {
    for (let j = y.length - 1; j >= 0; j -= 1) {
      best[i * wide + j] = x[i] === y[j] ? best[(i + 1) * wide + j + 1] + 1 : Math.max(best[(i + 1) * wide + j], best[i * wide + j + 1]);
    }
  }
  const out = [];
  const add = (kind, text) => { if (out.at(-1)?.[0] === kind) out.at(-1)[1] += text; else out.push([kind, text]); };
  let i = 0, j = 0;
  while (i < x.length || j < y.length) {
    if (i < x.length && j < y.length && x[i] === y[j]) { add("=", x[i]); i += 1; j += 1; }
    else if (j >= y.length || (i < x.length && best[(i + 1) * wide + j] >= best[i * wide + j + 1])) { add("-", x[i]); i += 1; }
    else { add("+", y[j]); j += 1; }
  }
  return out;
}

function difference(a, b) {
  const parts = words(textOf(a), textOf(b)).map(([kind, text]) =>
    (kind === "=" ? text : h(kind === "-" ? "del" : "ins", { title: escaped(kind === "-" ? `only in ${a.row}` : `only in ${b.row}`) }, text)));
  return section(`Difference: sample ${a.row} (${number(a.reward)}) to ${b.row} (${number(b.reward)})`, h("div", { class: "prose diff" }, parts));
}
