(function () {
  const all = (from, selector) => Array.from(from.querySelectorAll(selector));
  const field = (name) => document.getElementById(name);
  const groups = all(document, "details.group");
  if (!groups.length) { return; }
  const total = all(document, ".item").length;
  const bound = (name, otherwise) => field(name).value === "" ? otherwise : Number(field(name).value);

  function apply() {
    const words = field("search").value.toLowerCase(), kind = field("kind").value;
    const least = bound("least", -Infinity), most = bound("most", Infinity), finish = field("finish").value;
    const bounded = least > -Infinity || most < Infinity;
    let shown = 0;
    for (const group of groups) {
      const equal = Number(group.dataset.spread) === 0;
      const wanted = kind === "" || equal === (kind === "equal");
      const items = all(group, ".item");
      const shared = Array.from(group.children).filter((part) => !part.classList.contains("item"));
      const named = shared.some((part) => part.textContent.toLowerCase().includes(words));
      for (const item of items) {
        const reward = item.dataset.reward === "" ? NaN : Number(item.dataset.reward);
        item.hidden = !(wanted && (!bounded || (reward >= least && reward <= most))
          && (finish === "" || item.dataset.finish === finish)
          && (named || item.textContent.toLowerCase().includes(words)));
      }
      const left = items.filter((item) => !item.hidden).length;
      group.hidden = left === 0;
      shown += left;
    }
    field("count").textContent = shown + " of " + total + " samples";
  }

  function reorder() {
    const key = field("order").value, sign = key === "spread" || key === "length" ? -1 : 1;
    const value = (group) => sign * Number(group.dataset[key]);
    groups.sort((a, b) => value(a) - value(b) || a.dataset.place - b.dataset.place);
    groups.forEach((group) => field("groups").append(group));
  }

  function open(step) {
    const seen = groups.filter((group) => !group.hidden);
    const now = seen.findIndex((group) => group.open);
    const next = seen[Math.min(seen.length - 1, Math.max(0, now + step))];
    groups.forEach((group) => { group.open = group === next; });
    if (next) { next.querySelector("summary").focus(); next.scrollIntoView({ block: "center" }); }
  }

  for (const name of ["search", "least", "most", "finish", "kind"]) { field(name).addEventListener("input", apply); }
  field("order").addEventListener("input", reorder);
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) { return; }
    if (["INPUT", "SELECT"].includes(event.target.tagName)) { return; }
    const step = { j: 1, ArrowRight: 1, k: -1, ArrowLeft: -1 }[event.key];
    if (step) { event.preventDefault(); open(step); }
    if (event.key === "/") { event.preventDefault(); field("search").focus(); }
  });
  apply();
})();
