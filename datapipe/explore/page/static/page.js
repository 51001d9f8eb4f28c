// The page: which view the address asks for, and the keys.

import { el } from "./dom.js";
import { ServerError, complain, get, queryOf, announce } from "./api.js";
import { borderline } from "./borderline.js";
import { cluster, clusters } from "./clusters.js";
import { documentView } from "./document.js";
import { documents } from "./documents.js";
import { overview } from "./overview.js";
import { rowList } from "./rows.js";

const VIEWS = { overview, documents, borderline, clusters, cluster, document: documentView, lookup };
const PARENTS = { document: "documents", cluster: "clusters", lookup: "documents" };
const main = document.getElementById("main");
const help = document.getElementById("help");
let output = null;
let leaving = new AbortController();
let listAddress = "#/documents";
let address = "";

async function lookup(place, { options, signal }) {
  const found = await get("api/lookup", { q: options.q || "" }, signal);
  announce(`${found.documents.length} found`);
  if (found.documents.length === 1) { location.replace(`#/document/${found.documents[0].key}`); return; }
  place.append(el("h2", {}, "Looked up"), found.documents.length
    ? rowList(found.documents, "Documents found")
    : el("p", {}, `No document has this URL, id, name or key: “${options.q}”. To search words inside texts, use the search under `, el("a", { href: "#/documents" }, "Documents"), "."));
}

function go(view, options) {
  const query = queryOf(options);
  location.hash = `#/${view}${query ? "?" + query : ""}`;
}

/** Part of an address. One that is no percent-encoding stands for itself. */
function decoded(text) {
  try { return decodeURIComponent(text); } catch { return text; }
}

/** Gives the focus back to the control that had it, or to the entry that was open, else to the view: drawing replaces what had it. */
function refocus(field, opened) {
  if (![document.body, main].includes(document.activeElement)) return;
  const links = [...main.querySelectorAll(".row-list > li > a")];
  const place = (field && main.querySelector(`[name="${CSS.escape(field)}"]`)) || links.find((link) => link.getAttribute("href") === opened);
  if (place) place.focus();
  else if (opened) main.focus({ preventScroll: true });
}

async function show() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [view = "overview", argument = ""] = path.split("/").map(decoded);
  const name = Object.hasOwn(VIEWS, view) ? view : "overview";
  leaving.abort();
  leaving = new AbortController();
  const signal = leaving.signal;
  complain("");
  announce("Loading.");
  if (["documents", "borderline", "clusters", "lookup"].includes(name)) listAddress = location.hash;
  for (const link of document.querySelectorAll("nav a")) {
    const isCurrent = link.getAttribute("href") === `#/${PARENTS[name] || name}`;
    if (isCurrent) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const field = main.contains(document.activeElement) ? document.activeElement.name : "";
  const opened = address;
  address = location.hash;
  main.replaceChildren();
  main.setAttribute("aria-busy", "true");
  main.removeAttribute("data-view");
  try {
    if (!output) {
      output = await get("api/output");
      if (signal.aborted) return;
      document.getElementById("name").replaceChildren(el("bdi", {}, output.name));
    }
    const drawing = VIEWS[name](main, { output, argument, options: Object.fromEntries(new URLSearchParams(query)), go, signal });
    refocus(field, "");
    await drawing;
    if (signal.aborted) return;
    refocus(field, opened);
    if (document.getElementById("status").textContent === "Loading.") announce("");
  } catch (error) {
    if (error.name === "AbortError" || signal.aborted) return;
    announce("");
    complain(error instanceof ServerError ? error.message : `The page failed: ${error.message}. Load it again.`);
    if (!(error instanceof ServerError)) throw error;
  } finally {
    if (!signal.aborted) {
      main.removeAttribute("aria-busy");
      main.dataset.view = name;
    }
  }
  document.title = `${name} · ${output ? output.name : "datapipe browse"}`;
}

/** Moves the focus to the next or previous entry of the list. */
function move(by) {
  const links = [...main.querySelectorAll(".row-list > li > a")];
  if (!links.length) return;
  const now = links.indexOf(document.activeElement);
  links[Math.min(Math.max(now + by, 0), links.length - 1)].focus();
}

let isGoing = false;
const SHORT = { o: "overview", d: "documents", b: "borderline", c: "clusters" };

document.addEventListener("keydown", (event) => {
  const isTyping = event.target.matches("input:not([type=range]), textarea, select");
  if (event.ctrlKey || event.metaKey || event.altKey || help.open) return;
  if (event.key === "Escape") {
    const stop = document.getElementById("stop");
    if (stop) stop.click();
    else if (isTyping) main.focus();
    else if (/^#\/(document|cluster)\//.test(location.hash)) location.hash = listAddress;
    return;
  }
  if (isTyping) return;
  const wasGoing = isGoing;
  isGoing = event.key === "g";
  if (wasGoing && SHORT[event.key]) go(SHORT[event.key], {});
  else if (event.key === "j") move(1);
  else if (event.key === "k") move(-1);
  else if (event.key === "?") help.showModal();
  else if (event.key === "/") { event.preventDefault(); document.getElementById("lookup-text").focus(); }
});

document.getElementById("lookup").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = document.getElementById("lookup-text").value.trim();
  if (!text) return;
  main.focus();
  go("lookup", { q: text });
});
document.getElementById("help-button").addEventListener("click", () => help.showModal());
document.getElementById("skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
addEventListener("hashchange", show);
show();
