// --- the leaves ---------------------------------------------------------------------------------
const ROW = 28;
const statistic = (key, title, width = 88) => ({ key, title, width, right: true, stats: true, value: (leaf) => { const found = at(leaf)[key]; return found === null || found === undefined ? null : Number(found); }, exact: (leaf) => at(leaf)[key] ?? "", text: (leaf) => number(at(leaf)[key]) });
const counted = (key, title) => ({ ...statistic(key, title, 64), text: (leaf) => (at(leaf)[key] === null || at(leaf)[key] === undefined ? "" : whole.format(at(leaf)[key])), mark: (leaf) => { const found = at(leaf)[key]; return found === null || found === undefined ? "" : found ? "bad" : "zero"; } });
const COLUMNS = [
  { key: "shown", title: "name", cell: "name", width: 0, fixed: true },
  { key: "type", title: "dtype", width: 92 },
  { key: "shape", title: "shape", width: 120, value: (leaf) => leaf.elements, text: (leaf) => leaf.shapeText },
  { key: "nbytes", title: "bytes", width: 86, right: true, text: (leaf) => (leaf.shape ? bytes(leaf.nbytes) : ""), exact: (leaf) => leaf.nbytes },
  { key: "share", title: "share", width: 72, right: true, off: true, value: (leaf) => leaf.nbytes, text: (leaf) => (leaf.nbytes ? percent(leaf.nbytes, total) : ""), exact: (leaf) => (total ? leaf.nbytes / total : "") },
  { key: "stored", title: "on disk", width: 86, right: true, off: true, some: true, text: (leaf) => bytes(leaf.stored), exact: (leaf) => leaf.stored ?? "" },
  { key: "ratio", title: "compressed", width: 104, right: true, off: true, some: true, text: (leaf) => (leaf.ratio ? `${leaf.ratio.toFixed(2)} : 1` : ""), exact: (leaf) => leaf.ratio ?? "" },
  { key: "compression", title: "codec", width: 80, off: true, some: true },
  { key: "chunk_shape", title: "chunks", width: 120, off: true, some: true, value: (leaf) => (leaf.chunk_shape || []).reduce((a, b) => a * b, 1), text: (leaf) => (leaf.chunk_shape ? `[${leaf.chunk_shape.join(", ")}]` : "") },
  { key: "sharding", title: "sharding", width: 160, off: true, some: true },
  ...(data.has_statistics ? [
    statistic("min", "min"), statistic("max", "max"), statistic("mean", "mean"), statistic("l2", "L2"),
    ...(data.measured.length > 1 ? [{ ...statistic("change", "change"), text: (leaf) => change(at(leaf).change) }] : []),
    counted("nans", "NaN"), counted("infs", "Inf"),
    { ...statistic("zeros", "zeros", 76), off: true, text: (leaf) => (at(leaf).zeros === null ? "" : percent(at(leaf).zeros, leaf.elements) || "0") },
    { ...statistic("bad", "NaN or Inf", 90), off: true, value: (leaf) => (at(leaf).nans || 0) + (at(leaf).infs || 0), text: (leaf) => whole.format((at(leaf).nans || 0) + (at(leaf).infs || 0)), exact: (leaf) => (at(leaf).nans || 0) + (at(leaf).infs || 0) },
  ] : []),
].filter((column) => !column.some || leaves.some((leaf) => leaf[column.key]));

const known = new Map(); // the values of leaves at the step that is shown
function at(leaf) {
  if (!known.has(leaf.index)) known.set(leaf.index, valuesOf(leaf, stepShown()));
  return known.get(leaf.index);
}
const NARROW = new Set(["shown", "type", "nbytes", "l2", "nans"]);
function columnsShown() {
  const chosen = new Set(state.columns.split(","));
  const isUsual = (column) => (innerWidth < 700 ? NARROW.has(column.key) : !column.off);
  return COLUMNS.filter((column) => column.fixed || (state.columns ? chosen.has(column.key) : isUsual(column)));
}
let chosen = leaves, shown = [], drawn = [-1, -1];
const body = make("tbody");
const order = () => ({ key: state.sort.replace(/^-/, ""), down: state.sort.startsWith("-") });

function showHead() {
  shown = columnsShown();
  const { key, down } = order();
  const cells = shown.map((column) => {
    const button = make("button", { type: "button" }, column.title);
    button.addEventListener("click", () => {
      const first = column.right ? "-" : "", second = column.right ? "" : "-";
      go({ sort: key !== column.key ? first + column.key : down === Boolean(column.right) ? second + column.key : "" });
      const same = [...$("table").querySelectorAll("th button")][shown.indexOf(column)];
      if (same) same.focus();
    });
    const head = make("th", { className: column.right ? "right" : "", scope: "col" }, button);
    if (key === column.key) head.setAttribute("aria-sort", down ? "descending" : "ascending");
    return head;
  });
  const table = make("table", {},
    make("colgroup", {}, ...shown.map((column) => { const col = make("col"); if (column.width) col.style.width = `${column.width}px`; return col; })),
    make("thead", {}, make("tr", {}, ...cells)), body);
  table.setAttribute("aria-rowcount", String(chosen.length + 1));
  table.style.minWidth = `${shown.reduce((sum, column) => sum + (column.width || (innerWidth < 700 ? 170 : 260)), 0)}px`;
  $("table").replaceChildren(table);
}
function nameCell(leaf) {
  const keys = keysOf(leaf), tail = keys.slice(-2).join("/"), headKeys = keys.slice(0, -2);
  const spans = [...(headKeys.length ? [make("span", { className: "first" }, `${headKeys.join("/")}/`)] : []), make("span", { className: "last" }, tail)];
  const button = make("button", { type: "button", className: "open", title: leaf.shown, onclick: () => go({ leaf: leaf.shown }) }, make("bdi", { dir: "ltr" }, ...spans));
  button.dataset.leaf = leaf.index;
  return button;
}
function spacer(rows) {
  const cell = make("td", { colSpan: shown.length });
  cell.style.height = `${rows * ROW}px`;
  return make("tr", { className: "spacer", ariaHidden: "true" }, cell);
}
function showRows(force) {
  const box = $("table");
  const first = Math.max(0, Math.floor(box.scrollTop / ROW) - 12);
  const last = Math.min(chosen.length, first + Math.ceil(box.clientHeight / ROW) + 26);
  if (!force && first === drawn[0] && last === drawn[1]) return;
  drawn = [first, last];
  const focused = document.activeElement && body.contains(document.activeElement) ? document.activeElement.dataset.leaf : null;
  const rows = chosen.slice(first, last).map((leaf, i) => {
    const found = at(leaf);
    const cells = shown.map((column) => {
      if (column.cell) return make("td", { className: column.cell }, nameCell(leaf));
      const text = column.text ? column.text(leaf) : leaf[column.key] ?? "";
      const exact = column.exact ? String(column.exact(leaf)) : text;
      const classes = [column.right && "right", column.mark && column.mark(leaf)].filter(Boolean).join(" ");
      return make("td", { className: classes, title: exact }, text);
    });
    if (found.damage || found.absent) {
      const note = make("span", { className: `mark ${found.damage ? "damaged" : ""}`, title: found.damage || "" }, found.damage ? "\u2715 damaged" : "not in this step");
      cells[0].append(note);
    }
    const line = make("tr", found.damage ? { className: "damaged" } : {}, ...cells);
    line.setAttribute("aria-rowindex", String(first + i + 2));
    return line;
  });
  body.replaceChildren(...(first ? [spacer(first)] : []), ...rows, ...(last < chosen.length ? [spacer(chosen.length - last)] : []));
  if (focused !== null) { const same = body.querySelector(`[data-leaf="${focused}"]`); if (same) same.focus({ preventScroll: true }); }
}
function choose() {
  const root = tree(state.params), inside = focus();
  const words = state.search.toLowerCase().split(/\s+/).filter(Boolean);
  chosen = inside.leaves.map((index) => leaves[index]).filter((leaf) => words.every((word) => leaf.text.includes(word)));
  const { key, down } = order(), column = COLUMNS.find((one) => one.key === key);
  if (column) {
    const value = column.value || ((leaf) => leaf[column.key]);
    const sign = down ? -1 : 1;
    const isNothing = (one) => one === null || one === undefined || Number.isNaN(one);
    const keyed = chosen.map((leaf) => [value(leaf), leaf]);
    keyed.sort(([one, a], [two, b]) => {
      if (isNothing(one) || isNothing(two)) return isNothing(one) - isNothing(two) || a.index - b.index;
      return one === two ? a.index - b.index : one < two ? -sign : sign;
    });
    chosen = keyed.map((pair) => pair[1]);
  }
  const where = inside.parent ? ` below ${inside.path}` : "";
  $("count").textContent = chosen.length === COUNT ? plural(COUNT, "leaf", "leaves")
    : `${whole.format(chosen.length)} of ${plural(root.leaves.length, "leaf", "leaves")}${where}`;
  showHead();
  $("table").scrollTop = 0;
  showRows(true);
  showLoadLine(inside);
}
function showLoadLine(inside) {
  const step = stepShown();
  let pattern = inside.parent ? patternOf(inside.path, true) : state.params ? python("params/**") : "";
  if (state.search && chosen.length && chosen.length <= 20 && chosen.length < COUNT) {
    const each = chosen.map((leaf) => patternOf(leaf.shown, false));
    pattern = each.length === 1 ? each[0] : `[${each.join(", ")}]`;
  }
  $("load-line").textContent = loadLine(step, pattern);
}
function csvText() {
  const quote = (value) => { const text = String(value ?? ""); return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text; };
  const lines = [shown.map((column) => quote(column.title))];
  for (const leaf of chosen) lines.push(shown.map((column) => quote(column.exact ? column.exact(leaf) : column.text ? column.text(leaf) : leaf[column.key])));
  return lines.map((cells) => cells.join(",")).join("\r\n") + "\r\n";
}
$("csv").setAttribute("aria-label", "CSV: download the rows and columns shown");
$("csv").addEventListener("click", () => {
  const link = make("a", { href: URL.createObjectURL(new Blob([csvText()], { type: "text/csv" })), download: `${data.title}${isRun ? `-${stepName(stepShown())}` : ""}.csv` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
});
$("column-list").append(...COLUMNS.filter((column) => !column.fixed).map((column) => {
  const box = make("input", { type: "checkbox", value: column.key });
  box.addEventListener("change", () => go({ columns: [...$("column-list").querySelectorAll("input:checked")].map((one) => one.value).join(",") || "shown" }));
  return make("label", {}, box, ` ${column.title}`);
}));
addEventListener("click", (event) => { if (!$("columns").contains(event.target)) $("columns").open = false; });
$("columns").addEventListener("keydown", (event) => { if (event.key === "Escape") { $("columns").open = false; $("columns").firstElementChild.focus(); } });
$("table").addEventListener("scroll", () => showRows(false), { passive: true });
$("search").addEventListener("input", () => go({ search: $("search").value }));
$("skip").addEventListener("click", (event) => { event.preventDefault(); $("search").focus(); $("leaves").scrollIntoView(); });
$("table").style.setProperty("--rows", `${(COUNT + 1) * ROW + 20}px`);
view(["step"], () => known.clear());
view(["at", "search", "sort", "step", "params", "columns"], () => {
  if ($("search").value !== state.search) $("search").value = state.search;
  choose();
  const keys = new Set(shown.map((column) => column.key));
  for (const box of $("column-list").querySelectorAll("input")) box.checked = keys.has(box.value);
});
let wide = innerWidth;
new ResizeObserver(() => {
  if (innerWidth !== wide && (innerWidth < 700) !== (wide < 700)) showHead();
  wide = innerWidth;
  showRows(true);
}).observe($("table"));
