// All runs of the folder: a table, and curves of those that are chosen, alone or as groups of seeds.

const Overview = {
  data: null, curves: null, of: null,

  async load({ query }) {
    const data = await ask("runs"), wanted = query.get("of");
    if (!location.hash && data.runs.length === 1) location.replace(runPath(data.runs[0].name));
    const of = data.overlays.includes(wanted) ? wanted : data.overlays[0];
    return { data, of, curves: await ask("overlay", { of }) };
  },

  draw(root, query) {
    const { runs } = this.data;
    const filter = (query.get("filter") || "").toLowerCase();
    const grouped = query.get("group") === "1";
    const sort = query.get("sort") || "name";
    const shown = runs.filter((r) => [r.name, r.env, r.guard, r.preset, r.status].join(" ").toLowerCase().includes(filter));
    shown.sort(ORDERS[sort] || ORDERS.name);
    const chosen = new Set((query.get("select") || "").split("|").filter(Boolean));
    const drawn = chosen.size ? shown.filter((r) => chosen.has(r.name)) : shown;
    const go = (changes) => this.go(query, changes);
    const counts = {};
    for (const r of runs) counts[r.status] = (counts[r.status] || 0) + 1;
    const field = el("input", {
      type: "search", id: "filter", placeholder: "Filter runs", "aria-label": "Filter runs", value: query.get("filter") || "",
      oninput: (e) => go({ filter: e.target.value }),
    });
    replace(root,
      el("div", { class: "head" },
        el("h1", {}, this.data.folder),
        el("p", { class: "about" }, plural(runs.length, "run"), this.data.unread ? `, ${number(this.data.unread)} more to read` : "", ...Object.entries(counts).map(([s, n]) => [" ", el("span", { class: `chip ${s}` }, `${n} ${s}`)]))),
      runs.length ? null : el("p", { class: "empty" }, "There is no run in this folder yet. This page shows one as soon as it begins."),
      el("div", { class: "controls" }, field,
        el("label", {}, "Curve ", el("select", { id: "of", onchange: (e) => go({ of: e.target.value }) },
          this.data.overlays.map((name) => el("option", { value: name, selected: name === this.of }, name)))),
        el("label", {}, el("input", { type: "checkbox", id: "group", checked: grouped, onchange: (e) => go({ group: e.target.checked ? "1" : "" }) }), " group by seed"),
        chosen.size ? el("button", { onclick: () => go({ select: "" }) }, `clear selection (${chosen.size})`) : runs.length > 1 ? el("span", { class: "soft" }, "select runs in the table to compare them") : null),
      runs.length ? this.figures(drawn, grouped, chosen.size) : null,
      runs.length ? this.table(shown, chosen, sort, go) : null,
      chosen.size > 1 ? this.comparison(drawn) : null,
    );
  },

  go(query, changes) {
    const next = new URLSearchParams(query);
    for (const [name, value] of Object.entries(changes)) {
      if (value) next.set(name, value); else next.delete(name);
    }
    const focus = document.activeElement && document.activeElement.id;
    history.replaceState(null, "", `#/?${next}`);
    App.show({ keep: focus });
  },

  // One chart for each environment: returns of different tasks share no scale.
  figures(runs, grouped, chosen) {
    let groups = [...groupBy(runs, (r) => r.env).entries()];
    const some = groups.filter(([, members]) => members.some((r) => this.curves[r.name] && this.curves[r.name].x.length));
    groups = some.length ? some : groups.slice(0, 1);
    if (groups.length === 1) return this.figure(groups[0][1], grouped, chosen, this.of);
    return el("div", { class: "pair" }, groups.slice(0, 8).map(([env, members]) => this.figure(members, grouped, chosen, `${this.of}, ${env}`)));
  },

  figure(runs, grouped, chosen, title) {
    const asPercent = this.of !== "Evaluation return" && this.of !== "Training return" && !this.of.startsWith("Unsafe");
    let series, caption;
    if (grouped) {
      const groups = groupBy(runs, (r) => r.group);
      series = [...groups.values()].map((members, i) => ({ ...band(members.map((r) => this.curves[r.name]).filter((c) => c && c.x.length)), name: `${members[0].preset} ${members[0].guard}: ${plural(members.length, "seed")}`, colour: colour(i) }));
      caption = "Mean over seeds; the band is the range from the lowest to the highest seed, not a confidence interval. Fewer than five seeds support no claim.";
    } else {
      const limit = 12;
      series = runs.slice(0, limit).map((r, i) => {
        const curve = this.curves[r.name] || { x: [], y: [] };
        const line = this.of === "Training return" ? smoothed(curve) : { x: curve.x, y: curve.y };
        return { ...line, name: r.name, colour: colour(i), kind: i >= COLOURS ? "dashed" : "" };
      });
      caption = runs.length > limit ? `The first ${limit} of ${runs.length} runs; select runs in the table, or group them.` : null;
      if (this.of === "Training return") caption = `Mean of the last 12 points. ${caption || ""}`;
    }
    return figure(title, caption, { series, percent: asPercent, height: 250, empty: `No run has a point of "${this.of}" yet.` });
  },

  table(runs, chosen, sort, go) {
    const head = (key, text, title) => el("th", { scope: "col", title, "aria-sort": sort === key ? "ascending" : null, class: ["name", "status"].includes(key) ? "" : "num" },
      el("button", { class: "plain", onclick: () => go({ sort: key }) }, text, sort === key ? " ↓" : ""));
    const toggle = (name) => {
      const next = new Set(chosen);
      if (!next.delete(name)) next.add(name);
      go({ select: [...next].join("|") });
    };
    return el("div", { class: "scroll" }, el("table", { class: "runs" },
      el("thead", {}, el("tr", {}, el("th", { scope: "col" }, el("span", { class: "hidden" }, "compare")), head("name", "run"), head("status", "status"), head("score", "return", "mean of the last evaluation"),
        el("th", { scope: "col" }, el("span", { class: "hidden" }, "curve")), head("corrections", "corrections"), head("unsafe", "unsafe events"),
        head("forbidden", "forbidden executed", "executed actions that broke a rule; inevitable: no action was allowed"))),
      el("tbody", {}, runs.map((r) => el("tr", { class: chosen.has(r.name) ? "chosen" : "" },
        el("td", { class: "pick" }, el("input", { type: "checkbox", id: `pick ${r.name}`, "aria-label": `compare ${r.name}`, checked: chosen.has(r.name), onchange: () => toggle(r.name) })),
        el("th", { scope: "row" }, el("a", { href: runPath(r.name) }, r.name), el("small", {}, [r.env, r.guard, isNumber(r.seed) ? `seed ${r.seed}` : ""].filter(Boolean).join(" · "))),
        el("td", { class: "state" }, chip(r.status), progress(r)),
        el("td", { class: "num", "data-label": "return" }, number(r.score)),
        el("td", { class: "curve" }, spark(r.spark, `returns of ${r.name}`)),
        el("td", { class: "num", "data-label": "corrections" }, corrections(r)),
        el("td", { class: "num", "data-label": "unsafe events" }, unsafe(r)),
        el("td", { class: "num", "data-label": "forbidden executed" }, forbidden(r)))))));
  },

  comparison(runs) {
    const rows = [
      ["status", (r) => r.status], ["guard", (r) => r.guard], ["preset", (r) => r.preset || "–"], ["seed", (r) => number(r.seed)],
      ["steps", (r) => `${number(r.step)} of ${number(r.steps)}`], ["return, last evaluation", (r) => number(r.score)],
      ["corrections", corrections], ["forbidden proposals", (r) => (r.guard === "no rules" ? "no rules" : number(r.forbidden_proposals))],
      ["near misses", (r) => (r.guard === "no rules" ? "no rules" : number(r.near_misses))], ["unsafe events", unsafe], ["forbidden executed", forbidden],
    ];
    return el("section", { id: "comparison" }, el("h2", {}, "Side by side"), el("div", { class: "scroll" }, el("table", {},
      el("thead", {}, el("tr", {}, el("th", {}), runs.map((r) => el("th", { scope: "col", class: "num" }, el("a", { href: runPath(r.name) }, r.name))))),
      el("tbody", {}, rows.map(([name, of]) => el("tr", {}, el("th", { scope: "row" }, name), runs.map((r) => el("td", { class: "num" }, of(r)))))))));
  },
};

const ORDERS = {
  name: (a, b) => a.name.localeCompare(b.name, "en", { numeric: true }),
  status: (a, b) => a.status.localeCompare(b.status) || ORDERS.name(a, b),
  score: (a, b) => (b.score ?? -Infinity) - (a.score ?? -Infinity),
  corrections: (a, b) => (b.corrections ?? -1) - (a.corrections ?? -1),
  unsafe: (a, b) => (b.unsafe_events ?? -1) - (a.unsafe_events ?? -1),
  forbidden: (a, b) => (b.forbidden_executed ?? -1) - (a.forbidden_executed ?? -1),
};

function groupBy(items, key) {
  const groups = new Map();
  for (const item of items) groups.set(key(item), [...(groups.get(key(item)) || []), item]);
  return groups;
}

// Mean and range of several curves at the steps that any of them has, as far as all of them reach.
function band(curves) {
  if (!curves.length) return { x: [], y: [] };
  const reach = Math.min(...curves.map((c) => c.x.at(-1)));
  const first = Math.max(...curves.map((c) => c.x[0]));
  let xs = [...new Set(curves.flatMap((c) => c.x))].filter((x) => x >= first && x <= reach).sort((a, b) => a - b);
  const every = Math.ceil(xs.length / 300);
  xs = xs.filter((_, i) => i % every === 0 || i === xs.length - 1);
  const at = curves.map((c) => xs.map((x) => between(c, x)));
  const column = (i) => at.map((values) => values[i]).filter(isNumber);
  const y = xs.map((_, i) => column(i).reduce((a, b) => a + b, 0) / column(i).length);
  if (curves.length === 1) return { x: xs, y };
  return { x: xs, y, low: xs.map((_, i) => Math.min(...column(i))), high: xs.map((_, i) => Math.max(...column(i))) };
}

function between(curve, x) {
  const right = curve.x.findIndex((v) => v >= x);
  if (right <= 0) return right === 0 ? curve.y[0] : curve.y.at(-1);
  const [a, b] = [curve.x[right - 1], curve.x[right]], share = (x - a) / (b - a || 1);
  return curve.y[right - 1] * (1 - share) + curve.y[right] * share;
}

function progress(r) {
  const share = r.steps ? Math.min(r.step / r.steps, 1) : 0;
  return el("span", { class: "progress", title: `${number(r.step)} of ${number(r.steps)} steps` },
    el("i", { "width%": 100 * share }), el("b", {}, r.steps ? `${number(r.step)} / ${number(r.steps)}` : number(r.step)));
}

const unguarded = (r) => r.guard === "none" || r.guard === "no rules";
const corrections = (r) => (unguarded(r) ? "no guard" : [number(r.corrections), r.step ? el("small", {}, percent(r.corrections / r.step)) : ""]);
const unsafe = (r) => (r.watched === false ? "not watched" : isNumber(r.unsafe_events) ? [number(r.unsafe_events), r.watched === null ? el("small", {}, "none seen") : ""] : "–");
const forbidden = (r) => (r.guard === "no rules" ? "no rules" : [number(r.forbidden_executed), el("small", {}, `${number(r.inevitable)} inevitable`)]);
