// Shows a fleet report: causes, nodes, measurements; text of reports is only ever a text node.
// What is shown stands after "#" in the address, so a view is a link:
// #q=gpu-7&v=FAIL   #node=gpu-7   #measure=compute/gemm_bf16
"use strict";

const POLL_MS = 3000;
const SHARED = 3; // nodes with the same cause from which on it is one row
const FEW = 3; // values that are text and no picture
const MOST = 100; // parts in a row, rows of a table
const ORDER = ["FAIL", "INCOMPLETE", "WARN", "PASS", "SKIP"];
const MARKS = { FAIL: "✗", INCOMPLETE: "?", WARN: "!", PASS: "✓", SKIP: "–" };
const SVG = ["svg", "line", "rect", "circle", "text", "polyline"];
const byId = (id) => document.getElementById(id);
const open = new Set(); // rows that are open
let fleet = null;

const isSomething = (value) => value !== null && value !== undefined && value !== false;

// h("td.n", { title: "…" }, "text", node, …)
function h(what, attributes, ...children) {
  const [name, ...classes] = what.split(".");
  const made = SVG.includes(name)
    ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  if (classes.length) made.setAttribute("class", classes.join(" "));
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (isSomething(value)) made.setAttribute(key, value);
  }
  made.append(...children.flat(9).filter(isSomething));
  return made;
}

const state = () => new URLSearchParams(location.hash.slice(1));

function setState(key, value) {
  const found = state();
  if (value) found.set(key, value); else found.delete(key);
  history.replaceState(null, "", `#${found}`);
  show();
}

const linkTo = (key, value) => `#${new URLSearchParams({ [key]: value })}`;
const nodeLink = (name) => h("a", { href: linkTo("node", name) }, name);
const verdict = (name) => h(`span.v.${name}`, {}, `${MARKS[name]} ${name}`);
const short = (value) =>
  (Math.abs(value) >= 100 ? value.toFixed(0) : String(+value.toPrecision(3)));
const natural = (a, b) => a.localeCompare(b, undefined, { numeric: true });
const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;

function since(time) {
  const minutes = Math.round((Date.now() - Date.parse(time)) / 60000);
  if (!(minutes >= 0)) return time;
  if (minutes < 120) return `${minutes} min ago`;
  return minutes < 48 * 60 ? `${Math.round(minutes / 60)} h ago` : time.slice(0, 10);
}

// What several nodes have is one row, where the first of them is. The report's order is by danger.
function causes() {
  const groups = new Map(), rows = new Set();
  const keyOf = ({ verdict: of, kind, act, advice, measure }) =>
    [of, kind, act, advice, measure].join("|");
  for (const suspect of fleet.suspects) {
    const key = keyOf(suspect);
    if (groups.has(key)) groups.get(key).push(suspect); else groups.set(key, [suspect]);
  }
  for (const suspect of fleet.suspects) {
    const group = groups.get(keyOf(suspect));
    const nodes = new Set(group.map((each) => each.node));
    rows.add(nodes.size >= SHARED ? group : [suspect]);
  }
  return [...rows];
}

function fits(suspect) {
  const found = state(), text = Object.values(suspect).flat().join(" ").toLowerCase();
  const words = (found.get("q") || "").toLowerCase().split(/\s+/), wanted = found.get("v");
  return words.every((word) => text.includes(word)) && (!wanted || wanted === suspect.verdict);
}

function valueOf(d, node, device) {
  const row = d.values[node] || [], index = d.devices.indexOf(device);
  const own = index >= 0 ? row[index] : null;
  const known = row.filter(isSomething);
  const worst = d.better === "lower" ? Math.max(...known) : Math.min(...known);
  return isSomething(own) ? own : known.length ? worst : null;
}

function distributionOf(suspect) {
  return fleet.distributions.find((d) =>
    d.check === suspect.check && d.name === suspect.measure && suspect.node in d.values);
}

// The worst value of a row beside the median and the limit.
function bar(group) {
  const d = distributionOf(group[0]);
  if (!d || !d.median) return "";
  const values = group.map((each) => valueOf(d, each.node, each.device)).filter(isSomething);
  const value = d.better === "lower" ? Math.max(...values) : Math.min(...values);
  const most = Math.max(value, d.median, d.limit || 0) * 1.06;
  const x = (number) => 3 + (94 * number) / most;
  const limit = d.limit ? `, limit ${short(d.limit)}` : "";
  const label = `${short(value)} ${d.unit}, median ${short(d.median)}${limit}`;
  return [
    h("svg.bar", { viewBox: "0 0 100 16", role: "img", "aria-label": label },
      h("line.axis", { x1: 3, x2: 97, y1: 8, y2: 8 }),
      d.limit && h("line.limit", { x1: x(d.limit), x2: x(d.limit), y1: 1, y2: 15 }),
      h("line.median", { x1: x(d.median), x2: x(d.median), y1: 1, y2: 15 }),
      h(`circle.${group[0].verdict}`, { cx: x(value), cy: 8, r: 4 })),
    h("span.percent", {}, `${Math.round((100 * value) / d.median)} %`),
  ];
}

function copied(text) {
  const button = h("button", { type: "button", async onclick() {
    getSelection().selectAllChildren(button.previousSibling);
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Press Ctrl+C";
    }
  } }, "Copy");
  return h("div.copy", {}, h("pre", {}, text), button);
}

function commands(suspect) {
  const found = [];
  if (suspect.node && suspect.verdict === "FAIL") found.push(`kubectl cordon ${suspect.node}`);
  if (suspect.act === "reset" && suspect.uuid) {
    found.push(`nvidia-smi --gpu-reset -i ${suspect.uuid}`);
  }
  if (suspect.pod) found.push(`kubectl delete pod ${suspect.pod}`);
  return found;
}

function cause(group) {
  const [first] = group, many = group.length > 1, d = distributionOf(first);
  const key = [first.kind, first.node, first.device, first.advice, many].join("|");
  const nodes = [...new Set(group.map((each) => each.node))], more = nodes.length > 3 ? " …" : "";
  const place = many ? `${nodes.length} nodes: ${nodes.slice(0, 3).join(", ")}${more}`
    : [first.node || "fleet", first.device].filter(Boolean).join(" ");
  const reasons = many ? [] : first.reasons.slice(1);
  const row = h("details.cause", { open: open.has(key) ? "" : null,
    ontoggle() { if (row.open) open.add(key); else open.delete(key); } },
  h("summary", { id: key }, verdict(first.verdict), h("span.act", {}, first.act),
    h("span.what", {}, h("b", {}, place), " ", first.why), h("span.number", {}, bar(group))),
  h("div.body", {}, h("p", {}, first.advice), parts(group, d),
    reasons.length ? h("ul", {}, reasons.map((text) => h("li", {}, text))) : null,
    group.slice(0, 5).flatMap(commands).map(copied),
    h("details", {}, h("summary", {}, "Text of a ticket"),
      copied(group.map((each) => each.ticket).join("\n\n")))));
  return row;
}

function parts(group, d) {
  const rows = group.slice(0, MOST).map((each) => {
    const value = d ? valueOf(d, each.node, each.device) : null;
    return h("tr", {},
      h("td", {}, each.node ? nodeLink(each.node) : "fleet"), h("td", {}, each.device),
      h("td", {}, [each.model, each.uuid, each.serial && `serial ${each.serial}`, each.pci]
        .filter(Boolean).map((text) => h("div", {}, text))),
      h("td.n", {}, isSomething(value) ? `${short(value)} ${d.unit}` : ""),
      h("td", {}, group.length > 1 ? each.why : ""));
  });
  const rest = group.length > MOST ? h("p.dim", {}, `and ${group.length - MOST} more`) : null;
  const names = ["Node", "Part", "Identity", d ? d.name : "", group.length > 1 ? "Finding" : ""];
  return [table(names, rows), rest];
}

function table(names, rows) {
  const head = names.map((name) => (name ? h("th", { scope: "col" }, name) : h("td", {})));
  return h("div.scroll", { tabindex: 0 },
    h("table", {}, h("thead", {}, h("tr", {}, head)), h("tbody", {}, rows)));
}

function overview() {
  const filtered = state().get("q") || state().get("v");
  const shown = fleet.suspects.filter(fits), found = causes().map((group) => group.filter(fits));
  const rows = found.filter((group) => group.length);
  const hit = new Set(shown.map((each) => each.node)), { coverage } = fleet;
  const expected = coverage.nodes_expected;
  const started = fleet.nodes.map((node) => node.started).sort()[0];
  const models = new Set(fleet.nodes.flatMap((node) => node.models));
  const of = expected === null ? "an unknown number of" : expected;
  const about = [`${coverage.nodes_reported} of ${of} nodes reported`,
    coverage.gpus_expected && `${coverage.gpus_seen} of ${coverage.gpus_expected} GPUs`,
    [...models].join(", "),
    [...new Set(fleet.nodes.map((node) => `run ${node.run_id}, level ${node.level}`))].join("; "),
    started && `first test: ${since(started)}`];
  const count = filtered ? `, ${shown.length} of ${plural(fleet.suspects.length, "part")}` : "";
  const main = [
    h(`p.big.${fleet.verdict}`, {}, `${MARKS[fleet.verdict]} ${fleet.verdict}`),
    h("p.headline", {}, fleet.headline),
    fleet.rehearsal && h("p.banner", {}, "CPU rehearsal: no GPU was tested."),
    h("p.dim", {}, about.filter(Boolean).join(" · ")),
    expected !== null && coverage.nodes_reported < expected && h("progress",
      { max: expected, value: coverage.nodes_reported, "aria-label": "nodes reported" }),
    fleet.notes.map((note) => h("p.dim", {}, note)),
    h("h2", {}, plural(rows.length, "cause") + count),
    rows.slice(0, MOST).map(cause),
    rows.length > MOST && h("p.dim", {}, `and ${rows.length - MOST} more: search for one`),
  ];
  return [h("div.top", {}, h("section", {}, main), map(filtered ? hit : null)),
    worlds(), measurements(), nodeTable(filtered ? hit : null)];
}

function map(only) {
  const nodes = [...fleet.nodes.map((node) => [node.node, node.verdict]),
    ...fleet.coverage.missing.map((name) => [name, "INCOMPLETE"])];
  nodes.sort((a, b) => natural(a[0], b[0]));
  return h("div.map", {}, nodes.map(([name, of]) => {
    const label = `${name}: ${of}`, style = only && !only.has(name) ? ".off" : "";
    const link = { href: linkTo("node", name), title: label, "aria-label": label };
    return h(`a.${of}${style}`, link, h("i", {}, MARKS[of]));
  }));
}

function worlds() {
  if (!fleet.worlds.length) return null;
  const rows = fleet.worlds.map((world) => h("tr", {}, h("td", {}, verdict(world.verdict)),
    h("td", { title: world.nodes.join(", ") }, world.name),
    h("td", {}, Object.entries(world.checks)
      .map(([name, of]) => h("div", {}, verdict(of), ` ${name}`)))));
  return [h("h2", {}, "Checks across nodes"), table(["Verdict", "Ranks", "Checks"], rows)];
}

function nodeTable(only) {
  const listed = fleet.nodes.filter((node) => !only || only.has(node.node));
  const place = (node) => ORDER.indexOf(node.verdict);
  listed.sort((a, b) => place(a) - place(b) || natural(a.node, b.node));
  if (!listed.length) return null;
  const rows = listed.slice(0, MOST).map((node) => h("tr", {}, h("td", {}, verdict(node.verdict)),
    h("td", {}, nodeLink(node.node)), h("td", {}, notPassed(node)),
    h("td", {}, since(node.started))));
  return [h("h2", {}, "Nodes"),
    table(["Verdict", "Node", "Checks that did not pass", "Tested"], rows),
    listed.length > MOST && h("p.dim", {}, `and ${listed.length - MOST} more on the map`)];
}

function notPassed(node) {
  const bad = Object.entries(node.checks).filter(([, of]) => of !== "PASS");
  return bad.map(([name, of]) => `${name} ${of}`).join(", ");
}

// Every value in one of 70 bins, some of them empty; those that are findings are points, too.
function histogram(d) {
  const all = Object.values(d.values).flat().filter(isSomething);
  if (all.length < FEW) {
    return h("div", {}, all.map((value) => `${short(value)} ${d.unit}`).join(", "));
  }
  let [least, largest] = [Infinity, -Infinity]; // too many values for the arguments of a call
  for (const value of d.limit === null ? all : [...all, d.limit]) {
    least = Math.min(least, value);
    largest = Math.max(largest, value);
  }
  const x = (value) => 8 + (544 * (value - least)) / (largest - least || 1);
  const bins = new Array(70).fill(0);
  for (const value of all) bins[Math.round(x(value) / 8)] += 1;
  const most = Math.max(...bins);
  const mark = (value, name, y) => [
    h(`line.${name}`, { x1: x(value), x2: x(value), y1: 12, y2: 64 }),
    h("text", { x: x(value), y, "text-anchor": x(value) > 280 ? "end" : "start" },
      `${name} ${short(value)}`)];
  const label = `${d.name}: ${plural(all.length, "value")}, median ${short(d.median)} ${d.unit}`;
  return h("svg.histogram", { viewBox: "0 0 560 80", role: "img", "aria-label": label },
    bins.map((count, index) => count && h("rect", { x: 8 * index - 3, width: 6,
      height: (46 * count) / most + 2, y: 62 - (46 * count) / most })),
    h("line.axis", { x1: 4, x2: 556, y1: 64, y2: 64 }), mark(d.median, "median", 76),
    d.limit !== null && mark(d.limit, "limit", 10),
    d.outliers.map(([node, device, of]) =>
      h(`circle.${of}`, { cx: x(valueOf(d, node, device)), cy: 58, r: 4 })));
}

const groupOf = (d) => [d.model, d.level].filter(Boolean).join(", ");

function measurements() {
  const cards = fleet.distributions.map((d) => h("div.card", {},
    h("b", {}, h("a", { href: linkTo("measure", `${d.check}/${d.name}`) }, d.name)),
    h("span.dim", {}, ` ${d.unit} · ${d.check} · ${groupOf(d)}`), histogram(d)));
  return cards.length ? [h("h2", {}, "Measurements"), h("div.cards", {}, cards)] : null;
}

const back = () => h("p", {}, h("a", { href: "#" }, "‹ all nodes"));

function nodeView(name) {
  const node = fleet.nodes.find((each) => each.node === name);
  const own = fleet.suspects.filter((each) => each.node === name);
  const facts = node ? { Pod: node.pod, Run: node.run_id, Level: node.level, Tested: node.started,
    "Last seen": node.last_seen, "Injected fault": node.injected } : {};
  const gpus = (node ? node.gpus : []).map((gpu) => h("tr", {},
    [gpu.device, gpu.uuid, gpu.serial, gpu.pci].map((text) => h("td", {}, text))));
  return [back(), h("h1", {}, name, " ", verdict(node ? node.verdict : "INCOMPLETE")),
    !node && h("p", {}, "No report of this node."),
    h("dl", {}, Object.entries(facts).filter(([, text]) => text)
      .map(([key, text]) => [h("dt", {}, key), h("dd", {}, text)])),
    own.map((each) => cause([each])),
    node && notPassed(node) && h("p", {}, `Not passed: ${notPassed(node)}`),
    gpus.length > 0 && h("h2", {}, "GPUs"),
    gpus.length > 0 && table(["Device", "UUID", "Serial", "PCI address"], gpus),
    numbersOf(name)];
}

// Each number against the median of the fleet.
function numbersOf(name) {
  const known = fleet.distributions.filter((d) => name in d.values);
  if (!known.length) return null;
  const cell = (d, device) => {
    const value = d.values[name][d.devices.indexOf(device)];
    if (!isSomething(value)) return h("td.n", {}, "");
    const share = d.median ? value / d.median : 1;
    const behind = d.better === "lower" ? share - 1 : 1 - share;
    const of = d.judged && behind > 0.1 ? ".FAIL" : d.judged && behind > 0.05 ? ".WARN" : "";
    return h(`td.n${of}`, { title: `${Math.round(100 * share)} % of the median` }, short(value));
  };
  const isPair = (d) => d.devices.some((device) => device.includes("→"));
  const single = known.filter((d) => !isPair(d)), head = (text) => h("th", { scope: "row" }, text);
  const devices = [...new Set(single.flatMap((d) => d.devices))].sort(natural);
  const rows = single.map((d) => h("tr", {}, head(d.name), h("td.dim", {}, d.unit),
    h("td.n.dim", {}, short(d.median)), devices.map((device) => cell(d, device))));
  const matrix = (d) => {
    const ends = [...new Set(d.devices.flatMap((device) => device.split("→")))].sort(natural);
    const lines = ends.map((from) =>
      h("tr", {}, head(from), ends.map((to) => cell(d, `${from}→${to}`))));
    const title = `${d.name}, from row to column in ${d.unit}`;
    return [h("h3", {}, title), table(["From", ...ends], lines)];
  };
  const names = ["Number", "Unit", "Median of the fleet", ...devices.map((each) => each || "node")];
  return [h("h2", {}, "Numbers"), table(names, rows), known.filter(isPair).map(matrix)];
}

function measureView(key) {
  const [check, name] = key.split("/");
  const known = fleet.distributions.filter((d) => d.check === check && d.name === name);
  const worst = (d) => {
    const all = Object.keys(d.values).flatMap((node) =>
      d.devices.map((device, index) => [node, device, d.values[node][index]]));
    const sign = d.better === "lower" ? -1 : 1;
    const found = all.filter((each) => isSomething(each[2]));
    return found.sort((a, b) => sign * (a[2] - b[2])).slice(0, MOST);
  };
  const row = ([node, device, value]) =>
    h("tr", {}, h("td", {}, nodeLink(node)), h("td", {}, device), h("td.n", {}, short(value)));
  return [back(), h("h1", {}, `${check} · ${name}`),
    !known.length && h("p", {}, "No such measurement."),
    known.map((d) => [h("h2", {}, groupOf(d)), histogram(d),
      h("p.dim", {}, d.limit === null ? "No limit."
        : `Limit ${short(d.limit)} ${d.unit}: ${d.limit_source}`),
      table(["Node", "Part", `Worst first, ${d.unit}`], worst(d).map(row))]),
    fleet.curves.filter((each) => each.check === check).slice(0, 12).map(curve)];
}

// Both axes are logarithmic: sizes and bandwidths span orders of magnitude.
function curve(found) {
  const log = (value) => Math.log10(Math.max(value, 1e-9));
  const sizes = found.points.map(([size]) => log(size));
  const values = found.points.map(([, value]) => log(value));
  const share = (list, value) =>
    (value - Math.min(...list)) / (Math.max(...list) - Math.min(...list) || 1);
  const points = sizes.map((size, index) =>
    `${8 + 544 * share(sizes, size)},${72 - 60 * share(values, values[index])}`).join(" ");
  const [last, best] = found.points[found.points.length - 1];
  const label = `${found.name} on ${found.node} over message size: ${short(best)} ${found.unit}`
    + ` at ${last} bytes`;
  return h("figure", {}, h("figcaption", {}, label),
    h("svg.histogram", { viewBox: "0 0 560 80", role: "img", "aria-label": label },
      h("polyline.curve", { points })));
}

function show() {
  const found = state(), focused = document.activeElement.id;
  const view = found.get("node") ? nodeView(found.get("node"))
    : found.get("measure") ? measureView(found.get("measure")) : overview();
  byId("main").replaceChildren(...[view].flat(9).filter(Boolean));
  byId("filter").hidden = Boolean(found.get("node") || found.get("measure"));
  if (byId("q") !== document.activeElement) byId("q").value = found.get("q") || "";
  byId("v").value = found.get("v") || "";
  const about = found.get("node") || found.get("measure") || "GPU acceptance";
  document.title = `${fleet.verdict} · ${about}`;
  if (focused && byId(focused)) byId(focused).focus(); // what is replaced loses the focus
}

function head(served) {
  const options = ["", ...ORDER].map((each) => h("option", { value: each }, each || "all"));
  const downloads = [["report.json", "JSON"], ["suspects.csv", "CSV"], ["junit.xml", "JUnit"],
    ["certificate", "Certificate"]];
  const search = h("input", { id: "q", type: "search", placeholder: "node, GPU, serial, act …",
    oninput: () => setState("q", search.value) });
  const choice = h("select", { id: "v", onchange: () => setState("v", choice.value) }, options);
  const onsubmit = (event) => event.preventDefault();
  const form = h("form", { id: "filter", role: "search", onsubmit },
    h("label", {}, "Search ", search), h("label", {}, "Verdict ", choice));
  byId("head").replaceWith(h("header", { id: "head" },
    h("h1", {}, h("a", { href: "#" }, "GPU acceptance")), form,
    served && h("nav", { "aria-label": "Downloads" },
      downloads.map(([href, name]) => h("a", { href }, name))),
    h("p.dim", { id: "status", role: "status" })));
}

let version = null;
async function poll() {
  try {
    const answer = await fetch("report.json", { cache: "no-cache" });
    if (!answer.ok) throw new Error(answer.status);
    if (answer.headers.get("ETag") !== version) {
      const update = version !== null;
      version = answer.headers.get("ETag");
      fleet = await answer.json();
      show();
      byId("status").textContent = update ? `Updated ${new Date().toLocaleTimeString()}` : "";
    } else if (byId("status").classList.contains("FAIL")) byId("status").textContent = "";
    byId("status").classList.remove("FAIL");
  } catch {
    byId("status").textContent = "The collector does not answer; this page may be out of date.";
    byId("status").classList.add("FAIL");
  }
  setTimeout(poll, POLL_MS);
}

addEventListener("hashchange", () => fleet && (show(), scrollTo(0, 0)));
addEventListener("keydown", (event) => {
  if (event.key === "/" && !event.target.closest("input, select") && !byId("filter").hidden) {
    event.preventDefault();
    byId("q").focus();
  }
});
if (byId("data")) {
  const data = byId("data").textContent;
  head(!data);
  if (data) {
    fleet = JSON.parse(data);
    show();
  } else poll();
}
