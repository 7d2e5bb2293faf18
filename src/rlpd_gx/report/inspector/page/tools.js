// Small helpers: elements, numbers, requests. Text from runs only ever becomes text nodes.

const DATA = JSON.parse(document.getElementById("data").textContent);
const LIVE = DATA.live === true;

function el(tag, props, ...children) {
  return fill(document.createElement(tag), props, children);
}

function svg(tag, props, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), props, children);
}

function fill(node, props, children) {
  for (const [name, value] of Object.entries(props || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked" || name === "disabled") node[name] = value;
    else if (name === "colour") node.style.setProperty("--colour", value);
    else if (name === "width%") node.style.width = `${value}%`;
    else if (name === "left%") node.style.left = `${value}%`;
    else node.setAttribute(name, value === true ? "" : value);
  }
  put(node, children);
  return node;
}

function put(node, children) {
  for (const child of children.flat(9)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : String(child));
  }
  return node;
}

function replace(node, ...children) {
  node.replaceChildren();
  return put(node, children);
}

// --- numbers -------------------------------------------------------------------------------------------

const isNumber = (v) => typeof v === "number" && Number.isFinite(v);

function number(v) {
  if (!isNumber(v)) return "–";
  const size = Math.abs(v);
  if (Number.isInteger(v) && size < 1e12) return v.toLocaleString("en");
  if (size >= 1000) return v.toLocaleString("en", { maximumFractionDigits: 1 });
  if (size >= 1e-3 || v === 0) return String(Number(v.toPrecision(4)));
  return v.toExponential(2);
}

const percent = (v) => (isNumber(v) ? `${Number((100 * v).toPrecision(3))}%` : "–");
const plural = (n, word) => `${number(n)} ${word}${n === 1 ? "" : "s"}`;
const words = (name) => name.replaceAll("_", " ");

function duration(seconds) {
  const minutes = Math.floor(Math.round(seconds) / 60), rest = Math.round(seconds) % 60;
  if (minutes >= 60) return `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, "0")} min`;
  return minutes ? `${minutes} min ${String(rest).padStart(2, "0")} s` : `${number(Number(seconds.toFixed(1)))} s`;
}

function bytes(n) {
  for (const [size, unit] of [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"]]) {
    if (n >= size) return `${Number((n / size).toPrecision(3))} ${unit}`;
  }
  return `${n} bytes`;
}

const COLOURS = 8;
const colour = (i) => `var(--c${(i % COLOURS) + 1})`;

// --- data ----------------------------------------------------------------------------------------------

// From the server, or out of the file this page is.
async function ask(what, query = {}) {
  if (!LIVE) {
    const found = fromFile(what, query);
    if (found === undefined) throw new Error("This page is a saved file: start `rlpd-gx watch` to see more.");
    return found;
  }
  const response = await fetch(`api/${what}?${new URLSearchParams(query)}`);
  if (!response.ok) throw new Error(await reason(response));
  return response.json();
}

async function reason(response) {
  try {
    return (await response.json()).error;
  } catch {
    return `The server answered ${response.status}.`;
  }
}

function fromFile(what, query) {
  if (what === "runs") return DATA.overview;
  if (what === "overlay") return DATA.overlays[query.of];
  if (what === "run") return DATA.runs[query.name];
  if (what === "episode" && query.kind === "training") {
    const recorded = (DATA.recorded[query.name] || {})[`${query.env}-${query.first}-${query.length}`];
    return recorded && { recorded, length: Number(query.length), why: "This page is a saved file." };
  }
  return undefined;
}

async function tryAction(query) {
  const response = await fetch("api/try", {
    method: "POST", headers: { "X-Try-Token": DATA.try }, body: JSON.stringify(query),
  });
  if (!response.ok) throw new Error(await reason(response));
  return response.json();
}

// --- addresses: everything that is shown is in the address, so that a link leads back to it ---------------

const runPath = (name) => `#/run/${encodeURIComponent(name)}`;

function episodePath(name, key, step = 0) {
  const which = key.kind === "evaluation" ? `evaluation/${key.index}` : `training/${key.env}-${key.first}-${key.length}`;
  return `${runPath(name)}/${which}/${step}`;
}

function route() {
  if (!location.hash && DATA.start) history.replaceState(null, "", DATA.start);
  const [path, search] = location.hash.slice(1).split("?");
  const parts = path.split("/").filter(Boolean).map((part) => {
    try { return decodeURIComponent(part); } catch { return part; }
  });
  const query = new URLSearchParams(search || "");
  if (parts[0] !== "run" || !parts[1]) return { view: "overview", query };
  const name = parts[1], step = Number(parts[4]) || 0;
  if (parts[2] === "evaluation") return { view: "episode", name, key: { kind: "evaluation", index: Number(parts[3]) || 0 }, step };
  if (parts[2] === "training") {
    const [env, first, length] = (parts[3] || "").split("-").map(Number);
    return { view: "episode", name, key: { kind: "training", env, first, length }, step };
  }
  return { view: "run", name };
}

function save(blob, name) {
  const link = el("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

const chip = (status) => el("span", { class: `chip ${status}` }, status);
