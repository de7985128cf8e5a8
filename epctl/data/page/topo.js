// The page of `epctl topo`: the wiring, and how full links are in the steps of a batch when all GPUs send at once.

const KINDS = { pcie: "PCIe", nvlink: "NVLink", c2c: "chip-to-chip link", network: "network cable", member: "member", tree: "belongs to", rail: "rail" };
const STEPS = [
  { name: "wiring", tell: "What is wired to what. Colours tell the kind of a link." },
  { name: "dispatch out", view: "network", tell: "Tokens for other machines: every GPU sends through its NICs at once. KV caches leave the same way." },
  { name: "dispatch in", view: "network", back: true, tell: "Tokens from other machines arrive at every NIC and go to its GPU." },
  { name: "dispatch NVLink", view: "scale_up", tell: "Tokens within the NVLink domain: every GPU sends to every other at once, as evenly as its links allow." },
  { name: "experts", tell: "Experts compute on every GPU; no link is used." },
  { name: "combine NVLink", view: "scale_up", tell: "Results within the NVLink domain go back to the tokens' GPUs, over the same links." },
  { name: "combine out", view: "network", tell: "Results for other machines leave through the NICs, as tokens did." },
  { name: "combine in", view: "network", back: true, tell: "Results from other machines arrive." },
];
const state = { nics: "best", step: 0 };
const lines = page.links.map((link, i) => ({ id: String(i), link, d: link.d, ends: [link.a, link.b], row: rowOf(link) }));
const stepNow = () => STEPS[state.step];
const missing = (step) => (step.view ? page[step.view].missing : "");

function rowOf(link) {
  return { network: 0, member: 0, tree: 1, pcie: 1, c2c: 2, nvlink: 3 }[link.kind] ?? 4;
}

// Flows of the step; those that come back take their way in reverse.
function flowsNow() {
  const { view, back } = stepNow();
  if (!view || page[view].missing) return [];
  const flows = view === "network" ? page.network[state.nics] : page.scale_up.flows;
  return flows.map((flow) => (back ? { from: flow.target, to: flow.source, gbs: flow.gbs, path: flow.path.map(([link, up, share]) => [link, !up, share ?? 1]) }
    : { from: flow.source, to: flow.target, gbs: flow.gbs, path: flow.path }));
}
let loads = new Map();
function sumUp() {
  loads = new Map();
  for (const flow of flowsNow()) for (const [link, up, share] of flow.path) {
    const at = loads.get(link) ?? { up: 0, down: 0 };
    at[up ? "up" : "down"] += flow.gbs * (share ?? 1);
    loads.set(link, at);
  }
}
const loadOf = (line, side) => loads.get(Number(line.id))?.[side] ?? 0;
const mostOf = (line) => Math.max(loadOf(line, "up"), loadOf(line, "down"));
function flowsOn(line) {
  return flowsNow().flatMap((flow) => flow.path.filter(([link]) => String(link) === line.id).map(([, up, share]) => ({ ...flow, gbs: flow.gbs * (share ?? 1), up })))
    .sort((a, b) => b.up - a.up || b.gbs - a.gbs);
}

function describe(line) {
  const { link } = line;
  const rate = link.gbs === undefined ? "rate not told" : gbs(link.gbs);
  const head = `${link.name}\n${[KINDS[link.kind], link.num_links > 1 ? `${link.num_links} links` : "", link.detail, rate].filter(Boolean).join(", ")}`;
  if (!stepNow().view) return `${head}${link.source ? `\ntold by ${link.source}` : ""}`;
  if (!mostOf(line)) return `${head}\nnothing in this step`;
  const part = link.gbs ? ` (${percent(mostOf(line) / link.gbs)})` : "";
  return `${head}\nup ${gbs(loadOf(line, "up"))}, down ${gbs(loadOf(line, "down"))}${part}\nEnter or click: flows`;
}

// Past the rate of a link nothing goes; a link without a known rate is full where anything passes.
function paint() {
  drawing.paint((line) => (stepNow().view ? `load-${mostOf(line) ? shade(line.link.gbs ? mostOf(line) / line.link.gbs : 1) : 0}`
    : stepNow().name === "wiring" ? `kind-${line.link.kind}` : "load-0"));
}

const drawing = new Drawing(byId("drawing"), { open: showLink, close: showReport, describe, label: "Links of the topology" });

function update() {
  const step = stepNow();
  sumUp();
  const twice = (page.report.pairings ?? []).length > 0;
  const why = () => (twice ? "" : "No machine here has both GPUs and NICs.");
  replaced(byId("toggles"), [choices("NICs", [["best", "best"], ["default", "NCCL's default choice"]], state.nics, why, (value) => { state.nics = value; update(); })]);
  showSteps(STEPS.map((one) => one.name), state.step, (to) => { state.step = to; update(); });
  say(missing(step) || step.tell);
  paint();
  for (const box of page.boxes) drawing.boxes.get(box.id)?.classList.toggle("computing", box.kind === "gpu" && step.name === "experts");
  byId("legend").replaceChildren(...legend(step));
  const chosen = drawing.chosen !== null && drawing.byId.get(drawing.chosen);
  if (chosen) showLink(chosen); else showReport();
}

function legend(step) {
  if (step.view) return missing(step) ? [] : shadeLegend("nothing", "of the link's rate");
  if (step.name !== "wiring") return [make("span", {}, "Filled GPUs compute.")];
  const kinds = [...new Set(page.links.map((link) => link.kind))].filter((kind) => kind !== "tree");
  return kinds.map((kind) => make("span", {}, draw("svg", { width: 24, height: 8, "aria-hidden": "true", style: undefined }, draw("g", { class: `link kind-${kind}` }, draw("path", { class: "line", d: "M1 4H23" }))), KINDS[kind]));
}

function start() {
  const [width, height] = page.size;
  const boxes = page.boxes.map((box) => ({ id: box.id, x: box.x, y: box.y, w: box.w, h: box.h, title: box.title, classes: `${box.kind}${box.out ? " out" : ""}`,
    lines: box.second ? [[box.first, 13], [box.second, 26, "small"]] : [[box.first, box.h / 2 + 4]] }));
  drawing.show({ width, height, fixed: width > 1700 }, boxes, [...lines].sort((a, b) => a.row - b.row || a.id - b.id));
  const { graph, domains } = page.report;
  if (domains) byId("figures").replaceChildren(...domainRows(domains));
  const count = (kind) => graph.nodes.filter((node) => node.kind === kind).length;
  const told = [["host", "machine"], ["gpu", "GPU"], ["nic", "NIC"], ["nvswitch", "NVSwitch", "NVSwitches"], ["switch", "switch", "switches"]].filter(([kind]) => count(kind));
  byId("title").textContent = `epctl topo: ${told.map(([kind, one, many]) => counted(count(kind), one, many)).join(", ")}`;
  const samples = graph.sources.filter((one) => one.sample).map((source) => (source.hand_made ? "composed by hand" : "recorded on a real machine"));
  if (samples.length) byId("about").append(make("span", { class: "sample" }, ` Sample data (${[...new Set(samples)].join(", ")}), not your machine.`));
  byId("footer").replaceChildren(make("p", {}, `Sources: ${graph.sources.map((source) => source.name).join(", ")}. epctl topo with --format json tells the same in numbers; epctl ${page.epctl}.`));
  update();
}

start();
