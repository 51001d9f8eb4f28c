// All documents: filters, order, and search in their texts.

import { append, el, input, number, select } from "./dom.js";
import { complain, get, queryOf, announce, stream } from "./api.js";
import { rowItem, rowList } from "./rows.js";

const LIMIT = 50;
const SORTS = [["key", "key, which keeps files together"], ["distance", "distance from the threshold, nearest first"], ["-distance", "distance, farthest first"],
  ["value", "measured value, lowest first"], ["-value", "measured value, highest first"], ["bytes", "length, shortest first"], ["-bytes", "length, longest first"]];

export async function documents(main, { output, options, go, signal }) {
  const reasons = [...new Set(output.rules.filter((rule) => rule.dropped).map((rule) => `${rule.stage}\n${rule.rule}`))];
  const reason = options.stage ? `${options.stage}\n${options.rule || ""}` : "";
  const form = el("form", { class: "filters", "aria-label": "Filters" },
    select("Source", "source", [["", "all"], ...output.sources.map((source) => [source.name, source.name])], options.source || ""),
    select("Fate", "fate", [["", "all"], ["kept", "kept"], ["dropped", "dropped"], ["quarantined", "quarantined"]], options.fate || ""),
    select("Dropped by", "reason", [["", "any rule"], ...reasons.map((each) => [each, each.replace("\n", ":")])], reason),
    input("Measured from", "min", options.min, { type: "number", step: "any" }),
    input("to", "max", options.max, { type: "number", step: "any" }),
    select("Order", "sort", SORTS, options.sort || "key"),
    input("Search in the texts", "q", options.q, { type: "search", maxlength: 500, autocomplete: "off", grow: true }),
    el("button", {}, "Show"));
  const apply = () => {
    const data = Object.fromEntries(new FormData(form));
    const [stage, rule] = (data.reason || "").split("\n");
    delete data.reason;
    go("documents", { ...data, stage: stage || "", rule: rule || "", sort: data.sort === "key" ? "" : data.sort });
  };
  form.addEventListener("submit", (event) => { event.preventDefault(); apply(); });
  form.addEventListener("change", (event) => { if (event.target.tagName === "SELECT") apply(); });
  append(main, el("h2", {}, "Documents"), form);
  if (options.q) await search(main, options, signal);
  else await list(main, options, signal);
}

async function list(main, options, signal) {
  const offset = Number(options.offset || 0);
  const found = await get("api/documents", { ...options, offset, limit: LIMIT, lines: 1 }, signal);
  announce(found.total ? `${number(found.total)} documents in ${number(found.ms)} ms` : "no documents");
  if (!found.total) {
    append(main, el("p", {}, "No document matches these filters. ", el("a", { href: "#/documents" }, "Show all"), "."));
    return;
  }
  const until = offset + found.documents.length;
  const page = (start, text) => el("a", { href: `#/documents?${queryOf({ ...options, offset: start || "" })}` }, text);
  append(main,
    el("p", {}, `${number(offset + 1)} to ${number(until)} of ${number(found.total)}`),
    rowList(found.documents, "Documents"),
    el("p", { class: "buttons" }, offset > 0 ? page(Math.max(0, offset - LIMIT), "Previous") : null, until < found.total ? page(until, "Next") : null));
}

async function search(main, options, signal) {
  const stopping = new AbortController();
  signal.addEventListener("abort", () => stopping.abort());
  const hits = el("ol", { class: "row-list", "aria-label": "Hits" });
  const shown = el("p", {}, "Searching.");
  const stop = el("button", { type: "button", id: "stop", onclick: () => stopping.abort() }, "Stop the search");
  append(main, shown, el("p", { class: "buttons" }, stop), hits);
  let count = 0;
  const take = (line) => {
    if (line.hit) { count += 1; hits.append(rowItem(line.hit)); }
    if (line.progress) {
      const left = line.progress.seconds_left;
      shown.textContent = `${number(count)} hits in ${number(line.progress.documents)} of ${number(line.progress.of_documents)} documents` +
        (left === null || left === undefined ? "" : `; about ${number(Math.ceil(left))} s left`);
    }
    if (line.done) shown.textContent = `${number(line.done.hits)} hits in ${number(line.done.documents)} documents, ${number(line.done.seconds)} s` +
      (line.done.stopped ? "; stopped at the most that a search shows" : "");
    const problems = line.error ? [line.error] : line.done?.problems || [];
    if (problems.length) complain(`Not all texts were searched. ${problems.join(" ")}`);
  };
  const query = { q: options.q, source: options.source, fate: options.fate, stage: options.stage, rule: options.rule };
  try {
    await stream("api/search", query, stopping.signal, take);
    announce(count ? `${number(count)} hits` : "no hits");
    if (!count) append(main, el("p", {}, "No text has this. The search is of the words as they stand there; case does not matter."));
  } catch (error) {
    if (error.name !== "AbortError" || signal.aborted) throw error;
    shown.textContent += " Stopped.";
    announce("search stopped");
  } finally {
    stop.remove();
  }
}
