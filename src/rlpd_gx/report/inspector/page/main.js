// Which view is shown, and when it is shown again.

const App = {
  root: document.getElementById("app"), main: null, bar: null, shown: null, turn: 0, busy: false, again: false, version: null,

  begin() {
    this.bar = el("nav", { "aria-label": "where you are" });
    this.state = el("span", { class: "live", role: "status" }, LIVE ? "connecting" : "saved file");
    this.main = el("main", { id: "main" });
    replace(this.root, el("header", {}, this.bar, this.state), this.main);
    addEventListener("hashchange", () => this.load());
    addEventListener("keydown", (event) => { if (route().view === "episode") EpisodeView.keydown(event); });
    if (LIVE) this.listen();
    this.load();
  },

  // Fetch what the address asks for, then show it; who navigates on does not wait for it.
  async load({ quiet = false } = {}) {
    if (quiet && this.busy) { this.again = true; return; }
    const turn = ++this.turn, at = route(), moved = this.shown !== location.hash;
    const view = { overview: Overview, run: RunView, episode: EpisodeView }[at.view];
    this.busy = true;
    if (!quiet && moved) {
      EpisodeView.stop();
      this.trail(at);
      if (view === EpisodeView && EpisodeView.loaded !== JSON.stringify([at.name, at.key])) {
        replace(this.main, el("p", { class: "waiting" }, "Replaying the episode. The first one of a run takes a while: policy, rules and environment are loaded in a process of their own."));
      }
    }
    try {
      const loaded = await view.load(at);
      if (turn !== this.turn) return;
      Object.assign(view, loaded);
      this.show({ top: !quiet && moved, keep: document.activeElement && document.activeElement.id });
    } catch (error) {
      if (turn !== this.turn) return;
      replace(this.main, el("p", { class: "note" }, error.message), el("p", {}, el("a", { href: view === EpisodeView ? runPath(at.name) : "#/" }, view === EpisodeView ? "back to the run" : "back to all runs")));
    }
    this.shown = location.hash;
    this.busy = false;
    if (this.again) { this.again = false; this.load({ quiet: true }); }
  },

  show({ top = false, keep = null } = {}) {
    const at = route();
    const open = [...this.main.querySelectorAll("details")].map((d) => d.open);
    const caret = keep && document.activeElement && document.activeElement.type === "search" ? document.activeElement.selectionStart : null;
    const scroll = window.scrollY;
    this.trail(at);
    if (at.view === "overview") {
      Overview.draw(this.main, at.query);
      const of = at.query.get("of");
      if (of && of !== Overview.of && Overview.data.overlays.includes(of)) this.load({ quiet: true });
    } else if (at.view === "run") RunView.draw(this.main);
    else EpisodeView.draw(this.main);
    if (top) window.scrollTo(0, 0);
    else {
      [...this.main.querySelectorAll("details")].forEach((d, i) => { d.open = open[i] || false; });
      window.scrollTo(0, scroll);
      const again = keep && document.getElementById(keep);
      if (again) { again.focus({ preventScroll: true }); if (caret !== null && again.setSelectionRange) again.setSelectionRange(caret, caret); }
    }
    document.title = ["rlpd-gx inspector", at.name].filter(Boolean).join(" · ");
  },

  trail(at) {
    const parts = [el("a", { href: "#/", class: "home" }, "inspector")];
    if (at.name) parts.push(el("a", { href: runPath(at.name) }, at.name));
    if (at.view === "episode") parts.push(el("span", {}, "episode"));
    replace(this.bar, parts.map((part, i) => [i ? el("span", { class: "soft" }, " / ") : null, part]));
  },

  // A hidden page does not listen: a browser keeps few connections to one server.
  listen() {
    let source = null, waiting = 0;
    const tell = (text, on) => { this.state.textContent = text; this.state.classList.toggle("on", on); };
    const open = () => {
      source = new EventSource("api/events");
      source.onmessage = (event) => {
        tell("live", true);
        // The first message counts too: what was loaded may be older than the connection.
        const same = event.data === this.version;
        this.version = event.data;
        if (same || route().view === "episode") return; // an episode does not change
        clearTimeout(waiting);
        waiting = setTimeout(() => this.load({ quiet: true }), 150);
      };
      source.onerror = () => tell("not connected: is `rlpd-gx watch` running?", false);
    };
    document.addEventListener("visibilitychange", () => {
      if (document.visibilityState === "hidden") { source?.close(); source = null; } else if (!source) open();
    });
    open();
  },
};

App.begin();
