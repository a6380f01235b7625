// --- what is looked at is in the address: it can be sent, and Back returns to it ----------------
const DEFAULTS = {
  at: "", search: "", sort: "", step: "", leaf: "", heat: "change", colour: "dtype", params: "", log: "", best: "", a: "", b: "", columns: "",
};
const NAVIGATION = new Set(["at", "leaf", "step"]);
let state = { ...DEFAULTS };
const views = [];

// Call `show` whenever one of the fields changes, and once at the beginning.
function view(fields, show) {
  views.push({ fields, show });
}
function addressOf(next) {
  const text = new URLSearchParams(Object.entries(next).filter(([name, value]) => value !== DEFAULTS[name])).toString();
  return `#${text}`;
}
function apply(next, isFirst) {
  const changed = new Set(Object.keys(DEFAULTS).filter((name) => isFirst || next[name] !== state[name]));
  state = next;
  for (const { fields, show } of views) if (fields.some((name) => changed.has(name))) show();
}
function go(changes) {
  const next = { ...state, ...changes };
  const isNavigation = Object.keys(changes).some((name) => NAVIGATION.has(name) && next[name] !== state[name]);
  const address = addressOf(next);
  if (isNavigation) {
    apply(next, false);
    location.hash = address; // an entry of the history
  } else {
    try { history.replaceState(null, "", address); } catch { /* not in an archive */ }
    apply(next, false);
  }
}
function recall(isFirst) {
  const given = new URLSearchParams(location.hash.slice(1));
  const next = { ...DEFAULTS };
  for (const name of Object.keys(DEFAULTS)) if (given.has(name)) next[name] = given.get(name);
  apply(next, isFirst);
}
addEventListener("hashchange", () => { if (location.hash !== addressOf(state)) recall(false); });

// The step that is shown, as an index into the steps.
function stepShown() {
  const at = steps.findIndex((step, i) => stepName(i) === state.step);
  return at >= 0 && rowOf.has(at) ? at : data.shown;
}
const focus = () => find(tree(state.params), state.at);
