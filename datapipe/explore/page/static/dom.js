// Elements. Every byte of a document becomes a text node: nothing here parses markup.

/** Characters that would change how text is read, and that no one sees. */
const CONTROLS = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u115f\u1160\u180e\u200b\u200e\u200f\u2028\u2029\u202a-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb\ud800-\udfff\u{e0000}-\u{e007f}]/u;
const CHUNK = 20000;

/** An element. Properties that start with "on" are listeners, the others attributes; children are nodes or texts. */
export function el(name, properties = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value === true ? "" : value);
  }
  append(element, ...children);
  return element;
}

export function append(element, ...children) {
  for (const child of children.flat(3)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : visible(String(child)));
  }
  return element;
}

/** Text with its control characters shown as their code points. */
export function visible(text) {
  const fragment = document.createDocumentFragment();
  let plain = "";
  if (!CONTROLS.test(text)) return document.createTextNode(text);
  for (const character of text) {
    if (!CONTROLS.test(character)) { plain += character; continue; }
    if (plain) fragment.append(plain);
    plain = "";
    const mark = document.createElement("span");
    mark.className = "control";
    mark.textContent = "U+" + character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
    fragment.append(mark);
  }
  if (plain) fragment.append(plain);
  return fragment;
}

/** Texts in a scrolling box, in slices between which the page stays alive.
 *  parts: [{text, name, attributes}], name of the element around a part, "" for none. */
export function textBox(label, parts) {
  const box = el("div", { class: "text", dir: "auto", tabindex: "0", role: "region", "aria-label": label });
  const slices = [];
  for (const part of parts) {
    for (let start = 0; start < part.text.length || start === 0; ) {
      let stop = Math.min(start + CHUNK, part.text.length);
      const last = part.text.charCodeAt(stop - 1);
      if (stop < part.text.length && last >= 0xd800 && last < 0xdc00) stop -= 1; // no pair of surrogates is cut
      slices.push([part, part.text.slice(start, stop)]);
      if (stop <= start) break;
      start = stop;
    }
  }
  const more = () => {
    for (let count = 0; count < 3 && slices.length; count++) {
      const [part, text] = slices.shift();
      box.append(part.name ? el(part.name, part.attributes || {}, text) : visible(text));
    }
    if (slices.length && (box.isConnected || !box.dataset.begun)) requestAnimationFrame(more);
    box.dataset.begun = "1";
  };
  more();
  return box;
}

export function number(value) {
  if (value === null || value === undefined) return "·";
  const isTiny = value !== 0 && Math.abs(value) < 0.01;
  return Number(value).toLocaleString("en-US", isTiny ? { maximumSignificantDigits: 3 } : { maximumFractionDigits: 4 });
}

/** A measured value and its threshold; two that differ never read the same. */
export function pair(value, threshold) {
  const isAlike = value !== threshold && number(value) === number(threshold);
  return isAlike ? [String(value), String(threshold)] : [number(value), number(threshold)];
}

export const share = (part, whole) => (whole ? (100 * part / whole).toFixed(1) + " %" : "0 %");

export function bytes(value) {
  let size = Number(value);
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (size < 1000 || unit === "GB") return (unit === "B" ? size : size.toFixed(1)) + " " + unit;
    size /= 1000;
  }
}

/** A table; numbers stand to the right. */
export function table(headings, rows, caption) {
  const isNumber = (column) => rows.some((row) => typeof row[column] === "number");
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    el("table", {},
      el("thead", {}, el("tr", {}, headings.map((heading, column) => el("th", { scope: "col", class: isNumber(column) && "n" }, heading)))),
      el("tbody", {}, rows.map((row) => el("tr", {}, row.map((cell, column) => (column === 0
        ? el("th", { scope: "row" }, cell)
        : el("td", { class: (typeof cell === "number" || isNumber(column)) && "n" }, typeof cell === "number" ? number(cell) : cell))))))));
}

/** A labelled select. options: [[value, text], …]. */
export function select(label, name, options, value) {
  const chosen = el("select", { name }, options.map(([key, text]) => el("option", { value: key, selected: key === value }, text)));
  return el("label", {}, label, chosen);
}

export function input(label, name, value, attributes = {}) {
  const field = el("input", { name, ...attributes });
  field.value = value || "";
  return el("label", { class: attributes.grow && "grow" }, label, field);
}
