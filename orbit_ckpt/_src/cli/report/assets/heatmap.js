// --- layers by step -----------------------------------------------------------------------------
const HEAT_ROW = 24, HEAT_AXIS = 24, MOST_ROWS = 32;
const heat = { nodes: [], values: [], at: null, cell: 1, width: 0 };
const heatMap = $("heat-map");

// Modules below the one looked into, opened level by level while they fit.
function heatNodes(node) {
  const sorted = (one) => [...one.children.values()].sort((a, b) => names.compare(a.name, b.name));
  let found = node.children.size ? sorted(node) : [node];
  const measured = (one) => one.leaves.some((leaf) => leaves[leaf].hasNumbers);
  found = found.filter(measured);
  for (;;) {
    const next = found.flatMap((one) => (one.children.size ? sorted(one).filter(measured) : [one]));
    if (next.length === found.length && next.every((one, i) => one === found[i])) return found;
    if (next.length > MOST_ROWS) break;
    found = next;
  }
  for (const parent of new Set(found.map((one) => one.parent))) { // as much of the rest as fits, siblings together
    const opened = found.flatMap((one) => (one.parent === parent && one.children.size ? sorted(one).filter(measured) : [one]));
    if (opened.length <= MOST_ROWS) found = opened;
  }
  return found;
}
function heatText(value) {
  if (value === null) return "";
  if (state.heat === "change") return change(value);
  return state.heat === "nans" ? whole.format(value) : number(value);
}
function describeCell([y, x]) {
  const node = heat.nodes[y], step = data.measured[x], value = heat.values[y][x];
  const what = { change: "relative change", nans: "NaN and Inf", l2: "L2 norm" }[state.heat];
  const lines = [`step ${stepName(step)}`, value === null ? `no ${what}` : `${what} ${heatText(value)}`];
  const bad = combined(node, "nans", x);
  if (bad && state.heat !== "nans") lines.push(`\u26a0 ${plural(bad, "value")} NaN or Inf`);
  if (troubleIn(node, x, damaged) || (steps[step].state === "damaged" && value === null)) lines.push("\u2715 damaged");
  return [node.path || "all", lines];
}
function paintHeat() {
  const ratio = devicePixelRatio || 1, W = heatMap.clientWidth, H = heat.nodes.length * HEAT_ROW + HEAT_AXIS;
  if (!W || $("heat").hidden) return;
  heatMap.style.height = `${H}px`;
  heatMap.width = W * ratio;
  heatMap.height = H * ratio;
  const pen = heatMap.getContext("2d"), count = data.measured.length;
  pen.scale(ratio, ratio);
  heat.width = W;
  heat.cell = Math.min(W / count, 120);
  const between = scale(heat.values.flat()), colourAt = makeRamp();
  const gap = heat.cell > 6 ? 1 : 0;
  const [bad, soft, ink, line, surface] = ["--bad", "--soft", "--ink", "--line", "--surface"].map(css);
  pen.font = "11px system-ui, sans-serif";
  pen.textBaseline = "middle";
  heat.nodes.forEach((node, y) => {
    for (let x = 0; x < count; x += 1) {
      const value = heat.values[y][x], left = x * heat.cell, top = y * HEAT_ROW;
      const isBroken = troubleIn(node, x, damaged) || steps[data.measured[x]].state === "damaged" && value === null;
      const isBad = troubleIn(node, x, notFinite);
      const colour = value === null || !between || (state.heat === "nans" && !value) ? null : colourAt(value === Infinity ? 1 : between.place(value));
      pen.fillStyle = isBroken || (isBad && state.heat === "nans") ? bad : colour ? rgb(colour) : line;
      pen.globalAlpha = !isBroken && !colour && !(isBad && state.heat === "nans") ? 0.45 : 1;
      pen.fillRect(left, top, Math.max(0.5, heat.cell - gap), HEAT_ROW - 1);
      pen.globalAlpha = 1;
      const hasRoom = heat.cell >= 46 && value !== null && !(state.heat === "nans" && !value);
      const onBad = isBroken || (isBad && state.heat === "nans");
      if (isBroken && heat.cell >= 12) { pen.fillStyle = surface; pen.fillText("\u2715", left + heat.cell / 2 - 4, top + HEAT_ROW / 2); }
      else if (hasRoom) { pen.fillStyle = onBad ? surface : inkOn(colour); pen.fillText(heatText(value), left + 5, top + HEAT_ROW / 2, heat.cell - 8 - (isBad && !onBad ? 12 : 0)); }
      if (isBad && !onBad) {
        pen.fillStyle = bad;
        pen.strokeStyle = surface;
        pen.beginPath();
        pen.moveTo(left + heat.cell - gap, top); pen.lineTo(left + heat.cell - gap, top + 10); pen.lineTo(left + Math.max(0, heat.cell - gap - 10), top);
        pen.closePath(); pen.fill(); if (heat.cell > 12) pen.stroke();
      }
    }
  });
  const chosen = rowOf.get(stepShown()), axis = heat.nodes.length * HEAT_ROW + HEAT_AXIS / 2;
  let free = -Infinity;
  for (let x = 0; x < count; x += 1) {
    const text = stepName(data.measured[x]), size = pen.measureText(text).width, left = Math.max(0, x * heat.cell + (heat.cell - size) / 2);
    if (x === chosen) { pen.strokeStyle = ink; pen.lineWidth = 1.5; pen.strokeRect(x * heat.cell + 0.75, 0.75, Math.max(2, heat.cell - gap - 1.5), heat.nodes.length * HEAT_ROW - 2.5); }
    if (left < free + 8 || left + size > W) continue;
    pen.fillStyle = x === chosen ? ink : soft;
    pen.fillText(text, left, axis);
    free = left + size;
  }
  if (heat.at && document.activeElement === heatMap) {
    pen.strokeStyle = css("--accent"); pen.lineWidth = 2;
    pen.strokeRect(heat.at[1] * heat.cell, heat.at[0] * HEAT_ROW, Math.max(3, heat.cell - gap), HEAT_ROW - 1);
  }
  paintRamp($("heat-ramp"), between, colourAt, heatText);
}
function paintRamp(box, between, colourAt, text) {
  if (!between || between.low === between.high) { box.replaceChildren(); return; }
  const bar = make("i");
  bar.style.background = `linear-gradient(to right, ${[0, 0.25, 0.5, 0.75, 1].map((at) => rgb(colourAt(at))).join(", ")})`;
  box.replaceChildren(make("span", {}, text(between.low)), bar, make("span", {}, `${text(between.high)}${between.isLog ? ", log scale" : ""}`));
}
function crumbsOf(box, note) {
  const node = focus(), chain = [];
  for (let at = node; at; at = at.parent) chain.unshift(at);
  box.replaceChildren(...chain.flatMap((at, i) => {
    const shown = i === chain.length - 1 ? make("b", {}, at.name) : make("button", { type: "button", onclick: () => go({ at: at.path }) }, at.name);
    return i ? [make("span", { ariaHidden: "true" }, "/"), shown] : [shown];
  }), make("span", { className: "note" }, note));
}
function openNode(node, step) {
  const changes = step === undefined ? {} : { step: step === data.shown ? "" : stepName(step) };
  if (node.children.size) go({ ...changes, at: node.path });
  else go({ ...changes, leaf: node.leaf.shown });
}
function showHeat() {
  const node = focus();
  heat.nodes = heatNodes(node);
  heat.values = heat.nodes.map((one) => data.measured.map((_, row) => combined(one, state.heat, row)));
  heat.at = null;
  const prefix = node.path ? node.path.length + 1 : 0;
  $("heat-names").replaceChildren(...heat.nodes.map((one) => {
    const text = `${one.path.slice(prefix) || one.name}${one.children.size ? "/" : ""}`;
    return make("button", { type: "button", title: one.path, onclick: () => openNode(one) }, make("bdi", {}, text));
  }));
  crumbsOf($("heat-crumbs"), plural(heat.nodes.length, "row"));
  heatMap.setAttribute("aria-label", `${$("heat-by").selectedOptions[0].text} of ${plural(heat.nodes.length, "module or leaf", "modules and leaves")} at ${plural(data.measured.length, "step")}`);
  $("heat-at").textContent = "";
  paintHeat();
}
function cellAt(event) {
  const box = heatMap.getBoundingClientRect();
  const x = Math.floor((event.clientX - box.left) / heat.cell), y = Math.floor((event.clientY - box.top) / HEAT_ROW);
  return x >= 0 && x < data.measured.length ? [y, x] : null;
}
if (data.has_statistics && isRun && COUNT && data.measured.length) {
  $("heat").hidden = false;
  $("heat-by").addEventListener("change", () => go({ heat: $("heat-by").value }));
  heatMap.addEventListener("pointermove", (event) => {
    const cell = cellAt(event);
    if (cell && cell[0] < heat.nodes.length) tip(event, ...describeCell(cell)); else untip();
    heatMap.style.cursor = cell ? "pointer" : "default";
  });
  heatMap.addEventListener("pointerleave", untip);
  heatMap.addEventListener("click", (event) => {
    const cell = cellAt(event);
    if (!cell) return;
    untip();
    if (cell[0] < heat.nodes.length) openNode(heat.nodes[cell[0]], data.measured[cell[1]]);
    else go({ step: stepName(data.measured[cell[1]]) });
  });
  heatMap.addEventListener("keydown", (event) => {
    const last = [heat.nodes.length - 1, data.measured.length - 1];
    const at = heat.at || [0, last[1]];
    const move = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1], Home: [0, -at[1]], End: [0, last[1]] }[event.key];
    if (event.key === "Enter" || event.key === " ") openNode(heat.nodes[at[0]], data.measured[at[1]]);
    else if (event.key === "Escape" && focus().parent) go({ at: focus().parent.path });
    else if (move) heat.at = heat.at ? at.map((n, i) => Math.max(0, Math.min(last[i], n + move[i]))) : at;
    else return;
    event.preventDefault();
    if (!heat.at) return;
    const [name, lines] = describeCell(heat.at);
    $("heat-at").textContent = `${name}: ${lines.join(", ")}`;
    paintHeat();
  });
  for (const name of ["focus", "blur"]) heatMap.addEventListener(name, paintHeat);
  view(["at", "heat", "params"], () => { $("heat-by").value = state.heat; showHeat(); });
  view(["step"], paintHeat);
  new ResizeObserver(paintHeat).observe($("heat-names").parentElement);
  dark.addEventListener("change", paintHeat);
}
