// What all pages share: elements, cards, tables, and numbers as text.

const SVG = ["svg", "rect", "text", "g", "line", "title", "defs", "pattern", "path", "polyline", "circle"];

function make(tag, attributes = {}, ...children) {
  const svg = SVG.includes(tag);
  const element = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function card(title, ...children) { return make("section", { class: "card" }, make("h2", {}, title), ...children); }

function table(header, rows, numbers) {
  const cell = (tag) => (content, i) => make(tag, { class: numbers.includes(i) ? "number" : "" }, content);
  const head = make("thead", {}, make("tr", {}, ...header.map(cell("th"))));
  const body = make("tbody", {}, ...rows.map((row) => make("tr", {}, ...row.map(cell("td")))));
  return make("div", { class: "scroll" }, make("table", {}, head, body));
}

function code(text) { return make("span", { class: "code" }, text); }

function number(label, value) { return make("div", {}, make("span", { class: "quiet" }, label), make("b", {}, value)); }

function time(seconds) {
  if (seconds < 0.9995e-3) return `${(1e6 * seconds).toFixed(0)} µs`;
  return seconds < 0.99995 ? `${(1e3 * seconds).toFixed(2)} ms` : `${seconds.toFixed(2)} s`;
}

function percent(share) { return `${(100 * share).toFixed(1)} %`; }

function size(bytes) {
  if (bytes < 1024) return `${bytes} B`;
  const units = ["KiB", "MiB", "GiB", "TiB"];
  let i = -1;
  do { bytes /= 1024; i += 1; } while (bytes >= 999.95 && i < units.length - 1);
  return `${bytes.toFixed(1)} ${units[i]}`;
}

function count(number) {
  const prefixes = ["", " k", " M", " G", " T", " P"];
  let i = 0;
  while (number >= 1000 && i < prefixes.length - 1) { number /= 1000; i += 1; }
  return i ? number.toFixed(1) + prefixes[i] : number.toFixed(0);
}
