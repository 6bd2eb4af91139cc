// Addresses to views, keys, colour scheme, token, polling.

import { api, get, optional } from "./api.js";
import { address, duration, empty, h, put } from "./dom.js";
import { kept } from "./kept.js";
import { HELP, PARENT, VIEWS, head } from "./views.js";

const POLL_S = 2;
const OLD_MS = 60e3; // age from which a view that is read once says it
const clock = (ms) => new Date(ms).toLocaleTimeString("sv");
const main = document.getElementById("main");
const pulse = document.getElementById("pulse");
let view = null; // of the current address
let ran = 0;

function parse() {
  const [path, words] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, ...rest] = path.split("/").map(decodeURIComponent);
  return { name, rest, query: Object.fromEntries(new URLSearchParams(words ?? "")) };
}

async function route() {
  if (location.hash && !location.hash.startsWith("#/")) return; // an anchor of this document
  const { name, rest, query } = parse();
  view?.end.abort();
  clearTimeout(view?.timer);
  const mine = (view = { end: new AbortController(), keys: {}, live: null, timer: 0, at: Date.now() });
  const here = PARENT[name] ?? name;
  for (const one of document.querySelectorAll("#nav a")) {
    if (one.dataset.view === here) one.setAttribute("aria-current", "page"); else one.removeAttribute("aria-current");
  }
  document.title = `${VIEWS[here]?.[0] ?? "atropos"} ${rest.join(" ")}`.trim() + " · atropos";
  const box = h("div", { class: `view v-${name || "overview"}` });
  const context = {
    rest, query, box, signal: mine.end.signal,
    get: (path, words) => get(path, words, mine.end.signal),
    optional: (path, words) => optional(path, words, mine.end.signal),
    keys: (table) => Object.assign(mine.keys, table), // key: [what it does, function]
    later: (update) => { mine.live = update; }, // every POLL_S while visible
    live: (update) => (mine.live = update)(), // and now
    replace: (path, words) => history.replaceState(null, "", address(path, words)),
  };
  try {
    if (!VIEWS[name]) throw new Error(`there is no view ${name}`);
    const module = await import(`./${VIEWS[name][2]}.js`);
    if (mine !== view) return;
    main.replaceChildren(box);
    main.scrollTop = 0;
    await module.show(context);
  } catch (error) {
    if (mine !== view || mine.end.signal.aborted) return;
    main.replaceChildren(box);
    box.append(failed(error, rest.length));
  }
  box.dataset.ready = "1"; // for tests and scripts
  if (mine === view) schedule(mine);
}

function failed(error, named) {
  if (error.status === 404 && !named) return empty("No data for this view.", kept ? `${error.message}.` : "This API does not serve it: it has no archive, or is of an older version.");
  if (error.status === 404) return empty("Not here.", `${error.message}. It was freed, or never arrived at this run.`);
  if (error.status === 0) return empty("No answer.", `${HELP} This page retries.`);
  return empty("This view failed.", error.message);
}

function schedule(mine) {
  if (kept) return; // an exported page does not change
  mine.timer = setTimeout(async () => {
    if (mine !== view) return;
    if (mine.live && !document.hidden) {
      const ok = await mine.live().then(() => true, () => false);
      if (mine.end.signal.aborted) return;
      if (ok || !ran) ran = Date.now();
      pulse.className = ok ? "ok" : "lost";
      pulse.textContent = ok ? "live" : `no answer: ${duration((Date.now() - ran) / 1000)} old`;
      pulse.title = ok ? `updated every ${POLL_S} s` : `shown as of ${clock(ran)}. ${HELP}`;
    } else if (!mine.live) {
      pulse.className = "";
      pulse.textContent = Date.now() - mine.at < OLD_MS ? "" : `${duration((Date.now() - mine.at) / 1000)} old`;
      pulse.title = `read at ${clock(mine.at)}, and not since: reload it`;
    }
    document.body.classList.toggle("old", pulse.className === "lost");
    if (mine === view && !document.hidden) schedule(mine);
  }, POLL_S * 1000);
}
document.addEventListener("visibilitychange", () => { // a hidden page asks for nothing
  clearTimeout(view?.timer);
  if (!document.hidden && view) schedule(view);
});

// --- dialogs

const dialog = document.getElementById("dialog");

function help() {
  const row = ([key, [what]]) => h("div", {}, h("dt", {}, h("kbd", {}, key)), h("dd", {}, what));
  dialog.replaceChildren(h("form", { method: "dialog" }, h("h2", {}, "Keys"),
    h("dl", { class: "keys" }, Object.entries({ ...view.keys, ...KEYS }).map(row),
      Object.values(VIEWS).filter(([title]) => title).map(([title, key]) => row([`g ${key}`, [title]]))),
    h("button", {}, "Close")));
  dialog.showModal();
}

api.askToken = () => new Promise((resolve) => {
  const field = h("input", { type: "password", autocomplete: "off", required: true, "aria-label": "Token" });
  dialog.replaceChildren(h("form", { method: "dialog", onsubmit: () => resolve(field.value.trim()) },
    h("h2", {}, "Token"), h("p", {}, "This API asks for a token. One of the scope read is enough; this tab keeps it until it is closed."),
    field, h("button", {}, "Continue")));
  dialog.oncancel = (event) => event.preventDefault();
  dialog.onclose = () => { dialog.oncancel = dialog.onclose = null; };
  dialog.showModal();
});

// --- keys

const KEYS = {
  "?": ["Keys", help],
  Escape: ["Back", () => history.back()],
  T: ["Light, dark, or as the system", () => theme(true)],
};
let prefix = "";
document.addEventListener("keydown", (event) => {
  const typing = event.target.closest?.("input, select, textarea");
  if (event.ctrlKey || event.metaKey || event.altKey || dialog.open) return;
  if (typing) { if (event.key === "Escape") { event.target.blur(); event.preventDefault(); } return; }
  if (prefix === "g") {
    prefix = "";
    const found = Object.entries(VIEWS).find(([, [, key]]) => key === event.key);
    if (found) { location.hash = `#/${found[0]}`; event.preventDefault(); }
    return;
  }
  if (event.key === "g") { prefix = "g"; return; }
  if (event.key === "Enter" && event.target.closest?.("a, button, tr, summary")) return;
  const action = (view?.keys ?? {})[event.key] ?? KEYS[event.key];
  if (action) { event.preventDefault(); action[1](event); }
});

// --- colour scheme

const SCHEMES = ["auto", "light", "dark"];
function theme(next = false) {
  let now = localStorage.getItem("atropos-scheme") ?? "auto";
  if (next) localStorage.setItem("atropos-scheme", (now = SCHEMES[(SCHEMES.indexOf(now) + 1) % 3]));
  document.documentElement.dataset.scheme = now;
  const button = document.getElementById("theme");
  button.textContent = { auto: "◐", light: "○", dark: "●" }[now] ?? "◐";
  button.title = `Colour scheme: ${now}`;
  if (next) document.dispatchEvent(new Event("scheme"));
}

// --- start

document.getElementById("nav").append(...Object.entries(VIEWS).filter(([name, [title]]) => title && (kept?.views?.includes(name) ?? true))
  .map(([name, [title]]) => { const a = h("a", { href: `#/${name}` }, title); a.dataset.view = name; return a; }));
document.getElementById("help").addEventListener("click", help);
document.getElementById("theme").addEventListener("click", () => theme(true));
document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
addEventListener("hashchange", route);
theme();
await route();
put(document.getElementById("run"), await head());
