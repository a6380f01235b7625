// Names and keyboard access for what the theme's script adds to a page.
function describe() {
  document.querySelectorAll(".md-code__nav:not([aria-label])").forEach((nav, i) => {
    nav.setAttribute("aria-label", `Code block ${i + 1}`);
  });
  // Lists within the table of contents; several headings of a page may have one text.
  document.querySelectorAll(".md-nav--secondary nav:not([data-named])").forEach((nav) => {
    const heading = nav.previousElementSibling?.hash;
    if (heading) nav.setAttribute("aria-label", `Within ${decodeURIComponent(heading.slice(1))}`);
    nav.dataset.named = "";
  });
  document.querySelectorAll(".md-typeset__scrollwrap:not([tabindex])").forEach((wrap) => {
    wrap.setAttribute("tabindex", "0");
    wrap.setAttribute("role", "group");
    wrap.setAttribute("aria-label", "Table");
  });
}
new MutationObserver(describe).observe(document.body, { childList: true, subtree: true });
describe();
