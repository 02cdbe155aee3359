"""Measurements of a page's layout in its window."""

from playwright.sync_api import Page

_TROUBLES = """() => {
  const found = [];
  const root = document.documentElement;
  const shown = (e) => e.checkVisibility({ visibilityProperty: true }) && !e.closest(".unseen, .skip, .blocks thead");
  const text = (e) => e.textContent.trim().replaceAll(/\\s+/g, " ").slice(0, 50);
  const tell = (what, e) => found.push(`${what}: ${e.tagName.toLowerCase()} "${text(e)}"`);

  if (root.scrollWidth > root.clientWidth) found.push(`the page is ${root.scrollWidth} wide in ${root.clientWidth}`);
  for (const e of document.querySelectorAll("main :not(svg, svg *)")) {
    if (!shown(e) || !e.clientWidth) continue;
    const style = getComputedStyle(e);
    if (style.overflowX === "hidden" && e.scrollWidth > e.clientWidth + 1) tell("cut", e);
    if (style.overflowX !== "visible" || style.position !== "static" || e.closest(".wide, pre")) continue;
    if (e.getBoundingClientRect().right > e.parentElement.getBoundingClientRect().right + 2) tell("sticks out", e);
  }
  for (const e of document.querySelectorAll("main :is(th, td, dd, li, p) a, main :is(.name, .state, .button, button, .number)")) {
    if (!shown(e) || /\\s/.test(text(e)) || text(e).length > 40) continue;
    const range = document.createRange();
    range.selectNodeContents(e);
    const tops = [...range.getClientRects()].filter((one) => one.width > 1).map((one) => one.top);
    if (Math.max(...tops) - Math.min(...tops) > 6) tell("broken", e);
  }
  for (const e of document.querySelectorAll("main svg text")) {
    const box = e.getBoundingClientRect(), around = e.ownerSVGElement.getBoundingClientRect();
    const isOut = box.left < around.left - 1 || box.right > around.right + 1 || box.bottom > around.bottom + 1;
    if (box.width && isOut) tell("outside its picture", e);
  }
  return [...new Set(found)];
}"""


def layout_problems(page: Page) -> list[str]:
    """Returns a line for each problem: the page is wider than its window, a text is cut, overlaps its box, or is broken inside a
    short word.
    """
    return list(page.evaluate(_TROUBLES))
