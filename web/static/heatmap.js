// Shows the block groups under the pointer on a heatmap. Without this script, the table of the page has every block group.
//
// The map (heatmap/whole_filesystem.py) is fetched when the user points for the first time. A click opens the block group, a finger
// shows it first. Arrow keys move a square, with Shift sixteen; Enter opens.
"use strict";
(() => {
  const TYPES = { 1: "data", 2: "system", 4: "metadata", 5: "data and metadata" };
  const MASK = 7;
  const SHOWN = 3;

  for (const figure of document.querySelectorAll(".heatmap[data-map]")) watch(figure);

  function watch(figure) {
    const canvas = figure.querySelector(".canvas");
    const image = canvas.querySelector("img");
    const words = figure.querySelector(".under");
    words.hidden = false;
    const mark = document.createElement("span");
    mark.className = "mark";
    mark.hidden = true;
    canvas.append(mark);
    canvas.tabIndex = 0;
    canvas.setAttribute("role", "application");
    canvas.setAttribute("aria-label", "Heatmap: arrow keys move over it, Enter opens the block group");
    let map = null;
    let loading = null;
    let at = null;

    function load() {
      loading ??= fetch(figure.dataset.map, { redirect: "error" })
        .then((answer) => { if (!answer.ok) throw new Error(String(answer.status)); return answer.json(); })
        .then((found) => { map = found; })
        .catch(() => { loading = null; words.textContent = "This information cannot be loaded now; the table below has the block groups."; });
      return loading;
    }

    function place(event) {
      const box = image.getBoundingClientRect();
      const edge = 2 ** map.order;
      const clamp = (value) => Math.min(edge - 1, Math.max(0, Math.floor(value * edge)));
      return { x: clamp((event.clientX - box.left) / box.width), y: clamp((event.clientY - box.top) / box.height) };
    }

    async function show(next) {
      if (!map) await load();
      if (!map) return;
      at = typeof next === "function" ? next() : next;
      const edge = 2 ** map.order;
      mark.hidden = false;
      mark.style.left = `${at.x * 100 / edge}%`;
      mark.style.top = `${at.y * 100 / edge}%`;
      mark.style.width = mark.style.height = `max(5px, ${100 / edge}%)`;
      tell(entriesAt(map, step(map.curve, map.order, at.x, at.y)));
    }

    function tell(here) {
      words.replaceChildren();
      if (!here.length) { words.textContent = "Nothing is allocated there."; return; }
      for (const index of here.slice(0, SHOWN)) {
        const line = document.createElement("span");
        const link = document.createElement("a");
        link.href = address(index);
        link.textContent = `Block group ${map.entries.vaddr[index]}`;
        line.append(link, describe(map.entries, index));
        words.append(line);
      }
      if (here.length > SHOWN) words.append(`and ${here.length - SHOWN} more`);
    }

    function address(index) { return figure.dataset.group.replace("VADDR", String(map.entries.vaddr[index])); }

    function open() {
      if (!map || !at) return;
      const here = entriesAt(map, step(map.curve, map.order, at.x, at.y));
      if (here.length) window.location.href = address(here[0]);
    }

    canvas.addEventListener("pointermove", (event) => { if (event.pointerType !== "touch") show(() => place(event)); });
    canvas.addEventListener("pointerdown", (event) => { if (event.pointerType === "touch") show(() => place(event)); });
    canvas.addEventListener("click", (event) => {
      if (event.pointerType === "touch" || event.defaultPrevented) return;
      show(() => place(event)).then(open);
    });
    canvas.addEventListener("focus", () => { load(); });
    canvas.addEventListener("keydown", (event) => {
      const move = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
      if (event.key === "Enter") { open(); return; }
      if (!move) return;
      event.preventDefault();
      show(() => {
        const edge = 2 ** map.order;
        const far = event.shiftKey ? 16 : 1;
        const from = at ?? { x: edge >> 1, y: edge >> 1 };
        const within = (value) => Math.min(edge - 1, Math.max(0, value));
        return { x: within(from.x + move[0] * far), y: within(from.y + move[1] * far) };
      });
    });
  }

  function describe(entries, index) {
    const parts = [];
    if (entries.devid) parts.push(`device ${entries.devid[index]} at ${entries.paddr[index]}`);
    const used = entries.used[index], length = entries.length[index];
    parts.push(TYPES[entries.flags[index] & MASK] ?? "unknown");
    parts.push(`${size(used)} of ${size(length)} used (${(used * 100 / length).toFixed(1)}%)`);
    if (entries.score && entries.score[index] !== null) parts.push(`score ${entries.score[index].toFixed(1)}`);
    return `: ${parts.join(", ")}. `;
  }

  function size(bytes) {
    const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let value = bytes, unit = 0;
    while (value >= 1000 && unit < units.length - 1) { value /= 1024; unit += 1; }
    if (unit === 0) return `${bytes} B`;
    return `${value.toFixed(value < 9.995 ? 2 : value < 99.95 ? 1 : 0)} ${units[unit]}`;
  }

  // As heatmap/whole_filesystem.py: the place along the curve of the pixel (x, y), counted from the left and from above.
  function step(curve, order, x, y) {
    const edge = 2 ** order;
    if (curve !== "hilbert") return y * edge + (curve === "snake" && y % 2 ? edge - 1 - x : x);
    let place = 0;
    y = edge - 1 - y;
    for (let half = edge >> 1; half; half >>= 1) {
      const right = x >= half, up = y >= half;
      if (right) x -= half;
      if (up) y -= half;
      const quarter = [0, 1, 3, 2][2 * right + up];
      place += quarter * half * half;
      if (quarter === 0) [x, y] = [y, x];
      else if (quarter === 3) [x, y] = [half - 1 - y, half - 1 - x];
    }
    return place;
  }

  function entriesAt(map, place) {
    const { start, end } = map.entries;
    let low = 0, high = start.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (start[middle] <= place) low = middle + 1; else high = middle;
    }
    const here = [];
    while (low && end[low - 1] > place) { low -= 1; here.push(low); }
    return here.reverse();
  }
})();
