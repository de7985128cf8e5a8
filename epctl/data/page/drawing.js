// Text that would run over its box is set narrower.
function squeezed(text, width, classes) {
  const room = width - 6;
  const wide = text.length * (classes === "small" ? 5 : 6.2);
  return wide > room && room > 20 ? { textLength: room, lengthAdjust: "spacingAndGlyphs" } : {};
}

// A drawing of boxes and links. Links are one stop of the Tab key; arrows go from link to link, Enter opens one, Escape closes it.
class Drawing {
  constructor(svg, { open, close, describe, label }) {
    this.svg = svg;
    this.does = { open, close, describe };
    this.links = [];
    this.chosen = null;
    svg.setAttribute("aria-label", `${label}. Arrow keys go from link to link, Enter shows what a link carries, Escape closes it.`);
    svg.addEventListener("keydown", (event) => this.key(event));
    document.addEventListener("keydown", (event) => { if (event.key === "Escape") this.dismiss(); });
  }

  // Heavier links are drawn over lighter ones. boxes: {id, x, y, w, h, classes, lines}; links: {id, d, row, classes, name}. x and y are a box's corner.
  show(size, boxes, links, weight = () => 0) {
    const held = document.activeElement?.closest?.(".link")?.dataset.id;
    this.svg.setAttribute("viewBox", `0 0 ${size.width} ${size.height}`);
    // Wide drawings take the whole width, with the panel below; still wider ones scroll.
    this.svg.closest(".columns").classList.toggle("below", size.width > 1150);
    this.svg.style.width = size.fixed ? `${size.width}px` : "100%";
    this.svg.style.maxWidth = size.fixed ? "none" : `${size.width * 1.3}px`;
    this.svg.style.maxHeight = size.fixed ? "none" : "52vh";
    this.links = links;
    this.byId = new Map(links.map((link) => [link.id, link]));
    this.boxes = new Map();
    const drawn = boxes.map((box) => this.box(box));
    for (const link of links) {
      link.element = draw("g", { class: "link", role: "button", tabindex: "-1", "data-id": link.id },
        draw("path", { class: "line", d: link.d }), draw("path", { class: "hit", d: link.d }));
      link.element.addEventListener("click", () => this.open(link, false));
      link.element.addEventListener("pointermove", (event) => tip(this.does.describe(link), event.clientX, event.clientY));
      link.element.addEventListener("pointerleave", () => tip(""));
      link.element.addEventListener("focus", () => this.focused(link));
      link.element.addEventListener("blur", () => tip(""));
    }
    this.svg.replaceChildren(draw("g", {}, ...drawn.filter((one) => one.below).map((one) => one.group)),
      draw("g", { class: links.length > 200 ? "dense" : undefined }, ...[...links].sort((a, b) => weight(a) - weight(b)).map((link) => link.element)), draw("g", {}, ...drawn.filter((one) => !one.below).map((one) => one.group)));
    this.stop = this.byId.get(held) ?? links[0];
    this.stop?.element.setAttribute("tabindex", "0");
    if (held) this.stop?.element.focus({ preventScroll: true });
  }

  box(box) {
    const group = draw("g", { class: `node ${box.classes}` },
      box.title ? draw("title", {}, box.title) : null,
      draw("rect", { x: box.x, y: box.y, width: box.w, height: box.h, rx: Math.min(4, box.h / 3) }),
      ...box.lines.map(([text, dy, classes]) => draw("text", { x: box.x + box.w / 2, y: box.y + dy, class: classes, ...squeezed(text, box.w, classes) }, text)));
    this.boxes.set(box.id, group);
    return { group, below: box.below };
  }

  // classesOf(link): what its load or kind makes of it.
  paint(classesOf) {
    for (const link of this.links) {
      link.element.setAttribute("class", `link ${classesOf(link)}${link.id === this.chosen ? " chosen" : ""}`);
      link.element.setAttribute("aria-label", this.does.describe(link).replaceAll("\n", ", "));
      link.element.setAttribute("aria-pressed", String(link.id === this.chosen));
    }
  }

  mark(ids, on) { for (const id of ids) this.byId.get(id)?.element.classList.toggle("path", on); }

  focused(link) {
    this.stop?.element.setAttribute("tabindex", "-1");
    this.stop = link;
    link.element.setAttribute("tabindex", "0");
    if (!link.element.matches(":focus-visible")) return;
    const { right, bottom } = link.element.getBoundingClientRect();
    tip(this.does.describe(link), right, bottom - 10);
  }

  open(link, byKey) {
    this.chosen = link.id;
    tip("");
    this.does.open(link);
    if (this.svg.closest(".columns").matches(".below")) byId("panel").scrollIntoView({ block: "nearest" });
    if (!byKey) this.focused(link);
  }

  dismiss() {
    tip("");
    if (this.chosen === null) return;
    const link = this.byId.get(this.chosen);
    this.chosen = null;
    this.does.close();
    link?.element.focus();
  }

  key(event) {
    const at = this.links.indexOf(this.stop);
    if (at < 0) return;
    const rows = [...new Set(this.links.map((link) => link.row))];
    const mine = this.links.filter((link) => link.row === this.stop.row);
    const place = mine.indexOf(this.stop);
    const to = {
      ArrowRight: () => mine[(place + 1) % mine.length],
      ArrowLeft: () => mine[(place + mine.length - 1) % mine.length],
      ArrowUp: () => this.nearest(rows[rows.indexOf(this.stop.row) - 1]),
      ArrowDown: () => this.nearest(rows[rows.indexOf(this.stop.row) + 1]),
      Home: () => mine[0],
      End: () => mine.at(-1),
    }[event.key];
    if (to) { event.preventDefault(); to()?.element.focus(); }
    if (event.key === "Enter" || event.key === " ") { event.preventDefault(); this.open(this.stop, true); }
  }

  // The link of another row that meets this one, else the first.
  nearest(row) {
    const found = this.links.filter((link) => link.row === row);
    const { ends } = this.stop;
    return found.find((link) => link.ends.some((end) => ends.includes(end))) ?? found[0];
  }
}
