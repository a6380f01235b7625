// Names and keyboard access for what the theme's script adds to a page.
function describe() {
  document.querySelectorAll(".md-code__nav:not([aria-label])").forEach((nav, i) => {
    nav.setAttribute("aria-label", `Code block ${i + 1}`);
  });
  document.querySelectorAll(".md-typeset__scrollwrap:not([tabindex])").forEach((wrap) => {
    wrap.setAttribute("tabindex", "0");
    wrap.setAttribute("role", "group");
    wrap.setAttribute("aria-label", "Table");
  });
}
new MutationObserver(describe).observe(document.body, { childList: true, subtree: true });
describe();
