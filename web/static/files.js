// Reloads a page that waits for an answer when the answer exists: <section data-wait="/address">.
"use strict";
(() => {
  const section = document.querySelector("[data-wait]");
  if (!section) return;
  let wait = 700; // ms
  async function look() {
    try {
      const answer = await fetch(section.dataset.wait, { headers: { "X-Wait": "1" }, redirect: "error" });
      if (answer.status !== 202) { location.reload(); return; }
    } catch (_error) { /* the dashboard is away: it is asked again */ }
    wait = Math.min(wait * 1.3, 5000);
    setTimeout(look, wait);
  }
  setTimeout(look, wait);
})();
