// Messages of a sample: texts, tool calls, pictures. HTML, links and addresses stay text.

import { count, h, prose } from "./dom.js";
import { kept } from "./kept.js";

const PICTURE = /^data:image\/(png|jpeg|webp|gif);base64,[A-Za-z0-9+/]+={0,2}$/; // loads nothing
const long = (text) => (kept?.markdown ?? prose)(text);
const known = (value) => value !== null && value !== undefined;
const json = (value) => (known(value) ? JSON.stringify(value, null, 1) : "");
const address = (part) => (part?.type === "image_url" ? part.image_url?.url ?? part.image_url ?? "" : undefined);

function picture(url) {
  const text = typeof url === "string" ? url : json(url);
  return PICTURE.test(text) ? h("img", { src: text, alt: "picture" }) : `[a picture of ${count(text.length)} characters]`;
}

export const pictures = (urls) => urls?.length > 0 && h("p", { class: "pictures" }, urls.map(picture));

function content(value) { // a text, or parts: texts and pictures
  if (typeof value === "string") return long(value);
  if (!Array.isArray(value)) return long(json(value));
  return value.map((part) => {
    const url = address(part);
    if (url !== undefined) return pictures([url]);
    return long(typeof part === "string" ? part : typeof part?.text === "string" ? part.text : json(part));
  });
}

const turn = (label, kind, body) => h("div", { class: `message ${kind}` }, h("b", {}, label), body);

function call(one) {
  const { name, arguments: given } = one?.function ?? {};
  const text = name ? `${name}(${typeof given === "string" ? given : json(given)})` : json(one);
  return turn("tool call", "call", prose(text));
}

export function conversation(messages) { // a box for each message and each tool call
  return messages.map((one) => {
    if (one === null || typeof one !== "object" || Array.isArray(one)) return turn("", "", content(one));
    const { role, content: said, tool_calls: calls, ...more } = one;
    const listed = Array.isArray(calls) ? calls : known(calls) ? [calls] : [];
    return [(known(said) && said !== "" || !listed.length) && turn(String(role ?? ""), role === "tool" ? "tool" : "", content(said)),
      listed.map(call), Object.keys(more).length > 0 && turn("", "", prose(json(more)))];
  });
}

export function sharedMessages(lists) { // number of messages before the first answer that all begin with
  const texts = lists.map((list) => list.map((one) => JSON.stringify(one)));
  const shortest = Math.min(...texts.map((list) => list.length)) - 1;
  let n = 0;
  while (n < shortest && lists[0][n]?.role !== "assistant" && texts.every((list) => list[n] === texts[0][n])) n += 1;
  return n;
}
