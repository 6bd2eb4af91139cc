// Environments: share of tokens, reward, drops, lengths.

import { chosen, post } from "./api.js";
import { address, bar, count, empty, facts, h, link, mark, number, sparkline, sum } from "./dom.js";

const CURVED = 400; // steps of the reward

// Environments of earlier versions do not report the number that the API gave their name.
const isOf = (label, name) => label === name || label === name.replace(/_\d+$/, "");

export async function show(context) {
  const cards = h("div", { class: "envs" });
  context.box.append(cards);
  const lengths = new Map(); // histograms change slowly: asked once per environment
  const run = await context.optional("/explore/runs").then(chosen);
  let drawn, curves = new Map(); // they change with a step
  await context.live(async () => {
    const status = await context.optional("/status");
    const shares = (status?.shares ?? []).filter((share) => share.env_id !== null);
    const names = [...new Set([...(run?.envs ?? []), ...shares.map((share) => share.name)])].sort();
    await Promise.all(names.filter((name) => !lengths.has(name)).map(async (name) => lengths.set(name, await context.optional("/explore/histogram", { field: "n_tokens", env: name }))));
    const now = `${status?.batches_acked} ${names}`;
    if (now !== drawn) {
      const from = Math.max(0, (status?.current_step ?? 0) - CURVED);
      curves = new Map(await Promise.all(names.map(async (env) => [env, await context.optional("/explore/curves", { keys: "reward,reward_std", env, from })])));
      drawn = now;
    }
    if (cards.querySelector("input:focus")) return;
    cards.replaceChildren(...names.map((name) => environment(name, {
      share: shares.find((one) => one.name === name), lengths: lengths.get(name),
      said: (status?.verdict?.processes ?? []).filter((p) => p.role === "env" && isOf(p.label, name)),
      beats: (status?.participants ?? []).filter((p) => p.role === "env" && isOf(p.details.env ?? p.name.replace(/-[0-9a-f]{6}$/, ""), name)),
      points: (key) => curves.get(name)?.series.find((one) => one.key === key && one.source === "rollup")?.points ?? [],
    })));
    if (!names.length) cards.append(empty("No environment is registered.", "Start one: atropos env run FILE serve --api-url " + location.origin));
  });
}

const refused = new Map(); // name -> why the last change was refused
function steering({ name, state, weight, max_rollouts: most, connected }) {
  if (!connected || !state) return null; // an older API, or it has left
  const set = (changes) => post("/steer", { env: name, ...changes })
    .then(() => refused.delete(name), (error) => refused.set(name, error.message));
  const field = (key, value) => h("input", { type: "number", class: "few", value: value ?? "", "aria-label": `${key} of ${name}`,
    onchange: ({ target }) => { set({ [key]: Number(target.value) || null }); target.blur(); } });
  const verbs = { running: "resume", draining: "drain", paused: "pause" };
  return h("p", { title: "drain: no new rollouts; pause: its queued groups wait too" }, state !== "running" && [mark(true, state), " "],
    Object.keys(verbs).filter((to) => to !== state).map((to) => [h("button", { onclick: () => set({ state: to }) }, verbs[to]), " "]),
    h("span", { class: "key" }, h("small", {}, "weight "), field("weight", weight)), " ",
    h("span", { class: "key" }, h("small", {}, "at most "), field("max_rollouts", most), h("small", {}, " rollouts")), " ", mark(true, refused.get(name) ?? ""));
}

function environment(name, { share, said, beats, points, lengths }) {
  const [reward, spread] = [points("reward"), points("reward_std")];
  const total = (key) => (beats.some((p) => p.details[key] !== undefined) ? sum(beats, (p) => p.details[key]) : null);
  const counts = (title, prefix, filter) => { // of each reason, with a link to its rollouts
    const keys = [...new Set(beats.flatMap((p) => Object.keys(p.details)).filter((key) => key.startsWith(prefix)))].filter(total);
    const one = (key, word = key.slice(8)) => [link(address("rollouts", { env: name, [filter]: word }), word.replaceAll("_", " ")), ` ${count(total(key))}  `];
    return keys.length > 0 && h("p", {}, h("small", {}, title), keys.map((key) => one(key)));
  };
  const [sent, dropped] = [total("groups_sent"), total("groups_dropped")];
  const percent = (x) => `${(x * 100).toFixed(0)} %`;
  return h("article", { class: "card env" },
    h("header", {}, h("b", {}, name), h("span", { class: "grow" }), link(address("rollouts", { env: name }), "rollouts"), link(address("curves", { env: name }), "curves")),
    facts(["reward", number(reward.at(-1)?.[1])], spread.length && ["spread", number(spread.at(-1)[1])],
      ["kept", count(sent)], ["dropped", count(dropped)], ["failed rollouts", count(total("rollouts_failed"))], ["running", count(total("rollouts_running"))]),
    reward.length > 1 && h("p", { class: "wide" }, sparkline(reward.map(([, y]) => y), 300, 36)),
    share && h("p", { class: "share" }, bar(share.realised, { mark: share.asked, label: `share of the trained tokens: ${percent(share.realised)}, wanted ${percent(share.asked)}` }),
      h("small", {}, `${percent(share.realised)} of the trained tokens, wanted ${percent(share.asked)}`)),
    share && steering(share),
    said.map((one) => h("p", {}, h("small", {}, "now "), mark(one.state === "silent", one.text))),
    counts("dropped: ", "dropped_", "why"), counts("failed samples: ", "samples_", "outcome"),
    lengths?.bins?.length > 1 && percentiles(lengths.bins));
}

function percentiles(bins) {
  const all = sum(bins, (bin) => bin.n), most = Math.max(1, ...bins.map((bin) => bin.n));
  const at = (share) => { let n = 0; return bins.find((bin) => (n += bin.n) >= share * all)?.to; };
  return h("div", { class: "hist" }, h("div", { class: "bins small" }, bins.map((bin) => h("span", { class: "bin", vars: { "--share": `${(bin.n / most) * 100}%` } }))),
    h("small", {}, `tokens: median ${count(Math.round(at(0.5)))}, 95 % under ${count(Math.round(at(0.95)))}`));
}
