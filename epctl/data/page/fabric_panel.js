// The panel beside the fabric: figures of the step, or the flows of a link.

const MOST_ROWS = 200;
const MOST_FULL = 8;

function heading(text, closes) {
  return make("h2", { id: "panel-title" }, make("span", {}, text), closes ? make("button", { type: "button", class: "close", id: "close", "aria-label": "Close", onclick: () => drawing.dismiss() }, "✕") : null);
}

function showStep() {
  const report = variant();
  const { row, name, phase } = step();
  drawing.paint((line) => `load-${shade(partOf(line))}`);
  const parts = row ? [heading(nameOf(row)), figureList(row), ...fullLinks()] : [heading(name), ...weightsOf(report, phase)];
  byId("panel").replaceChildren(...parts, ...told("What the figures mean", report.advice), ...told("Notes", report.notes));
}

function told(title, sentences) {
  return sentences?.length ? [make("h3", {}, title), make("ul", { class: "told" }, ...sentences.map((text) => make("li", {}, text)))] : [];
}

function figureList(row) {
  const exact = (figure) => spreadText(figure, (value) => `${whole(value)} B`);
  const line = (label, figure, text) => make("tr", {}, make("th", { scope: "row" }, label), numberCell(meanOf(figure), text));
  const rows = [
    line("RDMA", row.rdma_bytes, exact(row.rdma_bytes)), line("of it over spines", row.spine_bytes, exact(row.spine_bytes)),
    line("NVLink", row.nvlink_bytes, exact(row.nvlink_bytes)), line("fullest network link", largestOf(row), exact(largestOf(row))),
    line("busiest NIC", row.largest_nic_bytes, exact(row.largest_nic_bytes)),
    line(row.traffic === "kv" ? "tokens sent" : "RDMA sends", row.sends, spreadText(row.sends, whole)), line("flows (queue pairs)", row.flows, whole(row.flows)),
  ];
  if (row.expected) rows.push(line("RDMA, mean of all draws", row.expected.rdma_bytes, `${whole(row.expected.rdma_bytes)} B`));
  return make("table", { id: "exact" }, make("tbody", {}, ...rows));
}

// Every link by itself, where there are too many to be drawn.
const alone = () => topology().links.map(([kind, lower, upper, lane], i) => (
  { id: String(i), members: [i], kind, name: `${lower} – ${upper}${topology().fabric.lanes > 1 && kind === "uplink" ? `, lane ${lane}` : ""}` }));

function fullLinks() {
  const all = picture.mode === "none" ? alone() : picture.links;
  const lines = all.filter((line) => heaviest(line) && line.kind !== "nvlink").sort((a, b) => heaviest(b) - heaviest(a) || a.members[0] - b.members[0]);
  if (!lines.length) return [];
  const rows = lines.slice(0, MOST_FULL).map((line) => make("tr", {},
    make("td", {}, make("button", { type: "button", class: "plain", "data-link": line.id, onclick: () => { drawing.open(line, true); byId("close").focus(); } }, line.name)),
    make("td", { class: "number" }, `${bytesText(heaviest(line))}`)));
  return [make("h3", {}, "Fullest network links, one way"), make("table", {}, make("tbody", {}, ...rows))];
}

function weightsOf(report, phase) {
  const mine = report.weights.filter((weight) => weight.role.includes(phase));
  if (!mine.length) return [];
  const rows = mine.map((weight) => make("tr", {}, make("th", { scope: "row" }, weight.role),
    numberCell(weight.routed_bytes, bytesText(weight.routed_bytes)), numberCell(weight.other_bytes, bytesText(weight.other_bytes))));
  return [make("table", {}, make("caption", {}, "Weights on one GPU"), make("thead", {}, headCells(["role", "experts", "all else"])), make("tbody", {}, ...rows))];
}

const gpuName = (gpu) => `node${Math.floor(gpu / topology().fabric.gpus_per_node)}.gpu${gpu % topology().fabric.gpus_per_node}`;

// Flows over a link (or a bundle), with the direction in which they pass it.
function flowsOn(row, line) {
  const mine = new Set(line.members);
  return pathsOf(row, state.hash).flatMap((path, i) => path.flatMap((link, j) => (mine.has(link)
    ? [{ up: j < path.length / 2, source: row.flow_rows[i][0], target: row.flow_rows[i][1], bytes: row.flow_rows[i][2], port: row.flow_rows[i][3], path }] : [])));
}

function showLink(line) {
  drawing.paint((one) => `load-${shade(partOf(one))}`);
  const { row } = step();
  const parts = [heading(titled(line), true)];
  if (!row || !heaviest(line)) {
    byId("panel").replaceChildren(...parts, make("p", {}, "Nothing passes this link in this step."));
    return;
  }
  const flows = flowsOn(row, line).sort((a, b) => b.up - a.up || b.bytes - a.bytes || a.source - b.source || a.target - b.target);
  const [low, high] = line.name.replace(/, lane.*/, "").split(" – ");
  for (const [side, from, to] of [["up", low, high], ["down", high, low]]) {
    const count = row.flows_left_out ? "" : ` in ${counted(flows.filter((flow) => flow.up === (side === "up")).length, "flow")}`;
    const value = bytesOn(line, side);
    parts.push(make("p", {}, make("strong", {}, side === "up" ? "↑ " : "↓ "), `${from} → ${to}: `, make("strong", { id: `link-${side}`, "data-value": value }, `${whole(value)} B`), count));
  }
  parts.push(make("p", { class: "quiet" }, `${percent(partOf(line))} of the fullest ${line.kind === "nvlink" ? "NVLink" : "network link"} in this step`));
  if (row.flows_left_out) parts.push(make("p", {}, `${whole(row.flows_left_out)} flows are too many to be listed.`));
  else parts.push(flowTable(flows));
  byId("panel").replaceChildren(...parts);
}

function flowTable(flows) {
  const lit = (path) => picture.links.filter((line) => line.members.some((link) => path.includes(link))).map((line) => line.id);
  const rows = flows.slice(0, MOST_ROWS).map((flow) => {
    const on = (yes) => () => { drawing.mark(lit(flow.path), yes); };
    return make("tr", { tabindex: "0", onmouseenter: on(true), onmouseleave: on(false), onfocus: on(true), onblur: on(false) },
      make("td", {}, flow.up ? "↑" : "↓"), make("td", {}, `${gpuName(flow.source)} → ${gpuName(flow.target)}`),
      make("td", { class: "number", "data-value": flow.bytes, "data-up": String(flow.up), title: flow.port ? `UDP source port ${flow.port}` : undefined }, `${whole(flow.bytes)} B`));
  });
  const left = flows.length - MOST_ROWS;
  return make("table", { id: "flows" }, make("caption", {}, `Flows, largest first; point at one to see its path${left > 0 ? ` (${whole(left)} more)` : ""}`), make("tbody", {}, ...rows));
}
