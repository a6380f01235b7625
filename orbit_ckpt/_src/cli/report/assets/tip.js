// --- the tip ------------------------------------------------------------------------------------
function tip(event, heading, lines) {
  const box = $("tip");
  box.replaceChildren(make("b", {}, heading), ...lines.map((line) => make("div", {}, line)));
  box.hidden = false;
  const { width, height } = box.getBoundingClientRect();
  const from = event.target.getBoundingClientRect ? event.target.getBoundingClientRect() : null;
  const x = event.clientX || (from ? from.left + from.width / 2 : 0), y = event.clientY || (from ? from.bottom : 0);
  box.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - width - 8))}px`;
  const below = y + 16;
  box.style.top = `${below + height > innerHeight ? Math.max(4, y - height - 10) : below}px`;
}
const untip = () => { $("tip").hidden = true; };
addEventListener("scroll", untip, { passive: true, capture: true });
