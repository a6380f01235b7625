// Names and keyboard access for what the theme's script adds to a page.
function describe() {
  document.querySelectorAll(".md-code__nav:not([aria-label])").forEach((nav, i) => {
    nav.setAttribute("aria-label", `Code block ${i + 1}`);
  });
  // Lists within the table of contents; several headings of a page may have one text, and a class
  // may differ from its module in case only, which is one name to some readers.
  document.querySelectorAll(".md-nav--secondary nav:not([data-named])").forEach((nav) => {
    const heading = nav.previousElementSibling?.hash;
    const id = heading ? decodeURIComponent(heading.slice(1)) : "";
    const kind = /\.[A-Z]\w*$/.test(id) ? "class " : "";
    if (heading) nav.setAttribute("aria-label", `Within ${kind}${id}`);
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
