// --- what takes the bytes -----------------------------------------------------------------------
const MOST_CELLS = 4000;
const types = [...tree(false).types].filter((pair) => pair[1] > 0).sort((a, b) => b[1] - a[1]);
const typeColours = new Map(types.map(([type], i) => [type, `var(--c${Math.min(i, 7)})`]));
const sumOf = (node, value) => node.leaves.reduce((sum, leaf) => sum + (value(leaves[leaf]) || 0), 0);
const hasStored = leaves.some((leaf) => leaf.stored);
const row = () => rowOf.get(stepShown());
const COLOURS = [
  { key: "dtype", title: "dtype" },
  ...(hasStored ? [
    { key: "stored", title: "size on disk", value: (node) => sumOf(node, (leaf) => leaf.stored), text: bytes },
    { key: "ratio", title: "compression", value: (node) => { const stored = sumOf(node, (leaf) => leaf.stored); return stored ? node.bytes / stored : null; }, text: (value) => `${value.toFixed(2)} : 1` },
  ] : []),
  ...(data.has_statistics ? [
    { key: "l2", title: "L2 norm", value: (node) => combined(node, "l2", row()), text: number },
    ...(data.measured.length > 1 ? [{ key: "change", title: "relative change", value: (node) => combined(node, "change", row()), text: change }] : []),
    { key: "nans", title: "NaN and Inf", value: (node) => combined(node, "nans", row()), text: (value) => whole.format(value) },
  ] : []),
];
const colouring = () => COLOURS.find((one) => one.key === state.colour) || COLOURS[0];

function squarify(nodes, x, y, w, h) {
  const sum = nodes.reduce((all, node) => all + node.bytes, 0);
  const factor = sum ? (w * h) / sum : 0;
  const placed = [];
  let at = 0;
  while (at < nodes.length && w > 0.5 && h > 0.5) {
    const side = Math.min(w, h);
    let end = at, area = 0, worst = Infinity;
    const most = nodes[at].bytes * factor;
    while (end < nodes.length) {
      const more = area + nodes[end].bytes * factor, least = nodes[end].bytes * factor;
      const ratio = Math.max((side * side * most) / (more * more), (more * more) / (side * side * least));
      if (ratio > worst) break;
      worst = ratio; area = more; end += 1;
    }
    const depth = area / side;
    let along = 0;
    for (; at < end; at += 1) {
      const length = (nodes[at].bytes * factor) / depth;
      placed.push(w >= h ? [nodes[at], x, y + along, depth, length] : [nodes[at], x + along, y, length, depth]);
      along += length;
    }
    if (w >= h) { x += depth; w -= depth; } else { y += depth; h -= depth; }
  }
  return placed;
}
function layOut(node, x, y, w, h, placed) {
  const nodes = [...node.children.values()].filter((child) => child.bytes > 0).sort((a, b) => b.bytes - a.bytes || names.compare(a.name, b.name));
  for (const [child, cx, cy, cw, ch] of squarify(nodes, x, y, w, h)) {
    if (cw < 2.5 || ch < 2.5 || placed.length > MOST_CELLS) continue;
    const isGroup = child.children.size > 0 && cw > 54 && ch > 44;
    placed.push({ node: child, x: cx, y: cy, w: cw, h: ch, isGroup });
    if (isGroup) layOut(child, cx + 3, cy + 21, cw - 6, ch - 25, placed);
  }
  return placed;
}
function describeNode(node) {
  const inside = focus(), lines = [`${bytes(node.bytes)}, ${percent(node.bytes, tree(state.params).bytes)} of all`];
  const leaf = node.children.size ? null : node.leaf, by = colouring();
  if (inside.parent) lines.push(`${percent(node.bytes, inside.bytes)} of ${inside.path}`);
  if (leaf) lines.push(`${leaf.type}${leaf.shapeText}`); else lines.push(plural(node.leaves.length, "leaf", "leaves"));
  if (by.value) { const value = by.value(node); if (value !== null) lines.push(`${by.title} ${by.text(value)}`); }
  if (leaf && leaf.sharding) lines.push(leaf.sharding);
  const bad = data.has_statistics && row() !== undefined ? combined(node, "nans", row()) : 0;
  if (bad && by.key !== "nans") lines.push(`\u26a0 ${plural(bad, "value")} NaN or Inf`);
  return lines;
}
function place(box, { x, y, w, h }) {
  Object.assign(box.style, { left: `${x}px`, top: `${y}px`, width: `${Math.max(1, w - 2)}px`, height: `${Math.max(1, h - 2)}px` });
}
let boxes = [];
function paintMap() {
  const map = $("map"), inside = focus(), by = colouring();
  const placed = inside.bytes > 0 ? layOut(inside, 0, 0, map.clientWidth + 2, map.clientHeight + 2, []) : [];
  const values = by.value ? new Map(placed.filter((one) => !one.isGroup).map((one) => [one.node, by.value(one.node)])) : null;
  const between = values && scale(values.values()), colourAt = values && makeRamp();
  const at = row();
  const broken = (node) => at !== undefined && troubleIn(node, at, damaged);
  const bad = (node) => at !== undefined && troubleIn(node, at, notFinite);
  boxes = [];
  map.replaceChildren(...placed.flatMap((one) => {
    const { node, w, h, isGroup } = one, name = node.children.size ? `${node.name}/` : node.name;
    const share = `${bytes(node.bytes)} \u00b7 ${percent(node.bytes, inside.bytes)}`;
    const trouble = broken(node) ? "\u2715 " : bad(node) ? "\u26a0 " : "";
    const box = make("button", { type: "button", className: isGroup ? "head" : "cell", tabIndex: -1 });
    const title = `${trouble}${isGroup ? node.name : name}`;
    const second = isGroup ? w > 130 : w > 64 && h > 38;
    const isNamed = isGroup || (w > 34 && h > 20);
    if (isNamed) box.append(make("span", {}, title));
    if (second) box.append(" ", make("span", {}, share));
    if (!isNamed) box.style.padding = "0";
    box.setAttribute("aria-label", `${isNamed ? `${title} ` : ""}${second ? `${share} ` : ""}${node.path}, ${describeNode(node).join(", ")}`);
    box.addEventListener("pointermove", (event) => tip(event, node.path, describeNode(node)));
    box.addEventListener("click", () => { untip(); openNode(node); });
    box.addEventListener("focus", () => roam(box));
    boxes.push(box);
    if (isGroup) {
      const back = make("div", { className: "group" });
      place(back, one);
      place(box, { ...one, x: one.x + 1, y: one.y + 1, w: w - 1, h: 21 });
      return [back, box];
    }
    place(box, one);
    const value = values && values.get(node);
    if (!values) box.style.setProperty("--c", typeColours.get([...node.types].reduce((a, b) => (b[1] > a[1] ? b : a))[0]) || "var(--c7)");
    else if (value === null || !between || (by.key === "nans" && !value)) box.style.background = "var(--hover)";
    else {
      const colour = by.key === "nans" ? parts(css("--bad-solid")) : colourAt(value === Infinity ? 1 : between.place(value));
      box.style.background = rgb(colour);
      box.style.color = inkOn(colour);
    }
    if (trouble) box.classList.add("trouble");
    return [box];
  }), ...(placed.length ? [] : [make("p", { className: "note" }, "Nothing here has a size.")]));
  if (boxes.length) boxes[0].tabIndex = 0;
  crumbsOf($("crumbs"), `${bytes(inside.bytes)}, ${percent(inside.bytes, tree(state.params).bytes)}, ${plural(inside.leaves.length, "leaf", "leaves")}`);
  if (values) {
    const box = make("span", { className: "ramp" });
    if (by.key !== "nans") paintRamp(box, between, colourAt, by.text);
    $("legend").replaceChildren(box);
  } else {
    $("legend").replaceChildren(...types.map(([type, size]) => {
      const swatch = make("i");
      swatch.style.setProperty("--c", typeColours.get(type));
      return make("span", {}, swatch, `${type}  ${bytes(size)}, ${percent(size, total)}`);
    }));
  }
}
function roam(box) {
  for (const one of boxes) one.tabIndex = one === box ? 0 : -1;
}
$("map").addEventListener("keydown", (event) => {
  const at = boxes.indexOf(document.activeElement);
  if (event.key === "Escape" && focus().parent) { event.preventDefault(); go({ at: focus().parent.path }); if (boxes.length) boxes[0].focus(); return; }
  if (at < 0 || !event.key.startsWith("Arrow")) return;
  event.preventDefault();
  const here = boxes[at].getBoundingClientRect();
  const [dx, dy] = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
  let best = null, least = Infinity;
  for (const box of boxes) { // the nearest whose corner lies in that direction
    const other = box.getBoundingClientRect();
    const along = (other.left - here.left) * dx + (other.top - here.top) * dy;
    const aside = Math.abs((other.left - here.left) * dy) + Math.abs((other.top - here.top) * dx);
    if (box !== boxes[at] && along > 1 && along + 2 * aside < least) { least = along + 2 * aside; best = box; }
  }
  if (best) { roam(best); best.focus(); }
});
$("map").addEventListener("pointerleave", untip);
$("colour").append(...COLOURS.map(({ key, title }) => make("option", { value: key }, title)));
$("colour").addEventListener("change", () => go({ colour: $("colour").value }));
$("params-label").hidden = !hasParams;
$("params").addEventListener("change", () => go({ params: $("params").checked ? "1" : "", at: "" }));
$("sizes").hidden = total === 0;
view(["at", "colour", "params", "step"], () => {
  $("colour").value = colouring().key;
  $("params").checked = state.params === "1";
  paintMap();
});
new ResizeObserver(paintMap).observe($("map"));
dark.addEventListener("change", paintMap);
