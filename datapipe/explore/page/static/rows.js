// Rows of documents, as every list shows them.

import { bytes, el, number, pair, visible } from "./dom.js";

export const documentHref = (key) => `#/document/${encodeURIComponent(key)}`;

/** The facts of a document in a line. */
export function facts(row) {
  const reason = row.rule ? `${row.stage}:${row.rule}` : row.stage;
  const [value, threshold] = pair(row.value, row.threshold);
  return el("span", { class: "facts" },
    el("span", { class: `badge ${row.fate}` }, row.fate),
    reason ? el("span", {}, reason) : null,
    row.value !== null && row.value !== undefined ? el("span", {}, `measured ${value}`) : null,
    row.threshold !== null && row.threshold !== undefined ? el("span", {}, `threshold ${threshold}`) : null,
    row.bytes !== null && row.bytes !== undefined ? el("span", {}, bytes(row.bytes)) : null,
    row.similarity !== null && row.similarity !== undefined ? el("span", {}, `similarity ${number(row.similarity)}`) : null,
    row.id && row.id !== row.name && row.id !== row.url ? el("span", {}, row.id) : null,
    row.url ? el("bdi", {}, row.url) : null);
}

export function rowItem(row) {
  return el("li", {}, el("a", { href: documentHref(row.key) }, el("bdi", { class: "title" }, row.name), facts(row), excerpt(row)));
}

/** The first line or the beginning of a text, or where a search found it; hits are marked. */
export function excerpt(row) {
  if (!row.excerpt) return null;
  const shown = el("span", { class: "excerpt", dir: "auto" });
  const characters = Array.from(row.excerpt);
  let done = 0;
  for (const [start, stop] of row.ranges || []) {
    shown.append(visible(characters.slice(done, start).join("")), el("mark", {}, characters.slice(start, stop).join("")));
    done = stop;
  }
  shown.append(visible(characters.slice(done).join("")));
  return shown;
}

export function rowList(rows, label) {
  return el("ol", { class: "row-list", "aria-label": label }, rows.map(rowItem));
}
