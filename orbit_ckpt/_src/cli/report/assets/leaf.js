// --- one leaf at one step -----------------------------------------------------------------------
// A text is an integer that no number of a browser is equal to.
const exactly = (value) => (typeof value === "string" ? value : number(value));
function facts(pairs) {
  return make("dl", {}, ...pairs.filter(([, value]) => value !== "" && value !== null && value !== undefined)
    .map(([name, value, kind]) => make("div", { className: kind || "" }, make("dt", {}, name), make("dd", {}, value))));
}
// The parts of an array, each with the devices that hold it.
function deviceMap(leaf, map) {
  const { mesh, spec, dims, grid } = map;
  const axes = Object.entries(mesh).map(([name, size]) => `${name}=${size}`).join(", ");
  const note = [axes && `mesh ${axes}`, spec.length ? `split (${spec.map((one) => (one.length ? one.join("+") : "\u2013")).join(", ")})` : ""].filter(Boolean).join("; ");
  const parts = [make("h3", {}, "Devices"), make("p", { className: "note" }, note || leaf.sharding)];
  if (!grid) return make("div", {}, ...parts, make("p", { className: "note" }, "Too many parts to draw."));
  const rows = grid.length, columns = grid[0].length, W = 520;
  const isOneDimension = dims.length === 1;
  const [across, down] = isOneDimension ? [rows, 1] : [columns, rows];
  const w = Math.min(130, W / across), h = Math.max(22, Math.min(46, 240 / down));
  const svg = draw("svg", { viewBox: `0 0 ${W} ${down * h + 2}`, role: "img", "aria-label": `${plural(rows * columns, "part")}, each on ${plural(grid[0][0].length, "device")}: ${grid.flat().slice(0, 16).map((ids) => ids.join(" and ")).join("; ")}` });
  const ids = [...new Set(grid.flat(2))], colourAt = makeRamp();
  grid.flat().forEach((held, i) => {
    const x = isOneDimension ? i : i % columns, y = isOneDimension ? 0 : Math.floor(i / columns);
    const colour = colourAt(ids.length > 1 ? 0.12 + 0.6 * (ids.indexOf(held[0]) / ids.length) : 0.3);
    const text = held.length > 4 ? `${held.slice(0, 3).join(", ")} +${held.length - 3}` : held.join(", ");
    const cell = draw("rect", { x: x * w + 1, y: y * h + 1, width: w - 2, height: h - 2, rx: 4, fill: rgb(colour) });
    cell.append(draw("title", {}, `devices ${held.join(", ")}`));
    svg.append(cell);
    if (w > 8 * text.length) { const label = draw("text", { x: x * w + w / 2, y: y * h + h / 2 + 4, "text-anchor": "middle" }, text); label.style.fill = inkOn(colour); svg.append(label); }
  });
  const copies = grid[0][0].length;
  const shape = leaf.shape && dims.length ? `Each part is [${leaf.shape.map((n, i) => { const at = dims.indexOf(i); return at < 0 ? n : Math.ceil(n / (at === 0 ? rows : columns)); }).join(", ")}]` : "";
  const tail = [shape, copies > 1 ? `every part is on ${copies} devices` : ""].filter(Boolean).join("; ");
  return make("div", { className: "chart devices" }, ...parts, svg, ...(tail ? [make("p", { className: "note" }, tail)] : []));
}
// One line per step that has a histogram, the newest at the bottom.
function distributions(leaf) {
  const found = data.measured.map((i) => [i, histogramOf(leaf, i)]).filter(([, one]) => one && one.width);
  if (found.length < 2) return null;
  const W = across(), line = found.length > 20 ? 8 : 18, H = found.length * line + 44, left = 56;
  const low = Math.min(...found.map(([, one]) => one.low)), high = Math.max(...found.map(([, one]) => one.low + one.width * one.bins.length));
  const X = (x) => left + ((x - low) / (high - low)) * (W - left - 8);
  const svg = draw("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": `Distribution at ${plural(found.length, "step")}, from ${number(low)} to ${number(high)}` });
  found.forEach(([i, one], y) => {
    const base = 24 + (y + 1) * line, most = Math.max(...one.bins.map((bin) => bin)) || 1, tall = line * 1.7;
    let path = `M${X(one.low).toFixed(1)} ${base}`;
    one.bins.forEach((bin, k) => { path += `L${X(one.low + (k + 0.5) * one.width).toFixed(1)} ${(base - (bin / most) * tall).toFixed(1)}`; });
    svg.append(draw("path", { class: i === stepShown() ? "ridge chosen" : "ridge", d: `${path}L${X(one.low + one.width * one.bins.length).toFixed(1)} ${base}Z` }));
    if (line > 10 || y % 4 === 0) svg.append(draw("text", { x: left - 8, y: base, "text-anchor": "end" }, stepName(i)));
  });
  svg.append(draw("text", { x: left, y: H - 4 }, number(low)), draw("text", { x: W - 8, y: H - 4, "text-anchor": "end" }, number(high)));
  return make("div", { className: "chart" }, make("h3", {}, "Distribution by step"), svg);
}
function showLeaf() {
  const leaf = byName.get(state.leaf), box = $("leaf");
  if (!leaf) { if (box.open) box.close(); return; }
  const step = stepShown(), found = valuesOf(leaf, step), histogram = data.has_statistics ? histogramOf(leaf, step) : null;
  $("leaf-title").replaceChildren(make("bdi", { dir: "ltr" }, leaf.shown));
  const content = [];
  if (isRun && data.measured.length > 1 && data.has_statistics) {
    const select = make("select", { onchange: (event) => go({ step: event.target.value === stepName(data.shown) ? "" : event.target.value }) },
      ...[...openable].reverse().map((i) => make("option", { value: stepName(i), selected: i === step }, stepName(i))));
    select.id = "leaf-step";
    content.push(make("p", {}, make("label", {}, "Step ", select)));
  }
  if (found.damage) content.push(make("p", { className: "damage" }, make("b", {}, "\u2715 It cannot be read at this step. "), make("span", { className: "mono" }, found.damage)));
  if (found.absent) content.push(make("p", { className: "note" }, "This step does not have it."));
  const bad = (found.nans || 0) + (found.infs || 0);
  content.push(facts([
    ["type", `${leaf.type}${leaf.shapeText}`], ["in memory", leaf.shape ? `${bytes(leaf.nbytes)}, ${percent(leaf.nbytes, total)} of all` : ""],
    ["on disk", leaf.stored ? `${bytes(leaf.stored)}, ${leaf.ratio.toFixed(2)} : 1${leaf.compression ? ` (${leaf.compression})` : ""}` : leaf.compression],
    ["chunks", leaf.chunk_shape && leaf.chunk_shape.length ? `[${leaf.chunk_shape.join(", ")}]` : ""],
    ["min", exactly(found.min)], ["max", exactly(found.max)], ["mean", number(found.mean)], ["L2 norm", number(found.l2)],
    ["relative change", change(found.change)],
    ["NaN", found.nans === null || found.nans === undefined ? "" : whole.format(found.nans), found.nans ? "bad" : ""],
    ["Inf", found.infs === null || found.infs === undefined ? "" : whole.format(found.infs), found.infs ? "bad" : ""],
    ["zeros", histogram ? histogram.zeros ? `${whole.format(histogram.zeros)}, ${percent(histogram.zeros, leaf.elements)}` : "0" : ""],
  ]));
  if (histogram) content.push(make("h3", {}, histogram.width ? `Histogram, bins of ${number(histogram.width)}` : "Histogram"), histogramChart(histogram), ...(bad ? [make("p", { className: "note" }, `${plural(bad, "value")} NaN or Inf left out.`)] : []));
  if (isRun && data.measured.length > 1 && data.has_statistics) {
    const of = (key) => data.measured.map((i) => ({ x: steps[i].step, y: valuesOf(leaf, i)[key], step: i }));
    const options = { onOpen: (i) => go({ step: stepName(i) }) };
    const curves = [chart("relative change", of("change"), change, options), chart("L2 norm", of("l2"), number, options), chart("mean", of("mean"), number, options)].filter(Boolean);
    if (curves.length) content.push(make("div", { className: "charts" }, ...curves));
    const ridges = distributions(leaf);
    if (ridges) content.push(ridges);
  }
  if (leaf.sharding && data.shardings[leaf.sharding]) content.push(deviceMap(leaf, data.shardings[leaf.sharding]));
  const line = make("code", {}, loadLine(step, patternOf(leaf.shown, false)));
  const copy = make("button", { type: "button", className: "copy", ariaLabel: "Copy the line", onclick: () => copyText(line.textContent, copy) }, "Copy");
  content.push(make("div", { className: "snippet" }, line, copy));
  const had = document.activeElement && document.activeElement.id === "leaf-step";
  $("leaf-body").replaceChildren(...content);
  if (!box.open) box.showModal();
  if (had && $("leaf-step")) $("leaf-step").focus();
}
$("leaf-close").addEventListener("click", () => go({ leaf: "" }));
$("leaf").addEventListener("click", (event) => { if (event.target === $("leaf")) go({ leaf: "" }); });
$("leaf").addEventListener("cancel", (event) => { event.preventDefault(); go({ leaf: "" }); });
view(["leaf", "step"], showLeaf);
