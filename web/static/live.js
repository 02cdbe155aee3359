// Refreshes parts of a page: <section data-live="/address" data-every="2000">. The page works without this script.
// A whole page replaces each <div id="..." data-part>.
"use strict";
(() => {
  const longest = 60000; // ms between two tries while the server does not answer

  function start(section) {
    const every = Math.max(1000, Number(section.dataset.every) || 5000);
    let wait = every;
    let timer = 0;

    function again() {
      clearTimeout(timer);
      if (section.querySelector("[data-over]")) return; // it will not change any more
      timer = setTimeout(look, document.hidden ? every * 5 : wait);
    }

    async function look() {
      try {
        const answer = await fetch(section.dataset.live, { headers: { "X-Live": "1" }, redirect: "error" });
        if (answer.status === 401 || answer.status === 403) {
          say(section, "You are logged out. Reload the page to log in again.");
          return;
        }
        if (!answer.ok) throw new Error(String(answer.status));
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        if (!page.getElementById("main")) replace(section, page.body);
        else for (const part of document.querySelectorAll("[data-part]")) replace(part, page.getElementById(part.id));
        section.removeAttribute("data-stale");
        say(section, "");
        wait = every;
      } catch (_error) {
        section.setAttribute("data-stale", "");
        say(section, "The dashboard does not answer. This is the last known state.");
        wait = Math.min(wait * 2, longest);
      }
      again();
    }

    document.addEventListener("visibilitychange", () => { if (!document.hidden) look(); });
    again();
  }

  // Selections stay. The focus and unfolded details are found again by their id.
  function replace(section, fresh) {
    if (!fresh || section.querySelector("input:checked")) return;
    const held = section.contains(document.activeElement) ? document.activeElement : null;
    if (held && held.matches("input, select, textarea, [role=slider]")) return;
    for (const unfolded of section.querySelectorAll("details[id][open]")) {
      const same = fresh.querySelector("#" + CSS.escape(unfolded.id));
      if (same) same.open = true;
    }
    const key = held && (held.id ? "#" + CSS.escape(held.id) : held.getAttribute("href") ? `a[href="${CSS.escape(held.getAttribute("href"))}"]` : "");
    const boxes = ".wide, .lines";
    const at = [...section.querySelectorAll(boxes)].map((box) => [box.scrollLeft, box.scrollTop]);
    section.replaceChildren(...document.adoptNode(fresh).childNodes);
    section.querySelectorAll(boxes).forEach((box, place) => box.scrollTo(...(at[place] || [])));
    if (key) section.querySelector(key)?.focus();
    const verdict = section.querySelector("[data-title]"); // that of the whole page, which its tab shows too
    if (verdict) {
      document.title = verdict.dataset.title;
      document.querySelector("link[rel=icon]").href = verdict.dataset.icon;
    }
  }

  function say(section, words) {
    let note = section.nextElementSibling;
    if (!note || !note.classList.contains("stale")) {
      if (!words) return;
      note = document.createElement("p");
      note.className = "stale";
      note.setAttribute("role", "status");
      section.after(note);
    }
    if (note.textContent !== words) note.textContent = words;
    note.hidden = !words;
  }

  document.querySelectorAll("[data-live]").forEach(start);
})();
