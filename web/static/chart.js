// Shows the values of a chart at the pointer, or with arrow keys. A part that is dragged, or chosen with Shift and Enter, is opened as
// an address. Without this script pages have links for times, and the numbers in a table.
"use strict";
(() => {
  const start = () => document.querySelectorAll("svg[data-rows]").forEach(read);

  function read(svg) {
    const [part, line, area] = svg.querySelectorAll(".reading > *");
    const [left, wide] = ["x", "width"].map((name) => Number(area.getAttribute(name)));
    const names = svg.dataset.names.split("|");
    const rows = svg.dataset.rows.split(";").map((row) => row.split("|"));
    const xs = rows.map((row) => Number(row[0]));
    const last = xs.length - 1;
    delete svg.dataset.rows;
    const span = svg.dataset.span?.split(" ").map(Number);
    const words = document.createElement("p");
    let at = last, begin = null; // the shown row, and the x at which the chosen part begins

    words.className = "under";
    svg.after(words);
    area.parentNode.removeAttribute("display");
    area.tabIndex = 0;
    set(area, { role: "slider", "aria-label": svg.querySelector("[role=img]").getAttribute("aria-label"), "aria-valuemin": 0, "aria-valuemax": last });
    show(last);
    if (span) words.textContent = "Point at the chart for its values; drag to zoom in. Keys: arrows, Shift with arrows, Enter.";

    function show(next) {
      at = Math.min(last, Math.max(0, next));
      const [x, when, ...values] = rows[at];
      words.textContent = `${when}: ${values.map((value, at) => value && `${names[at]} ${value}`).filter(Boolean).join(", ")}`;
      set(line, { transform: `translate(${x})` });
      set(area, { "aria-valuenow": at, "aria-valuetext": words.textContent });
    }

    function choose(to, from = begin ?? to) { set(part, { x: Math.min(from, to), width: Math.abs(to - from) }); }

    function zoom(to) {
      const ends = [begin, to].sort((one, other) => one - other);
      if (begin !== null && span && ends[1] - ends[0] > wide / 100) {
        const address = new URL(svg.closest("[data-zoom]")?.dataset.zoom ?? location, location);
        address.searchParams.delete("days");
        ["from", "until"].forEach((name, end) =>
          address.searchParams.set(name, Math.round(span[0] + (span[1] - span[0]) * (ends[end] - left) / wide)));
        location.assign(address);
      }
      begin = null;
      choose(to);
    }

    function place(event) {
      const box = area.getBoundingClientRect();
      return left + wide * Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
    }

    area.addEventListener("pointermove", (event) => {
      const x = place(event);
      show(xs.reduce((best, other, number) => Math.abs(other - x) < Math.abs(xs[best] - x) ? number : best, 0));
      choose(x);
    });
    area.addEventListener("pointerdown", (event) => { begin = place(event); area.setPointerCapture(event.pointerId); });
    area.addEventListener("pointerup", (event) => zoom(place(event)));
    area.addEventListener("pointercancel", () => { begin = null; choose(0); });
    area.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1, PageDown: -10, PageUp: 10, Home: -last, End: last }[event.key];
      if (event.key === "Enter") zoom(xs[at]);
      if (!step) return;
      event.preventDefault();
      begin = event.shiftKey ? begin ?? xs[at] : null;
      show(at + step);
      choose(xs[at]);
    });
  }

  function set(element, values) { for (const name in values) element.setAttribute(name, values[name]); }

  start();
  new MutationObserver(start).observe(document.body, { childList: true, subtree: true }); // live.js renews parts of a page
})();
