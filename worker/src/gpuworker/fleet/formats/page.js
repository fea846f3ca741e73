// Filters, sorts and copies what is on the page, and replaces it when the collector has a new version.
// State is in the address after "#", so a view is a link: #q=gpu-7&v=FAIL&sort=0.4.1,1.1.0 (table, column, descending).
"use strict";

const POLL_MS = 3000;
const byId = (id) => document.getElementById(id);
const numberIn = (text) => (/^[-+]?\d/.test(text) ? parseFloat(text) : NaN);

function state() {
  return new URLSearchParams(location.hash.includes("=") ? location.hash.slice(1) : "");
}

// `step`: of its own in the history, so that Back undoes it.
function setState(key, value, step) {
  const found = state();
  if (value) found.set(key, value); else found.delete(key);
  const hash = found.toString();
  history[step ? "pushState" : "replaceState"](null, "", hash ? "#" + hash : location.pathname + location.search);
  apply();
}

// Show the rows that contain every word of the search and have the verdict.
function filter() {
  if (!byId("filter")) return;
  const words = byId("q").value.toLowerCase().split(/\s+/), verdict = byId("v").value;
  let shown = 0, all = 0;
  for (const row of document.querySelectorAll("table.rows tbody tr")) {
    const cell = row.querySelector("td.v");
    const text = row.textContent.toLowerCase();
    const fits = words.every((word) => text.includes(word)) && (!verdict || (cell && cell.classList.contains(verdict)));
    row.hidden = !fits;
    shown += fits;
    all += 1;
  }
  byId("shown").textContent = shown === all ? "" : `${shown} of ${all} rows`;
}

// [table, column, descending] of each table that is sorted.
function orders() {
  const found = (state().get("sort") || "").split(",").map((text) => text.split(".").map(Number));
  return found.filter((order) => order.length === 3 && order.every(Number.isInteger));
}

// Sort every table as the address says, and the others as they came: the worst first.
function sortAll() {
  const found = new Map(orders().map(([index, column, down]) => [index, [column, down === 1]]));
  document.querySelectorAll("table.rows").forEach((table, index) => {
    const rows = [...table.tBodies[0].rows];
    rows.forEach((row, number) => { row.dataset.came = row.dataset.came || number; });
    const sorted = [...table.tHead.rows[0].cells].some((cell) => /ing$/.test(cell.getAttribute("aria-sort")));
    if (found.has(index) || sorted) sort(table, ...(found.get(index) || [-1, false]));
  });
}

// Sort a table by a column, -1: as it came.
function sort(table, column, down) {
  const body = table.tBodies[0];
  const came = [...body.rows].sort((a, b) => a.dataset.came - b.dataset.came);
  const rows = came.map((row) => [row.cells[column] ? row.cells[column].textContent.trim() : "", row]);
  if (column >= 0) rows.sort(([a], [b]) => {
    const [x, y] = [numberIn(a), numberIn(b)];
    const order = isNaN(x) || isNaN(y) ? a.localeCompare(b, undefined, { numeric: true }) : x - y;
    return down ? -order : order;
  });
  body.append(...rows.map(([, row]) => row));
  [...table.tHead.rows[0].cells].forEach((cell, number) => {
    cell.setAttribute("aria-sort", number !== column ? "none" : down ? "descending" : "ascending");
  });
}

// `event`: of another address, which also replaces what is being typed.
function apply(event) {
  const found = state();
  if (byId("filter")) {
    byId("filter").hidden = false;
    if (event || byId("q") !== document.activeElement) byId("q").value = found.get("q") || "";
    byId("v").value = found.get("v") || "";
  }
  for (const button of document.querySelectorAll("button.copy")) button.hidden = false;
  sortAll();
  filter();
}

async function copy(button) {
  const text = button.parentElement.querySelector("pre");
  getSelection().selectAllChildren(text);
  try {
    await navigator.clipboard.writeText(text.textContent);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Selected: press Ctrl+C";
  }
}

// What is open, focused and typed stays when the page is replaced.
function replaceMain(text) {
  const next = new DOMParser().parseFromString(text, "text/html");
  const open = [...document.querySelectorAll("tr[id]")].filter((row) => row.querySelector("details[open]"));
  const names = open.map((row) => row.id), focused = document.activeElement.id, typed = byId("q") ? byId("q").value : "";
  document.title = next.title;
  document.querySelector("main").replaceWith(next.querySelector("main"));
  for (const name of names) {
    const details = byId(name) && byId(name).querySelector("details");
    if (details) details.open = true;
  }
  apply();
  if (byId("q")) byId("q").value = typed;
  if (focused && byId(focused)) byId(focused).focus(); // what is hidden cannot have the focus, so after apply()
}

let known = "";
async function poll() {
  try {
    const answer = await fetch(location.pathname + location.search, { cache: "no-cache" });
    if (!answer.ok) throw new Error(answer.status);
    const version = answer.headers.get("ETag");
    if (known && version !== known) {
      replaceMain(await answer.text());
      byId("status").textContent = `Updated ${new Date().toLocaleTimeString()}: ${document.title}`;
    } else if (byId("status").classList.contains("FAIL")) {
      byId("status").textContent = "";
    }
    known = version;
    byId("status").classList.remove("FAIL");
  } catch {
    byId("status").textContent = "The collector does not answer; this page may be out of date.";
    byId("status").classList.add("FAIL");
  }
  setTimeout(poll, POLL_MS);
}

document.addEventListener("input", (event) => {
  if (event.target.id === "q" || event.target.id === "v") setState(event.target.id, event.target.value);
});
document.addEventListener("submit", (event) => event.preventDefault());
document.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  if (button.classList.contains("copy")) return copy(button);
  const cell = button.closest("th"), table = button.closest("table.rows");
  if (!table) return;
  const index = [...document.querySelectorAll("table.rows")].indexOf(table);
  const next = { ascending: [1], descending: [] }[cell.getAttribute("aria-sort")] || [0]; // then as it came
  const others = orders().filter(([number]) => number !== index);
  const all = [...others, ...next.map((down) => [index, cell.cellIndex, down])];
  setState("sort", all.map((order) => order.join(".")).join(","), true);
});
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && byId("q") && !event.target.closest("input, select")) {
    event.preventDefault();
    byId("q").focus();
  }
});
addEventListener("hashchange", apply);
apply();
if (document.body.hasAttribute("data-live")) poll();
