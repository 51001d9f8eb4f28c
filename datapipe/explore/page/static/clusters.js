// Clusters of duplicates: the surviving document beside those that were dropped for it.

import { append, el, number, select, textBox } from "./dom.js";
import { get, queryOf, announce } from "./api.js";
import { documentHref, excerpt, facts } from "./rows.js";

const LIMIT = 30;

export async function clusters(main, { output, options, go, signal }) {
  append(main, el("h2", {}, "Clusters of duplicates"));
  if (!output.cluster_stages.length) {
    append(main, el("p", {}, "This run has no stage that drops duplicates, or it found none. Stages: dedup.exact, dedup.minhash."));
    return;
  }
  const stage = options.stage || output.cluster_stages[0];
  const form = el("form", { class: "filters", "aria-label": "Filters" },
    select("Stage", "stage", output.cluster_stages.map((stage) => [stage, stage]), stage),
    select("Source", "source", [["", "all"], ...output.sources.map((source) => [source.name, source.name])], options.source || ""),
    select("Order", "sort", [["size", "largest first"], ["least_alike", "least alike first"], ["sample", "a sample"]], options.sort || "size"));
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("change", () => go("clusters", Object.fromEntries(new FormData(form))));
  append(main, form);
  const offset = Number(options.offset || 0);
  const found = await get("api/clusters", { sort: "size", ...options, stage, offset, limit: LIMIT }, signal);
  announce(`${number(found.total)} clusters`);
  if (!found.clusters.length) {
    append(main, el("p", {}, "No cluster matches. ", el("a", { href: "#/clusters" }, "Show all"), "."));
    return;
  }
  const page = (start, text) => el("a", { href: `#/clusters?${queryOf({ ...options, offset: start || "" })}` }, text);
  const until = offset + found.clusters.length;
  append(main,
    el("p", {}, `${number(offset + 1)} to ${number(until)} of ${number(found.total)}. Least alike first shows where the threshold is too low.`),
    el("ol", { class: "row-list", "aria-label": "Clusters" }, found.clusters.map((cluster) => el("li", {},
      el("a", { href: `#/cluster/${encodeURIComponent(cluster.survivor.key)}?${queryOf({ stage: cluster.stage })}` },
        el("bdi", { class: "title" }, cluster.survivor.name),
        el("span", { class: "facts" }, el("span", {}, cluster.stage), el("span", {}, `${number(cluster.dropped)} dropped for it`),
          cluster.similarity ? el("span", {}, `similarity ${number(cluster.similarity[0])} to ${number(cluster.similarity[1])}`) : null,
          cluster.survivor.url ? el("bdi", {}, cluster.survivor.url) : null),
        excerpt(cluster.survivor))))),
    el("p", { class: "buttons" }, offset > 0 ? page(Math.max(0, offset - LIMIT), "Previous") : null, until < found.total ? page(until, "Next") : null));
}

export async function cluster(main, { options, argument, signal }) {
  const found = await get(`api/cluster/${encodeURIComponent(argument)}`, { stage: options.stage, members: options.members || 3 }, signal);
  const card = (heading, row, parts, name) => el("section", { class: "card" },
    el("h3", {}, heading, ": ", el("a", { href: documentHref(row.key) }, el("bdi", {}, row.name))),
    facts(row),
    parts && parts.length ? textBox(name, parts.map((part) => ({ text: part.text, name: part.differs ? "span" : "", attributes: { class: "differs" } })))
      : el("p", {}, row.note || "Its text cannot be read now."));
  append(main,
    el("h2", {}, "A cluster"),
    el("p", {}, "What differs between a document and the surviving one is marked. ", el("a", { href: "#/clusters" }, "All clusters")),
    el("div", { class: "cards" },
      card("Kept", { ...found.survivor.row, note: found.survivor.note }, found.survivor.parts, "Text of the kept document"),
      found.members.map((member, index) => card(`Dropped ${index + 1}`, { ...member.row, similarity: member.similarity, note: member.note }, member.parts, `Text of dropped document ${index + 1}`))));
  announce(`${found.members.length} dropped documents beside the kept one`);
}
