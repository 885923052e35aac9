// Wide tables can be scrolled from the keyboard, and the copy button of each code block has a name.
const name = () => {
  for (const box of document.querySelectorAll(".md-typeset__scrollwrap:not([tabindex])"))
    box.tabIndex = 0;
  document.querySelectorAll(".md-code__nav:not([aria-label])").forEach((nav, i) => {
    const code = nav.closest("pre, div")?.querySelector("code");
    nav.setAttribute("aria-label", `Copy code ${code?.parentElement?.id || i}`);
  });
};
new MutationObserver(name).observe(document.body, { childList: true, subtree: true });
name();
