// One run: curves, what the guard did, the episodes, and what was asked.

const LEARNING = {
  critic_loss: "Critic loss", actor_loss: "Actor loss", q_mean: "Mean Q of the batch", td_error: "TD error",
  entropy: "Entropy of the policy", alpha: "Temperature alpha",
};
const RATES = [["near_misses_rate", "near misses", 2, ""], ["forbidden_proposals_rate", "forbidden proposals", 1, ""], ["corrections_rate", "corrections", 0, "dashed"]];

const COUNTS = {
  forbidden_proposals: "Forbidden actions proposed", near_misses: "Near misses proposed", corrections: "Corrections", forbidden_executed: "Forbidden actions executed",
  inevitable: "inevitable: no action was allowed", fallback: "Fallbacks", stopped: "Stopped: nothing could be executed", unsafe_events: "Unsafe events",
};

const RunView = {
  run: null, episodeFilter: "all", page: 0,

  async load({ name }) {
    return { run: await ask("run", { name }) };
  },

  draw(root) {
    const r = this.run;
    replace(root,
      el("div", { class: "head" },
        el("h1", {}, r.name),
        el("p", { class: "about" }, chip(r.status), " ", [r.env, r.preset, `guard ${r.guard}`, isNumber(r.seed) ? `seed ${r.seed}` : ""].filter(Boolean).join(" · ")),
        progress(r)),
      r.notes.map((note) => el("p", { class: "note" }, note)),
      this.tiles(r),
      section("Return", el("div", { class: "pair" }, this.evaluations(r), this.training(r))),
      section("Guard", this.guard(r)),
      section("Episodes", this.episodes(r)),
      section("Schedules and replay", this.data(r)),
      section("Learning", this.learning(r)),
      section("Run again", this.settings(r)),
    );
  },

  tiles(r) {
    const returns = r.last_evaluation.returns || [];
    const total = r.step || 1;
    const tiles = [
      ["Return", number(r.score), returns.length ? `${plural(returns.length, "evaluation episode")}, ${number(Math.min(...returns))} to ${number(Math.max(...returns))}` : "no evaluation yet"],
      ["Forbidden executed", r.guard === "no rules" ? "no rules" : number(r.forbidden_executed), r.guard === "no rules" ? "" : `${number(r.inevitable)} inevitable (no action was allowed)${r.guard === "none" ? "; the guard only watched" : ""}`],
      ["Unsafe events", r.watched === false ? "not watched" : number(r.unsafe_events), r.watched === false ? "the rules' module defines no unsafe_event" : isNumber(r.bound) && r.watched ? `at most ${percent(r.bound)} of episodes (95%), if they were independent` : isNumber(r.unsafe_events) ? `${number(Number(((1000 * r.unsafe_events) / total).toPrecision(3)))} per 1,000 steps` : ""],
      ["Corrections", unguarded(r) ? "no guard" : number(r.corrections), unguarded(r) ? `${number(r.forbidden_proposals)} forbidden proposals` : `${percent(r.corrections / total)} of steps`],
      ["Steps", number(r.step), r.steps ? `of ${number(r.steps)}; ${plural(r.episodes, "episode")}` : ""],
      ["Time", r.seconds && isNumber(r.seconds.total) ? duration(r.seconds.total) : "–", r.seconds ? "on the clock" : "known when the run ends"],
    ];
    return el("dl", { class: "tiles" }, tiles.map(([name, value, note]) => el("div", { class: "tile" }, el("dt", {}, name), el("dd", {}, value), el("p", {}, note))));
  },

  evaluations(r) {
    const dots = { name: "one episode", kind: "dots", x: [], y: [], colour: colour(0) };
    for (const e of r.evaluations) for (const v of e.returns) { dots.x.push(e.step); dots.y.push(v); }
    const mean = { name: "mean", ...(r.series["evaluation/mean"] || { x: [], y: [] }), colour: colour(0) };
    return figure("Evaluation return", null, { series: [mean, dots], empty: "No evaluation yet.", last: r.step });
  },

  training(r) {
    const raw = r.series["episode/return"] || { x: [], y: [] };
    const dots = { x: raw.x, y: raw.y, name: raw.per ? `mean of ${raw.per} episodes` : "one episode", kind: "dots", colour: colour(1) };
    return figure("Training return", null, {
      series: [{ ...smoothed(raw), name: "mean of the last 12", colour: colour(1) }, dots], empty: "No training episode has ended yet.", last: r.step,
      pick: (step) => this.open(step),
    });
  },

  guard(r) {
    if (r.guard === "no rules") return el("p", { class: "empty" }, "This run has no rules.");
    const many = r.audits.length > 1;
    const rate = (name) => r.series[`train/${name}`] || { x: [], y: [] };
    const same = JSON.stringify(rate("corrections_rate").y) === JSON.stringify(rate("forbidden_proposals_rate").y);
    const rates = RATES.filter(([name]) => !((same || unguarded(r)) && name === "corrections_rate")).map(([name, text, c, kind]) => {
      const all = same && !unguarded(r) && name === "forbidden_proposals_rate";
      return { x: rate(name).x, y: rate(name).y, name: all ? `${text}, which are the corrections` : text, colour: colour(c), kind };
    });
    const unsafeAt = r.episode_list.step.filter((_, i) => r.episode_list.unsafe[i]);
    const names = [...new Set(r.audits.flatMap((a) => Object.keys(a.timeline.counts)))];
    const colours = Object.fromEntries(names.map((n, i) => [n, colour(i + 3)]));
    const key = names.map((n) => ({ name: n, colour: colours[n], kind: "bar" }));
    const verb = unguarded(r) ? "forbidden proposals" : "corrections";
    const bars = r.audits.map((a, i) => figure(`${unguarded(r) ? "Forbidden proposals" : "Corrections"} by rule${many ? `, environment ${i}` : ""}`,
      i ? null : `Each bar counts ${verb} in ${number(a.timeline.width)} proposals, under every rule that the proposal broke. Click to open that moment.`,
      { series: [], bars: { ...a.timeline, colours }, legend: key, empty: "No correction was recorded.", xLabel: "proposals", pick: (step) => this.open(step, i) }));
    const distances = sumHistograms(r.audits.map((a) => a.distances));
    return [
      figure("Guard timeline", "Fractions of the policy's proposals since the row before. Triangles: episodes with an unsafe event. Click to open an episode.",
        { series: rates, percent: true, marks: unsafeAt.slice(-400), last: r.step, empty: "No rates were measured yet.", pick: (step) => this.open(step) }),
      el("div", { class: "pair" }, bars[0], figure("How far actions were moved", "Distance from the proposal to the executed action, in the units of the action space (or its embedding).",
        { series: [], bars: { ...distances, colours }, legend: key, xLabel: "distance", empty: "No distance was recorded." })),
      bars.slice(1, 8),
      this.rules(r, colours),
      this.counts(r),
    ];
  },

  // What was not looked for is not shown as none.
  counts(r) {
    const phases = [["training", Object.keys(r.training).length ? r.training : r], ["last evaluation", r.last_evaluation]].filter(([, counts]) => Object.keys(counts).length);
    const cell = (counts, name) => (name === "unsafe_events" && r.watched === false ? "not watched" : ["corrections", "fallback"].includes(name) && unguarded(r) ? "no guard" : number(counts[name]));
    return [
      el("h3", {}, "Counts"),
      el("div", { class: "scroll" }, el("table", { id: "counts" },
        el("thead", {}, el("tr", {}, el("th", {}), phases.map(([name]) => el("th", { scope: "col", class: "num" }, name === "training" && !Object.keys(r.training).length ? "training so far" : name)))),
        el("tbody", {}, Object.entries(COUNTS).map(([name, text]) => el("tr", {}, el("th", { scope: "row" }, text), phases.map(([, counts]) => el("td", { class: "num" }, cell(counts, name)))))))),
    ];
  },

  rules(r, colours) {
    const rules = {};
    for (const a of r.audits) for (const rule of a.rules) {
      const sum = (rules[rule.name] ||= { blocked: 0, depth: 0, deepest: 0, near: 0 });
      sum.blocked += rule.blocked;
      sum.depth += (rule.mean || 0) * rule.blocked;
      sum.deepest = Math.max(sum.deepest, rule.deepest);
      sum.near += rule.near_misses || 0;
    }
    const reasons = Object.entries(Object.assign({}, ...r.audits.map((a) => a.reasons)));
    return [
      el("h3", {}, "Rules"),
      el("div", { class: "scroll" }, el("table", {},
        el("thead", {}, el("tr", {}, ["rule", "proposals it forbade", "broken by, on average", "at most", "near misses"].map((t, i) => el("th", { scope: "col", class: i ? "num" : "" }, t)))),
        el("tbody", {}, Object.entries(rules).map(([name, s]) => el("tr", {},
          el("th", { scope: "row" }, el("i", { class: "key bar", colour: colours[name] || "var(--soft)" }), name),
          [s.blocked, s.blocked ? s.depth / s.blocked : null, s.blocked ? s.deepest : null, s.near].map((v) => el("td", { class: "num" }, number(v)))))))),
      el("p", { class: "caption" }, "Margins are in each rule's own units."),
      reasons.length ? [el("h3", {}, "Failures"), el("ul", {}, reasons.map(([text, n]) => el("li", {}, `${number(n)} × ${text}`)))] : null,
    ];
  },

  // The training episode that covers a step, at that step; of one environment, steps are the proposals of its audit.
  open(step, env = null) {
    const list = this.run.episode_list, count = this.run.config.num_envs || 1;
    const target = env === null ? step / count : step;
    const firsts = env === null ? list.first : list.first_proposal, stops = (i) => (env === null ? 0 : list.stopped[i]);
    const place = firsts.findIndex((first, i) => (env === null || list.env[i] === env) && list.length[i] > 0 && target >= first && target < first + list.length[i] + stops(i));
    if (place >= 0) location.hash = episodePath(this.run.name, this.key(place), Math.min(Math.floor(target - firsts[place]), list.length[place] - 1)).slice(1);
  },

  key(place) {
    const list = this.run.episode_list;
    return { kind: "training", env: list.env[place], first: list.first[place], length: list.length[place] };
  },

  episodes(r) {
    const list = r.episode_list, size = 12;
    const returns = r.last_evaluation.returns || [];
    const evaluation = LIVE && r.replay.step !== undefined ? el("div", { class: "picks" },
      returns.map((v, i) => el("a", { class: "pickone", href: episodePath(r.name, { kind: "evaluation", index: i }) }, el("b", {}, number(v)), el("small", {}, `evaluation ${i + 1}`)))) : null;
    const wanted = { all: () => true, corrections: (i) => list.corrections[i] > 0, unsafe: (i) => list.unsafe[i] > 0 }[this.episodeFilter];
    const found = list.step.map((_, i) => i).filter(wanted).reverse();
    this.page = Math.min(this.page, Math.max(0, Math.ceil(found.length / size) - 1));
    const again = (changes) => { Object.assign(this, changes); App.show(); };
    const filters = [["all", "all"], ["corrections", "with corrections"], ["unsafe", "with unsafe events"]];
    const rows = found.slice(this.page * size, (this.page + 1) * size);
    return [
      el("h3", {}, "Evaluation episodes"),
      evaluation && returns.length ? [evaluation, el("p", { class: "caption" }, `Played again by the policy saved at step ${number(r.replay.step)}, with pictures.`)]
        : el("p", { class: "empty" }, LIVE ? "No evaluation has a saved policy yet." : "Start `rlpd-gx watch` to replay them."),
      el("h3", {}, "Training episodes"),
      el("div", { class: "controls" }, filters.map(([key, text]) => el("button", { class: this.episodeFilter === key ? "on" : "", "aria-pressed": String(this.episodeFilter === key), onclick: () => again({ episodeFilter: key, page: 0 }) }, text)),
        el("span", { class: "soft" }, `${number(found.length)} of the last ${number(list.step.length)}`)),
      rows.length ? el("div", { class: "scroll" }, el("table", { class: "episodes" },
        el("thead", {}, el("tr", {}, ["ended at step", "return", "length", "corrections", "unsafe events"].map((t) => el("th", { scope: "col", class: "num" }, t)))),
        el("tbody", {}, rows.map((i) => el("tr", {},
          el("td", { class: "num" }, list.length[i] > 0 && this.viewable(r, i) ? el("a", { href: episodePath(r.name, this.key(i)) }, number(list.step[i])) : number(list.step[i])),
          [list.return[i], list.length[i], list.corrections[i], r.watched === false ? "not watched" : list.unsafe[i]].map((v) => el("td", { class: "num" }, isNumber(v) ? number(v) : v))))))) : el("p", { class: "empty" }, "There is none."),
      found.length > size ? el("div", { class: "controls" },
        el("button", { disabled: this.page === 0, onclick: () => again({ page: this.page - 1 }) }, "newer"),
        el("button", { disabled: (this.page + 1) * size >= found.length, onclick: () => again({ page: this.page + 1 }) }, "older")) : null,
    ];
  },

  viewable(r, i) {
    const k = this.key(i);
    return LIVE || Boolean((DATA.recorded[r.name] || {})[`${k.env}-${k.first}-${k.length}`]);
  },

  data(r) {
    const replay = r.replay, drawn = replay.drawn || {};
    const small = (name, title, caption, more = {}) => figure(title, caption, { series: [{ name: title, ...(r.series[`train/${name}`] || { x: [], y: [] }) }], height: 150, last: r.step, ...more });
    const facts = replay.step === undefined ? el("p", { class: "empty" }, "There is no checkpoint yet.") : el("table", {}, el("tbody", {}, [
      ["online steps held", `${number(replay.steps)} of at most ${number(replay.capacity)}`],
      ["on disk", `${bytes(replay.bytes)} in ${plural(replay.files, "segment")}`],
      ["offline data", r.config.offline || "none"],
      ["rows drawn, online", number(drawn.online)], ["rows drawn, offline", number(drawn.offline)],
      ["online rows missing, filled from offline", number(drawn.missing_online)],
      ["updates", number(replay.updates)],
    ].map(([k, v]) => el("tr", {}, el("th", { scope: "row" }, k), el("td", { class: "num" }, v)))));
    return el("div", { class: "pair three" },
      small("online_ratio", "Online fraction (DSS)", "As it was used, at each row of metrics.", { percent: true }),
      small("interval", "Interval in steps (DTS)", null, { zero: true }),
      el("div", {}, el("h3", {}, replay.step === undefined ? "Replay" : `Replay at step ${number(replay.step)}`), facts));
  },

  learning(r) {
    const names = Object.keys(r.series).filter((n) => n.startsWith("train/")).map((n) => n.slice(6)).filter((n) => !n.endsWith("_rate") && !["online_ratio", "interval"].includes(n));
    if (!names.length) return el("p", { class: "empty" }, "No row of training metrics was logged yet.");
    const first = Object.keys(LEARNING).filter((n) => names.includes(n));
    const rest = names.filter((n) => !first.includes(n)).sort();
    const small = (n) => figure(LEARNING[n] || words(n), null, { series: [{ name: words(n), ...r.series[`train/${n}`] }], height: 150, last: r.step });
    return [el("div", { class: "pair three" }, first.map(small)), rest.length ? el("details", {}, el("summary", {}, `${rest.length} more`), el("div", { class: "pair three" }, rest.map(small))) : null];
  },

  settings(r) {
    const table = (values) => el("dl", { class: "settings" }, Object.entries(values).map(([k, v]) => el("div", {}, el("dt", {}, words(k)), el("dd", {}, typeof v === "object" && v ? JSON.stringify(v) : String(v)))));
    const { command, ...config } = r.config;
    return [
      r.command ? el("pre", { class: "command" }, r.command) : el("p", { class: "empty" }, "The command is not known."),
      el("details", {}, el("summary", {}, "Settings"), table(config)),
      el("details", {}, el("summary", {}, "Versions"), table(r.versions)),
    ];
  },
};

const section = (title, ...content) => el("section", {}, el("h2", {}, title), content);

function sumHistograms(parts) {
  const width = Math.max(0, ...parts.map((p) => p.width));
  const counts = {};
  for (const p of parts) for (const [name, row] of Object.entries(p.counts)) {
    const target = (counts[name] ||= []);
    row.forEach((n, i) => { const place = Math.floor((i * p.width) / width + 1e-9); target[place] = (target[place] || 0) + n; });
  }
  for (const row of Object.values(counts)) for (let i = 0; i < row.length; i++) row[i] ||= 0;
  return { width, counts };
}
