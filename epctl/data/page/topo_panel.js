// The panel beside the wiring: NICs of GPUs, EP layout, settings; or what flows over a link.

function heading(text, closes) {
  return make("h2", { id: "panel-title" }, make("span", {}, text), closes ? make("button", { type: "button", class: "close", id: "close", "aria-label": "Close", onclick: () => drawing.dismiss() }, "✕") : null);
}
const gbps = (value) => (value === undefined ? "–" : String(Number(value.toFixed(2))));
const gbs = (value) => `${Number(value.toPrecision(4))} GB/s`;

function showReport() {
  paint();
  const { pairings = [], domains, graph } = page.report;
  const parts = [];
  if (domains) parts.push(...domainParts(domains));
  for (const pairing of pairings) parts.push(...pairingParts(pairing, pairings.length > 1));
  if (!pairings.length) parts.push(heading("GPUs and NICs"), make("p", {}, "No machine here has both GPUs and NICs, so there is nothing to pair."));
  parts.push(...findingParts(graph.findings), ...pairings.flatMap(settingParts));
  byId("panel").replaceChildren(...parts);
}

function domainParts(domains) {
  return [heading(`EP of ${counted(domains.ep, "rank")}`), make("p", { id: "verdict" }, `${domains.verdict}.`)];
}

function domainRows(domains) {
  const rows = domains.layouts.map((layout) => make("tr", {}, make("td", {}, `${layout.scaleout} × ${layout.scaleup}`), make("td", {}, layout.possible ? "yes" : "no"), make("td", {}, layout.why)));
  const words = [`EP of ${domains.ep}: scale-out × scale-up`, "possible", "why"];
  return [make("thead", {}, make("tr", {}, ...words.map((word) => make("th", { scope: "col" }, word)))), make("tbody", {}, ...rows)];
}

function pairingParts(pairing, several) {
  const chosen = pairing[state.nics];
  const other = state.nics === "best" ? "default" : "best";
  const rows = chosen.pairs.map((pair, i) => {
    const beside = pairing[other].pairs[i];
    const same = beside.nics.join() === pair.nics.join() && beside.gbps === pair.gbps;
    return make("tr", {}, make("th", { scope: "row" }, pair.gpu), make("td", {}, pair.nics.join(" ") || "none"), make("td", {}, [...new Set(pair.levels)].join(" ")),
      make("td", { class: "number", "data-value": pair.gbps, "data-name": `${pairing.host} ${pair.gpu}` }, gbps(pair.gbps)),
      make("td", { class: "number", title: same ? undefined : beside.nics.join(" ") }, same ? "same" : gbps(beside.gbps)));
  });
  const words = ["GPU", "NIC", "path", "Gb/s", other === "best" ? "best" : "default"];
  const title = state.nics === "best" ? "Best NICs for each GPU" : "NICs that NCCL picks by default";
  const lost = pairing.lost_gbps > 0 ? `By the default choice one GPU loses up to ${gbps(pairing.lost_gbps)} Gb/s.` : "";
  return [make(several || page.report.domains ? "h3" : "h2", {}, several ? `${pairing.host}: ${title}` : title),
    make("table", { class: "pairs" }, make("thead", {}, make("tr", {}, ...words.map((word, i) => make("th", { scope: "col", class: i > 2 ? "number" : undefined }, word)))), make("tbody", {}, ...rows)),
    ...[lost, ...(pairing.notes ?? [])].filter(Boolean).map((text) => make("p", { class: "quiet" }, text))];
}

function findingParts(findings) {
  return findings?.length ? [make("h3", {}, "Sources disagree, and notes"), make("ul", { class: "told" },
    ...findings.map((finding) => make("li", {}, make("span", { class: finding.severity === "warn" ? "warn" : "quiet" }, `${finding.severity}: `), finding.text)))] : [];
}

function settingParts(pairing) {
  const lines = (pairing.lines ?? []).filter((line) => line.name !== "UCX_NET_DEVICES");
  return lines.length ? [make("h3", {}, "Settings for the best NICs"), ...lines.map((line) => make("p", { title: line.note }, make("code", {}, `export ${line.name}=${line.value}`)))] : [];
}

function showLink(line) {
  paint();
  const { link } = line;
  const parts = [heading(link.name, true)];
  const rate = link.gbs === undefined ? "rate not told" : `${gbs(link.gbs)} each way`;
  const told = [KINDS[link.kind], link.num_links > 1 ? counted(link.num_links, "link") : "", link.detail, rate, link.source && `told by ${link.source}`];
  parts.push(make("p", {}, told.filter(Boolean).join("; ")));
  const flows = flowsOn(line);
  if (stepNow().view) {
    const [low, high] = link.name.split(" – ");
    for (const [side, from, to] of [["up", low, high], ["down", high, low]]) {
      const mine = flows.filter((flow) => flow.up === (side === "up"));
      const value = loadOf(line, side);
      const part = link.gbs ? `, ${percent(value / link.gbs)} of the link` : "";
      parts.push(make("p", {}, `${side === "up" ? "↑" : "↓"} ${from} → ${to}: `, make("strong", { id: `link-${side}`, "data-value": value }, value ? gbs(value) : "nothing"), value ? `${part}, ${counted(mine.length, "flow")}` : ""));
    }
  }
  if (flows.length) parts.push(flowTable(flows));
  byId("panel").replaceChildren(...parts);
}

function flowTable(flows) {
  const rows = flows.map((flow) => {
    const on = (yes) => () => drawing.mark(flow.path.map(([link]) => String(link)), yes);
    return make("tr", { tabindex: "0", onmouseenter: on(true), onmouseleave: on(false), onfocus: on(true), onblur: on(false) },
      make("td", {}, flow.up ? "↑" : "↓"), make("td", {}, `${flow.from} → ${flow.to}`), make("td", { class: "number", "data-value": flow.gbs, "data-up": String(flow.up) }, gbs(flow.gbs)));
  });
  return make("table", { id: "flows" }, make("caption", {}, "Flows; point at one to see its path"), make("tbody", {}, ...rows));
}
