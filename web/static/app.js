// Small improvements. Every page works without them.
"use strict";
(() => {
  // A form that was sent is not sent a second time by a second click.
  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (form.method !== "post" || event.defaultPrevented) return;
    if (form.dataset.sent) { event.preventDefault(); return; }
    form.dataset.sent = "yes";
    setTimeout(() => { delete form.dataset.sent; }, 5000);
  });

  // A choice takes effect at once: <select data-submit>. Its button is for browsers without JavaScript.
  document.addEventListener("change", (event) => {
    if (event.target.matches("[data-submit]")) event.target.form.requestSubmit();
    const all = event.target.dataset.all;
    if (all) for (const box of document.getElementsByName(all)) box.checked = event.target.checked;
  });
  for (const all of document.querySelectorAll("[data-all]")) all.parentElement.hidden = false;

  // A path is completed while it is typed: <input list="ID" data-complete="/address?...">.
  let timer;
  document.addEventListener("input", ({ target }) => {
    if (!target.dataset.complete) return;
    clearTimeout(timer);
    timer = setTimeout(async () => {
      try {
        const answer = await fetch(`${target.dataset.complete}&typed=${encodeURIComponent(target.value)}`);
        if (answer.ok) target.list.replaceChildren(...(await answer.json()).map((path) => new Option("", path)));
      } catch (_error) { /* completion is only a help */ }
    }, 200);
  });

  // Scrolls a wide table to its newest column.
  for (const newest of document.querySelectorAll(".wide [data-newest]")) {
    const box = newest.closest(".wide");
    box.scrollLeft = newest.offsetLeft + newest.offsetWidth - box.clientWidth;
  }

  // "3 minutes ago" grows in an open page (filters.py: relative).
  const ahead = Date.parse(document.body.dataset.now) - Date.now(), ago = new Intl.RelativeTimeFormat("en");
  setInterval(() => {
    for (const e of document.querySelectorAll("[data-ago]")) {
      const past = (Date.now() + ahead - Date.parse(e.dateTime)) / 6e4, far = Math.abs(past);
      const [size, unit] = far < 90 ? [1, "minute"] : far < 2160 ? [60, "hour"] : [1440, "day"];
      const text = far < 1 ? "just now" : ago.format(-Math.trunc(past / size), unit);
      e.textContent = e.textContent.replace(e.dataset.ago, text);
      e.dataset.ago = text;
    }
  }, 30000);

  // The menu closes with Escape and with a click elsewhere; the key / goes to the search.
  const menu = document.querySelector(".me");
  if (menu) {
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && menu.open) { menu.open = false; menu.querySelector("summary").focus(); }
      if (event.key === "/" && !event.target.closest("input, select, textarea")) { event.preventDefault(); document.getElementById("find").focus(); }
    });
    document.addEventListener("click", (event) => { if (!menu.contains(event.target)) menu.open = false; });
  }
})();
