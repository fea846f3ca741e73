// Filters, sorts and copies what is on the page, and replaces it when the collector has a new version.
// State is in the address after "#", so a filtered view is a link: #q=gpu-7&v=FAIL.
"use strict";

const POLL_MS = 3000;
const byId = (id) => document.getElementById(id);
const numberIn = (text) => (/^[-+]?\d/.test(text) ? parseFloat(text) : NaN);

function state() {
  return new URLSearchParams(location.hash.includes("=") ? location.hash.slice(1) : "");
}

function setState(key, value) {
  const found = state();
  if (value) found.set(key, value); else found.delete(key);
  const hash = found.toString();
  history.replaceState(null, "", hash ? "#" + hash : location.pathname + location.search);
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

// Sort table number `index` by a column; a second click turns the order around.
function sort(index, column, down) {
  const table = document.querySelectorAll("table.rows")[index];
  if (!table) return;
  const body = table.tBodies[0];
  const rows = [...body.rows].map((row) => [row.cells[column] ? row.cells[column].textContent.trim() : "", row]);
  rows.sort(([a], [b]) => {
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
  const [table, column, down] = (found.get("sort") || "").split(".").map(Number);
  if (found.get("sort")) sort(table, column, down === 1);
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
  setState("sort", `${index}.${cell.cellIndex}.${cell.getAttribute("aria-sort") === "ascending" ? 1 : 0}`);
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
