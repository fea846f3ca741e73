// Shows a fleet report: causes, nodes, measurements; text of reports is only ever a text node.
// What is shown stands after "#" in the address, so a view is a link:
// #q=gpu-7+FAIL   #node=gpu-7   #measure=compute/gemm_bf16   #measure=all   #certificate=1
"use strict";

const POLL_MS = 3000;
const MOST = 100; // parts in a row, rows of a table
const IN_TICKET = 6; // findings
const ORDER = ["FAIL", "INCOMPLETE", "WARN", "PASS", "SKIP"];
const MARKS = { FAIL: "✗", INCOMPLETE: "?", WARN: "!", PASS: "✓", SKIP: "–" };
const SVG = ["svg", "line", "rect", "circle"];
const byId = (id) => document.getElementById(id);
const open = new Set(); // rows that are open
const saved = byId("data"); // of a page from a file
let fleet = null, version = null; // SHA-256 of the report

const isKnown = (value) => value !== null && value !== undefined;

// h("td.n", { title: "…" }, "text", node, …): false, null and "" are left out
function h(what, attributes, ...children) {
  const [name, ...classes] = what.split(".");
  const made = SVG.includes(name) ? document.createElementNS("http://www.w3.org/2000/svg", name)
    : document.createElement(name);
  if (classes.length) made.setAttribute("class", classes.join(" "));
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (isKnown(value)) made.setAttribute(key, value);
  }
  made.append(...children.flat(9).filter(Boolean));
  return made;
}

// A row per item; the first of the cells that "make" gives is its header.
function table(names, items, make = (cells) => cells, most = MOST) {
  const head = names.map((name) => (name ? h("th", { scope: "col" }, name) : h("td", {})));
  const row = ([first, ...cells]) => h("tr", {}, h("th", { scope: "row" }, first),
    cells.map((cell) => (cell instanceof HTMLTableCellElement ? cell : h("td", {}, cell))));
  return h("div.scroll", { tabindex: 0 }, h("table", {}, h("thead", {}, h("tr", {}, head)),
    h("tbody", {}, items.slice(0, most).map(make).map(row))),
  items.length > most && h("p.dim", {}, `and ${items.length - most} more`));
}

const state = () => new URLSearchParams(location.hash.slice(1));

// The address of this view with changes; null takes a part away.
function to(changes) {
  const found = state();
  for (const [key, value] of Object.entries({ certificate: null, ...changes })) {
    if (value) found.set(key, value); else found.delete(key);
  }
  return `#${found}`;
}

const toNode = (name) => to({ node: name, measure: null });
const measureLink = (check, name) =>
  h("a", { href: to({ measure: `${check}/${name}`, node: null }) }, name);
const verdict = (name) => h(`span.v.${name}`, {}, `${MARKS[name]} ${name}`);
const facts = (values) => h("dl", {}, Object.entries(values).filter(([, text]) => text)
  .map(([key, text]) => [h("dt", {}, key), h("dd", {}, text)]));
const short = (value) =>
  (Math.abs(value) >= 100 ? value.toFixed(0) : String(+value.toPrecision(3)));
const natural = (a, b) => a.localeCompare(b, undefined, { numeric: true });
const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;
const filled = (texts) => texts.filter(Boolean);
const allNodes = () => Object.values(fleet.racks).flat();
const keyOf = (cause) => [cause.verdict, cause.title, cause.where].join("|");
const suspectsOf = (cause) => cause.suspects.map((place) => fleet.suspects[place]);

// All words must be there: those with a capital exactly, as FAIL, the others in any case.
function filtered() {
  const words = filled((state().get("q") || "").split(/\s+/)), rackOf = {};
  for (const [rack, names] of Object.entries(fleet.racks)) {
    for (const name of names) rackOf[name] = rack;
  }
  const has = (...texts) => {
    const text = texts.flat().join(" ");
    return words.every((word) => text.includes(word) || text.toLowerCase().includes(word));
  };
  const isShown = (cause, { advice, ...each }) =>
    has(cause.title, Object.values(each), rackOf[each.node]);
  const causes = fleet.causes.map((cause) => ({ ...cause,
    suspects: cause.suspects.filter((place) => isShown(cause, fleet.suspects[place])) }))
    .filter((cause) => cause.suspects.length);
  const parts = causes.flatMap(suspectsOf), hit = new Set(parts.map((each) => each.node));
  for (const each of fleet.nodes) {
    const facts = [each.node, rackOf[each.node], each.pod, each.verdict, each.level];
    if (has(facts, each.models, Object.values(each.facts))) hit.add(each.node);
  }
  const distributions = fleet.distributions.filter((d) =>
    d.outliers.some(([node]) => hit.has(node)) || has(d.check, d.name, d.unit, d.model, d.level));
  return { causes, parts, distributions, hit };
}

const worstFirst = (d) => (a, b) => (d.better === "lower" ? b - a : a - b);

// The value that shows a suspect, or the worst of its node, beside those of the fleet.
function numberOf({ node, device, check, measure }) {
  const known = fleet.distributions.filter((d) =>
    measure && d.check === check && d.name === measure && Object.hasOwn(d.values, node));
  const value = (d) => d.values[node][d.devices.indexOf(device)];
  const own = known.find((d) => isKnown(value(d))), d = own || known[0];
  return d && { ...d, value: own ? value(d)
    : d.values[node].filter(isKnown).sort(worstFirst(d))[0] };
}

// The worst value of a row beside the median and the limit.
function bar(cause) {
  const share = (each) => each.value / each.median;
  const [number] = filled(suspectsOf(cause).map(numberOf)).filter((each) => each.median)
    .sort((a, b) => worstFirst(a)(share(a), share(b)));
  if (!number) return "";
  const { value, median, unit } = number;
  const limit = cause.verdict === "WARN" && number.warn_limit ? number.warn_limit : number.limit;
  const most = Math.max(value, median, limit || 0) * 1.06;
  const x = (each) => 3 + (94 * each) / most;
  const mark = (name, at) => h(`line.${name}`, { x1: x(at), x2: x(at), y1: 1, y2: 15 });
  const label = `${number.name} ${short(value)} ${unit}, median ${short(median)}`
    + (limit ? `, limit ${short(limit)}` : "");
  return [
    h("svg.bar", { viewBox: "0 0 100 16", role: "img", "aria-label": label },
      h("line.axis", { x1: 3, x2: 97, y1: 8, y2: 8 }), limit && mark("limit", limit),
      mark("median", median), h(`circle.${cause.verdict}`, { cx: x(value), cy: 8, r: 4.5 })),
    h("span", { title: `of the median; ${label}` }, `${Math.round((100 * value) / median)} %`),
  ];
}

// A click selects the text (page.css).
const copyable = (label, text) => [h("div.dim", {}, label), h("pre", {}, text)];

// What can be opened, and stays open when reports arrive.
function folded(kind, key, summary, ...content) {
  const made = h(`details.${kind}`, { open: open.has(key) ? "" : null,
    ontoggle() { if (made.open) open.add(key); else open.delete(key); } },
  h("summary", { id: key }, summary), content);
  return made;
}

// kubectl takes several names.
function commands(group) {
  const names = (key) => [...new Set(group.map((each) => each[key]))].filter(Boolean).join(" ");
  const [{ verdict: of, act, uuid }] = group, nodes = names("node"), pods = names("pod");
  const [namespace] = fleet.name.split("/"), where = namespace ? ` -n ${namespace}` : "";
  return [of === "FAIL" && nodes && copyable("Keep programs away:", `kubectl cordon ${nodes}`),
    act === "reset" && uuid && copyable("On the node:", `nvidia-smi --gpu-reset -i ${uuid}`),
    pods && copyable("Test again:", `kubectl delete pod${where} ${pods}`)];
}

const identity = ({ model, uuid, serial, pci }) =>
  filled([model, uuid, serial && `serial ${serial}`, pci]);

function ticket(cause) {
  const group = suspectsOf(cause), [first] = group;
  const tested = fleet.nodes.find((each) => each.node === first.node);
  const most = group.length > 1 ? 1 : IN_TICKET, more = first.reasons.length - most;
  return [`GPU acceptance: ${cause.verdict} of ${cause.where}: ${cause.title}`,
    `Wanted: ${first.act}. ${first.advice}`, tested && `Tested: ${tested.started}`,
    ...cause.common.map((text) => `In common: ${text}`),
    ...group.flatMap((each) => [filled([each.node, each.device, ...identity(each)]).join(", "),
      ...each.reasons.slice(0, most).map((text) => `- ${text}`)]),
    !group[1] && more > 0 && `- and ${more} more findings`].filter(Boolean).join("\n");
}

function causeRow(cause) {
  const group = suspectsOf(cause), [first] = group, number = bar(cause);
  const seen = [...cause.common, cause.where, !number && !group[1] && first.reasons[0]];
  return folded("cause", keyOf(cause), [verdict(cause.verdict), h("span.act", {}, cause.act),
    h("span.what", {}, h("b", {}, cause.title), h("span.dim", {}, filled(seen).join(" · "))),
    h("span.number", {}, number)],
  h("div.body", {}, parts(group), commands(group), copyable("Ticket:", ticket(cause))));
}

function parts(group) {
  const last = [group[0].measure ? "Number" : "", group[1] ? "Finding" : ""];
  return table(["Node", "Part", "Identity", ...last], group, (each) => [
    each.node ? h("a", { href: toNode(each.node) }, each.node) : "fleet", each.device,
    identity(each).map((text) => h("div", {}, text)),
    filled([numberOf(each)]).map(({ check, name, value, unit }) =>
      [measureLink(check, name), ` ${short(value)} ${unit}`]),
    group[1] && each.reasons[0]]);
}

const values = (make) => [...new Set(fleet.nodes.flatMap(make))].sort(natural);

function progress() {
  const { nodes_expected: expected, nodes_reported: reported, ...gpus } = fleet.coverage;
  const times = values((node) => node.started), last = times[times.length - 1];
  const local = (time) => new Date(time).toLocaleString();
  const said = [`${reported} of ${expected ?? "an unknown number of"} nodes reported`,
    gpus.gpus_expected && `${gpus.gpus_seen} of ${gpus.gpus_expected} GPUs`,
    last && `tested ${local(times[0])} to ${local(last)}`, ...values((node) => node.models),
    ...values((node) => `run ${node.run_id}, level ${node.level}`)];
  return [reported < expected && h("progress", { max: expected, value: reported,
    "aria-label": "nodes reported" }), h("p.dim", {}, filled(said).join(" · "))];
}

const notes = () => fleet.notes.length > 0
  && h("div.banner", {}, fleet.notes.map((note) => h("p", {}, note)));

function overview() {
  const { causes, parts, hit } = filtered(), marked = Object.entries(fleet.marks);
  const counts = `${causes.length} of ${plural(fleet.causes.length, "cause")}, `
    + `${parts.length} of ${plural(fleet.suspects.length, "part")}, `
    + `${hit.size} of ${plural(allNodes().length, "node")}`;
  return [h("div.top", {}, h("section", {},
    h("p.big", {}, verdict(fleet.verdict)),
    progress(),
    notes(),
    fleet.causes.length > 0 && [h("h2", { id: "causes" }, counts),
      causes.slice(0, MOST).map(causeRow),
      causes.length > MOST && h("p.dim", {}, `and ${causes.length - MOST} more: search for one`),
      folded("tickets", "ticket", "Ticket of all shown",
        h("pre", {}, causes.map(ticket).join("\n\n")))]),
  map(hit)),
  marked.length > 0 && table(["Node", "Mark in Kubernetes"], marked),
  fleet.worlds.length > 0 && [h("h2", {}, "Checks across nodes"),
    table(["Verdict", "Ranks", "Checks"], fleet.worlds, (world) => [verdict(world.verdict),
      world.name, Object.entries(world.checks).map(([name, of]) =>
        h("div", {}, verdict(of), ` ${name}`))])]];
}

// A square per node, a row per rack if the names show racks.
function map(only) {
  const verdicts = Object.fromEntries(allNodes().map((name) => [name, "INCOMPLETE"]));
  for (const node of fleet.nodes) verdicts[node.node] = node.verdict;
  const square = (name) => {
    const of = verdicts[name], label = `${name}: ${of}`, style = only.has(name) ? "" : ".off";
    return h(`a.${of}${style}`, { href: toNode(name), title: label, "aria-label": label },
      h("i", {}, MARKS[of]));
  };
  const count = (of) => Object.values(verdicts).filter((each) => each === of).length;
  return h("section.nodes", { "aria-label": "Nodes" },
    Object.entries(fleet.racks).map(([rack, names]) => h("div.rack", {},
      rack && h("a.name", { href: to({ q: rack }), title: `only ${rack}` }, rack),
      h("div.map", {}, names.map(square)))),
    h("p", {}, ORDER.filter(count).map((of) =>
      [h("a", { href: to({ q: of }) }, verdict(of), ` ${count(of)}`), " "])));
}

// Every value in one of 70 bins, most of which may be empty, with the median and the limit.
function histogram(d) {
  const all = Object.values(d.values).flat().filter(isKnown), bins = new Array(70).fill(0);
  let [least, largest] = [Infinity, -Infinity]; // too many values for the arguments of a call
  for (const value of [...all, d.limit ?? d.median]) {
    least = Math.min(least, value);
    largest = Math.max(largest, value);
  }
  const x = (value) => 8 + (544 * (value - least)) / (largest - least || 1);
  for (const value of all) bins[Math.round(x(value) / 8)] += 1;
  const most = Math.max(...bins);
  const mark = (name, at) => h(`line.${name}`, { x1: x(at), x2: x(at), y1: 2, y2: 54 });
  const label = `${d.name}: ${plural(all.length, "value")}, median ${short(d.median)} ${d.unit}`;
  return h("svg.histogram", { viewBox: "0 0 560 58", role: "img", "aria-label": label },
    bins.map((count, index) => count && h("rect", { x: 8 * index - 3, width: 6,
      height: (46 * count) / most + 2, y: 52 - (46 * count) / most })),
    h("line.axis", { x1: 4, x2: 556, y1: 54, y2: 54 }), mark("median", d.median),
    d.limit !== null && mark("limit", d.limit));
}

function card(d) {
  const bad = new Set(d.outliers.map(([node]) => node));
  const limit = d.limit !== null && `limit ${short(d.limit)}`;
  const said = [`median ${short(d.median)} ${d.unit}`, limit, d.check, d.model, d.level, d.meaning];
  return h("div.card", {}, h("h2", {}, measureLink(d.check, d.name)),
    h("div.dim", {}, filled(said).join(" · ")), histogram(d),
    [...bad].slice(0, MOST).map((name) => [h("a", { href: toNode(name) }, name), " "]));
}

const back = () => h("p", {}, h("a", { href: to({ node: null, measure: null }) }, "‹ all nodes"));

function measureView(key) {
  if (key === "all") {
    return [h("h1", {}, "Measurements"), h("div.cards", {}, filtered().distributions.map(card))];
  }
  const known = fleet.distributions.filter((d) => `${d.check}/${d.name}` === key);
  return [back(), h("h1", {}, key), !known.length && h("p", {}, "No such measurement."),
    known.map((d) => {
      const sorted = Object.entries(d.values).flatMap(([node, values]) =>
        values.map((value, index) => [node, d.devices[index], value]))
        .filter((each) => isKnown(each[2])).sort((a, b) => worstFirst(d)(a[2], b[2]));
      return [card(d), h("p.dim", {}, d.limit === null ? "No limit."
        : `Limit ${short(d.limit)} ${d.unit}: ${d.limit_source}`),
      table(["Node", "Part", `Worst first, ${d.unit}`], sorted, ([node, device, value]) =>
        [h("a", { href: toNode(node) }, node), device, h("td.n", {}, short(value))])];
    })];
}

function nodeView(name) {
  const node = fleet.nodes.find((each) => each.node === name);
  if (!allNodes().includes(name)) {
    return [back(), h("h1", {}, name), h("p", {}, "This fleet has no node of this name.")];
  }
  const own = fleet.causes.flatMap((cause) => cause.suspects.map((place) => [cause, place]))
    .filter(([, place]) => fleet.suspects[place].node === name);
  return [back(), h("h1", {}, name, " ", verdict(node ? node.verdict : "INCOMPLETE")),
    !node && h("p", {}, "No report of this node."),
    own.map(([cause, place]) => {
      const each = fleet.suspects[place], where = filled([each.node, each.device]).join(" ");
      return causeRow({ ...cause, where, suspects: [place] });
    }),
    numbersOf(name),
    node && node.gpus.length > 0 && [h("h2", {}, "GPUs"),
      table(["Device", "UUID", "Serial", "PCI address"], node.gpus,
        (gpu) => [gpu.device, gpu.uuid, gpu.serial, gpu.pci])],
    node && facts({ Pod: node.pod, Run: node.run_id, Level: node.level, Tested: node.started,
      "Last seen": node.last_seen, "Injected fault": node.injected, ...node.facts }),
    node && !saved.textContent && h("a", { href: `reports?${new URLSearchParams({ node: name })}` },
      "The report of this node")];
}

// Each number against the median of the fleet; what is a finding or beyond a limit is marked.
function numbersOf(name) {
  const known = fleet.distributions.filter((d) => Object.hasOwn(d.values, name));
  const cell = (d, device) => {
    const value = d.values[name][d.devices.indexOf(device)];
    if (!isKnown(value)) return h("td.n", {});
    const isBeyond = (limit) =>
      limit !== null && (d.better === "lower" ? value > limit : value < limit);
    const outlier = d.outliers.find(([node, part]) => node === name && part === device);
    const byLimit = isBeyond(d.limit) ? "FAIL" : isBeyond(d.warn_limit) ? "WARN" : "";
    const of = outlier ? outlier[2] : byLimit;
    const title = d.median ? `${Math.round((100 * value) / d.median)} % of the median` : null;
    return h(of ? `td.n.${of}` : "td.n", { title }, short(value));
  };
  const isPair = (d) => d.devices.some((device) => device.includes("→"));
  const single = known.filter((d) => !isPair(d));
  const devices = [...new Set(single.flatMap((d) => d.devices))].sort(natural);
  const matrix = (d) => {
    const ends = [...new Set(d.devices.flatMap((device) => device.split("→")))].sort(natural);
    return [h("h3", {}, `${d.name}, from row to column in ${d.unit}`), table(["From", ...ends],
      ends, (from) => [from, ...ends.map((end) => cell(d, `${from}→${end}`))])];
  };
  return known.length > 0 && [h("h2", {}, "Numbers"),
    table(["Number", "Unit", "Median of the fleet", ...devices.map((each) => each || "node")],
      single, (d) => [measureLink(d.check, d.name), d.unit, h("td.n.dim", {}, short(d.median)),
        ...devices.map((device) => cell(d, device))]),
    known.filter(isPair).map(matrix)];
}

// To print and sign: every GPU that was accepted. A rehearsal or a fleet with faults is not.
function certificate() {
  const accepted = ["PASS", "WARN"].includes(fleet.verdict) && !fleet.rehearsal;
  const missing = fleet.coverage.missing.map((node) => ({ node, verdict: "INCOMPLETE", gpus: [] }));
  return [h("h1", {}, `GPU acceptance: ${accepted ? "Accepted" : "Not accepted"}`), progress(),
    facts({ Verdict: verdict(fleet.verdict), Reason: fleet.reason || "all passed",
      Checks: values((node) => Object.keys(node.checks)).join(", "),
      "SHA-256 of report.json": version.replaceAll('"', "") }), notes(),
    table(["Node", "Verdict", "GPUs", "Serial or UUID of each GPU"], [...fleet.nodes, ...missing],
      (node) => [node.node, verdict(node.verdict),
        node.run_id ? `${node.gpus_seen} of ${node.gpus_expected}` : "no report",
        node.gpus.map((gpu) => gpu.serial || gpu.uuid).join(", ")], Infinity),
    h("p.sign", {}, ["Date", "Name", "Signature"].map((name) => h("span", {}, name)))];
}

function show() {
  if (!fleet) return;
  const found = state(), focused = document.activeElement.id;
  const node = found.get("node"), measure = found.get("measure");
  const view = node ? nodeView(node) : measure ? measureView(measure)
    : found.has("certificate") ? certificate() : overview();
  byId("main").replaceChildren(...[view].flat(9).filter(Boolean));
  if (focused !== "q") byId("q").value = found.get("q") || "";
  byId("measures").href = to({ measure: "all", node: null });
  byId("name").textContent = fleet.name;
  const title = [fleet.verdict, node || measure, fleet.name, "GPU acceptance"];
  document.title = filled(title).join(" · ");
  if (focused && byId(focused)) byId(focused).focus(); // what is replaced loses the focus
}

async function poll() {
  const status = byId("status");
  try {
    const answer = await fetch("report.json", { cache: "no-cache" });
    if (!answer.ok) throw new Error(answer.status);
    if (answer.headers.get("ETag") !== version || status.className === "FAIL") {
      status.textContent = version ? `Updated ${new Date().toLocaleTimeString()}` : "";
      status.className = "dim";
      version = answer.headers.get("ETag");
      fleet = await answer.json();
      show();
    }
  } catch {
    status.textContent = "The collector does not answer; this page may be out of date.";
    status.className = "FAIL";
  }
  setTimeout(poll, POLL_MS);
}

byId("q").addEventListener("input", () => {
  const measure = state().has("measure") ? "all" : null;
  history.replaceState(null, "", to({ q: byId("q").value, node: null, measure }));
  show();
});
addEventListener("hashchange", () => {
  show();
  scrollTo(0, 0);
});
byId("files").hidden = Boolean(saved.textContent);
if (saved.textContent) {
  fleet = JSON.parse(saved.textContent);
  version = saved.dataset.sha256;
  show();
} else poll();
