"use strict";
// Keeps the page as new as the run, and answers to pointers. Without it the page can be read, too.

const main = document.querySelector("main");
const live = document.getElementById("live");
const LEAST_MS = 2000;
let newest = main.dataset.stamp;
let busy = false;
let last = 0;

// What is new -----------------------------------------------------------------------------------

function isInUse() {
  const selected = String(document.getSelection() || "");
  return document.hidden || selected !== "" || main.querySelector("details[open]") !== null;
}

async function refresh() {
  if (busy || newest === main.dataset.stamp || isInUse()) return;
  if (main.dataset.view === "group") return; // What is recorded does not change.
  if (main.dataset.view === "timeline") {
    main.dataset.stamp = newest;
    document.dispatchEvent(new Event("news"));
    return;
  }
  const wait = last + LEAST_MS - Date.now();
  if (wait > 0) return;
  busy = true;
  try {
    await load(location.href);
  } finally {
    busy = false;
    last = Date.now();
  }
}

async function load(address) {
  const answer = await fetch(address, { headers: { "X-Fragment": "1" } });
  if (!answer.ok) return;
  const html = await answer.text();
  const left = [...main.querySelectorAll(".scroll")].map((one) => one.scrollLeft);
  main.innerHTML = html; // Made and escaped by the server.
  main.querySelectorAll(".scroll").forEach((one, place) => { one.scrollLeft = left[place] || 0; });
  main.dataset.stamp = answer.headers.get("X-Stamp");
  main.dataset.state = answer.headers.get("X-State");
  tell();
}

const events = new EventSource("/events");
events.addEventListener("change", (event) => { newest = event.data; refresh(); });
let connected = false;
function tell() {
  const state = main.dataset.state;
  live.textContent = !connected ? "○ not connected" : state === "live" ? "● live" : state;
  live.className = connected && state === "live" ? "on" : "";
}
events.addEventListener("open", () => { connected = true; tell(); });
events.addEventListener("error", () => { connected = false; tell(); });
setInterval(refresh, 1000);

// The table ---------------------------------------------------------------------------------------

function go(parameters) {
  const address = `${location.pathname}?${parameters}`;
  history.pushState(null, "", address);
  return load(address);
}

const form = document.querySelector(".filter");
if (form) {
  const filter = () => {
    const given = new URLSearchParams(new FormData(form));
    for (const [name, value] of [...given]) if (value === "") given.delete(name);
    return go(given);
  };
  form.addEventListener("submit", (event) => { event.preventDefault(); filter(); });
  for (const one of form.querySelectorAll("select, input[type=checkbox], input[type=range]")) {
    one.addEventListener("change", filter);
  }
  addEventListener("popstate", () => location.reload());
}

document.addEventListener("click", (event) => {
  const page = event.target.closest("[data-page]");
  if (page) {
    event.preventDefault();
    const given = new URLSearchParams(location.search);
    given.set("page", page.dataset.page);
    go(given);
  }
  const colour = event.target.closest("button[data-colour]");
  if (colour) {
    main.querySelector(".coloured").dataset.colour = colour.dataset.colour;
    for (const one of main.querySelectorAll("button[data-colour]")) {
      one.setAttribute("aria-pressed", String(one === colour));
    }
  }
});

// Values of curves under the pointer --------------------------------------------------------------

main.addEventListener("pointermove", (event) => {
  const chart = event.target.closest("svg.chart");
  for (const tip of main.querySelectorAll(".tip")) if (tip.parentNode !== chart?.parentNode) tip.remove();
  if (!chart) return;
  const [xLow, xHigh, left, right, yLow, yHigh, bottom, top, isLog] = chart.dataset.scales.split(" ").map(Number);
  const box = chart.getBoundingClientRect();
  const at = (event.clientX - box.left) / box.width * chart.viewBox.baseVal.width;
  const words = [];
  let x = null;
  for (const curve of chart.querySelectorAll("polyline[data-name]")) {
    let best = null;
    for (const point of curve.points) {
      if (best === null || Math.abs(point.x - at) < Math.abs(best.x - at)) best = point;
    }
    x = xLow + (best.x - left) / (right - left) * (xHigh - xLow);
    const share = (best.y - bottom) / (top - bottom);
    const y = isLog ? yLow * (yHigh / yLow) ** share : yLow + share * (yHigh - yLow);
    words.push(`${curve.dataset.name} ${y.toPrecision(3)}`);
  }
  if (x === null) return;
  let tip = chart.parentNode.querySelector(".tip");
  if (!tip) {
    tip = document.createElement("div");
    tip.className = "tip";
    chart.parentNode.append(tip);
  }
  tip.textContent = `${chart.dataset.unit} ${Math.round(x)}: ${words.join(", ")}`;
});
