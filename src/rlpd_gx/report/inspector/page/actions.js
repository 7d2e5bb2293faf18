// An action and the safe set around it: a joystick or a list, bars with intervals, a plane in two dimensions.

const STATUS = ["allowed", "projected", "fallback", "inevitable", "stopped"];

// what: {space, proposed, executed, suggestion, mask, intervals, polygon, pick}; returns elements
function actionPicture(what) {
  if (what.space.kind === "discrete") return what.space.joystick ? joystick(what) : actionList(what);
  const plane = what.space.names.length === 2 && what.polygon ? actionPlane(what) : null;
  return [plane, actionBars(what)];
}

const actionName = (space, action) => (space.kind === "discrete" ? space.names[action - space.start] ?? String(action) : `(${[action].flat(9).map((v) => number(v)).join(", ")})`);

function role(what, i) {
  const id = i + what.space.start;
  const allowed = what.mask ? { 1: "allowed", 0: "forbidden", "?": "untested" }[what.mask[i]] : "unknown";
  return {
    id, allowed, executed: id === what.executed, proposed: id === what.proposed,
    label: `${what.space.names[i]}: ${allowed}${id === what.proposed ? ", proposed" : ""}${id === what.executed ? ", executed" : ""}`,
  };
}

function place(name) {
  return [(name.includes("RIGHT") ? 1 : 0) - (name.includes("LEFT") ? 1 : 0), (name.includes("UP") ? 1 : 0) - (name.includes("DOWN") ? 1 : 0)];
}

function joystick(what) {
  const boards = what.space.names.some((n) => n.endsWith("FIRE")) ? [["move", false], ["with fire", true]] : [["move", false]];
  return el("div", { class: "joysticks", role: "group", "aria-label": "actions" }, boards.map(([title, fire]) => {
    const names = what.space.names.map((n, i) => [n, i]).filter(([n]) => n.endsWith("FIRE") === fire);
    const rows = new Set(names.map(([n]) => place(n)[1])), columns = new Set(names.map(([n]) => place(n)[0]));
    if (!names.length) return null;
    const cells = names.map(([name, i]) => {
      const [dx, dy] = place(name), r = role(what, i);
      const arrow = dx || dy ? ["↖↑↗", "←·→", "↙↓↘"][1 - dy][dx + 1] : fire ? "●" : "○";
      const cell = button(what, r, arrow);
      cell.style.gridColumn = String(dx + (columns.has(-1) ? 2 : 1));
      cell.style.gridRow = String(1 - dy + (rows.has(1) ? 1 : 0));
      return cell;
    });
    return el("div", {}, el("small", {}, title), el("div", { class: "joystick" }, cells));
  }));
}

function actionList(what) {
  return el("div", { class: "actionlist", role: "group", "aria-label": "actions" }, what.space.names.map((name, i) => button(what, role(what, i), name)));
}

function button(what, r, text) {
  return el("button", {
    class: ["action", r.allowed, r.executed && "executed", r.proposed && "proposed"].filter(Boolean).join(" "),
    title: r.label, "aria-label": r.label, disabled: !what.pick, onclick: () => what.pick && what.pick(r.id), "data-action": r.id,
  }, text);
}

// One row for each component: the allowed interval, the proposal as a hollow mark, the executed action as a full one.
function actionBars(what) {
  const { space } = what, flat = (v) => (v === null || v === undefined ? [] : [v].flat(9));
  const proposed = flat(what.proposed), executed = flat(what.executed);
  return el("div", { class: "bars" }, space.names.map((name, i) => {
    const low = space.low[i] ?? Math.min(proposed[i], executed[i], -1), high = space.high[i] ?? Math.max(proposed[i], executed[i], 1);
    const at = (v) => Math.max(0, Math.min(100, (100 * (v - low)) / (high - low || 1)));
    const range = what.intervals && what.intervals[i], known = range && isNumber(range[0]);
    const moved = Math.abs(proposed[i] - executed[i]) > 1e-6;
    const track = el("div", { class: `track ${known ? "" : "unknown"}` },
      known ? el("i", { class: "range", "left%": at(range[0]), "width%": Math.max(at(range[1]) - at(range[0]), 0.6) }) : null,
      el("i", { class: "middle", "left%": at(0) }),
      moved || what.pick ? el("i", { class: "dot proposed", "left%": at(proposed[i]) }) : null,
      el("i", { class: "dot executed", "left%": at(executed[i]) }));
    const slider = what.pick ? el("input", {
      type: "range", min: low, max: high, step: (high - low) / 400, value: proposed[i], id: `try ${i}`, "aria-label": `try ${name}`,
      oninput: (e) => { const next = [...[what.current()].flat(9)]; next[i] = Number(e.target.value); what.pick(next); },
    }) : null;
    return el("div", { class: "barrow" }, el("span", { class: "barname", title: name }, name), el("div", {}, track, slider),
      el("span", { class: "barvalue" }, moved ? [el("s", {}, proposed[i].toFixed(2)), " "] : null, isNumber(executed[i]) ? executed[i].toFixed(2) : "–"));
  }));
}

function actionPlane(what) {
  const { space } = what, size = 190, pad = 16;
  const px = (v) => pad + ((v - space.low[0]) / (space.high[0] - space.low[0])) * (size - 2 * pad);
  const py = (v) => size - pad - ((v - space.low[1]) / (space.high[1] - space.low[1])) * (size - 2 * pad);
  const [p, e] = [what.proposed, what.executed];
  const picture = svg("svg", { class: "plane", viewBox: `0 0 ${size} ${size}`, width: size, height: size, role: "img", "aria-label": `safe set in two dimensions; proposed ${actionName(space, p)}, executed ${actionName(space, e)}` },
    svg("rect", { class: "space", x: pad, y: pad, width: size - 2 * pad, height: size - 2 * pad }),
    svg("polygon", { class: "safe", points: what.polygon.map(([a, b]) => `${px(a).toFixed(1)},${py(b).toFixed(1)}`).join(" ") }),
    svg("line", { class: "grid", x1: px(0), x2: px(0), y1: pad, y2: size - pad }), svg("line", { class: "grid", y1: py(0), y2: py(0), x1: pad, x2: size - pad }),
    svg("line", { class: "moved", x1: px(p[0]), y1: py(p[1]), x2: px(e[0]), y2: py(e[1]) }),
    svg("circle", { class: "proposed", cx: px(p[0]), cy: py(p[1]), r: 5 }), svg("circle", { class: "executed", cx: px(e[0]), cy: py(e[1]), r: 4 }),
    svg("text", { class: "end", x: size - 2, y: size - 3 }, `${space.names[0]} →`), svg("text", { x: 2, y: 10 }, `↑ ${space.names[1]}`));
  if (what.pick) {
    picture.classList.add("pickable");
    const pick = (event) => {
      const box = picture.getBoundingClientRect(), scale = size / box.width;
      const fx = ((event.clientX - box.left) * scale - pad) / (size - 2 * pad), fy = 1 - ((event.clientY - box.top) * scale - pad) / (size - 2 * pad);
      const clip = (f, i) => space.low[i] + Math.max(0, Math.min(1, f)) * (space.high[i] - space.low[i]);
      what.pick([clip(fx, 0), clip(fy, 1)]);
    };
    picture.addEventListener("pointerdown", pick);
    picture.addEventListener("pointermove", (event) => event.buttons && pick(event));
  }
  return picture;
}

// A verdict in one sentence.
function sentence(v, enforced) {
  const broken = Object.entries(v.margins).filter(([, m]) => isNumber(m) && m < 0).map(([n, m]) => `${n} by ${number(-m)}`);
  const breaks = broken.length ? `The proposal breaks ${broken.join(" and ")}. ` : "";
  if (v.status === "allowed") return "Every rule allows the proposal; it runs as it is.";
  if (v.status === "inevitable") return `${breaks}No action is allowed here: the least bad one ${enforced ? "runs" : "would run"}.`;
  if (v.status === "fallback") return `${v.reason || "A rule could not be asked"}: the declared fallback ${enforced ? "runs" : "would run"}.`;
  if (v.status === "stopped") return `${v.reason || "Nothing may be executed"}: the episode ends.`;
  const near = v.exact === false ? "an allowed action" : "the nearest allowed action";
  return `${breaks}${enforced ? `Executed ${near}` : `Not enforced; ${near} was`}, ${number(v.distance)} away.`;
}
