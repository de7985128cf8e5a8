// The page of `epctl fabric`: toggles choose a variant, steps go through one batch, links tell their bytes and flows.

const { base, held, topologies, refused, left_out: leftOut, hashes } = page.variants;
const [baseWiring, baseLayout, baseTransfer] = base.split("|");
const LAYOUTS = { "false,false": "unified", "true,false": "pd", "false,true": "af", "true,true": "pd+af" };
const TELL = {
  "dispatch direct": "Each token goes by RDMA to every other GPU that holds one of its experts; within a node, over NVLink.",
  "dispatch relay": "Each token goes by RDMA once to every other node that needs it, on its own rail; NVLink carries it on to the GPUs there.",
  "combine direct": "Each expert GPU sends its weighted sum back to the token's GPU: by RDMA between nodes, over NVLink within one.",
  "combine relay": "Sums of one node meet over NVLink on the GPU of the token's rail; from there one vector returns by RDMA.",
  "a2f direct": "Each token goes from its attention GPU by RDMA to every GPU of the expert nodes that holds one of its experts.",
  "a2f relay": "Each token goes by RDMA once to every expert node that needs it, on its own rail; NVLink carries it on.",
  "f2a direct": "Each expert GPU returns its weighted sum by RDMA to the token's attention GPU.",
  "f2a relay": "Sums of one expert node meet over NVLink on the token's rail; from there one vector returns by RDMA.",
  kv: "The KV cache of each request goes from its prefill GPU to the decode GPU that is reserved for it, all layers together.",
};
const state = { wiring: baseWiring, pd: /pd/.test(baseLayout), af: /af/.test(baseLayout), transfer: baseTransfer, hash: 0, step: 0 };
const keyOf = (want) => [want.wiring, LAYOUTS[[want.pd, want.af]], want.transfer].join("|");
const variant = () => held[keyOf(state)];
const topology = () => topologies[state.wiring];

function whyNot(change) {
  const key = keyOf({ ...state, ...change });
  if (held[key]) return "";
  if (refused[key]) return `Not possible. ${refused[key]}.`;
  return leftOut.includes(key) ? "Not in this page, which would be too large; run epctl fabric with these options." : "The file of this fabric fixes it.";
}

// Dispatch (or A to F), experts, combine (or F to A) of each phase, and KV between them.
function stepsOf(report) {
  const steps = [];
  for (const row of report.traffic) {
    steps.push({ row, phase: row.phase, stage: row.traffic === "kv" ? "kv" : /dispatch|a2f/.test(row.traffic) ? "there" : "back", name: nameOf(row) });
    if (/dispatch|a2f/.test(row.traffic)) steps.push({ phase: row.phase, stage: "experts", name: `${row.phase} experts` });
  }
  return steps;
}
const WORDS = { a2f: "A→F", f2a: "F→A" };
const nameOf = (row) => (row.traffic === "kv" ? "KV transfer" : `${row.phase} ${WORDS[row.traffic] ?? row.traffic}`);
const step = () => stepsOf(variant())[state.step];

// Loads under the chosen draw of the hash: those of the report, or summed up from flows on their new paths.
function pathsOf(row, hash) {
  let place = 0;
  return row.flow_rows.map((flow) => {
    const path = flow.slice(4);
    if (hash && path.length === 4) { path[1] = row.redraws[hash - 1][place]; path[2] = row.redraws[hash - 1][place + 1]; place += 2; }
    return path;
  });
}
function loadsOf(row, hash) {
  const up = new Map();
  const down = new Map();
  if (!hash) for (const [link, above, below] of row.loads) { up.set(link, above); down.set(link, below); }
  else pathsOf(row, hash).forEach((path, i) => path.forEach((link, j) => {
    const side = j < path.length / 2 ? up : down;
    side.set(link, (side.get(link) ?? 0) + row.flow_rows[i][2]);
  }));
  return { up, down };
}
const canRedraw = (report) => report.traffic.some((row) => row.redraws?.[0]?.length);
const isNvlink = (link) => link < topology().fabric.gpus;
function fullest(loads) {
  const most = { network: 0, nvlink: 0 };
  for (const side of [loads.up, loads.down]) for (const [link, bytes] of side) {
    const kind = isNvlink(link) ? "nvlink" : "network";
    most[kind] = Math.max(most[kind], bytes);
  }
  return most;
}
const largestOf = (row) => (state.hash && row.redraws[0]?.length ? fullest(loadsOf(row, state.hash)).network : row.largest_link_bytes);

let loads = { up: new Map(), down: new Map() };
let most = { network: 0, nvlink: 0 };
let picture = null;
const bytesOn = (line, side) => line.members.reduce((sum, link) => sum + (loads[side].get(link) ?? 0), 0);
const heaviest = (line) => Math.max(0, ...line.members.flatMap((link) => [loads.up.get(link) ?? 0, loads.down.get(link) ?? 0]));
const kindOf = (line) => (line.kind === "nvlink" ? "nvlink" : "network");
const partOf = (line) => (heaviest(line) ? heaviest(line) / most[kindOf(line)] : 0);
const titled = (line) => (line.members.length > 1 ? `${line.name}: ${line.members.length} links` : line.name);

function describe(line) {
  if (!heaviest(line)) return `${titled(line)}\nnothing in this step`;
  const word = line.kind === "nvlink" ? "NVLink" : "network link";
  return `${titled(line)}\nup ${bytesText(bytesOn(line, "up"))}, down ${bytesText(bytesOn(line, "down"))}\n`
    + `${percent(partOf(line))} of the fullest ${word}${line.members.length > 1 ? " (its fullest one)" : ""}\nEnter or click: flows`;
}

const drawing = new Drawing(byId("drawing"), { open: showLink, close: showStep, describe, label: "Links of the fabric" });

function update() {
  const report = variant();
  if (state.hash && !canRedraw(report)) state.hash = 0;
  const steps = stepsOf(report);
  state.step = Math.min(state.step, steps.length - 1);
  const { row } = step();
  loads = row ? loadsOf(row, state.hash) : { up: new Map(), down: new Map() };
  most = fullest(loads);
  toggles(report);
  showSteps(steps.map((one) => one.name), state.step, (to) => { state.step = to; update(); });
  say(sentence(report));
  picture = fabricPicture(topology(), report.nodes);
  drawing.show(picture.size, picture.boxes, picture.links, partOf);
  mark(report);
  drawing.paint((line) => `load-${shade(partOf(line))}`);
  byId("legend").replaceChildren(...legend());
  figures(report, steps);
  footer(report);
  const chosen = drawing.chosen !== null && drawing.byId.get(drawing.chosen);
  if (chosen) showLink(chosen); else { drawing.chosen = null; showStep(); }
}

function change(values) {
  const { phase, stage } = step();
  Object.assign(state, values);
  // The same step of the other variant, where it has one.
  const same = stepsOf(variant()).findIndex((one) => one.phase === phase && one.stage === stage);
  if (same >= 0) state.step = same;
  update();
}

function toggles(report) {
  const wirings = baseWiring === "custom" ? [["custom", "as given"]] : [["rail", "rail"], ["tor", "ToR"]];
  const pick = (label, name, values) => choices(label, values, state[name], (value) => whyNot({ [name]: value }), (value) => change({ [name]: value }));
  const yes = [[false, "off"], [true, "on"]];
  const seed = hashes[state.hash];
  const draws = hashes.length > 1 && canRedraw(report);
  const why = hashes.length > 1 ? "No flow of this variant crosses a spine, so the hash decides nothing." : "Not in this page: the fabric is too large.";
  const redraw = make("button", { type: "button", "data-choice": "redraw", "aria-disabled": draws ? undefined : "true", title: draws ? undefined : why,
    onclick: () => { if (!draws) return say(why); state.hash = (state.hash + 1) % hashes.length; return update(); } }, "redraw");
  replaced(byId("toggles"), [
    pick("Wiring", "wiring", wirings), pick("PD split", "pd", yes), pick("AF split", "af", yes),
    pick("Relay", "transfer", [["default", "prefill only (default)"], ["relay", "always"], ["direct", "never"]]),
    make("span", { class: "group", role: "group", "aria-label": "ECMP" }, "ECMP ", redraw, make("span", { id: "hash", "data-value": seed }, `hash seed ${seed}`)),
  ]);
}

function sentence(report) {
  const { row, phase } = step();
  if (row) return `${TELL[row.traffic] ?? TELL[`${row.traffic} ${row.transfer}`]}${row.traffic === "kv" ? "" : " One layer."}`;
  const size = report.ep_size[phase];
  return `Experts compute on ${counted(size, "GPU")}, ${whole(report.inputs.experts / size)} of the ${report.inputs.experts} on each; no link is used.`;
}

function mark(report) {
  const { row, phase } = step();
  const experts = !row;
  const takes = (node) => node.roles.some((role) => (row?.traffic === "kv" ? role === "prefill attention" || role === "decode attention"
    : experts ? role === `${phase} experts` : role.startsWith(phase)));
  for (const node of report.nodes) {
    const busy = takes(node);
    drawing.boxes.get(`node${node.node}`)?.classList.toggle("busy", busy);
    for (const gpu of node.gpus) for (const id of [`gpu${gpu}`, `nic${gpu}`]) drawing.boxes.get(id)?.classList.toggle("away", !busy);
    for (const id of [...node.gpus.map((gpu) => `gpu${gpu}`), `pod${node.node}`]) drawing.boxes.get(id)?.classList.toggle("computing", experts && busy);
  }
}

function legend() {
  if (picture.mode === "none") return [make("span", {}, "This fabric has too many links to be drawn; the figures are below.")];
  if (!step().row) return [make("span", {}, "Filled GPUs compute.")];
  const full = [most.network && `fullest network link ${bytesText(most.network)}`, most.nvlink && `NVLink ${bytesText(most.nvlink)}`].filter(Boolean).join(", ");
  return shadeLegend("nothing", full ? `of ${full}` : "");
}

function figures(report, steps) {
  const columns = ["bytes of one batch", "transfer", "RDMA", "over spines", "NVLink", "switches", "fullest link", "slowdown p50, p99"];
  const rows = report.traffic.map((row) => {
    const at = steps.findIndex((one) => one.row === row);
    const kind = `${row.phase} ${row.traffic}`;
    const cell = (name, figure, text, exact) => numberCell(meanOf(figure), spreadText(figure, text), exact && spreadText(figure, exact), `${kind} ${name}`);
    const exact = (value) => `${whole(value)} B`;
    const slow = row.slowdown;
    const go = make("button", { type: "button", class: "plain", "data-choice": `row:${at}`, onclick: () => { state.step = at; update(); } }, nameOf(row));
    return make("tr", { class: at === state.step ? "now" : undefined }, make("th", { scope: "row" }, go), make("td", { class: "number" }, row.transfer),
      ...["rdma_bytes", "spine_bytes", "nvlink_bytes"].map((name) => cell(name, row[name], bytesText, exact)),
      cell("hops", row.hops, String), cell("largest_link_bytes", largestOf(row), bytesText, exact),
      make("td", { class: "number" }, !slow ? "–" : state.hash && row.redraws[0]?.length ? "–" : `${slow.p50.toFixed(2)}, ${slow.p99.toFixed(2)}`));
  });
  const note = "MoE traffic is that of one layer, KV that of all. Slowdown: rate that NICs alone would allow over the fair share that a flow gets; for the first seed of the hash only.";
  replaced(byId("figures"), [make("thead", {}, headCells(columns)), make("tbody", {}, ...rows), make("caption", {}, note)]);
}

function footer(report) {
  const { fabric } = topology();
  const shape = `${counted(fabric.nodes, "node")} × ${counted(fabric.gpus_per_node, "GPU")}, ${counted(fabric.leaves, "leaf", "leaves")}, ${counted(fabric.spines, "spine")}, ${counted(fabric.uplinks, "uplink")}`;
  const { inputs } = report;
  const few = leftOut.length ? ` This page holds ${Object.keys(held).length} of ${Object.keys(held).length + leftOut.length} variants; the fabric is too large for more.` : "";
  byId("title").textContent = `epctl fabric: ${shape}`;
  byId("footer").replaceChildren(
    make("p", {}, "The same numbers: ", make("code", { id: "command" }, `${report.command} --format json`), state.hash ? ` (this draw of the hash: seed ${hashes[state.hash]}, over the same routing; --seeds ${hashes.length} --redraw ecmp tells the spread)` : "", "."),
    make("p", {}, `Model ${inputs.model}, ${inputs.experts} experts, top-${inputs.topk}; ${counted(inputs.batch, "request")}, ${counted(inputs.prompt_tokens, "prompt token")}; gate ${inputs.gate}; seed ${inputs.seed}; epctl ${page.epctl}.${few}`));
}

update();
