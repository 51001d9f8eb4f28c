// One document: its text with what was cut or redacted, its path, and where training reads it.

import { append, bytes, el, input, number, pair, table, textBox } from "./dom.js";
import { complain, get, post, queryOf, announce } from "./api.js";
import { facts } from "./rows.js";

const OUTCOMES = { read: "read", changed: "changed", kept: "passed", dropped: "dropped", quarantined: "quarantined", cut: "cut", redacted: "redacted", tokenized: "tokenized", packed: "packed" };

export async function documentView(main, { output, argument, signal }) {
  const found = await get(`api/document/${encodeURIComponent(argument)}`, {}, signal);
  const row = found.row;
  const about = Object.entries(found.columns || {}).map(([name, value]) => [name, value === null ? "·" : typeof value === "number" ? value : typeof value === "object" ? JSON.stringify(value) : String(value)]);
  append(main,
    el("h2", {}, el("bdi", {}, row.name)), facts(row),
    found.url ? el("p", {}, "URL, as text: ", el("bdi", {}, found.url)) : null,
    found.note ? el("p", { class: "panel" }, found.note) : null,
    found.cluster ? el("p", {}, el("a", { href: `#/cluster/${encodeURIComponent(found.cluster.survivor)}?${queryOf({ stage: found.cluster.stage })}` },
      `Its cluster of ${number(found.cluster.size)} documents (${found.cluster.stage})`)) : null,
    el("h3", {}, "Text"));
  const parts = found.parts || [];
  const marked = parts.some((part) => part.kind !== "kept");
  if (marked) append(main, el("p", { class: "soft" }, "Struck through: cut by a stage. Underlined: put in the place of what was redacted."));
  append(main, parts.length ? textBox("Text of the document", parts.map(shownPart)) : el("p", {}, "There is no text to show."));
  if (found.truncated) append(main, el("p", {}, `Only the beginning is shown; the whole text has ${bytes(row.bytes)}.`));
  append(main, el("h3", {}, "Path"), el("ol", { class: "path" }, (found.path || []).map(step)));
  if (about.length) append(main, el("h3", {}, "Columns"), table(["column", "value"], about, "Columns of the document"));
  if (found.shards && found.shards.length) {
    append(main, el("h3", {}, "In shards"), table(["shard", "row", "starts at token", "tokens"], found.shards.map((each) => [each.path, each.row, each.start, each.tokens]), "Shards that hold the document"));
    append(main, ...steps(row.key, output));
  }
  announce(`${row.name}: ${row.fate}`);
}

function shownPart(part) {
  const name = { kept: "", cut: "del", replacement: "ins" }[part.kind] ?? "";
  const was = part.was ? `, instead of ${number(part.was)} bytes` : "";
  return { text: part.text, name, attributes: { title: part.stage ? `${part.stage}${was}` : null } };
}

function step(each) {
  const values = (each.values || []).map(({ rule, value, threshold }) => {
    const [measured, limit] = pair(value, threshold);
    return el("li", {}, `${rule}: measured ${measured}${threshold === null || threshold === undefined ? "" : `, threshold ${limit}`}`);
  });
  return el("li", {},
    el("strong", {}, each.label || each.step), " ",
    el("span", { class: `badge ${each.outcome}` }, OUTCOMES[each.outcome] || each.outcome),
    each.detail ? [" ", el("span", {}, each.detail)] : null,
    values.length ? el("details", {}, el("summary", {}, `${values.length} measured values`), el("ul", {}, values)) : null);
}

/** A form for the batch size or the state of a loader, and the training steps that hold the document. */
function steps(key) {
  const result = el("div", { "aria-live": "polite" });
  const state = el("textarea", { name: "state", rows: 2, id: "state", spellcheck: "false" });
  const form = el("form", { class: "filters", "aria-label": "Training steps" },
    input("Global batch size", "size", "8", { type: "number", min: 1, step: 1 }),
    el("label", { class: "grow" }, "or a state of the loader, as JSON", state),
    el("button", {}, "Which steps?"));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    complain("");
    try {
      const path = `api/document/${encodeURIComponent(key)}/steps`;
      const size = form.elements.namedItem("size").value;
      const found = state.value.trim() ? await post(path, { state: JSON.parse(state.value) }) : await get(path, { global_batch_size: size });
      const columns = Object.keys(found.steps[0] || {});
      result.replaceChildren(found.steps.length
        ? table(columns.map((name) => name.replaceAll("_", " ")), found.steps.map((each) => columns.map((name) => (name === columns[0] ? number(each[name]) : each[name]))), "Training steps with the document")
        : el("p", {}, "No step of the run draws it."));
      if (found.searched) result.append(el("p", { class: "soft" }, `Searched: ${found.searched}.`));
      if (found.elsewhere) result.append(el("p", {}, `Other snapshots hold rows of this run, which may have the document, too: ${found.elsewhere}. Browse the outputs of those snapshots.`));
      if (found.more) result.append(el("p", {}, "There are more steps after these."));
    } catch (error) {
      complain(error instanceof SyntaxError ? "The state is no JSON. Paste what loader.state_dict() gives, written by json.dumps." : error.message);
    }
  });
  return [el("h3", {}, "In training"), form, result];
}
