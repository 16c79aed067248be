"use strict";
// Shows the picture of what each role did when, to move and to zoom: the server draws each window.

(() => {
  const place = document.getElementById("timeline");
  if (!place) return;
  const main = document.querySelector("main");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const LEAST_SECS = 0.01, NEWS_MS = 5000;
  let shown = null, start = 0, end = 60, follows = true, loading = false, again = false, last = 0;

  const span = () => end - start;

  async function load() {
    if (loading) { again = true; return; }
    loading = true;
    const given = new URLSearchParams({ run: main.dataset.run, width: Math.max(1, place.clientWidth) });
    if (dark.matches) given.set("dark", 1);
    if (follows) given.set("secs", span());
    else { given.set("start", start); given.set("end", end); }
    const [from, to] = [start, end];
    try {
      const answer = await fetch(`/data/timeline?${given}`);
      if (answer.ok) {
        shown = await answer.json();
        place.innerHTML = shown.svg; // Made and escaped by the server.
        if (follows || (from === start && to === end)) { start = shown.start; end = shown.end; }
        draw();
      }
    } finally {
      loading = false;
      last = Date.now();
    }
    if (again) { again = false; load(); }
  }

  let timer = 0;
  function later() { clearTimeout(timer); timer = setTimeout(load, 120); }

  // Moves and stretches the picture until that of the new window is there.
  function draw() {
    const wide = (shown.end - shown.start) / span();
    const by = (shown.start - start) / span() * shown.width;
    const svg = place.querySelector("svg");
    svg.style.transformOrigin = `${shown.left}px 0`;
    svg.style.transform = wide === 1 && by === 0 ? "" : `translateX(${by}px) scaleX(${wide})`;
    document.getElementById("window").textContent =
      `${start.toFixed(1)} to ${end.toFixed(1)} s of ${shown.duration.toFixed(1)} s`;
  }

  function follow(on) {
    follows = on;
    main.querySelector("[data-zoom=end]").setAttribute("aria-pressed", String(on));
  }

  function zoom(factor, x = shown.left + shown.width / 2) {
    const at = start + (x - shown.left) / shown.width * span();
    const wide = Math.min(Math.max(span() * factor, LEAST_SECS), Math.max(shown.duration * 1.2, 1));
    start = at - (at - start) / span() * wide;
    end = start + wide;
    clamp();
  }

  function clamp() {
    const wide = span();
    if (start < 0) { start = 0; end = wide; }
    if (start > shown.duration) { start = shown.duration - wide / 10; end = start + wide; }
    follow(follows && end >= shown.duration);
    draw();
    later();
  }

  function move(secs) { start += secs; end += secs; clamp(); }

  const secs = (pixels) => pixels / shown.width * span();
  const at = (event) => event.clientX - place.getBoundingClientRect().left;

  place.addEventListener("wheel", (event) => {
    if (!shown) return;
    event.preventDefault();
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) move(secs(event.deltaX));
    else zoom(Math.exp(event.deltaY * 0.002), at(event));
  }, { passive: false });

  const fingers = new Map();
  place.addEventListener("pointerdown", (event) => {
    place.setPointerCapture(event.pointerId);
    fingers.set(event.pointerId, at(event));
  });
  for (const name of ["pointerup", "pointercancel"]) {
    place.addEventListener(name, (event) => fingers.delete(event.pointerId));
  }
  place.addEventListener("pointermove", (event) => {
    if (!shown) return;
    const x = at(event), before = fingers.get(event.pointerId);
    if (before === undefined) {
      const block = event.target.closest("[id$=' s long']");
      if (block) document.getElementById("block").textContent = block.id;
      return;
    }
    if (fingers.size === 2) {
      const other = [...fingers].find(([id]) => id !== event.pointerId)[1];
      const far = Math.max(10, Math.abs(x - other));
      zoom(Math.max(10, Math.abs(before - other)) / far, (x + other) / 2);
    } else move(secs(before - x));
    fingers.set(event.pointerId, x);
  });

  place.addEventListener("keydown", (event) => {
    const keys = { ArrowLeft: () => move(-span() / 5), ArrowRight: () => move(span() / 5), "+": () => zoom(0.7), "-": () => zoom(1.4) };
    if (shown && keys[event.key]) { event.preventDefault(); keys[event.key](); }
  });
  main.addEventListener("click", (event) => {
    const how = event.target.closest("[data-zoom]")?.dataset.zoom;
    if (!how || !shown) return;
    if (how === "in") zoom(0.5);
    if (how === "out") zoom(2);
    if (how === "all") { start = 0; end = Math.max(shown.duration, 1); clamp(); }
    if (how === "end") { follow(true); load(); }
  });
  // A picture is work for the machine, on which the run goes on.
  let awaited = 0;
  document.addEventListener("news", () => {
    clearTimeout(awaited);
    awaited = setTimeout(load, Math.max(0, last + NEWS_MS - Date.now()));
  });
  addEventListener("resize", later);
  dark.addEventListener("change", load);
  load();
})();
