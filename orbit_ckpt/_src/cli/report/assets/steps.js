// --- the run: curves and the list of its steps --------------------------------------------------
const metrics = [...new Set(steps.flatMap((step) => Object.keys(step.metrics)))]
  .filter((name) => steps.some((step) => numeric(step.metrics[name])));
const isShared = steps.some((step) => step.shared);
const isLower = (name) => /loss|err|perplexity|ppl|nll|mse|mae|rmse|wer|fid/i.test(name);
const ORDERS = metrics.flatMap((name) => (isLower(name) ? ["lowest", "highest"] : ["highest", "lowest"]).map((order) => [`${order} ${name}`, name, order]));

function bestStep() {
  const [, name, order] = ORDERS.find(([label]) => label === state.best) || ORDERS[0] || [];
  let best = null;
  steps.forEach((step, i) => {
    const value = step.metrics[name];
    if (!numeric(value)) return;
    if (best === null || (order === "lowest" ? value < steps[best].metrics[name] : value > steps[best].metrics[name])) best = i;
  });
  return best;
}
function marksOf(i) {
  const step = steps[i];
  return [
    ...(step.pinned ? ["pinned"] : []), ...(step.temporary ? ["temporary"] : []),
    ...(i === bestStep() ? ["best"] : []), ...(isRun && i === steps.length - 1 ? ["newest"] : []),
  ];
}
function stateOf(i) {
  const { state: found, leaves_not_finite: bad } = steps[i];
  if (found === "damaged") return ["\u2715 damaged", "bad"];
  if (bad) return [`\u26a0 ${plural(bad, "leaf", "leaves")} with NaN or Inf`, "bad"];
  if (found === "verified") return ["\u2713 verified", "good"];
  if (found === "read") return ["\u2713 values read", "good"];
  return ["not read", "zero"];
}

function showCharts() {
  const isLog = state.log === "1", best = bestStep();
  const options = { isLog, best, onOpen: (i) => { if (rowOf.has(i)) go({ step: stepName(i) }); } };
  const of = (value) => steps.map((step, i) => ({ x: step.step, y: value(step, i), step: i }));
  const plain = (value) => String(Number(value.toPrecision(4)));
  const found = metrics.map((name) => chart(name, of((step) => step.metrics[name]), plain, options));
  found.push(chart("size on disk", of((step) => step.bytes), bytes, options));
  if (isShared) found.push(chart("new on disk", of((step) => step.new), bytes, options));
  const held = (step) => (step.save ? (step.save.waited || 0) + step.save.blocked : null);
  if (steps.filter((step) => step.save).length > 1) found.push(chart("training blocked", of(held), seconds, options));
  const minutes = (step, i) => (i && step.time && steps[i - 1].time ? (new Date(step.time) - new Date(steps[i - 1].time)) / 60000 : null);
  if (steps.some((step, i) => minutes(step, i) >= 1)) found.push(chart("minutes since the step before", of(minutes), plain, options));
  $("charts").replaceChildren(...found.filter(Boolean));
}
function showSteps() {
  const isKept = steps.some((step) => step.kept_by);
  const chosen = stepShown();
  const columns = [
    ["step", "right"], ["state", ""], ["marks", ""], ...metrics.map((name) => [name, "right"]), ["size", "right"],
    ...(isShared ? [["new", "right"], ["shared", "right"]] : []), ...(isKept ? [["kept by", ""]] : []), ["saved", ""],
  ];
  const rows = steps.map((step, i) => {
    const [text, kind] = stateOf(i);
    const open = make("button", { type: "button", className: "open", ariaLabel: `Step ${stepName(i)}: show its leaves`, onclick: () => { go({ step: stepName(i) }); $("leaves").scrollIntoView(); } }, stepName(i));
    const size = make("td", { className: "right" }, bytes(step.bytes));
    const cells = [
      make("td", { className: "right" }, rowOf.has(i) && steps[i].state !== "not read" ? open : stepName(i)),
      make("td", { className: kind, title: step.problems.join("\n") }, text),
      make("td", {}, ...marksOf(i).map((name) => make("span", { className: `mark ${name}` }, name))),
      ...metrics.map((name) => make("td", { className: "right" }, typeof step.metrics[name] === "object" ? "" : number(step.metrics[name]))),
      size,
      ...(isShared ? [make("td", { className: "right" }, bytes(step.new)), make("td", { className: "right" }, step.shared ? `${bytes(step.shared)}, ${percent(step.shared, step.bytes)}` : "")] : []),
      ...(isKept ? [make("td", {}, (step.kept_by || []).join(", ") || "no rule")] : []),
      make("td", {}, step.time ? step.time.replace("T", " ").replace(/\+00:00$/, " UTC") : ""),
    ];
    return make("tr", i === chosen ? { className: "chosen", ariaCurrent: "true" } : {}, ...cells);
  });
  const head = columns.map(([name, side]) => make("th", { className: side, scope: "col" }, name));
  $("steps").replaceChildren(make("table", {}, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...rows.reverse())));
}
if (isRun) {
  $("run").hidden = false;
  $("best-label").hidden = !ORDERS.length;
  $("best").append(...ORDERS.map(([label]) => make("option", { value: label }, label)));
  $("best").addEventListener("change", () => go({ best: $("best").value === ORDERS[0][0] ? "" : $("best").value }));
  $("log").addEventListener("change", () => go({ log: $("log").checked ? "1" : "" }));
  view(["log", "best"], () => {
    $("log").checked = state.log === "1";
    if (ORDERS.length) $("best").value = ORDERS.some(([label]) => label === state.best) ? state.best : ORDERS[0][0];
    showCharts();
  });
  view(["best", "step"], showSteps);
}

// --- the step of which leaves are shown ---------------------------------------------------------
const openable = data.measured.filter((i) => steps[i].state !== "damaged" || data.damage.some(([row]) => data.measured[row] === i));
$("step-label").hidden = !isRun;
$("step").append(...[...openable].reverse().map((i) => make("option", { value: stepName(i) }, `${stepName(i)}${marksOf(i).length ? ` (${marksOf(i).join(", ")})` : ""}`)));
$("step").addEventListener("change", () => go({ step: $("step").value }));
view(["step"], () => { if (data.shown !== null) $("step").value = stepName(stepShown()); });
