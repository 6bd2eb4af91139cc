// Elements, formats and escapes. Text of a model goes into text nodes only.

const HIDDEN = // control characters, marks of direction, invisible characters, lone surrogates
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]|\p{Surrogate}/gu;
const MAX_SHOWN = 20000; // characters of one text, before a button shows the rest

export function h(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "vars") for (const [key, one] of Object.entries(value)) node.style.setProperty(key, one);
    else if (name === "href") node.setAttribute("href", String(value).startsWith("#") ? value : "#");
    else if (name === "class") node.className = value;
    else if (name in node && name !== "list") node[name] = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  return put(node, ...children);
}

export const fill = (node, ...children) => { node.replaceChildren(); return put(node, ...children); };

export function put(node, ...children) { // absent children are left out, and texts escaped
  node.append(...children.flat(9).filter((one) => one !== null && one !== undefined && one !== false)
    .map((one) => (one instanceof Node ? one : visible(String(one)))));
  return node;
}

const code = (char) => {
  const point = char.codePointAt(0);
  return point < 256 ? `\\x${point.toString(16).padStart(2, "0")}` : `\\u${point.toString(16).padStart(4, "0")}`;
};

export const escaped = (text) => text.replace(HIDDEN, code); // for titles and attributes

export function visible(text) { // a fragment whose hidden characters are shown as escapes
  const out = document.createDocumentFragment();
  let from = 0;
  for (const match of text.matchAll(HIDDEN)) {
    if (match.index > from) out.append(text.slice(from, match.index));
    const mark = document.createElement("span");
    mark.className = "esc";
    mark.textContent = code(match[0]);
    out.append(mark);
    from = match.index + match[0].length;
  }
  if (from < text.length) out.append(text.slice(from));
  return out;
}

export function prose(text, shown = MAX_SHOWN) { // a long text, cut with a button for more
  const box = h("div", { class: "prose" }, text.slice(0, shown));
  if (text.length > shown) {
    const rest = text.slice(shown);
    box.append(h("button", { class: "more", onclick: (event) => event.target.replaceWith(prose(rest)) },
      `${count(rest.length)} more characters`));
  }
  return box;
}

export const link = (href, ...children) => h("a", { href }, ...children);
export const search = (query) => {
  const words = new URLSearchParams(Object.entries(query).filter(([, v]) => v !== null && v !== undefined && v !== ""));
  return words.size ? `?${words}` : "";
};
export const address = (path, query = {}) => `#/${path}${search(query)}`;
export const visit = (path, query) => { location.hash = address(path, query); };
export const alike = (keys, ...action) => Object.fromEntries(keys.map((key) => [key, action]));
export const sum = (list, of) => list.reduce((total, one) => total + (Number(of(one)) || 0), 0);
export const mark = (bad, ...children) => h("span", { class: bad ? "bad" : "" }, children);

// --- numbers: null is unknown, shown as a dash and never as 0

const DASH = "–";
const known = (value) => value !== null && value !== undefined && !Number.isNaN(value);
const minus = (text) => text.replaceAll("-", "−");
export const count = (n) => (known(n) ? minus(Number(n).toLocaleString("en")) : DASH);
export function number(x, digits = 3) {
  if (!known(x)) return DASH;
  if (Number.isInteger(x) && Math.abs(x) < 1e6) return minus(String(x));
  const size = Math.abs(x);
  return minus(size !== 0 && (size < 10 ** -digits || size >= 1e6) ? x.toExponential(1) : x.toFixed(digits));
}
export const fixed = (x, digits = 3) => (known(x) ? minus(x.toFixed(digits)) : DASH); // for columns
export const signed = (x, digits = 2) => (x > 0 ? "+" : "") + fixed(x, digits);
export function bytes(n) {
  if (!known(n)) return DASH;
  const unit = n < 1e3 ? 0 : Math.min(3, Math.floor(Math.log10(n) / 3));
  return `${(n / 1e3 ** unit).toFixed(unit ? 1 : 0)} ${["B", "kB", "MB", "GB"][unit]}`;
}
export function duration(s) {
  if (!known(s)) return DASH;
  if (s < 0) return `−${duration(-s)}`;
  if (s < 1) return `${Math.round(s * 1000)} ms`;
  if (s < 10) return `${s.toFixed(1)} s`;
  if (s < 120) return `${Math.round(s)} s`;
  return s < 7200 ? `${Math.round(s / 60)} min` : `${(s / 3600).toFixed(1)} h`;
}
export function time(at) {
  if (!known(at)) return DASH;
  const date = new Date(at * 1000);
  const day = date.toDateString() === new Date().toDateString() ? "" : `${date.toLocaleDateString("sv")} `;
  return day + date.toLocaleTimeString("sv");
}
export const orDash = (value) => (known(value) && value !== "" ? value : DASH);

// --- blocks

export const empty = (what, how) => h("p", { class: "empty" }, h("b", {}, what), how ? ` ${how}` : "");
export const section = (title, ...body) => h("section", {}, h("h2", {}, title), ...body);
export const choice = (label, values, value, change) => h("select", { "aria-label": label, onchange: ({ target }) => change(target.value, target.selectedIndex) },
  values.map((one) => h("option", { value: one, selected: one === value }, one)));
export const chip = (name, drop, ...words) => h("span", { class: "chip" }, words, h("button", { "aria-label": `Remove ${name}`, onclick: drop }, "×"));
export const facts = (...pairs) => h("dl", { class: "facts" },
  pairs.filter(Boolean).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));

// Columns of a table: cell(row). A row with ``open`` is a link by mouse and Enter.
export const col = (title, cell, hint) => ({ title, cell, hint });
export const num = (title, cell, hint) => ({ title, cell, hint, num: true });
export function table(columns, rows, { open, label } = {}) {
  return h("div", { class: "scroll" }, h("table", { "aria-label": label },
    h("thead", {}, h("tr", {}, columns.map((c) => h("th", { class: c.num && "num", scope: "col", title: c.hint }, c.title)))),
    h("tbody", {}, rows.map((row) => h("tr", open ? {
      class: "open", tabIndex: 0,
      onclick: (event) => event.target.closest("a") || (location.hash = open(row)),
      onkeydown: (event) => event.key === "Enter" && (location.hash = open(row)),
    } : {}, columns.map((c) => h("td", { class: c.num && "num" }, c.cell(row))))))));
}

export function bar(share, { mark, label } = {}) { // 0..1, with a mark at the wanted share
  return h("span", { class: "bar", role: "img", "aria-label": label, title: label,
    vars: { "--share": `${Math.max(0, Math.min(1, share || 0)) * 100}%`, "--mark": `${(mark ?? 0) * 100}%` } },
  mark === undefined || mark === null ? null : h("i"));
}

export function sparkline(values, width = 120, height = 22) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const line = document.createElementNS(svg.namespaceURI, "polyline");
  const real = values.filter(known);
  const low = Math.min(...real), span = Math.max(...real) - low || 1;
  line.setAttribute("points", real.map((v, i) =>
    `${(i / Math.max(1, real.length - 1)) * (width - 2) + 1},${height - 2 - ((v - low) / span) * (height - 4)}`).join(" "));
  for (const [key, value] of Object.entries({ class: "spark", width, height, "aria-hidden": "true" })) svg.setAttribute(key, value);
  svg.append(line);
  return svg;
}
