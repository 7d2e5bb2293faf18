// One episode step by step: picture, proposed against executed action, safe set, margins; try other actions.

const KINDS = {
  correction: { key: "c", text: "correction", at: (s, t, w) => s.status[t] > 0 && w(t) },
  near: { key: "m", text: "near miss", at: (s, t, w, e) => s.status[t] === 0 && nearMiss(e, t) },
  inevitable: { key: "i", text: "inevitable", at: (s, t, w) => s.status[t] === 3 && w(t) },
  unsafe: { key: "u", text: "unsafe event", at: (s, t) => s.unsafe[t] > 0 },
};
const HELP = [["← →", "one step"], ["Shift ← →", "ten steps"], ["Home End", "first, last"], ["Space", "play"], ["n p", "next, previous moment"], ["c m i u", "jump to: correction, near miss, inevitable, unsafe event"], ["t", "try another action"], ["s", "save a picture"], ["?", "this help"]];

function nearMiss(e, t) {
  const graded = e.rules.filter((r) => e.steps.margins[r] && !e.ungraded.includes(r));
  const rules = EpisodeView.rule ? graded.filter((r) => r === EpisodeView.rule) : graded;
  return rules.some((r) => { const m = e.steps.margins[r][t]; return isNumber(m) && m >= 0 && m < e.near_miss; });
}

const EpisodeView = {
  name: "", key: null, step: 0, data: null, kind: "correction", rule: "", playing: 0, speed: 12, trying: null, polygons: {}, parts: {}, images: new Map(), loaded: "",

  async load({ name, key, step }) {
    const loaded = JSON.stringify([name, key]);
    const found = loaded === this.loaded ? {} : { name, key, loaded, data: await ask("episode", { name, ...key }), rule: "", trying: null, polygons: {}, images: new Map() };
    return { ...found, step: Math.max(0, Math.min(step, (found.data || this.data).length - 1)) };
  },

  draw(root) {
    const e = this.data;
    this.root = root;
    if (e.recorded) return this.drawRecorded(root);
    const s = e.steps, total = s.reward.reduce((a, b) => a + (b || 0), 0);
    const counts = Object.fromEntries(Object.keys(KINDS).map((k) => [k, this.moments(k).length]));
    const p = (this.parts = {});
    p.picture = el("div", { class: "picture" });
    p.verdict = el("div", { class: "verdict", "aria-live": "polite" });
    p.actions = el("div", { class: "actions" });
    p.rules = el("div", { class: "rulerows" });
    p.strip = el("div", { class: "strip" });
    p.try = el("div", { class: "try" });
    p.counter = el("output", { class: "counter" });
    p.range = el("input", { type: "range", class: "scrub", min: 0, max: e.length - 1, value: this.step, "aria-label": "step of the episode", oninput: (event) => this.go(Number(event.target.value)) });
    p.play = el("button", { onclick: () => this.toggle(), "aria-label": "play or pause", title: "Space" }, "▶");
    p.margins = e.rules.some((r) => s.margins[r]) ? figure("Margins over time", "At the proposed action, in each rule's own units; below 0 the rule forbids it. Click to go there.", this.marginSpec(), this.ruleChips()) : null;
    p.chart = p.margins && p.margins.querySelector(".chart");
    const jumps = Object.entries(KINDS).map(([k, kind]) => el("button", {
      class: this.kind === k ? "on" : "", "aria-pressed": String(this.kind === k), "data-kind": k, title: `key ${kind.key}`, disabled: !counts[k] && k !== this.kind,
      onclick: () => { this.kind = k; this.draw(root); this.jump(1); } }, kind.text, el("small", {}, k === "unsafe" && !e.watched ? "not watched" : number(counts[k]))));
    replace(root,
      el("div", { class: "head" },
        el("h1", {}, this.title()),
        el("p", { class: "about" }, `return ${number(Number(total.toPrecision(6)))} · ${plural(e.length, "step")} · ${e.ending || "cut here"}${e.enforced ? "" : " · the guard only watched"}`),
        el("p", { class: "caption" }, e.note)),
      el("div", { class: "episode" },
        el("div", { class: "screen" }, p.picture,
          el("div", { class: "transport" },
            el("button", { onclick: () => this.jump(-1), "aria-label": "previous moment", title: "p" }, "«"), el("button", { onclick: () => this.go(this.step - 1), "aria-label": "one step back", title: "←" }, "‹"),
            p.play, el("button", { onclick: () => this.go(this.step + 1), "aria-label": "one step on", title: "→" }, "›"), el("button", { onclick: () => this.jump(1), "aria-label": "next moment", title: "n" }, "»"),
            el("select", { "aria-label": "steps a second", onchange: (event) => { this.speed = Number(event.target.value); } }, [4, 12, 30, 60].map((v) => el("option", { value: v, selected: v === this.speed }, `${v}/s`))), p.counter),
          p.strip, p.range,
          el("div", { class: "jumps", role: "group", "aria-label": "jump to" }, jumps)),
        el("div", { class: "side" }, p.verdict, p.actions, p.rules,
          el("div", { class: "controls" },
            LIVE && DATA.try ? el("button", { id: "try", onclick: () => this.toggleTry(), title: "key t" }, "Try another action") : null,
            el("button", { id: "save", onclick: () => this.savePicture(), title: "key s" }, "Save picture"),
            window.MediaRecorder && e.drawn ? el("button", { id: "clip", onclick: () => this.saveClip() }, "Save clip") : null,
            el("button", { id: "link", onclick: () => this.copyLink() }, "Copy link")),
          p.try)),
      p.margins,
      el("details", { class: "help" }, el("summary", {}, "Keyboard"), el("dl", { class: "settings" }, HELP.map(([k, text]) => el("div", {}, el("dt", {}, k), el("dd", {}, text))))),
    );
    this.drawStrip();
    this.show();
  },

  title() {
    return this.key.kind === "evaluation" ? `Evaluation episode ${this.key.index + 1}` : `Training episode from step ${number(this.key.first)}${this.key.env ? `, environment ${this.key.env}` : ""}`;
  },

  ruleChips() {
    const rules = this.data.rules.filter((r) => this.data.steps.margins[r]);
    const choose = (r) => { this.rule = this.rule === r ? "" : r; this.draw(this.root); };
    return el("div", { class: "controls rules", role: "group", "aria-label": "filter by rule" }, rules.map((r, i) =>
      el("button", { class: this.rule === r ? "on" : "", "aria-pressed": String(this.rule === r), "data-rule": r, onclick: () => choose(r) }, el("i", { class: "key", colour: colour(i + 3) }), r)),
      rules.length > 1 ? el("span", { class: "soft" }, this.rule ? "moments of this rule only" : "choose a rule to see only its moments") : null);
  },

  marginSpec() {
    const e = this.data, x = Array.from({ length: e.length }, (_, t) => t);
    const series = e.rules.map((r, i) => ({ name: r, colour: colour(i + 3), ...thin(x, e.steps.margins[r] || []) })).filter((s) => s.x.length && (!this.rule || s.name === this.rule));
    return { series, zero: true, height: 170, xLabel: "step of the episode", last: Math.max(e.length - 1, 1), cursor: this.step, pick: (v) => this.go(Math.round(v)), marks: e.steps.unsafe.flatMap((u, t) => (u ? [t] : [])).slice(0, 300), empty: "No margin is known." };
  },

  // Whether the chosen rule had a part in what happened at a step.
  involved(t) {
    if (!this.rule) return true;
    const e = this.data, m = e.steps.margins[this.rule];
    return (m && isNumber(m[t]) && m[t] < 0) || e.steps.binding[t].includes(e.rules.indexOf(this.rule));
  },

  moments(kind) {
    const s = this.data.steps, found = [];
    for (let t = 0; t < this.data.length; t++) if (KINDS[kind].at(s, t, (i) => this.involved(i), this.data)) found.push(t);
    return found;
  },

  jump(direction) {
    const found = this.moments(this.kind);
    const next = direction > 0 ? found.find((t) => t > this.step) : found.findLast((t) => t < this.step);
    if (next !== undefined) this.go(next);
  },

  go(step) {
    const next = Math.max(0, Math.min(step, this.data.length - 1));
    if (next === this.step) return;
    this.step = next;
    history.replaceState(null, "", episodePath(this.name, this.key, next));
    if (this.trying) this.trying = { pending: true };
    this.show();
    if (this.trying) this.attempt(this.data.steps.proposed[next]);
  },

  show() {
    if (this.data.recorded) return;
    const e = this.data, s = e.steps, t = this.step, p = this.parts;
    const status = STATUS[s.status[t]];
    p.range.value = t;
    p.range.setAttribute("aria-valuetext", `step ${t}, ${status}`);
    let score = 0;
    for (let i = 0; i <= t; i++) score += s.reward[i] || 0;
    p.counter.textContent = `step ${number(t)} of ${number(e.length - 1)} · return ${number(Number(score.toPrecision(5)))}`;
    p.picture.className = `picture ${status}${s.unsafe[t] ? " unsafe" : ""}`;
    const v = this.verdict(t);
    replace(p.verdict, chip(s.unsafe[t] ? "unsafe" : nearMiss(e, t) && !s.status[t] ? "near" : status).cloneNode(false), el("p", {}, sentence(v, e.enforced), s.unsafe[t] ? el("b", {}, " An unsafe event followed this step.") : null));
    p.verdict.firstChild.textContent = s.unsafe[t] ? "unsafe event" : nearMiss(e, t) && !s.status[t] ? "allowed, near miss" : status;
    this.drawActions();
    const binding = new Set(v.binding);
    replace(p.rules, e.rules.filter((r) => s.margins[r]).map((r, i) => {
      const m = s.margins[r][t];
      return el("div", { class: `rulerow ${isNumber(m) && m < 0 ? "broken" : ""}` }, el("i", { class: "key", colour: colour(i + 3) }), el("span", {}, r), el("b", {}, isNumber(m) ? number(m) : "not asked"), el("small", {}, isNumber(m) && m < 0 ? "forbids it" : binding.has(r) ? "binding" : isNumber(m) && m < e.near_miss && !e.ungraded.includes(r) ? "near miss" : ""));
    }), binding.has("action space") ? el("p", { class: "caption" }, "The bounds of the action space bind too.") : null);
    if (p.chart) { Object.assign(p.spec = this.marginSpec(), {}); p.chart.replaceChildren(drawChart({ label: "Margins over time", ...p.spec }, Math.round(p.chart.clientWidth) || 600)); }
    this.cursor.style.left = `${(100 * (t + 0.5)) / e.length}%`;
    this.drawTry();
    this.drawPicture(t);
  },

  verdict(t) {
    const e = this.data, s = e.steps;
    return {
      status: STATUS[s.status[t]], distance: s.distance[t], margins: Object.fromEntries(Object.entries(s.margins).map(([r, m]) => [r, m[t]])),
      binding: s.binding[t].map((i) => e.rules[i]), exact: !s.not_exact.includes(t), reason: s.reasons[t] || "",
    };
  },

  drawActions() {
    const e = this.data, t = this.step, s = e.steps;
    const what = { space: e.space, proposed: s.proposed[t], executed: s.executed[t], mask: e.masks && e.masks[t], intervals: e.intervals && e.intervals[t], polygon: this.polygons[t] };
    const legendRow = el("p", { class: "legend" }, el("span", {}, el("i", { class: "key ring proposed" }), "proposed"), el("span", {}, el("i", { class: "key disc executed" }), "executed"), el("span", {}, el("i", { class: "key safe" }), e.space.kind === "box" && e.space.names.length > 1 ? "allowed, the other components being as executed" : "allowed"));
    const moved = s.status[t] > 0 && e.space.kind === "discrete" ? el("p", { class: "moved" }, el("s", {}, actionName(e.space, s.proposed[t])), " → ", el("b", {}, actionName(e.space, s.executed[t]))) : e.space.kind === "discrete" ? el("p", { class: "moved" }, el("b", {}, actionName(e.space, s.executed[t]))) : null;
    replace(this.parts.actions, moved, actionPicture(what), legendRow);
    if (e.space.kind === "box" && e.space.names.length === 2 && !(t in this.polygons) && e.intervals) {
      this.polygons[t] = null;
      ask("polygon", { name: this.name, ...this.key, step: t }).then((found) => { this.polygons[t] = found.polygon; if (this.step === t) this.drawActions(); }, () => {});
    }
  },

  drawStrip() {
    const e = this.data, s = e.steps, width = 800, picture = svg("svg", { viewBox: `0 0 ${width} 26`, preserveAspectRatio: "none", role: "img", "aria-label": `${this.moments("correction").length} corrections in ${e.length} steps` });
    const one = width / e.length;
    let from = 0;
    const code = (t) => (s.status[t] > 0 && this.involved(t) ? STATUS[s.status[t]] : s.status[t] === 0 && nearMiss(e, t) ? "near" : "allowed");
    for (let t = 1; t <= e.length; t++) {
      if (t < e.length && code(t) === code(from)) continue;
      if (code(from) !== "allowed") picture.append(svg("rect", { class: code(from), x: from * one, width: Math.max((t - from) * one, 1.2), y: code(from) === "near" ? 12 : 4, height: code(from) === "near" ? 10 : 18 }));
      from = t;
    }
    s.unsafe.forEach((u, t) => u && picture.append(svg("rect", { class: "unsafe", x: t * one, width: Math.max(one, 2), y: 0, height: 26 })));
    this.cursor = el("i", { class: "stripcursor" });
    replace(this.parts.strip, picture, this.cursor);
    this.parts.strip.onclick = (event) => {
      const box = this.parts.strip.getBoundingClientRect();
      this.go(Math.floor(((event.clientX - box.left) / box.width) * e.length));
    };
  },

  // --- pictures: the server draws a step when it is asked for; the next ones are asked for ahead while playing ---

  async frame(t) {
    if (!this.images.has(t)) {
      const query = new URLSearchParams({ name: this.name, ...this.key, step: t });
      this.images.set(t, fetch(`api/frame?${query}`).then(async (r) => {
        if (!r.ok) throw new Error(await reason(r));
        return createImageBitmap(await r.blob());
      }));
      if (this.images.size > 240) this.images.delete(this.images.keys().next().value);
    }
    return this.images.get(t);
  },

  async drawPicture(t) {
    const box = this.parts.picture;
    if (!this.data.drawn) { replace(box, el("p", { class: "empty" }, this.data.undrawn || "No picture.")); return; }
    if (!box.querySelector("canvas")) replace(box, el("canvas", { role: "img", "aria-label": "the environment, replayed" }));
    const canvas = box.querySelector("canvas");
    try {
      const image = await this.frame(t);
      if (t !== this.step && !this.playing) return;
      const times = Math.max(1, Math.floor(480 / image.width));
      if (canvas.width !== image.width * times) { canvas.width = image.width * times; canvas.height = image.height * times; }
      const pen = canvas.getContext("2d");
      pen.imageSmoothingEnabled = false;
      pen.drawImage(image, 0, 0, canvas.width, canvas.height);
      canvas.dataset.step = t;
    } catch (error) {
      if (t === this.step) replace(box, el("p", { class: "empty" }, error.message));
    }
  },

  toggle() {
    if (this.playing) this.stop(); else this.start();
  },

  start() {
    const token = (this.playing = Date.now() + Math.random());
    this.parts.play.textContent = "❙❙";
    if (this.step >= this.data.length - 1) this.go(0);
    const tick = async () => {
      if (this.playing !== token) return;
      const began = performance.now();
      if (this.step >= this.data.length - 1) { this.stop(); return; }
      if (this.data.drawn) { try { await this.frame(this.step + 1); } catch { /* shown with the step */ } }
      if (this.playing !== token) return;
      this.go(this.step + 1);
      setTimeout(tick, Math.max(0, 1000 / this.speed - (performance.now() - began)));
    };
    tick();
  },

  stop() {
    this.playing = 0;
    if (this.parts.play) this.parts.play.textContent = "▶";
  },

  // --- try it ----------------------------------------------------------------------------------------------

  toggleTry() {
    this.stop();
    if (this.trying) { this.trying = null; this.drawTry(); return; }
    this.attempt(this.data.steps.proposed[this.step]);
  },

  async attempt(action) {
    this.trying = { ...(this.trying || {}), action };
    if (this.asking) { this.again = true; return; }
    this.asking = true;
    try {
      do {
        this.again = false;
        const step = this.step, tried = this.trying.action;
        const found = await tryAction({ name: this.name, ...this.key, step, action: tried });
        if (this.trying && step === this.step) this.trying = { action: this.trying.action, found };
      } while (this.again && this.trying);
    } catch (error) {
      if (this.trying) this.trying = { action, error: error.message };
    }
    this.asking = false;
    this.drawTry();
  },

  drawTry() {
    const box = this.parts.try, t = this.trying, e = this.data;
    if (!t) { replace(box); return; }
    const focus = document.activeElement && document.activeElement.id;
    if (t.error) { replace(box, el("p", { class: "note" }, t.error)); return; }
    const f = t.found;
    if (!f) { replace(box, el("p", { class: "soft" }, "Asking the rules ...")); return; }
    const what = {
      space: e.space, proposed: t.action, executed: f.executed ?? t.action, mask: f.masks && f.masks[0], intervals: f.intervals && f.intervals[0], polygon: f.polygon,
      pick: (action) => this.attempt(action), current: () => this.trying.action,
    };
    replace(box, el("h3", {}, "Try it: what would the rules say here?"), el("p", { class: "verdictline" }, chip(f.status), " ", sentence(f, e.enforced)), actionPicture(what),
      Object.entries(f.margins).map(([r, m]) => el("div", { class: `rulerow ${isNumber(m) && m < 0 ? "broken" : ""}` }, el("i", { class: "key", colour: colour(e.rules.indexOf(r) + 3) }), el("span", {}, r), el("b", {}, isNumber(m) ? number(m) : "not asked"))),
      el("p", { class: "caption" }, "Asked of the run's own rules in this state. Nothing is executed or saved."));
    const again = focus && document.getElementById(focus);
    if (again) again.focus();
  },

  // --- keeping a moment ----------------------------------------------------------------------------------

  async compose(t, canvas) {
    const e = this.data, s = e.steps, image = e.drawn ? await this.frame(t) : null;
    const scale = image ? Math.max(1, Math.floor(480 / image.width)) : 1, w = image ? image.width * scale : 480, h = image ? image.height * scale : 0;
    const status = STATUS[s.status[t]], style = getComputedStyle(document.documentElement), tint = (name) => style.getPropertyValue(name).trim();
    const v = this.verdict(t), wide = Math.max(w, 420);
    canvas.width = wide + (wide % 2);
    canvas.height = h + 104 + (h % 2);
    const pen = canvas.getContext("2d");
    pen.fillStyle = tint("--card");
    pen.fillRect(0, 0, canvas.width, canvas.height);
    pen.imageSmoothingEnabled = false;
    if (image) pen.drawImage(image, 0, 0, w, h);
    if (s.status[t]) { pen.strokeStyle = tint(`--${status}`); pen.lineWidth = 6; pen.strokeRect(3, 3, w - 6, Math.max(h - 6, 0)); }
    pen.fillStyle = tint("--ink");
    pen.font = "600 14px system-ui, sans-serif";
    pen.fillText(`${this.name} · ${this.title()} · step ${t}`.slice(0, 62), 10, h + 22);
    pen.font = "13px system-ui, sans-serif";
    pen.fillText(`${status}${s.status[t] ? `: ${actionName(e.space, s.proposed[t])} → ${actionName(e.space, s.executed[t])}` : `: ${actionName(e.space, s.executed[t])}`}`.slice(0, 70), 10, h + 44);
    pen.fillStyle = tint("--soft");
    const words = sentence(v, e.enforced).split(" "), lines = [""];
    for (const word of words) { if ((lines.at(-1) + word).length > canvas.width / 7) lines.push(""); lines[lines.length - 1] += `${word} `; }
    lines.slice(0, 3).forEach((text, i) => pen.fillText(text, 10, h + 64 + 17 * i));
    return canvas;
  },

  async savePicture() {
    const canvas = await this.compose(this.step, el("canvas"));
    canvas.toBlob((blob) => save(blob, `${fileName(this.name)}-step-${this.step}.png`), "image/png");
  },

  async saveClip() {
    const from = Math.max(0, this.step - 24), to = Math.min(this.data.length - 1, this.step + 24), button = document.getElementById("clip");
    button.disabled = true;
    const canvas = await this.compose(from, el("canvas"));
    const recorder = new MediaRecorder(canvas.captureStream(), { mimeType: "video/webm" }), parts = [];
    recorder.ondataavailable = (event) => parts.push(event.data);
    recorder.onstop = () => { save(new Blob(parts, { type: "video/webm" }), `${fileName(this.name)}-steps-${from}-${to}.webm`); button.disabled = false; button.textContent = "Save clip"; };
    for (let t = from; t <= to; t++) { await this.frame(t); button.textContent = `loading ${t - from}/${to - from}`; }
    recorder.start();
    for (let t = from; t <= to; t++) { await this.compose(t, canvas); await new Promise((done) => setTimeout(done, 1000 / 12)); }
    recorder.stop();
  },

  async copyLink() {
    const button = document.getElementById("link");
    try { await navigator.clipboard.writeText(location.href); button.textContent = "Copied"; } catch { button.textContent = "It is in the address bar"; }
    setTimeout(() => { button.textContent = "Copy link"; }, 2000);
  },

  // Where the episode cannot be replayed: what the audit has recorded of its corrections.
  drawRecorded(root) {
    const found = this.data.recorded;
    replace(root,
      el("div", { class: "head" }, el("h1", {}, this.title()), el("p", { class: "about" }, `${plural(this.data.length, "step")}, ${plural(found.length, "recorded correction")}`), el("p", { class: "note" }, `No replay: ${this.data.why.replace(/[.]$/, "")}. What follows is the audit's record of each correction.`)),
      el("div", { class: "scroll" }, el("table", {}, el("thead", {}, el("tr", {}, ["step", "status", "proposed", "executed", "distance", "margins"].map((t) => el("th", { scope: "col" }, t)))),
        el("tbody", {}, found.slice(0, 1000).map((c) => el("tr", {}, el("td", {}, number(c.t)), el("td", {}, chip(STATUS.includes(c.status) ? c.status : "stopped")), el("td", {}, shownAction(c.proposed)), el("td", {}, shownAction(c.executed)), el("td", {}, number(c.distance)),
          el("td", {}, c.reason || Object.entries(c.margins || {}).map(([r, m]) => `${r} ${number(m)}`).join(", "))))))));
  },

  keydown(event) {
    if (this.data === null || this.data.recorded || event.ctrlKey || event.metaKey || event.altKey) return;
    const target = event.target, typing = target.tagName === "INPUT" && target.type !== "checkbox" && !target.classList.contains("scrub");
    if (typing || target.tagName === "SELECT") return;
    const far = event.shiftKey ? 10 : 1;
    const keys = {
      ArrowLeft: () => this.go(this.step - far), ArrowRight: () => this.go(this.step + far), Home: () => this.go(0), End: () => this.go(this.data.length - 1),
      " ": () => this.toggle(), n: () => this.jump(1), p: () => this.jump(-1), t: () => DATA.try && this.toggleTry(), s: () => this.savePicture(),
      "?": () => { const help = document.querySelector(".help"); help.open = !help.open; },
    };
    for (const [kind, k] of Object.entries(KINDS)) keys[k.key] = () => { this.kind = kind; this.draw(this.root); this.jump(1); };
    if (event.key === " " && target.tagName === "BUTTON") return;
    const act = keys[event.key];
    if (act) { event.preventDefault(); act(); }
  },
};

const shownAction = (a) => (Array.isArray(a) ? `(${a.map((v) => number(v)).join(", ")})` : String(a ?? "–"));
const fileName = (name) => name.replace(/[^A-Za-z0-9._-]+/g, "-").slice(0, 60);

// At most about 1,500 points, of each bucket the least and the largest.
function thin(x, y) {
  const size = Math.ceil(x.length / 750);
  if (size < 3) return { x: x.slice(0, y.length), y };
  const out = { x: [], y: [] };
  for (let i = 0; i < y.length; i += size) {
    let low = -1, high = -1;
    for (let j = i; j < Math.min(i + size, y.length); j++) {
      if (!isNumber(y[j])) continue;
      if (low < 0 || y[j] < y[low]) low = j;
      if (high < 0 || y[j] > y[high]) high = j;
    }
    for (const j of [...new Set([low, high])].filter((v) => v >= 0).sort((a, b) => a - b)) { out.x.push(x[j]); out.y.push(y[j]); }
  }
  return out;
}
