// What both pages share: elements, numbers, toggles, steps, tables, the tip.

const byId = (id) => document.getElementById(id);
const page = JSON.parse(byId("data").textContent);

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== undefined && value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  // Strings become text nodes, so that no name of a machine can be markup.
  element.append(...children.flat().filter((child) => child !== undefined && child !== null));
  return element;
}
const make = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const draw = (tag, attributes, ...children) => fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

const whole = (value) => Math.round(value).toLocaleString("en-US");
function scaled(value, units) {
  let step = 0;
  while (step < units.length - 1 && Number(value.toPrecision(3)) >= 1000) { value /= 1000; step += 1; }
  return `${Number(value.toPrecision(3))} ${units[step]}`;
}
// 1 MB = 1e6 bytes, as in the JSON.
const bytesText = (value) => (value ? scaled(value, ["B", "kB", "MB", "GB", "TB"]) : "0");
const percent = (part) => (part > 0 && part < 0.005 ? "< 1 %" : `${Math.round(part * 100)} %`);
const counted = (count, word, many) => `${whole(count)} ${count === 1 ? word : many ?? `${word}s`}`;

// A figure of the report: a number, or its spread over several seeds.
const meanOf = (figure) => (typeof figure === "number" ? figure : figure.mean);
function spreadText(figure, text) {
  if (typeof figure === "number") return text(figure);
  return figure.min === figure.max ? text(figure.mean) : `${text(figure.mean)} (${text(figure.min)} – ${text(figure.max)})`;
}

function numberCell(value, text, title, name) {
  return make("td", { class: "number", "data-value": value, "data-name": name, title }, text);
}
function headCells(words) {
  return make("tr", {}, ...words.map((word, i) => make("th", { scope: "col", class: i ? "number" : undefined }, word)));
}

// Steps 1 to 5 of the scale; 0 for nothing.
const shade = (part) => (part > 0 ? Math.min(5, Math.floor(part * 5 * 0.9999) + 1) : 0);

function shadeLegend(idle, full) {
  const steps = [1, 2, 3, 4, 5].map((step) => make("span", {}, make("i", { class: `load-${step}` }), `${step === 5 ? "" : "to "}${step * 20} %`));
  return [make("span", {}, make("i", {}), idle), ...steps, make("span", {}, full)];
}

// One row of buttons of which one is pressed. `why(value)` tells why a value cannot be chosen.
function choices(label, values, current, why, chosen) {
  const buttons = values.map(([value, text]) => {
    const reason = value === current ? "" : why(value);
    return make("button", {
      type: "button", "aria-pressed": String(value === current), "aria-disabled": reason ? "true" : undefined,
      title: reason || undefined, "data-choice": `${label}:${value}`,
      onclick: () => { if (reason) say(reason); else chosen(value); },
    }, text);
  });
  return make("span", { class: "group", role: "group", "aria-label": label }, label, make("span", { class: "choices" }, ...buttons));
}

// Redraws a row of buttons without losing the reader's place in it.
function replaced(element, children) {
  const held = document.activeElement?.closest?.("[data-choice]")?.dataset.choice;
  element.replaceChildren(...children);
  if (held) element.querySelector(`[data-choice="${CSS.escape(held)}"]`)?.focus();
}

function say(text) { byId("sentence").textContent = text; }

function showSteps(names, current, go) {
  replaced(byId("steps"), names.map((name, i) => make("li", {}, make("button", {
    type: "button", "aria-current": i === current ? "step" : undefined, "data-choice": `step:${i}`, onclick: () => go(i),
  }, `${i + 1} ${name}`))));
  for (const [id, step] of [["back", -1], ["next", 1]]) {
    const to = current + step;
    byId(id).setAttribute("aria-disabled", String(to < 0 || to >= names.length));
    byId(id).onclick = () => { if (to >= 0 && to < names.length) go(to); };
  }
}

function tip(text, x, y) {
  const box = byId("tip");
  box.hidden = !text;
  if (!text) return;
  box.textContent = text;
  const { width, height } = box.getBoundingClientRect();
  box.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - width - 6))}px`;
  box.style.top = `${y + 16 + height > innerHeight ? Math.max(4, y - height - 12) : y + 16}px`;
}
