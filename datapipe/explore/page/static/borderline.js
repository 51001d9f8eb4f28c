// Fifty documents just kept beside fifty just dropped, and what another threshold would keep.

import { append, el, input, number, select, share } from "./dom.js";
import { get, announce } from "./api.js";
import { rowList } from "./rows.js";

export async function borderline(main, { output, options, go, signal }) {
  const rules = output.rules.filter((rule) => rule.has_borderline || rule.has_sweep);
  append(main, el("h2", {}, "Borderline: just kept, just dropped"));
  if (!rules.length) {
    append(main, el("p", {}, "No filter of this run has measured documents against a threshold."));
    return;
  }
  const name = (rule) => `${rule.source}\n${rule.stage}\n${rule.rule}`;
  const first = rules.find((rule) => rule.stage === options.stage && rule.rule === options.rule && (!options.source || rule.source === options.source))
    || [...rules].sort((a, b) => b.dropped - a.dropped)[0];
  const form = el("form", { class: "filters", "aria-label": "Rule" },
    select("Rule", "rule", rules.map((rule) => [name(rule), `${rule.source}: ${rule.stage}:${rule.rule} (${number(rule.dropped)} dropped)`]), name(first)));
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("change", (event) => {
    const [source, stage, rule] = event.target.value.split("\n");
    go("borderline", { source, stage, rule });
  });
  append(main, form);
  const query = { source: first.source, stage: first.stage, rule: first.rule };
  const slider = el("div", {});
  append(main, slider);
  if (first.has_borderline) {
    const found = await get("api/borderline", query, signal);
    const side = { min: "at least", max: "at most" }[found.side] || "";
    const would = found.mode === "tag" ? "Would just be" : "Just";
    const later = found.dropped_later ? ` ${number(found.dropped_later)} that passed, as near as these, were dropped by a later stage, and are not listed.` : "";
    append(main,
      el("p", {}, found.threshold === null ? "The threshold differs by document." : `Kept: ${side} ${number(found.threshold)} (${found.option || first.rule}). Nearest to it first.${later}`),
      el("div", { class: "two" },
        el("section", { "aria-labelledby": "just-kept" }, el("h3", { id: "just-kept", class: "kept" }, `${would} kept: ${number(found.kept.length)}`),
          found.kept.length ? rowList(found.kept, `${would} kept`) : el("p", {}, "None.")),
        el("section", { "aria-labelledby": "just-dropped" }, el("h3", { id: "just-dropped", class: "dropped" }, `${would} dropped: ${number(found.dropped.length)}`),
          found.dropped.length ? rowList(found.dropped, `${would} dropped`) : el("p", {}, "None: nothing fails this rule."))));
    announce(`${would} kept: ${found.kept.length}, dropped: ${found.dropped.length}`);
  }
  if (first.has_sweep) sweep(slider, await get("api/sweep", query, signal));
}

/** A slider over thresholds: what each would keep, and the YAML for it. */
function sweep(place, found) {
  const { points, total } = found;
  if (!points.length) return;
  const nearest = (value) => points.reduce((best, point, index) => (Math.abs(point.threshold - value) < Math.abs(points[best].threshold - value) ? index : best), 0);
  const start = found.in_force === null ? 0 : nearest(found.in_force);
  const slider = el("input", { type: "range", min: 0, max: points.length - 1, step: 1, id: "threshold", "aria-describedby": "would-keep" });
  slider.value = start;
  const field = input("or type it", "typed", "", { type: "number", step: "any" });
  const typed = field.querySelector("input");
  const shown = el("output", { id: "would-keep", for: "threshold", class: "big" });
  const yaml = el("pre", { class: "yaml", id: "yaml", tabindex: "0" });
  const show = () => {
    const point = points[Number(slider.value)];
    const change = point.documents - points[start].documents;
    const tokens = point.tokens === null || point.tokens === undefined ? "" : `, about ${number(point.tokens)} tokens`;
    shown.textContent = `A threshold of ${number(point.threshold)} would keep ${number(point.documents)} of ${number(total.documents)} documents (${share(point.documents, total.documents)})${tokens}` +
      (typeof point.together !== "number" || point.together === point.documents ? "" : ` by this rule alone, and ${number(point.together)} with the other rules of the stage`) +
      (found.in_force === null ? "" : change ? `; ${change < 0 ? "−" : "+"}${number(Math.abs(change))} against ${number(found.in_force)}, as it is now` : ", as it is now");
    slider.setAttribute("aria-valuetext", `${number(point.threshold)}: ${number(point.documents)} documents`);
    const is_as_it_is = found.as_it_is && point.threshold === found.in_force;
    const end = found.yaml.lastIndexOf("{threshold}");
    yaml.textContent = is_as_it_is ? found.as_it_is : found.yaml.slice(0, end) + String(point.threshold) + found.yaml.slice(end + "{threshold}".length);
  };
  slider.addEventListener("input", () => { typed.value = points[Number(slider.value)].threshold; show(); });
  typed.addEventListener("input", () => { if (typed.value !== "") { slider.value = nearest(Number(typed.value)); show(); } });
  const copy = el("button", { type: "button", onclick: async () => {
    try {
      await navigator.clipboard.writeText(yaml.textContent);
      announce("copied");
    } catch {
      const range = document.createRange();
      range.selectNodeContents(yaml);
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      announce("The browser does not let the page copy. The lines are selected: press Ctrl+C.");
    }
  } }, "Copy the YAML");
  append(place, el("div", { class: "panel" },
    el("h3", {}, el("label", { for: "threshold" }, "Another threshold")),
    slider, el("div", { class: "filters" }, field, found.yaml ? copy : null), el("p", {}, shown), found.yaml ? yaml : null,
    el("p", { class: "soft" }, found.note)));
  typed.value = points[start].threshold;
  show();
}
