"use strict";
// Draws what each role did when, on a canvas, to move and to zoom.

(() => {
  const canvas = document.getElementById("timeline");
  if (!canvas) return;
  const main = document.querySelector("main");
  const LANE = 56, NAME = 92, AXIS = 26, LEVEL = 56, LEAST_SECS = 0.01, FOLLOWED_SECS = 60;
  let data = null, start = 0, end = null, follows = true, loading = false, again = false, boxes = [];

  const span = () => end - start;
  const width = () => canvas.clientWidth - NAME;
  const toX = (secs) => NAME + (secs - start) / span() * width();

  async function load() {
    if (loading) { again = true; return; }
    loading = true;
    const given = new URLSearchParams({ run: main.dataset.run, width: Math.max(1, Math.round(width())) });
    // A window to each side is loaded too, so that moving shows something at once.
    if (end !== null) { given.set("start", Math.max(0, start - span())); given.set("end", end + span()); given.set("width", Math.round(3 * width())); }
    try {
      const answer = await fetch(`/data/timeline?${given}`);
      if (answer.ok) data = await answer.json();
    } finally {
      loading = false;
    }
    if (data && end === null) {
      const least = Math.max(data.duration, 1);
      start = Math.max(0, least - FOLLOWED_SECS); end = least;
      again = true;
    } else if (data && follows && end < data.duration) {
      const by = data.duration - end;
      start += by; end += by;
    }
    draw();
    if (again) { again = false; load(); }
  }

  let timer = 0;
  function later() { clearTimeout(timer); timer = setTimeout(load, 120); }

  function draw() {
    if (!data || end === null) return;
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    const scale = devicePixelRatio || 1;
    const height = data.lanes.length * LANE + LEVEL + AXIS;
    canvas.style.height = `${height}px`;
    canvas.width = Math.round(canvas.clientWidth * scale);
    canvas.height = Math.round(height * scale);
    const pen = canvas.getContext("2d");
    pen.scale(scale, scale);
    boxes = [];
    pen.save();
    pen.beginPath();
    pen.rect(NAME, 0, width(), height);
    pen.clip();
    data.lanes.forEach(([, blocks], row) => lane(pen, blocks, row * LANE, colour));
    level(pen, data.lanes.length * LANE, colour);
    pen.restore();
    pen.fillStyle = colour("--ink");
    pen.font = "600 13px system-ui, sans-serif";
    pen.textBaseline = "middle";
    data.lanes.forEach(([role], row) => pen.fillText(role, 6, row * LANE + LANE / 2, NAME - 10));
    pen.fillText("buffer", 6, data.lanes.length * LANE + LEVEL / 2, NAME - 10);
    axis(pen, height, colour);
    document.getElementById("window").textContent =
      `${start.toFixed(1)} to ${end.toFixed(1)} s of ${data.duration.toFixed(1)} s`;
    legend();
  }

  function lane(pen, blocks, top, colour) {
    pen.fillStyle = colour("--bed");
    pen.fillRect(NAME, top + 6, width(), LANE - 12);
    for (const [kind, from, to, label, aside] of blocks) {
      if (to < start || from > end) continue;
      const isSync = kind.startsWith("sync");
      let left = toX(from), wide = toX(to) - left;
      if (wide < (isSync ? 2 : 0.7)) wide = isSync ? 2 : 0.7;
      const high = aside ? (LANE - 12) * 0.3 : LANE - 12;
      const y = top + LANE - 6 - high;
      if (kind === "wait") hatch(pen, left, y, wide, high, colour);
      else {
        pen.fillStyle = data.looks[kind][1];
        pen.fillRect(left, y, wide, high);
        if (wide > 4) { pen.strokeStyle = colour("--paper"); pen.lineWidth = 0.7; pen.strokeRect(left, y, wide, high); }
      }
      boxes.push({ left, right: left + wide, top: y, bottom: y + high, kind, from, to, label });
      if (!aside && label && wide > 16) words(pen, label, Math.max(left, NAME), Math.min(left + wide, NAME + width()), y + high / 2, kind, colour);
    }
  }

  function hatch(pen, left, top, wide, high, colour) {
    pen.fillStyle = colour("--paper");
    pen.fillRect(left, top, wide, high);
    pen.strokeStyle = colour("--line");
    pen.lineWidth = 1;
    pen.strokeRect(left, top, wide, high);
    if (wide < 6) return;
    pen.save();
    pen.beginPath();
    pen.rect(left, top, wide, high);
    pen.clip();
    pen.beginPath();
    const first = Math.max(left, NAME) - high, last = Math.min(left + wide, NAME + width());
    for (let x = first - (first % 8); x < last; x += 8) { pen.moveTo(x, top + high); pen.lineTo(x + high, top); }
    pen.stroke();
    pen.restore();
  }

  function words(pen, label, left, right, middle, kind, colour) {
    pen.font = "12px system-ui, sans-serif";
    pen.textBaseline = "middle";
    const wide = pen.measureText(label).width;
    if (wide > right - left - 4) return;
    const x = (left + right - wide) / 2;
    if (kind === "wait") { pen.fillStyle = colour("--paper"); pen.fillRect(x - 2, middle - 8, wide + 4, 16); }
    const light = kind === "train" || kind.startsWith("sync");
    pen.fillStyle = kind === "wait" ? colour("--quiet") : light ? "#ffffff" : "#27272a";
    pen.fillText(label, x, middle);
  }

  function level(pen, top, colour) {
    const most = Math.max(1, ...data.buffer.map(([, groups]) => groups));
    const bottom = top + LEVEL - 4, high = LEVEL - 12;
    pen.fillStyle = "#c9d9e8";
    data.buffer.forEach(([secs, groups], place) => {
      const next = place + 1 < data.buffer.length ? data.buffer[place + 1][0] : data.duration;
      const tall = groups / most * high;
      pen.fillRect(toX(secs), bottom - tall, Math.max(0.5, toX(next) - toX(secs)), tall);
    });
    pen.fillStyle = colour("--quiet");
    pen.font = "11px system-ui, sans-serif";
    pen.textBaseline = "top";
    pen.fillText(`at most ${most} groups`, NAME + 4, top + 2);
  }

  function axis(pen, height, colour) {
    const rough = span() / Math.max(2, width() / 90), power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((m) => m * power).find((m) => m >= rough);
    pen.fillStyle = colour("--quiet");
    pen.strokeStyle = colour("--line");
    pen.font = "11px system-ui, sans-serif";
    pen.textBaseline = "bottom";
    for (let secs = Math.ceil(start / step) * step; secs <= end; secs += step) {
      const x = toX(secs);
      pen.beginPath(); pen.moveTo(x, height - AXIS); pen.lineTo(x, height - AXIS + 5); pen.stroke();
      const text = `${+secs.toPrecision(10)} s`;
      pen.fillText(text, Math.min(x, NAME + width() - pen.measureText(text).width), height - 4);
    }
  }

  function legend() {
    const kinds = new Set(data.lanes.flatMap(([, blocks]) => blocks.map(([kind]) => kind)));
    const place = document.getElementById("looks");
    if (place.dataset.kinds === [...kinds].join()) return;
    place.dataset.kinds = [...kinds].join();
    place.replaceChildren();
    for (const [kind, [name, colour]] of Object.entries(data.looks)) {
      if (!kinds.has(kind)) continue;
      const box = document.createElement("i");
      box.style.background = colour;
      place.append(box, kind.startsWith("sync_") ? `sync (${kind.slice(5)})` : name);
    }
  }

  // Moving and zooming --------------------------------------------------------------------------

  function follow(on) {
    follows = on;
    main.querySelector("[data-zoom=end]").setAttribute("aria-pressed", String(on));
  }

  function zoom(factor, x = NAME + width() / 2) {
    const at = start + (x - NAME) / width() * span();
    const wide = Math.min(Math.max(span() * factor, LEAST_SECS), Math.max(data.duration * 1.2, 1));
    start = at - (at - start) / span() * wide;
    end = start + wide;
    clamp();
  }

  function clamp() {
    const wide = span();
    if (start < 0) { start = 0; end = wide; }
    if (start > data.duration) { start = data.duration - wide / 10; end = start + wide; }
    if (end < data.duration) follow(false);
    draw();
    later();
  }

  function move(secs) { start += secs; end += secs; clamp(); }

  canvas.addEventListener("wheel", (event) => {
    if (!data) return;
    event.preventDefault();
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) move(event.deltaX / width() * span());
    else zoom(Math.exp(event.deltaY * 0.002), event.offsetX);
  }, { passive: false });

  const fingers = new Map();
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    fingers.set(event.pointerId, event.offsetX);
  });
  for (const name of ["pointerup", "pointercancel"]) {
    canvas.addEventListener(name, (event) => fingers.delete(event.pointerId));
  }
  canvas.addEventListener("pointermove", (event) => {
    if (!data) return;
    if (!fingers.has(event.pointerId)) { tell(event.offsetX, event.offsetY); return; }
    const before = fingers.get(event.pointerId);
    if (fingers.size === 2) {
      const other = [...fingers].find(([id]) => id !== event.pointerId)[1];
      const far = Math.max(10, Math.abs(event.offsetX - other));
      zoom(Math.max(10, Math.abs(before - other)) / far, (event.offsetX + other) / 2);
    } else move((before - event.offsetX) / width() * span());
    fingers.set(event.pointerId, event.offsetX);
  });

  function tell(x, y) {
    const box = boxes.findLast((one) => x >= one.left && x <= one.right && y >= one.top && y <= one.bottom);
    if (!box) return;
    document.getElementById("block").textContent =
      `${data.looks[box.kind][0]} ${box.label}: ${box.from.toFixed(2)} to ${box.to.toFixed(2)} s, ${(box.to - box.from).toFixed(3)} s long`;
  }

  canvas.addEventListener("keydown", (event) => {
    const keys = { ArrowLeft: () => move(-span() / 5), ArrowRight: () => move(span() / 5), "+": () => zoom(0.7), "-": () => zoom(1.4) };
    if (data && keys[event.key]) { event.preventDefault(); keys[event.key](); }
  });
  main.addEventListener("click", (event) => {
    const how = event.target.closest("[data-zoom]")?.dataset.zoom;
    if (!how || !data) return;
    if (how === "in") zoom(0.5);
    if (how === "out") zoom(2);
    if (how === "all") { start = 0; end = Math.max(data.duration, 1); clamp(); }
    if (how === "end") { follow(true); const wide = span(); end = data.duration; start = Math.max(0, end - wide); draw(); later(); }
  });
  document.addEventListener("news", later);
  addEventListener("resize", () => { draw(); later(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  load();
})();
