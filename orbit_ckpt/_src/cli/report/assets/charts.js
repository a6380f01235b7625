// --- curves over steps --------------------------------------------------------------------------
// `points` have x, y and the index of their step; `best` is the index of the best step or null.
function chart(title, points, format, { isLog = false, best = null, onOpen = null } = {}) {
  const W = 360, H = 150, left = 68, right = 10, top = 12, bottom = 22;
  const isShown = (point) => numeric(point.y) && (!isLog || point.y > 0);
  const known = points.filter(isShown);
  if (!known.length) return null;
  const bend = isLog ? Math.log10 : (y) => y, unbend = isLog ? (y) => 10 ** y : (y) => y;
  let low = bend(Math.min(...known.map((point) => point.y))), high = bend(Math.max(...known.map((point) => point.y)));
  // a curve of nearly equal numbers is drawn nearly flat
  const least = isLog ? 0.02 : Math.max(Math.abs(low), Math.abs(high)) * 0.02 || 1;
  if (high - low < least) { const middle = (low + high) / 2; low = middle - least / 2; high = middle + least / 2; }
  const first = points[0].x, span = points[points.length - 1].x - first || 1;
  const X = (x) => points.length === 1 ? (left + W - right) / 2 : left + ((x - first) / span) * (W - left - right);
  const Y = (y) => top + (1 - (bend(y) - low) / (high - low)) * (H - top - bottom);
  const last = known[known.length - 1];
  const svg = draw("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": `${title} by step: ${format(last.y)} at step ${last.x}` });
  let before = "";
  for (const part of [0, 0.5, 1]) {
    const y = unbend(low + part * (high - low)), text = format(y);
    svg.append(draw("line", { class: "grid", x1: left, x2: W - right, y1: Y(y), y2: Y(y) }));
    if (text !== before) svg.append(draw("text", { x: left - 6, y: Y(y) + 4, "text-anchor": "end" }, text));
    before = text;
  }
  svg.append(draw("text", { x: X(first), y: H - 4, "text-anchor": points.length === 1 ? "middle" : "start" }, first));
  if (points.length > 1) svg.append(draw("text", { x: W - right, y: H - 4, "text-anchor": "end" }, points[points.length - 1].x));
  let path = "", pen = "M";
  for (const point of points) {
    if (!isShown(point)) { pen = "M"; continue; }
    path += `${pen}${X(point.x).toFixed(1)} ${Y(point.y).toFixed(1)}`;
    pen = "L";
  }
  svg.append(draw("path", { class: "series", d: path }));
  for (const point of known) {
    const x = X(point.x), y = Y(point.y), step = steps[point.step];
    const isMarked = step.pinned || point.step === best || step.state === "damaged";
    if (step.pinned) svg.append(draw("path", { class: "pin", d: `M${x} ${y - 7}l4 -7h-8z` }));
    if (point.step === best) svg.append(draw("circle", { class: "best", cx: x, cy: y, r: 6.5 }));
    if (known.length <= 40 || isMarked) svg.append(draw("circle", { class: step.state === "damaged" ? "dot broken" : "dot", cx: x, cy: y, r: 3.5 }));
  }
  const cross = draw("line", { class: "cross", y1: top, y2: H - bottom, visibility: "hidden" });
  const mark = draw("circle", { class: "dot", r: 5, visibility: "hidden" });
  svg.append(cross, mark);
  const nearest = (event) => {
    const box = svg.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * W;
    return known.reduce((a, b) => Math.abs(X(b.x) - at) < Math.abs(X(a.x) - at) ? b : a);
  };
  svg.addEventListener("pointermove", (event) => {
    const near = nearest(event);
    for (const [name, value] of [["x1", X(near.x)], ["x2", X(near.x)], ["visibility", "visible"]]) cross.setAttribute(name, value);
    for (const [name, value] of [["cx", X(near.x)], ["cy", Y(near.y)], ["visibility", "visible"]]) mark.setAttribute(name, value);
    tip(event, `step ${near.x}`, [`${title}: ${format(near.y)}`, ...marksOf(near.step)]);
  });
  svg.addEventListener("pointerleave", () => {
    cross.setAttribute("visibility", "hidden");
    mark.setAttribute("visibility", "hidden");
    untip();
  });
  if (onOpen) svg.addEventListener("click", (event) => onOpen(nearest(event).step));
  return make("div", { className: "chart" }, make("h3", {}, title, make("span", {}, `${format(last.y)} at step ${last.x}`)), svg);
}

// Width of a chart across the dialog of a leaf, so that its texts have their own size.
const across = () => Math.max(240, Math.min(680, innerWidth - 62));

// Bars for the bins of a histogram.
function histogramChart(found) {
  const W = across(), H = 200, top = 10, bottom = 24, left = 8, right = 8;
  const { low, width, bins } = found;
  const most = Math.max(...bins), size = (W - left - right) / bins.length;
  const count = bins.reduce((a, b) => a + b, 0);
  const end = low + width * bins.length;
  const svg = draw("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": width ? `Histogram of ${short(count)} values from ${number(low)} to ${number(end)}` : `All ${short(count)} values are ${number(low)}` });
  svg.append(draw("line", { class: "grid", x1: left, x2: W - right, y1: H - bottom, y2: H - bottom }));
  bins.forEach((bin, i) => {
    const height = bin ? Math.max(1.5, (bin / most) * (H - top - bottom)) : 0;
    const bar = draw("rect", { class: "bin", x: left + i * size + 0.5, y: H - bottom - height, width: Math.max(1, Math.min(40, size - 1)), height });
    const target = draw("rect", { class: "hit", x: left + i * size, y: top, width: size, height: H - top - bottom });
    target.addEventListener("pointermove", (event) => tip(event, width ? `${number(low + i * width)} to ${number(low + (i + 1) * width)}` : number(low), [`${whole.format(Math.round(bin))} values, ${percent(bin, count)}`]));
    target.addEventListener("pointerleave", untip);
    svg.append(bar, target);
  });
  svg.append(draw("text", { x: left, y: H - 7 }, number(low)));
  if (width) {
    svg.append(draw("text", { x: W - right, y: H - 7, "text-anchor": "end" }, number(end)));
    const zero = left + (-low / width) * size;
    if (low < 0 && end > 0 && zero > 90 && zero < W - 90) svg.append(draw("text", { x: zero, y: H - 7, "text-anchor": "middle" }, "0"), draw("line", { class: "cross", x1: zero, x2: zero, y1: top, y2: H - bottom }));
  }
  return make("div", { className: "chart" }, svg);
}
