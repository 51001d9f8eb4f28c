// Requests to the page's own server, and the messages of the page about them.

import { visible } from "./dom.js";

export class ServerError extends Error {}

const status = document.getElementById("status");
const problem = document.getElementById("problem");

export function announce(text) { status.replaceChildren(visible(text)); }
export function complain(text) { problem.replaceChildren(visible(text)); }

export function queryOf(options) {
  const kept = Object.entries(options).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  return new URLSearchParams(kept).toString();
}

async function request(path, options) {
  let answer;
  try {
    answer = await fetch(path, { cache: "no-store", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError("The server does not answer. Start `datapipe browse` again, and open the address that it prints.");
  }
  if (answer.ok) return answer;
  let shown = "";
  try { shown = (await answer.json()).error; } catch { /* no JSON: the status is the message */ }
  throw new ServerError(shown || `The server refused this (${answer.status}).`);
}

export async function get(path, options = {}, signal = undefined) {
  const query = queryOf(options);
  return (await request(query ? `${path}?${query}` : path, { signal })).json();
}

export async function post(path, body) {
  const options = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
  return (await request(path, options)).json();
}

/** Calls `take` with each line of a stream of JSON. */
export async function stream(path, options, signal, take) {
  const answer = await request(`${path}?${queryOf(options)}`, { signal });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read();
    held += value || "";
    const lines = held.split("\n");
    held = lines.pop();
    for (const line of lines) if (line) take(JSON.parse(line));
    if (done) break;
  }
  if (held) take(JSON.parse(held));
}
