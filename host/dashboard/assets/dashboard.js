// Keeps a page as it is on the server: parts arrive as {id, html}, and what differs in them is changed in place, so that focus, opened
// details, typed text and scrolling stay. Without this script the page works too, and is renewed by loading it again.
"use strict";

const shown = new Map();
const connection = document.getElementById("connection");
const SLOWEST = 30_000;
let source = null;
let wait = 1_000;
let retry = 0;

/** Says how the connection is; the element is a status, so screen readers say it too. */
function tell(state) {
  if (connection.className === state) return;
  connection.className = state;
  connection.textContent = connection.dataset[state];
}

/** Gives an element the other's attributes, but for what the person in front of it has done to it. */
function morphAttributes(from, to) {
  const kept = (name) => from.nodeName === "DETAILS" && name === "open";
  for (const { name } of [...from.attributes]) {
    if (!to.hasAttribute(name) && !kept(name)) from.removeAttribute(name);
  }
  for (const { name, value } of to.attributes) {
    if (from.getAttribute(name) !== value && !kept(name)) from.setAttribute(name, value);
  }
}

/** Makes the children of one element those of the other. Children with an id stay themselves; others are taken in order. */
function morphChildren(from, to) {
  const coming = new Set([...to.children].map((child) => child.id).filter(Boolean));
  // What is gone goes first, so that what stays need not be moved: an element that is moved loses the focus.
  const here = new Map();
  for (const child of [...from.children]) {
    if (!child.id) continue;
    if (coming.has(child.id)) here.set(child.id, child);
    else child.remove();
  }
  let at = from.firstChild;
  for (const next of [...to.childNodes]) {
    const same = next.id ? here.get(next.id) : at && !at.id && at.nodeName === next.nodeName ? at : null;
    if (!same) {
      from.insertBefore(next, at);
    } else if (same === at) {
      at = at.nextSibling;
      morph(same, next);
    } else {
      from.insertBefore(same, at);
      morph(same, next);
    }
  }
  while (at) {
    const gone = at;
    at = at.nextSibling;
    gone.remove();
  }
}

/** Makes one node like the other. */
function morph(from, to) {
  if (from.nodeName !== to.nodeName) {
    from.replaceWith(to);
  } else if (from.nodeType !== Node.ELEMENT_NODE) {
    if (from.data !== to.data) from.data = to.data;
  } else if (!from.isEqualNode(to)) {
    morphAttributes(from, to);
    morphChildren(from, to);
  }
}

/** Takes a part in. */
function take({ id, html }) {
  const element = document.getElementById(id);
  if (!element || shown.get(id) === html) return;
  const template = document.createElement("template");
  template.innerHTML = html;
  const next = template.content.firstElementChild;
  if (!next || next.id !== id) return;
  shown.set(id, html);
  morph(element, next);
}

function connect() {
  clearTimeout(retry);
  if (source) source.close();
  source = new EventSource("/live?page=" + encodeURIComponent(document.body.dataset.page));
  source.onopen = () => {
    wait = 1_000;
    tell("live");
  };
  source.onmessage = (event) => take(JSON.parse(event.data));
  source.onerror = () => {
    tell("lost");
    // The browser gives up for good where the server answers with an error, so this tries again by itself.
    if (source && source.readyState === EventSource.CLOSED) {
      retry = setTimeout(connect, wait);
      wait = Math.min(wait * 2, SLOWEST);
    }
  };
}

function disconnect() {
  clearTimeout(retry);
  if (source) source.close();
  source = null;
}

// Escape closes what was opened, and the focus goes back to what opened it.
document.addEventListener("keydown", (event) => {
  const opened = event.key === "Escape" && event.target.closest("details.confirm[open], details.swap[open]");
  if (!opened) return;
  opened.open = false;
  opened.querySelector("summary").focus();
});

/** Shows what stands for the empty fields of a prompt's form: the chosen model's own. */
function showUsual(model) {
  const usual = model.selectedOptions[0].dataset;
  for (const field of model.form.querySelectorAll("[data-usual]")) {
    const own = usual[field.dataset.usual];
    if (field.nodeName === "OPTION") field.textContent = own ? `${own} (default)` : "default";
    else field.placeholder = own ?? "";
    // A model of pictures has no frames.
    if (field.name === "frames") field.parentElement.hidden = !own;
  }
}
const model = document.getElementById("prompt-model");
if (model) {
  model.addEventListener("change", () => showUsual(model));
  showUsual(model);
}

// A page that nobody sees holds no connection: browsers allow only a few to one server.
document.addEventListener("visibilitychange", () => (document.hidden ? disconnect() : connect()));
window.addEventListener("pagehide", disconnect);
window.addEventListener("pageshow", (event) => event.persisted && connect());

if (!document.hidden) connect();
