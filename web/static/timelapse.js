// Plays the recorded states, and lets a slider choose. Without this script the page has links to the states before and after.
"use strict";
(() => {
  const EVERY = 350; // ms
  const AHEAD = 3;
  const figure = document.querySelector(".timelapse");
  if (!figure) return;
  const find = (selector) => figure.querySelector(selector);
  const frames = [...figure.querySelectorAll(".frames li")];
  const image = find("img"), moment = find(".moment"), count = find(".count"), slider = find("input[type=range]");
  const play = find(".play"), back = find(".back"), on = find(".on");
  const loaded = new Map();
  let at = Number(slider.value);
  let timer = 0;

  if (frames.length < 2) return;
  play.hidden = slider.closest("label").hidden = false;

  function fetched(number) {
    if (!loaded.has(number)) {
      const one = new Image();
      one.src = frames[number].dataset.src;
      loaded.set(number, one);
      if (loaded.size > 40) loaded.delete(loaded.keys().next().value);
    }
    return loaded.get(number);
  }

  async function show(number) {
    at = Math.min(frames.length - 1, Math.max(0, number));
    const wanted = at;
    const one = fetched(wanted);
    slider.value = String(wanted);
    moment.replaceChildren(...[...frames[wanted].childNodes].map((node) => node.cloneNode(true)));
    slider.setAttribute("aria-valuetext", frames[wanted].textContent.trim());
    count.textContent = `${wanted + 1} of ${frames.length}`;
    edge(back, wanted === 0);
    edge(on, wanted === frames.length - 1);
    try { await one.decode(); } catch { return; }
    if (wanted === at) image.src = one.src;
    for (let next = wanted + 1; next <= Math.min(wanted + AHEAD, frames.length - 1); next += 1) fetched(next);
    const address = new URL(window.location.href);
    address.searchParams.set("picture", frames[wanted].dataset.id);
    if (wanted === at) history.replaceState(null, "", address);
  }

  function edge(link, isThere) {
    if (isThere) link.setAttribute("aria-disabled", "true"); else link.removeAttribute("aria-disabled");
    link.href = "#";
  }

  function stop() { clearTimeout(timer); timer = 0; play.textContent = "Play"; }

  async function tick() {
    if (!timer) return;
    if (at + 1 >= frames.length) { stop(); return; }
    await show(at + 1);
    if (timer) timer = setTimeout(tick, EVERY);
  }

  play.addEventListener("click", () => {
    if (timer) { stop(); return; }
    if (at + 1 >= frames.length) show(0);
    play.textContent = "Stop";
    timer = setTimeout(tick, EVERY);
  });
  slider.addEventListener("input", () => { stop(); show(Number(slider.value)); });
  for (const [link, way] of [[back, -1], [on, 1]]) {
    link.setAttribute("role", "button");
    link.addEventListener("click", (event) => { event.preventDefault(); stop(); show(at + way); });
  }
  show(at);
})();
