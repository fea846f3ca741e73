// Shows a fleet report: causes, nodes, measurements; text of reports is only ever a text node.
// What is shown stands after "#" in the address, so a view is a link:
// #q=gpu-7&v=FAIL   #node=gpu-7   #measure=compute/gemm_bf16
"use strict";

const POLL_MS = 3000;
const FEW = 3; // values that are text and no picture; findings that are shown at once
const MOST = 100; // parts in a row, rows of a table
const NAMED = 4; // nodes in a line
const ORDER = ["FAIL", "INCOMPLETE", "WARN", "PASS", "SKIP"];
const MARKS = { FAIL: "✗", INCOMPLETE: "?", WARN: "!", PASS: "✓", SKIP: "–" };
const SVG = ["svg", "line", "rect", "circle", "text", "polyline", "svg:a"];
const byId = (id) => document.getElementById(id);
const open = new Set(); // rows that are open
const picked = new Set(); // rows that are picked
let fleet = null, served = false, last = "#"; // the overview that was seen last

const isSomething = (value) => value !== null && value !== undefined && value !== false;

// h("td.n", { title: "…" }, "text", node, …)
function h(what, attributes, ...children) {
  const [name, ...classes] = what.split("."), isSvg = SVG.includes(name);
  const made = isSvg
    ? document.createElementNS("http://www.w3.org/2000/svg", name.replace("svg:", ""))
    : document.createElement(name);
  if (classes.length) made.setAttribute("class", classes.join(" "));
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (isSomething(value)) made.setAttribute(key, value);
  }
  made.append(...children.flat(9).filter(isSomething));
  return made;
}

const state = () => new URLSearchParams(location.hash.slice(1));

function setState(key, value, how = "pushState") {
  const found = state();
  if (value) found.set(key, value); else found.delete(key);
  history[how](null, "", `#${found}`);
  show();
}

const linkTo = (key, value) => `#${new URLSearchParams({ [key]: value })}`;
const allNodes = () => Object.values(fleet.racks).flat();
const nodeLink = (name) => h("a", { href: linkTo("node", name) }, name);
const verdict = (name) => h(`span.v.${name}`, {}, `${MARKS[name]} ${name}`);
const short = (value) =>
  (Math.abs(value) >= 100 ? value.toFixed(0) : String(+value.toPrecision(3)));
const natural = (a, b) => a.localeCompare(b, undefined, { numeric: true });
const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;
const some = (names) =>
  names.slice(0, NAMED).join(", ") + (names.length > NAMED ? ` and ${names.length - NAMED} more` : "");

function since(time) {
  const minutes = Math.round((Date.now() - Date.parse(time)) / 60000);
  if (!(minutes >= 0)) return time;
  if (minutes < 120) return `${minutes} min ago`;
  return minutes < 48 * 60 ? `${Math.round(minutes / 60)} h ago` : time.slice(0, 10);
}

// The search holds for causes, nodes and measurements, the verdict for causes and what they are of.
function filtered() {
  const words = (state().get("q") || "").toLowerCase().split(/\s+/).filter(Boolean);
  const wanted = ORDER.find((of) => of === state().get("v")), act = state().get("a"), rackOf = {};
  for (const [rack, names] of Object.entries(fleet.racks)) {
    for (const name of names) rackOf[name] = rack;
  }
  const has = (...texts) => {
    const text = texts.flat().join(" ").toLowerCase();
    return words.every((word) => text.includes(word));
  };
  const parts = new Set(), hit = new Set();
  const causes = fleet.causes.map((cause) => ({ ...cause, suspects: cause.suspects.filter((place) => {
    const each = fleet.suspects[place], node = rackOf[each.node];
    const found = has(Object.values(each), cause.title, node)
      && (!wanted || wanted === each.verdict) && (!act || act === each.act);
    if (found) {
      parts.add(place);
      hit.add(each.node);
    }
    return found;
  }) })).filter((cause) => cause.suspects.length);
  for (const each of wanted || act ? [] : fleet.nodes) {
    const facts = [each.node, rackOf[each.node], each.pod, each.verdict, each.level];
    if (has(facts, each.models, Object.values(each.facts))) hit.add(each.node);
  }
  const all = !words.length && !wanted && !act;
  const distributions = fleet.distributions.filter((d) => all
    || d.outliers.some(([node]) => hit.has(node))
    || (!wanted && !act && has(d.check, d.name, d.unit, d.model, d.level)));
  return { all, causes, parts, distributions, hit: all ? null : hit };
}

// The worst value of a row beside the median and the limit.
function bar(cause) {
  const number = cause.number;
  if (!number || !number.median) return "";
  const { value, median, unit } = number;
  const limit = cause.verdict === "WARN" && number.warn_limit ? number.warn_limit : number.limit;
  const most = Math.max(value, median, limit || 0) * 1.06;
  const x = (each) => 3 + (94 * each) / most;
  const label = `${number.name} ${short(value)} ${unit}, median ${short(median)}`
    + (limit ? `, limit ${short(limit)}` : "");
  return [
    h("svg.bar", { viewBox: "0 0 100 16", role: "img", "aria-label": label },
      h("line.axis", { x1: 3, x2: 97, y1: 8, y2: 8 }),
      limit && h("line.limit", { x1: x(limit), x2: x(limit), y1: 1, y2: 15 }),
      h("line.median", { x1: x(median), x2: x(median), y1: 1, y2: 15 }),
      h(`circle.${cause.verdict}`, { cx: x(value), cy: 8, r: 4.5 })),
    h("span.percent", { title: `of the median; ${label}` }, `${Math.round((100 * value) / median)} %`),
  ];
}

function copied(text, label) {
  const button = h("button", { type: "button", async onclick() {
    getSelection().selectAllChildren(button.previousSibling);
    button.textContent = await toClipboard(text) ? "Copied" : "Press Ctrl+C";
  } }, "Copy");
  return h("div.copy", {}, label && h("span.dim", {}, label), h("pre", {}, text), button);
}

async function toClipboard(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false;
  }
}

// kubectl takes several names.
function commands(group) {
  const names = (key) => [...new Set(group.map((each) => each[key]))].filter(Boolean).join(" ");
  const [{ verdict: of, act, uuid }] = group, nodes = names("node"), pods = names("pod");
  const [namespace] = fleet.name.split("/"), where = namespace ? ` -n ${namespace}` : "";
  return [of === "FAIL" && nodes && copied(`kubectl cordon ${nodes}`, "Keep programs away:"),
    act === "reset" && uuid && copied(`nvidia-smi --gpu-reset -i ${uuid}`, "On the node:"),
    pods && copied(`kubectl delete pod${where} ${pods}`, "Test again:")];
}

const keyOf = (cause) => [cause.verdict, cause.title, cause.where].join("|");
const suspectsOf = (cause) => cause.suspects.map((place) => fleet.suspects[place]);
const ticketOf = (causes) => causes.map(ticket).join("\n\n");

function ticket(cause) {
  const group = suspectsOf(cause), [first] = group;
  if (group.length === 1) return first.ticket;
  const identity = ({ node, device, uuid, serial, pci, why }) =>
    `- ${[node, device, uuid, serial && `serial ${serial}`, pci].filter(Boolean).join(", ")}: ${why}`;
  return [`GPU acceptance: ${cause.verdict} of ${cause.where}: ${cause.title}`,
    `Wanted: ${first.act}. ${first.advice}`, ...cause.common.map((text) => `In common: ${text}`),
    ...group.map(identity)].join("\n");
}

function causeRow(cause) {
  const key = keyOf(cause), group = suspectsOf(cause), [first] = group, what = cause.title;
  const seen = [...cause.common, cause.where, !cause.number && !group[1] && first.why];
  const row = h("details", { open: open.has(key) ? "" : null,
    ontoggle() { if (row.open) open.add(key); else open.delete(key); } },
  h("summary", { id: key }, verdict(cause.verdict), h("span.act", {}, cause.act),
    h("span.what", {}, h("b", {}, what), cause.new && [" ", h("span.new", {}, "new")],
      h("span.dim", {}, seen.filter(Boolean).join(" · "))),
    h("span.number", {}, bar(cause))),
  h("div.body", {}, h("p", {}, first.advice),
    cause.common.length > 0 && h("p", {}, `In common: ${cause.common.join("; ")}`), parts(group),
    group.length === 1 && list(first.reasons.slice(0, FEW)),
    commands(group),
    group.length === 1 && first.reasons.length > FEW && h("details", {},
      h("summary", {}, plural(first.reasons.length - FEW, "more finding")),
      list(first.reasons.slice(FEW))),
    h("details", {}, h("summary", {}, "Text of a ticket"), copied(ticketOf([cause])))));
  const box = h("input", { type: "checkbox", "aria-label": `pick ${what}, ${cause.where}`, id: `${key}|box`,
    onchange() { if (box.checked) picked.add(key); else picked.delete(key); show(); } });
  box.checked = picked.has(key);
  return h("div.cause", {}, box, row);
}

const list = (texts) => h("ul", {}, texts.map((text) => h("li", {}, text)));

function parts(group) {
  const rows = group.slice(0, MOST).map(({ number, ...each }) => h("tr", {},
    h("td", {}, each.node ? nodeLink(each.node) : "fleet"), h("td", {}, each.device),
    h("td", {}, [each.model, each.uuid, each.serial && `serial ${each.serial}`, each.pci]
      .filter(Boolean).map((text) => h("div", {}, text))),
    h("td", {}, number && [h("a", { href: linkTo("measure", `${each.check}/${number.name}`) },
      number.name), ` ${short(number.value)} ${number.unit}`]),
    h("td", {}, group.length > 1 && each.why)));
  const rest = group.length > MOST ? h("p.dim", {}, `and ${group.length - MOST} more`) : null;
  const names = ["Node", "Part", "Identity", group[0].number ? "Number" : "", group[1] ? "Finding" : ""];
  return [table(names, rows), rest];
}

function table(names, rows) {
  const head = names.map((name) => (name ? h("th", { scope: "col" }, name) : h("td", {})));
  return h("div.scroll", { tabindex: 0 },
    h("table", {}, h("thead", {}, h("tr", {}, head)), h("tbody", {}, rows)));
}

const COLUMNS = ["verdict", "act", "node", "device", "model", "uuid", "serial", "pci", "pod"];
const NUMBERS = ["value", "unit", "median", "limit"];

// A spreadsheet runs a cell that starts like a formula; an apostrophe makes it text.
function csvOf(causes) {
  const cell = (value) => {
    const text = isSomething(value) ? String(value) : "";
    const safe = typeof value !== "number" && /^\s*[=+\-@]/.test(text) ? `'${text}` : text;
    return `"${safe.replaceAll('"', '""')}"`;
  };
  const rows = causes.flatMap((cause) => suspectsOf(cause).map((each) => [cause.title,
    ...COLUMNS.map((name) => each[name]), each.number && each.number.name,
    ...NUMBERS.map((name) => each.number && each.number[name]), each.advice, each.reasons.join("; ")]));
  return [["cause", ...COLUMNS, "measure", ...NUMBERS, "advice", "reasons"], ...rows]
    .map((row) => row.map(cell).join(",")).join("\r\n");
}

function download(name, text) {
  const url = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), POLL_MS);
}

function tools(shown) {
  const own = fleet.causes.filter((cause) => picked.has(keyOf(cause)));
  const used = own.length ? own : shown.causes;
  const which = own.length ? `${own.length} picked` : "all shown";
  const disabled = used.length ? null : "";
  const button = h("button", { type: "button", id: "ticket", disabled, async onclick() {
    if (await toClipboard(ticketOf(used))) button.textContent = "Copied";
    else button.closest(".chips").after(copied(ticketOf(used), "The browser does not let the page copy:"));
  } }, `Copy ticket of ${which}`);
  return h("span.tools", {}, button, h("button", { type: "button", id: "csv", disabled,
    onclick: () => download("suspects.csv", csvOf(used)) }, `CSV of ${which}`),
  own.length > 0 && h("button", { type: "button", id: "clear",
    onclick() { picked.clear(); show(); } }, "Clear"));
}

function chips(title, shown) {
  const wanted = state().get("v") || "", count = {}, acts = {};
  for (const { verdict: of, act } of fleet.causes) {
    count[of] = (count[of] || 0) + 1;
    acts[act] = (acts[act] || 0) + 1;
  }
  const choice = h("select", { id: "a", "aria-label": "Act",
    onchange: () => setState("a", choice.value) }, h("option", { value: "" }, "any act"),
  Object.entries(acts).map(([act, many]) => h("option", { value: act }, `${act} ${many}`)));
  choice.value = state().get("a") || "";
  const chip = (of, text) => h("button", { type: "button", id: `v-${of}`, onclick: () => setState("v", of),
    "aria-pressed": String(of === wanted) }, text);
  return h("div.chips", {}, h("h2", { id: "causes" }, title), chip("", `All ${fleet.causes.length}`),
    ORDER.filter((of) => count[of]).map((of) => chip(of, `${MARKS[of]} ${of} ${count[of]}`)), choice, tools(shown));
}

function progress(about) {
  const { coverage, nodes } = fleet, expected = coverage.nodes_expected;
  const first = nodes.map((node) => node.started).sort()[0];
  const testing = fleet.suspects.filter((each) => each.kind === "testing").map((each) => each.node);
  const missing = coverage.missing.filter((name) => !testing.includes(name));
  const waits = expected !== null && coverage.nodes_reported < expected;
  const rate = (60000 * nodes.length) / (Date.now() - Date.parse(first));
  const of = expected === null ? "an unknown number of" : expected;
  const said = [`${coverage.nodes_reported} of ${of} nodes reported`,
    coverage.gpus_expected && `${coverage.gpus_seen} of ${coverage.gpus_expected} GPUs`,
    waits && served && rate > 0.1 && `${short(rate)} nodes a minute`,
    testing.length > 0 && `still testing: ${some(testing)}`,
    missing.length > 0 && `no report of ${some(missing)}`, first && `first test ${since(first)}`,
    ...about];
  return [waits && h("progress", { max: expected, value: coverage.nodes_reported,
    "aria-label": "nodes reported" }), h("p.dim", {}, said.filter(Boolean).join(" · "))];
}

function overview() {
  const shown = filtered(), { nodes, suspects, causes } = fleet;
  const models = [...new Set(nodes.flatMap((node) => node.models))];
  const about = [...new Set(nodes.map((node) => `run ${node.run_id}, level ${node.level}`))];
  const bad = new Set(suspects.map((each) => each.node).filter(Boolean)).size;
  const counts = `${shown.causes.length} of ${plural(causes.length, "cause")}, `
    + `${shown.parts.size} of ${plural(suspects.length, "part")}, `
    + `${shown.hit ? shown.hit.size : 0} of ${plural(allNodes().length, "node")}`;
  const main = [
    h("p.big", {}, verdict(fleet.verdict),
      causes.length > 0 && ` ${plural(causes.length, "cause")} on ${plural(bad, "node")}`),
    progress([...models, ...about]),
    fleet.notes.length > 0 && h("div.banner", {}, fleet.notes.map((note) => h("p", {}, note))),
    fleet.fixed.length > 0 && h("p", {}, `Fixed since the earlier run: ${some(fleet.fixed)}`),
    causes.length > 0 && [chips(shown.all ? "Causes, the worst first" : counts, shown),
      shown.causes.slice(0, MOST).map(causeRow),
      shown.causes.length > MOST
        && h("p.dim", {}, `and ${shown.causes.length - MOST} more: search for one`)],
  ];
  return [h("div.top", {}, h("section", {}, main), map(shown.hit)),
    worlds(), measurements(shown.distributions), nodeTable(shown.hit)];
}

// A square per node, a row per rack if the names show racks.
function map(only) {
  const verdicts = Object.fromEntries(allNodes().map((name) => [name, "INCOMPLETE"]));
  for (const node of fleet.nodes) verdicts[node.node] = node.verdict;
  const square = (name) => {
    const of = verdicts[name], label = `${name}: ${of}`;
    const style = only && !only.has(name) ? ".off" : "";
    return h(`a.${of}${style}`, { href: linkTo("node", name), title: label, "aria-label": label },
      h("i", {}, MARKS[of]));
  };
  const rows = Object.entries(fleet.racks).map(([rack, names]) => h("div.rack", {},
    rack && h("a.name", { href: linkTo("q", rack), title: `only ${rack}` }, rack),
    h("div.map", {}, names.map(square))));
  const count = (of) => Object.values(verdicts).filter((each) => each === of).length;
  return h("section.nodes", { "aria-label": "Nodes" }, rows, h("p.dim", {},
    ORDER.filter(count).flatMap((of) => [verdict(of), ` ${count(of)} `])));
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
    h("td", {}, nodeLink(node.node)), h("td", {}, causesOf(node.node).map(([cause]) => cause.title).join(", ")),
    h("td", {}, since(node.started))));
  return [h("h2", { id: "nodes" }, "Nodes"),
    table(["Verdict", "Node", "What", "Tested"], rows),
    listed.length > MOST && h("p.dim", {}, `and ${listed.length - MOST} more on the map`)];
}

const causesOf = (name) => fleet.causes.flatMap((cause) => cause.suspects.map((place) => [cause, place]))
  .filter(([, place]) => fleet.suspects[place].node === name);

// Every value in one of 70 bins, some of them empty; those that are findings are links, too.
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
  return h("svg.histogram", { viewBox: "0 0 560 80", role: "group", "aria-label": label },
    bins.map((count, index) => count && h("rect", { x: 8 * index - 3, width: 6,
      height: (46 * count) / most + 2, y: 62 - (46 * count) / most })),
    h("line.axis", { x1: 4, x2: 556, y1: 64, y2: 64 }), mark(d.median, "median", 76),
    d.limit !== null && mark(d.limit, "limit", 10),
    d.outliers.slice(0, MOST).map(([node, device, of, value]) =>
      h("svg:a", { href: linkTo("node", node),
        "aria-label": `${node} ${device}: ${short(value)} ${d.unit}` },
      h(`circle.${of}`, { cx: x(value), cy: 56, r: 5 }))));
}

const groupOf = (d) => [d.model, d.level].filter(Boolean).join(", ");

function measurements(shown) {
  const cards = shown.map((d) => h("div.card", {},
    h("b", {}, h("a", { href: linkTo("measure", `${d.check}/${d.name}`) }, d.name)),
    h("span.dim", {}, ` ${d.unit} · ${d.check} · ${groupOf(d)}`),
    d.meaning && h("div.dim", {}, d.meaning), histogram(d)));
  return cards.length > 0
    && [h("h2", { id: "measurements" }, "Measurements"), h("div.cards", {}, cards)];
}

const back = () => h("p", {}, h("a", { href: last }, "‹ all nodes"));

function nodeView(name) {
  const node = fleet.nodes.find((each) => each.node === name);
  const own = causesOf(name), isKnown = allNodes().includes(name);
  if (!isKnown) return [back(), h("h1", {}, name), h("p", {}, "This fleet has no node of this name.")];
  const facts = node ? { Pod: node.pod, Run: node.run_id, Level: node.level, Tested: node.started,
    "Last seen": node.last_seen, "Injected fault": node.injected, ...node.facts } : {};
  const gpus = (node ? node.gpus : []).map((gpu) => h("tr", {},
    [gpu.device, gpu.uuid, gpu.serial, gpu.pci].map((text) => h("td", {}, text))));
  return [back(), h("h1", {}, name, " ", verdict(node ? node.verdict : "INCOMPLETE")),
    !node && h("p", {}, "No report of this node."),
    own.map(([cause, place]) => {
      const each = fleet.suspects[place], where = [each.node, each.device].filter(Boolean).join(" ");
      return causeRow({ ...cause, where, number: each.number, suspects: [place] });
    }),
    numbersOf(name),
    gpus.length > 0 && h("h2", {}, "GPUs"),
    gpus.length > 0 && table(["Device", "UUID", "Serial", "PCI address"], gpus),
    h("dl", {}, Object.entries(facts).filter(([, text]) => text)
      .map(([key, text]) => [h("dt", {}, key), h("dd", {}, text)])),
    node && served && hardware(name)];
}

// What the node's own report says of its parts; the collector has it, a saved page does not.
function hardware(name) {
  const href = `reports?${new URLSearchParams({ node: name })}`;
  const place = h("div", {}, h("p", {}, h("a", { href }, "The report of this node")));
  const said = (value) => (Array.isArray(value) || value instanceof Object
    ? JSON.stringify(value) : isSomething(value) ? String(value) : "");
  const listed = (title, items) => {
    if (typeof items === "string") return [h("h2", {}, title), h("p", {}, items)];
    if (!Array.isArray(items)) return null;
    const keys = [...new Set(items.flatMap(Object.keys))];
    const rows = keys.map((key) => [key, items.map((item) => said(item[key]))])
      .filter(([, texts]) => texts.some(Boolean));
    return rows.length > 0 && [h("h2", {}, title), table(["", ...items.map((item, index) =>
      item.device || item.name || String(index))], rows.map(([key, texts]) => h("tr", {},
      h("th", { scope: "row" }, key), texts.map((text) => h("td", {}, text)))))];
  };
  fetch(href).then((answer) => answer.json()).then((report) => {
    const found = report.checks.find((check) => check.name === "environment");
    const { gpus, ports, xids } = found ? found.facts : {};
    place.append(...[listed("State of the GPUs before the tests", gpus), listed("Network ports", ports),
      listed("Xids", xids)].flat().filter(Boolean));
  }).catch(() => place.append("The collector does not have it."));
  return place;
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
    const outlier = d.outliers.find(([node, part]) => node === name && part === device);
    const of = outlier ? `.${outlier[2]}`
      : d.judged && behind > 0.1 ? ".FAIL" : d.judged && behind > 0.05 ? ".WARN" : "";
    return h(`td.n${of}`, { title: `${Math.round(100 * share)} % of the median` }, short(value));
  };
  const isPair = (d) => d.devices.some((device) => device.includes("→"));
  const single = known.filter((d) => !isPair(d)), head = (text) => h("th", { scope: "row" }, text);
  const devices = [...new Set(single.flatMap((d) => d.devices))].sort(natural);
  const rows = single.map((d) => h("tr", {},
    h("th", { scope: "row" }, h("a", { href: linkTo("measure", `${d.check}/${d.name}`) }, d.name)),
    h("td.dim", {}, d.unit), h("td.n.dim", {}, short(d.median)),
    devices.map((device) => cell(d, device))));
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
  const known = fleet.distributions.filter((d) => `${d.check}/${d.name}` === key);
  const worst = (d) => {
    const all = Object.keys(d.values).flatMap((node) =>
      d.devices.map((device, index) => [node, device, d.values[node][index]]));
    const sign = d.better === "lower" ? -1 : 1;
    return all.filter((each) => isSomething(each[2])).sort((a, b) => sign * (a[2] - b[2]));
  };
  const sorted = known.map(worst), [first] = known;
  const ranks = first ? sorted[0].map(([node]) => node) : [];
  const curves = fleet.curves.filter((each) => first && each.check === first.check
    && first.name.startsWith(each.name) && each.points.length > 1);
  curves.sort((a, b) => ranks.indexOf(a.node) - ranks.indexOf(b.node));
  const row = ([node, device, value]) =>
    h("tr", {}, h("td", {}, nodeLink(node)), h("td", {}, device), h("td.n", {}, short(value)));
  return [back(), h("h1", {}, key),
    !known.length && h("p", {}, "No such measurement."),
    known.map((d, index) => [index === 0 && h("p", {}, d.meaning), h("h2", {}, groupOf(d)),
      histogram(d), h("p.dim", {}, d.limit === null ? "No limit."
        : `Limit ${short(d.limit)} ${d.unit}: ${d.limit_source}`),
      table(["Node", "Part", `Worst first, ${d.unit}`], sorted[index].slice(0, MOST).map(row)),
      sorted[index].length > MOST && h("p.dim", {}, `and ${sorted[index].length - MOST} more`)]),
    curves.slice(0, NAMED).map(curve)];
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
    + ` at ${last >= 2 ** 20 ? `${short(last / 2 ** 20)} MiB` : `${last} bytes`}`;
  return h("figure", {}, h("figcaption", {}, label),
    h("svg.histogram", { viewBox: "0 0 560 80", role: "img", "aria-label": label },
      h("polyline.curve", { points })));
}

function show() {
  const found = state(), focused = document.activeElement.id, one = found.get("node");
  const view = one ? nodeView(one)
    : found.get("measure") ? measureView(found.get("measure")) : overview();
  if (!one && !found.get("measure")) last = location.hash || "#";
  byId("main").replaceChildren(...[view].flat(9).filter(Boolean));
  byId("filter").hidden = Boolean(one || found.get("measure"));
  if (byId("q") !== document.activeElement) byId("q").value = found.get("q") || "";
  byId("name").textContent = fleet.name;
  const about = [one || found.get("measure"), fleet.name, "GPU acceptance"];
  document.title = [fleet.verdict, ...about].filter(Boolean).join(" · ");
  if (focused && byId(focused)) byId(focused).focus(); // what is replaced loses the focus
}

function head() {
  const downloads = [["page.html", "This page"], ["report.json", "JSON"], ["reports", "Reports"],
    ["certificate", "Certificate"]];
  const search = h("input", { id: "q", type: "search", "aria-label": "Search",
    placeholder: "Search node, rack, serial …", oninput: () => setState("q", search.value, "replaceState") });
  const form = h("form", { id: "filter", role: "search", onsubmit: (event) => event.preventDefault() },
    search);
  const jump = (id) => h("button.link", { type: "button",
    onclick() {
      if (byId("filter").hidden) {
        history.pushState(null, "", last);
        show();
      }
      if (byId(id)) byId(id).scrollIntoView();
    } }, id[0].toUpperCase() + id.slice(1));
  byId("head").replaceWith(h("header", { id: "head" },
    h("h1", {}, h("a", { href: "#" }, "GPU acceptance")), h("span.dim", { id: "name" }), form,
    h("nav", { "aria-label": "Sections" }, ["causes", "measurements", "nodes"].map(jump)),
    served && h("nav", { "aria-label": "Downloads" }, downloads.map(([href, name]) =>
      h("a", { href, download: href === "page.html" ? href : null }, name))),
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

addEventListener("popstate", () => fleet && show());
addEventListener("hashchange", () => fleet && (show(), scrollTo(0, 0)));
addEventListener("keydown", (event) => {
  if (event.key === "/" && !event.target.closest("input, select") && !byId("filter").hidden) {
    event.preventDefault();
    byId("q").focus();
  }
});
if (byId("data")) {
  const data = byId("data").textContent;
  served = !data;
  head();
  if (data) {
    fleet = JSON.parse(data);
    show();
  } else poll();
}
