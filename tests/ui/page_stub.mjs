// The script of an exported page over a small document of its own: no browser is needed.
//
//   node page_stub.mjs page.html '#/' '#/group/0' ...   ->  a JSON object per address:
//   {text, tags: {name: number}, attributes: [[tag, name, value]], titles}

import { readFileSync } from "node:fs";

const [file, ...addresses] = process.argv.slice(2);
const html = readFileSync(file, "utf8");
const scripts = [...html.matchAll(/<script(?<attributes>[^>]*)>(?<text>[\s\S]*?)<\/script>/g)].map(({ groups }) => groups);
const data = scripts.find(({ attributes }) => attributes.includes('id="kept"')).text;
const script = scripts.find(({ attributes }) => attributes.includes('type="module"')).text;

class Node {
  children = []; parentNode = null;
  get childNodes() { return this.children; }
  append(...nodes) {
    for (const one of nodes) {
      const node = one instanceof Node ? one : new Text(String(one));
      if (node instanceof Fragment) { this.append(...node.children.splice(0)); continue; }
      node.remove();
      node.parentNode = this;
      this.children.push(node);
    }
  }
  remove() { const at = this.parentNode?.children.indexOf(this) ?? -1; if (at >= 0) this.parentNode.children.splice(at, 1); this.parentNode = null; }
  replaceChildren(...nodes) { for (const one of [...this.children]) one.remove(); this.append(...nodes); }
  replaceWith(...nodes) { const home = this.parentNode, after = home.children.slice(home.children.indexOf(this) + 1); this.remove(); after.forEach((one) => one.remove()); home.append(...nodes, ...after); }
  insertBefore(node, next) { this.append(node); if (next) { this.children.pop(); this.children.splice(this.children.indexOf(next), 0, node); } }
  get textContent() { return this.children.map((one) => one.textContent).join(""); }
  set textContent(text) { this.replaceChildren(text); }
  *all() { for (const one of this.children) { yield one; yield* one.all(); } }
  contains(node) { return [...this.all()].includes(node); }
}
class Text extends Node { constructor(text) { super(); this.data = text; } get textContent() { return this.data; } }
class Fragment extends Node {}
class Element extends Node {
  attributes = new Map(); dataset = {}; listeners = {};
  className = ""; scrollTop = 0; clientHeight = 400; clientWidth = 800;
  // Properties that h() finds by name, as a browser has them.
  id = ""; title = ""; value = ""; hidden = false; checked = false; src = ""; alt = ""; type = ""; placeholder = ""; selected = false; tabIndex = 0;
  spellcheck = true; autocomplete = ""; required = false;
  style = { setProperty() {} };
  constructor(tag) { super(); this.tag = tag; }
  get classList() {
    const names = () => new Set(this.className.split(" ").filter(Boolean));
    const set = (change) => { const now = names(); change(now); this.className = [...now].join(" "); };
    return { add: (name) => set((now) => now.add(name)), remove: (name) => set((now) => now.delete(name)),
      contains: (name) => names().has(name), toggle: (name, on) => set((now) => (on ? now.add(name) : now.delete(name))) };
  }
  setAttribute(name, value) { this.attributes.set(name, String(value)); if (name.startsWith("data-")) this.dataset[name.slice(5)] = String(value); }
  removeAttribute(name) { this.attributes.delete(name); }
  addEventListener(name, action) { (this.listeners[name] ??= []).push(action); }
  querySelectorAll(words) {
    const class_ = /\.([\w-]+)$/.exec(words)?.[1], at = /^\[data-at="(\d+)"\]$/.exec(words)?.[1], tag = /(?:^|\s)([a-z]+)$/.exec(words)?.[1];
    return [...this.all()].filter((one) => one instanceof Element
      && (class_ ? one.className.split(" ").includes(class_) : at ? String(one.dataset.at) === at : one.tag === tag));
  }
  querySelector(words) { return this.querySelectorAll(words)[0] ?? null; }
  matches() { return false; }
  closest() { return null; }
  scrollIntoView() {}
  focus() {}
  click() { (this.listeners.click ?? []).forEach((action) => action({ target: this, preventDefault() {} })); }
}

const body = new Element("body");
const named = Object.fromEntries(["main", "nav", "run", "pulse", "theme", "help", "dialog", "kept", "skip"].map((id) => [id, new Element("div")]));
named.kept.append(data);
body.append(...["run", "nav", "main"].map((id) => named[id]));
globalThis.document = { getElementById: (id) => named[id], createElement: (tag) => new Element(tag),
  createElementNS: (space, tag) => Object.assign(new Element(tag), { namespaceURI: space }), createDocumentFragment: () => new Fragment(), body,
  documentElement: new Element("html"), addEventListener() {}, activeElement: body, title: "",
  querySelectorAll: () => named.nav.querySelectorAll("a"), querySelector: () => named.skip };
const charts = [];
class Watcher { observe() {} disconnect() {} }
class Resized extends Watcher { constructor(action) { super(); this.action = action; } observe() { this.action([]); } }
Object.assign(globalThis, { Node, location: { hash: addresses[0], search: "", origin: "null" }, history: { replaceState() {}, back() {} },
  localStorage: new Map(), innerWidth: 1200, matchMedia: () => ({ addEventListener() {} }), ResizeObserver: Resized, IntersectionObserver: Watcher,
  getComputedStyle: () => ({ color: "#000" }), addEventListener: (name, action) => { if (name === "hashchange") globalThis.route = action; },
  uPlot: class { constructor(options, columns) { charts.push({ columns, scales: options.scales, curves: options.series.length - 1 }); } destroy() {} } });
localStorage.getItem = (name) => localStorage.get(name) ?? null;

await import(`data:text/javascript;base64,${Buffer.from(script).toString("base64")}`);
for (const hash of addresses) {
  charts.length = 0;
  location.hash = hash;
  await route();
  const seen = [...named.main.all()].filter((one) => one instanceof Element), tags = {};
  for (const one of seen) tags[one.tag] = (tags[one.tag] ?? 0) + 1;
  const attributes = seen.flatMap((one) => [...[...one.attributes].map(([name, value]) => [one.tag, name, value]), ...(one.src ? [[one.tag, "src", one.src]] : [])]);
  const nav = named.nav.querySelectorAll("a").map((one) => one.textContent);
  const text = (node) => (node instanceof Text ? node.data : node.children.map(text).join("") + (/^(p|div|tr|li|h1|h2|pre|dd|article|section|figure|summary)$/.test(node.tag) ? "\n" : node.tag ? " " : ""));
  process.stdout.write(`${JSON.stringify({ text: text(named.main), run: named.run.textContent, nav, tags, attributes, charts })}\n`);
}
process.exit(0);
