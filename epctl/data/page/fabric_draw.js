// Where the parts of a fabric are drawn: spines over leaves over nodes. Small fabrics GPU by GPU; larger ones node by node, where one
// line stands for all links between its two ends.

const GPU_BY_GPU = 64;
const MOST_LINES = 1500;

const spread = (count, width, at) => (i) => at + (width * (i + 0.5)) / count;

function fabricPicture(topology, nodes) {
  const { fabric, links } = topology;
  if (!links.length) return { size: { width: 10, height: 1 }, boxes: [], links: [], mode: "none" };
  const single = fabric.gpus <= GPU_BY_GPU;
  const groups = single ? links.map((link, i) => [i]) : bundles(topology);
  if (groups.length > MOST_LINES) return { size: { width: 10, height: 1 }, boxes: [], links: [], mode: "none" };
  const place = places(topology, nodes, single);
  return { size: place.size, boxes: place.boxes, mode: single ? "links" : "bundles", links: lines(topology, groups, place, single) };
}

const gpuOf = (topology, link) => link % topology.fabric.gpus;
const nodeOf = (topology, gpu) => Math.floor(gpu / topology.fabric.gpus_per_node);

function bundles(topology) {
  const found = new Map();
  topology.links.forEach(([kind, lower, upper], i) => {
    const node = nodeOf(topology, gpuOf(topology, i));
    const key = kind === "uplink" ? `${lower} ${upper}` : `${kind} ${node} ${upper}`;
    if (!found.has(key)) found.set(key, []);
    found.get(key).push(i);
  });
  return [...found.values()];
}

function places(topology, nodes, single) {
  const { fabric, leaves, spines } = topology;
  const per = single ? fabric.gpus_per_node : 1;
  const cell = single ? Math.max(14, Math.min(38, Math.floor(760 / fabric.gpus))) : Math.max(24, Math.min(60, Math.floor(1100 / nodes.length) - 6));
  const gap = single ? Math.max(10, Math.min(26, cell)) : 10;
  const content = nodes.length * per * cell + (nodes.length - 1) * gap;
  const width = Math.max(870, content + 24, leaves.length * 46);
  const fixed = width > 1500;
  const boxes = [];
  const at = new Map();
  const wired = new Set(topology.links.flatMap(([, lower, upper]) => [lower, upper]));
  const row = (names, y, kind, most) => {
    const pitch = width / names.length;
    const w = Math.min(most, pitch - 6);
    names.forEach((name, i) => {
      const box = { id: name, x: pitch * (i + 0.5) - w / 2, y, w, h: 28, classes: wired.has(name) ? kind : `${kind} out`, title: wired.has(name) ? name : `${name}: lost`, lines: [[w < 34 ? name.replace(/\D+/, "") : name, 18]] };
      boxes.push(box);
      at.set(name, box);
    });
  };
  row(spines, 8, "spine", 150);
  row(leaves, 142, "leaf", 92);
  const room = width - content;
  const left = Math.max(room / 2, Math.min(46, room - 8));
  const tiers = single && left >= 40 ? [["NICs", 296], ["GPUs", 319]] : [];
  tiers.forEach(([text, y]) => boxes.push({ id: text, x: left - 42, y, w: 30, h: 0, classes: "tier", below: true, lines: [[text, 0, "small"]] }));
  nodes.forEach((node, n) => {
    const x = left + n * (per * cell + gap);
    const w = per * cell;
    const [first, second] = roleText(node.roles);
    boxes.push({ id: `node${node.node}`, x: x - 4, y: 276, w: w + 8, h: second ? 154 : 140, classes: "frame", below: true,
      lines: [[w < 44 ? String(node.node) : `node ${node.node}`, 121, "strong"], [single ? first : "", 134, "small"], [single ? second : "", 146, "small"]] });
    (single ? node.gpus : [node.node]).forEach((gpu, i) => {
      const gx = x + i * cell + 1;
      const key = single ? `gpu${gpu}` : `pod${gpu}`;
      if (single) boxes.push({ id: `nic${gpu}`, x: gx, y: 284, w: cell - 2, h: 16, classes: "nic", lines: [[cell >= 28 ? "NIC" : "", 12, "small"]], title: `NIC of node${node.node}.gpu${i}` });
      const box = { id: key, x: gx, y: single ? 302 : 284, w: cell - 2, h: single ? 26 : 44, classes: "gpu", node: node.node,
        lines: single ? [[String(i), 17]] : [[cell < 40 ? String(fabric.gpus_per_node) : `${fabric.gpus_per_node} GPUs`, 20, "small"], [cell < 40 ? "GPUs" : "", 32, "small"]], title: single ? `node${node.node}.gpu${i}` : `node${node.node}: ${node.roles.join(", ")}` };
      boxes.push(box);
      at.set(key, box);
    });
    const bar = { id: `switch${node.node}`, x: x + 1, y: 362, w: w - 2, h: 20, classes: "nvswitch", lines: [[single && w > 60 ? "NVSwitch" : "NVS", 14, "small"]] };
    boxes.push(bar);
    at.set(`switch${node.node}`, bar);
  });
  return { size: { width, height: 436, fixed }, boxes, at };
}

// A node's part, in two short lines.
function roleText(roles) {
  const phases = ["prefill", "decode"];
  const both = phases.filter((phase) => roles.includes(`${phase} attention`) && roles.includes(`${phase} experts`));
  if (both.length) return [both.join(" + "), ""];
  const parts = ["attention", "experts"].map((part) => [part, phases.filter((phase) => roles.includes(`${phase} ${part}`))]);
  const told = parts.filter(([, mine]) => mine.length).map(([part, mine]) => `${mine.join(" + ")} ${part}`);
  return told.length ? [told.join(", "), ""] : ["idle", ""];
}

function lines(topology, groups, place, single) {
  const rows = { uplink: 0, nic: 1, nvlink: 2 };
  const made = groups.map((members) => {
    const [kind, lower, upper, lane] = topology.links[members[0]];
    const gpu = gpuOf(topology, members[0]);
    const node = nodeOf(topology, gpu);
    const own = single ? `gpu${gpu}` : `pod${node}`;
    const [from, to] = kind === "uplink" ? [lower, upper] : kind === "nic" ? [own, upper] : [own, `switch${node}`];
    const name = members.length > 1 || !single ? `${kind === "uplink" ? lower : `node${node}`} – ${kind === "nvlink" ? "its NVSwitch" : upper}` : `${lower} – ${upper}`;
    return { id: String(members[0]), members, kind, row: rows[kind], ends: [from, to], name: lane || (kind === "uplink" && topology.fabric.lanes > 1 && members.length === 1) ? `${name}, lane ${lane}` : name };
  }).filter((line) => line.ends.every((end) => place.at.has(end)));
  const below = shares(made, 1, (line) => line.row < 2);
  const above = shares(made, 0, () => true);
  for (const line of made) line.d = way(line, place, above, below);
  return made.sort((a, b) => a.row - b.row || a.members[0] - b.members[0]);
}

// Ends of lines share a box's edge: by box, how many and which is which.
function shares(made, end, counts) {
  const found = new Map();
  for (const line of made.filter(counts)) {
    const key = `${line.row} ${line.ends[end]}`;
    if (!found.has(key)) found.set(key, new Map());
    found.get(key).set(line, found.get(key).size);
  }
  return (line) => {
    const mine = found.get(`${line.row} ${line.ends[end]}`);
    return [mine.get(line), mine.size];
  };
}

function way(line, place, above, below) {
  const [low, high] = line.ends.map((end) => place.at.get(end));
  const [i, count] = above(line);
  const x = spread(count, low.w * 0.86, low.x + low.w * 0.07)(i);
  if (line.kind === "nvlink") return `M${x.toFixed(1)} ${low.y + low.h}V${high.y}`;
  const [j, many] = below(line);
  const to = spread(many, high.w * 0.9, high.x + high.w * 0.05)(j);
  const start = line.kind === "nic" ? 284 : low.y;
  return `M${x.toFixed(1)} ${start}L${to.toFixed(1)} ${high.y + high.h}`;
}
