// --- the save of the step that is shown, phase by phase -----------------------------------------
function seconds(value) {
  if (value >= 100) return `${whole.format(Math.round(value))} s`;
  if (value >= 1) return `${Number(value.toPrecision(3))} s`;
  return `${Number((1000 * value).toPrecision(3))} ms`;
}
function phasesOf({ waited, blocked, total }) {
  const start = waited || 0, isBackground = total - blocked > 0.02 * total;
  return [
    ...(waited >= 1e-3 ? [{ lane: "Training", text: "waits for the save before", short: "waits", at: 0, length: waited, colour: "--c4" }] : []),
    { lane: "Training", text: isBackground ? "copies what the save needs" : "saves", short: isBackground ? "copies" : "saves", at: start, length: blocked, colour: "--c1" },
    ...(isBackground ? [{ lane: "Background", text: "writes and commits", short: "writes and commits", at: start + blocked, length: total - blocked, colour: "--c0" }] : []),
  ];
}
// A round length of which the axis has room for a few.
function tickOf(span) {
  const least = innerWidth < 700 ? 1.2 : 3;
  const power = 10 ** Math.floor(Math.log10(span / least));
  return [5, 2, 1].map((n) => n * power).find((tick) => span / tick >= least);
}
function lanesOf(phases, span) {
  const place = (value) => `${(100 * value) / span}%`;
  const tick = tickOf(span), ticks = Array.from({ length: Math.floor(span / tick) + 1 }, (_, i) => i * tick);
  const rows = [...new Set(phases.map((phase) => phase.lane))].map((lane) => {
    const track = make("div", { className: "track" });
    for (const at of ticks) { const line = make("u"); line.style.left = place(at); track.append(line); }
    for (const phase of phases.filter((one) => one.lane === lane)) {
      const bar = make("i", {}, make("span", {}, `${phase.short} ${seconds(phase.length)}`));
      bar.style.left = place(phase.at);
      bar.style.width = place(phase.length);
      bar.style.setProperty("--c", `var(${phase.colour})`);
      bar.addEventListener("pointermove", (event) => tip(event, phase.text, [`${seconds(phase.length)}, from ${seconds(phase.at)} on`]));
      bar.addEventListener("pointerleave", untip);
      track.append(bar);
    }
    return make("div", { className: "lane" }, make("span", {}, lane), track);
  });
  const axis = make("div", { className: "track axis" });
  for (const at of ticks) if (at < 0.94 * span) { const label = make("span", {}, at ? seconds(at) : "0"); label.style.left = place(at); axis.append(label); }
  return [...rows, make("div", { className: "lane" }, make("span"), axis)];
}
function showTimeline() {
  const at = stepShown(), step = steps[at], save = step && step.save;
  $("timeline-title").textContent = isRun && step ? `Save of step ${stepName(at)}` : "Save";
  $("lanes").hidden = $("phases").hidden = !save;
  $("timeline-note").textContent = save ? "" : "This checkpoint does not record how long its save took.";
  if (!save) return;
  const phases = phasesOf(save), waited = save.waited || 0, span = waited + save.total;
  $("lanes").replaceChildren(...lanesOf(phases, span));
  const before = at > 0 && step.time && steps[at - 1].time ? (new Date(step.time) - new Date(steps[at - 1].time)) / 1000 : 0;
  const held = waited + save.blocked;
  const facts = [
    ...phases.map((phase) => [`${phase.lane} ${phase.text}`, seconds(phase.length)]),
    ["Until complete", seconds(span)],
    ...(save.total && step.bytes ? [["Bytes on disk per second", `${bytes((isShared ? step.new : step.bytes) / save.total)}/s`]] : []),
    ...(before >= 10 ? [["Training held up since the step before", percent(held, before)]] : []),
  ];
  $("phases").replaceChildren(...facts.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))));
}
if (steps.some((step) => step.save)) {
  $("timeline").hidden = false;
  view(["step"], showTimeline);
}
