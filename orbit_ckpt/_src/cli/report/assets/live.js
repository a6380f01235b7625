// --- the page of a server: it is loaded anew when the run has changed ---------------------------
const POLL_MS = 2000;
const live = make("span", { className: "mark", role: "status" }, "\u25cf live");
$("path").append(" ", live);
async function follow() {
  try {
    const answer = await fetch("version", { cache: "no-store" });
    const version = await answer.text();
    live.textContent = "\u25cf live";
    if (answer.ok && version !== data.live) { location.reload(); return; }
  } catch {
    live.textContent = "\u25cb the server does not answer";
  }
  setTimeout(follow, POLL_MS);
}
setTimeout(follow, POLL_MS);
