// Weights: versions of servers over time.

import { bar, col, count, duration, empty, h, mark, num, section, table, time } from "./dom.js";

const SHOWN = 200; // versions in the table
const DRAWN = 30; // in the timeline

export async function show(context) {
  let seen = "";
  await context.live(async () => {
    const told = await context.optional("/explore/weights", { limit: SHOWN });
    if (seen === (seen = JSON.stringify(told))) return;
    const { versions = [], servers = [], publishes = [] } = told ?? {};
    const held = new Map(); // server -> its versions in order of time
    for (const one of servers) held.set(one.name, [...(held.get(one.name) ?? []), one]);
    const rows = versions.map((v, at) => ({ ...v, after: at ? v.at - versions[at - 1].at : null, ...publishes.find((p) => p.version === v.version), at: v.at,
      everywhere: everywhere(v, [...held.values()]) })).reverse();
    const slowest = Math.max(1e-9, ...rows.map((row) => row.publish_s ?? 0));
    context.box.replaceChildren(
      section("Servers", held.size ? table([col("server", ([name]) => h("b", {}, name)), num("version", ([, list]) => count(list.at(-1).version)),
        num("behind", ([, list]) => behind((versions.at(-1)?.version ?? null) - list.at(-1).version)),
        num("since", ([, list]) => time(list.at(-1).at))], [...held].sort(), { label: "Servers" })
        : empty("No inference server is known.", "Environments report the servers that they call once they have sampled.")),
      versions.length ? section("Timeline", timeline(versions, held)) : "",
      section("Versions", versions.length ? table([num("version", (v) => count(v.version)), num("published", (v) => time(v.at)),
        num("after", (v) => duration(v.after)), num("sampled by all after", (v) => duration(v.everywhere), "until each server sampled from it"),
        num("publish", (v) => duration(v.publish_s)), num("check", (v) => duration(v.check_s)),
        col("", (v) => bar(v.publish_s / slowest, { label: duration(v.publish_s) }))], rows, { label: "Versions" })
        : empty("Version 0.", "The trainer has announced none yet.")));
  });
}

const behind = (n) => mark(n > 1, count(Math.max(0, n)));

function everywhere(version, lists) {
  const firsts = lists.map((list) => list.find((one) => one.version >= version.version)?.at);
  return firsts.length && !firsts.includes(undefined) ? Math.max(0, Math.max(...firsts) - version.at) : null;
}

function timeline(versions, held) {
  const shown = versions.slice(-DRAWN);
  const from = shown[0].at, to = Math.max(...[shown, ...held.values()].map((list) => list.at(-1).at));
  const end = to + (to - from || 1) / shown.length; // the newest block has a mean width
  const place = (at) => (Math.max(0, at - from) / (end - from)) * 100;
  const lane = ([name, list]) => h("div", { class: "lane", role: "listitem" }, h("small", {}, name), h("div", {}, list.map((one, at) => {
    const [left, right] = [place(one.at), place(list[at + 1]?.at ?? end)];
    return right > left && h("i", { class: `hue${one.version % 6}`, title: `version ${one.version} from ${time(one.at)}`, vars: { "--from": `${left}%`, "--share": `${right - left}%` } }, one.version);
  })));
  return h("div", { class: "lanes", role: "list", "aria-label": "Versions over time" }, [["published", shown], ...[...held].sort()].map(lane),
    h("div", { class: "lane" }, h("small", {}), h("small", { class: "ends" }, h("span", {}, time(from)), h("span", {}, time(to)))));
}
