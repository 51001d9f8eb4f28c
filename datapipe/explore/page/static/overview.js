// What the output is, and where to start.

import { append, el, number, share, table } from "./dom.js";
import { queryOf } from "./api.js";

export async function overview(main, { output }) {
  const worst = output.rules.filter((rule) => rule.dropped).sort((a, b) => b.dropped - a.dropped).slice(0, 8);
  const rows = output.sources.map((source) => [source.name, source.read, source.kept, share(source.kept, source.read), source.dropped, source.quarantined, source.tokens]);
  append(main,
    el("h2", {}, "What this is"),
    el("p", {}, `The documents of the run “${output.name}”: ${number(output.documents)} were read, and this page shows the outcome of each. `,
      "Texts are read again from their sources when you open them; what the run redacts is redacted here, too."),
    (output.notes || []).map((note) => el("p", { class: "panel" }, note)),
    table(["source", "read", "kept", "kept of read", "dropped", "quarantined", "tokens"], rows, "Documents by source"),
    el("h2", {}, "Where to start"));
  if (worst.length) {
    append(main,
      el("p", {}, "The rules that drop most. Open one to see the documents just below and just above its threshold: is it the right one?"),
      el("ol", { class: "row-list", "aria-label": "Rules that drop most" }, worst.map((rule) => {
        const options = queryOf({ source: rule.source, stage: rule.stage, rule: rule.rule });
        const href = rule.has_borderline ? `#/borderline?${options}` : `#/documents?${queryOf({ source: rule.source, fate: "dropped", stage: rule.stage, rule: rule.rule })}`;
        return el("li", {}, el("a", { href },
          el("bdi", { class: "title" }, `${rule.stage}:${rule.rule}`),
          el("span", { class: "facts" }, el("span", {}, rule.source), el("span", {}, `${number(rule.dropped)} dropped`),
            rule.threshold === null ? null : el("span", {}, `${rule.option || "threshold"} ${number(rule.threshold)}`))));
      })));
  } else {
    append(main, el("p", {}, "No rule drops any document. ", el("a", { href: "#/documents" }, "All documents"), " are a list."));
  }
  if (output.cluster_stages.length) {
    append(main, el("p", {}, "Duplicates: ", el("a", { href: "#/clusters" }, "clusters side by side"), ", with what differs between their documents."));
  }
}
