// --- the top ------------------------------------------------------------------------------------
function tile(value, label, action) {
  const content = [make("b", {}, value), make("span", {}, label)];
  const bad = action ? "tile bad" : "tile";
  $("tiles").append(action ? make("button", { type: "button", className: bad, onclick: action }, ...content) : make("div", { className: bad }, ...content));
}
$("path").textContent = data.path;
if (isRun) tile(whole.format(steps.length), steps.length === 1 ? "step" : "steps");
tile(whole.format(COUNT), COUNT === 1 ? "leaf" : "leaves");
tile(short(leaves.reduce((sum, leaf) => sum + leaf.elements, 0)), "values in arrays");
tile(bytes(total) || "0 B", "in memory");
if (data.stored_bytes !== null) tile(bytes(data.stored_bytes), isRun && data.shown !== null ? `on disk, step ${stepName(data.shown)}` : "on disk");
if (isRun && data.disk_bytes !== null) {
  const apart = steps.reduce((sum, step) => sum + (step.bytes || 0), 0) - data.disk_bytes;
  tile(bytes(data.disk_bytes), apart > 0 ? `on disk, all steps; ${bytes(apart)} more without sharing` : "on disk, all steps");
}

const broken = steps.map((step, i) => i).filter((i) => steps[i].state === "damaged");
if (broken.length) {
  tile(`\u26a0 ${whole.format(broken.length)}`, isRun ? (broken.length === 1 ? "damaged step" : "damaged steps") : "damaged", () => {
    const row = rowOf.get(broken[broken.length - 1]);
    const first = data.damage.find(([at]) => at === row);
    if (first) go({ step: stepName(data.measured[row]), leaf: leaves[first[1]].shown });
    else $("problems").scrollIntoView();
  });
  $("problems").hidden = false;
  for (const i of [...broken].reverse()) {
    const { problems } = steps[i];
    $("problem-list").append(make("li", {}, make("b", {}, isRun ? `Step ${stepName(i)}` : data.title), ...problems.map((text) => make("div", { className: "mono" }, text))));
  }
}
if (data.has_statistics) {
  const newest = data.measured.length - 1;
  const bad = data.not_finite.filter(([row]) => data.measured[row] === data.shown || (data.shown === null && row === newest));
  if (bad.length) {
    tile(`\u26a0 ${whole.format(bad.length)}`, bad.length === 1 ? "leaf with NaN or Inf" : "leaves with NaN or Inf", () => {
      if (bad.length === 1) go({ leaf: leaves[bad[0][1]].shown, step: "" });
      else {
        go({ at: "", step: "", search: "", params: "", sort: "-bad" });
        $("leaves").scrollIntoView();
        const first = $("table").querySelector("button.open");
        if (first) first.focus({ preventScroll: true });
      }
    });
  } else if (data.shown !== null) tile("none", "leaves with NaN or Inf");
}
if (data.custom_metadata !== null && Object.keys(data.custom_metadata || {}).length) {
  $("custom").hidden = false;
  $("custom-text").textContent = JSON.stringify(data.custom_metadata, null, 2);
}
$("footer").textContent = `Written by orbit_ckpt ${data.version}, ${data.written.replace("T", " ").replace("+00:00", " UTC")}. Sizes in memory are those of the values, not compressed.`;
