// --- difference of two steps --------------------------------------------------------------------
// Of two steps that follow each other the relative change is known. Of others it is at most the sum
// of the changes between, because norms obey the triangle inequality.
function changeBetween(leaf, a, b) {
  const norms = matrix("l2"), changes = matrix("change");
  const start = norms[a * COUNT + leaf.index];
  let moved = 0;
  for (let row = a + 1; row <= b; row += 1) {
    const at = row * COUNT + leaf.index;
    moved += changes[at] === Infinity ? norms[at] : changes[at] * norms[at - COUNT];
  }
  if (Number.isNaN(moved) || Number.isNaN(start)) return null;
  return start ? moved / start : moved ? Infinity : 0;
}
function compareLeaves(a, b) {
  const rows = [];
  for (const leaf of leaves) {
    const one = a * COUNT + leaf.index, two = b * COUNT + leaf.index;
    const isIn = [!absent.has(one), !absent.has(two)];
    const broken = damaged.has(one) || damaged.has(two);
    if (!isIn[0] && !isIn[1]) continue;
    if (isIn[0] !== isIn[1]) { rows.push({ leaf, what: isIn[1] ? "added" : "removed", rank: Infinity }); continue; }
    if (broken) { rows.push({ leaf, what: "\u2715 damaged", bad: true, rank: Infinity }); continue; }
    const moved = changeBetween(leaf, a, b), [was, is] = [one, two].map((at) => notFinite.get(at));
    const news = (is ? is[0] + is[1] : 0) - (was ? was[0] + was[1] : 0);
    if (moved === 0 && !news) continue;
    const norms = [matrix("l2")[one], matrix("l2")[two]];
    if (moved === null && !news && (Number.isNaN(norms[0]) || norms[0] === norms[1])) continue;
    rows.push({ leaf, moved, news, norms, means: [matrix("mean")[one], matrix("mean")[two]], rank: news > 0 ? Number.MAX_VALUE : moved ?? -1 });
  }
  return rows.sort((x, y) => (x.rank === y.rank ? x.leaf.index - y.leaf.index : y.rank > x.rank ? 1 : -1));
}
const MOST_DIFFERENCES = 200;
function showDifference() {
  const pick = (name, fallback) => { const at = data.measured.findIndex((i) => stepName(i) === state[name]); return at < 0 ? fallback : at; };
  const last = data.measured.length - 1;
  let [a, b] = [pick("a", last - 1), pick("b", last)];
  $("step-a").value = stepName(data.measured[a]); $("step-b").value = stepName(data.measured[b]);
  if (a > b) [a, b] = [b, a];
  const [from, to] = [a, b].map((row) => data.measured[row]);
  const rows = a === b ? [] : compareLeaves(a, b), isNext = b === a + 1;
  const unreadable = [from, to].filter((i) => steps[i].state === "damaged" && !data.damage.some(([row]) => data.measured[row] === i));
  $("compare-note").textContent = a === b ? "Choose two different steps."
    : unreadable.length ? `Step ${unreadable.map(stepName).join(" and ")} cannot be opened.`
    : `${plural(rows.length, "leaf differs", "leaves differ")} from step ${stepName(from)} to step ${stepName(to)}, the largest change first.${isNext ? "" : " The change is an upper bound: the sum of the changes from step to step."}${rows.length > MOST_DIFFERENCES ? ` The first ${MOST_DIFFERENCES} are listed.` : ""}`;
  const head = ["name", "change", "L2", "mean", ""].map((name, i) => make("th", { className: i && i < 4 ? "right" : "", scope: "col" }, name || make("span", { className: "hidden" }, "note")));
  const pair = ([x, y]) => (Number.isNaN(x) && Number.isNaN(y) ? "" : `${number(x) || "\u2013"} \u2192 ${number(y) || "\u2013"}`);
  const lines = rows.slice(0, MOST_DIFFERENCES).map(({ leaf, what, bad, moved, news, norms, means }) => make("tr", {},
    make("td", { className: "name" }, nameCell(leaf)),
    make("td", { className: "right" }, moved === undefined || moved === null ? "" : `${isNext || !moved ? "" : "\u2264 "}${change(moved)}`),
    make("td", { className: "right" }, norms ? pair(norms) : ""), make("td", { className: "right" }, means ? pair(means) : ""),
    make("td", { className: bad || news > 0 ? "bad" : "" }, what || (news ? `${news > 0 ? "+" : "\u2212"}${plural(Math.abs(news), "NaN or Inf", "NaN or Inf")}` : ""))));
  $("difference").hidden = !rows.length;
  $("difference").replaceChildren(make("table", {}, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...lines)));
  const quote = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);
  $("compare-line").textContent = `orbit-ckpt diff ${quote(String(steps[from].path))} ${quote(String(steps[to].path))} --values`;
}
if (isRun && data.has_statistics && data.measured.length > 1) {
  $("compare").hidden = false;
  for (const [id, name] of [["step-a", "a"], ["step-b", "b"]]) {
    $(id).append(...[...data.measured].reverse().map((i) => make("option", { value: stepName(i) }, stepName(i))));
    $(id).addEventListener("change", () => go({ [name]: $(id).value }));
  }
  view(["a", "b"], showDifference);
}
