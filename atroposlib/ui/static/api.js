// Reads of the rollout API: JSON of this origin, the token in a header.

import { search } from "./dom.js";
import { kept } from "./kept.js";

const KEY = "atropos-token"; // of sessionStorage: it ends with the tab, and no address has it

const older = new URLSearchParams(location.search).get("run_id"); // of an earlier run
export const chosen = (told) => told?.runs.find((one) => one.run_id === older) ?? told?.runs[0];

class ApiError extends Error {
  constructor(status, detail) { super(detail); this.status = status; }
}

let asked = null; // one question for the token at a time

export const post = (path, body, query) => get(path, query, undefined, "POST", body);

export async function get(path, query = {}, signal = undefined, method = "GET", body = undefined) {
  if (kept) return kept.answer(path, query);
  if (older && path !== "/explore/runs") {
    if (!path.startsWith("/explore/") || path === "/explore/why") throw new ApiError(404, "it is of the newest run");
    query = { ...query, run_id: older };
  }
  const token = sessionStorage.getItem(KEY);
  let reply;
  try {
    reply = await fetch(`..${path}${search(query)}`, {
      method, signal, cache: "no-store", credentials: "omit", body: body && JSON.stringify(body),
      headers: { ...(body && { "content-type": "application/json" }), ...(token && { authorization: `Bearer ${token}` }) },
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ApiError(0, "the API does not answer");
  }
  if (reply.ok) return reply.json();
  const detail = await reply.json().then((body) => body.detail, () => reply.statusText);
  if (reply.status === 401) {
    sessionStorage.removeItem(KEY);
    asked ??= api.askToken().finally(() => { asked = null; });
    sessionStorage.setItem(KEY, await asked);
    return get(path, query, signal, method, body);
  }
  throw new ApiError(reply.status, typeof detail === "string" ? detail : `status ${reply.status}`);
}

export const api = { askToken: async () => { throw new ApiError(401, "a token is needed"); } };

const lacking = new Set(); // routes that this server does not have; they are asked for once

// The reply, or null where this server has no such route.
export async function optional(path, query, signal) {
  if (lacking.has(path)) return null;
  try { return await get(path, query, signal); } catch (error) {
    if (error.status !== 404) throw error;
    lacking.add(path);
    return null;
  }
}
