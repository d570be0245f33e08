// Regions that scroll can have the keyboard's focus, and each sidebar has a name.
document.addEventListener("DOMContentLoaded", () => {
  for (const region of document.querySelectorAll("pre, .table-wrapper")) region.tabIndex = 0;
  const names = { ".sidebar-drawer": "Pages", ".toc-drawer": "On this page" };
  for (const [selector, name] of Object.entries(names))
    document.querySelector(selector)?.setAttribute("aria-label", name);
});
