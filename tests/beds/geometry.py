"""What can be measured of how a page lies in its window."""

from playwright.sync_api import Page

_TROUBLES = """() => {
  const found = [];
  const short = (e) => `${e.tagName.toLowerCase()}${e.className && e.className.baseVal === undefined ? "." + String(e.className).trim().replaceAll(/ +/g, ".") : ""}`;
  const shown = (e) => e.checkVisibility({visibilityProperty: true}) && !e.closest(".unseen, .skip, .blocks thead");
  const text = (e) => e.textContent.trim().replaceAll(/\\s+/g, " ").slice(0, 50);
  const root = document.documentElement;
  if (root.scrollWidth > root.clientWidth) found.push(`the page is ${root.scrollWidth} wide in ${root.clientWidth}`);
  for (const e of document.querySelectorAll("main *")) {
    if (!shown(e) || e.closest("svg")) continue;
    const style = getComputedStyle(e);
    if (e.scrollWidth > e.clientWidth + 1 && e.clientWidth && style.overflowX === "hidden") found.push(`cut: ${short(e)} "${text(e)}"`);
    if (style.overflowX !== "visible" || !e.clientWidth) continue;
    const box = e.getBoundingClientRect(), around = e.parentElement.getBoundingClientRect();
    if (box.right > around.right + 2 && !e.closest(".wide, pre") && style.position === "static") found.push(`sticks out ${Math.round(box.right - around.right)}: ${short(e)} "${text(e)}"`);
  }
  for (const e of document.querySelectorAll("main :is(th, td, dd, li, p) a, main .name, main .state, main .button, main button, main .number")) {
    if (!shown(e)) continue;
    const words = text(e);
    if (/\\s/.test(words) || words.length > 40) continue;
    const range = document.createRange();
    range.selectNodeContents(e);
    const tops = [...range.getClientRects()].filter((one) => one.width > 1).map((one) => one.top);
    if (Math.max(...tops) - Math.min(...tops) > 6) found.push(`broken: ${short(e)} "${words}"`);
  }
  for (const e of document.querySelectorAll("main svg text")) {
    const box = e.getBoundingClientRect(), around = e.ownerSVGElement.getBoundingClientRect();
    if (box.width && (box.left < around.left - 1 || box.right > around.right + 1 || box.bottom > around.bottom + 1)) found.push(`outside its picture: "${text(e)}"`);
  }
  return [...new Set(found)];
}"""


def troubles(page: Page) -> list[str]:
    """Each in a line: a page that is wider than its window, text that is cut, sticks out, or is broken inside a word of usual length."""
    return list(page.evaluate(_TROUBLES))
