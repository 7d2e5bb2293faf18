// Charts as SVG, redrawn at the width they have; hovering shows the values, a click picks a step.

const PAD = { left: 52, right: 22, top: 10, bottom: 30 };

function ticks(low, high, count) {
  const largest = Math.max(Math.abs(low), Math.abs(high));
  if (high - low <= 1e-9 * largest || high === low) {
    const room = largest / 10 || 1;
    low -= room;
    high += room;
  }
  const raw = (high - low) / count, size = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((f) => f * size).find((s) => s >= raw * 0.999);
  const found = [];
  for (let n = Math.floor(low / step + 1e-9); n <= Math.ceil(high / step - 1e-9); n++) found.push(n * step);
  return found;
}

function short(v, asPercent) {
  if (asPercent) return `${Number((100 * v).toPrecision(4))}%`;
  const size = Math.abs(v);
  if (size >= 1e6) return `${Number((v / 1e6).toPrecision(3))}M`;
  if (size >= 1e4) return `${Number((v / 1e3).toPrecision(3))}k`;
  return size && size < 1e-3 ? v.toExponential(0) : String(Number(v.toPrecision(4)));
}

// spec: {label, height, percent, zero, xLabel, last, series: [{name, x, y, low, high, colour, kind}], bars, marks, cursor, pick}
function chart(spec) {
  const box = el("div", { class: "chart" });
  const draw = () => {
    const width = Math.round(box.clientWidth);
    if (width) box.replaceChildren(drawChart(spec, width));
  };
  new ResizeObserver(draw).observe(box);
  box.redraw = draw;
  return box;
}

function drawChart(spec, width) {
  const height = spec.height || 200, { left, right, top, bottom } = PAD;
  const floor = height - bottom, bars = spec.bars;
  const shown = spec.series.filter((s) => s.x.length);
  const values = shown.flatMap((s) => [s.y, s.low || [], s.high || []].flat()).filter(isNumber);
  const totals = bars ? stackTotals(bars) : [];
  values.push(...totals);
  if (!values.length) return el("p", { class: "empty" }, spec.empty || "Nothing to show yet.");
  if (spec.zero || spec.percent || bars) values.push(0);
  let low = Infinity, high = -Infinity;
  for (const v of values) { low = Math.min(low, v); high = Math.max(high, v); }
  if (spec.percent) high = Math.max(high, 0.01);
  const lastX = spec.last || Math.max(1e-12, ...shown.map((s) => s.x.at(-1)), bars ? bars.width * totals.length : 0);
  const yTicks = ticks(low, high, height > 150 ? 5 : 3), xTicks = ticks(0, lastX, width > 500 ? 6 : 3);
  const x = (v) => left + (v / lastX) * (width - left - right);
  const y = (v) => floor - ((v - yTicks[0]) / (yTicks.at(-1) - yTicks[0])) * (floor - top);
  const picture = svg("svg", { width, height, role: "img", "aria-label": summary(spec, shown) });
  if (spec.zero && low < 0) {
    picture.append(svg("rect", { class: "forbidden", x: left, width: width - left - right, y: y(0), height: floor - y(0) }));
  }
  for (const t of yTicks) {
    picture.append(
      svg("line", { class: t === 0 && spec.zero ? "zero" : "grid", x1: left, x2: width - right, y1: y(t), y2: y(t) }),
      svg("text", { class: "end", x: left - 7, y: y(t) + 4 }, short(t, spec.percent)),
    );
  }
  for (const t of xTicks) {
    if (t <= lastX * 1.0001) picture.append(svg("text", { class: "middle", x: x(t), y: floor + 15 }, short(t)));
  }
  picture.append(svg("text", { class: "middle soft", x: (left + width - right) / 2, y: height - 2 }, spec.xLabel || "environment steps"));
  if (bars) drawBars(picture, bars, totals.length, x, y, spec);
  shown.forEach((s, i) => drawSeries(picture, s, s.colour || colour(i), x, y));
  for (const mark of spec.marks || []) {
    picture.append(svg("path", { class: "mark", d: `M${x(mark)} ${floor - 8} l4 8 h-8 z` }, svg("title", {}, `unsafe event, step ${number(mark)}`)));
  }
  const cursor = svg("line", { class: "cursor", y1: top, y2: floor, x1: -9, x2: -9 });
  picture.append(cursor);
  if (isNumber(spec.cursor)) { cursor.setAttribute("x1", x(spec.cursor)); cursor.setAttribute("x2", x(spec.cursor)); }
  hover(picture, spec, shown, { left, right, floor, width, lastX, bars });
  return picture;
}

function drawSeries(picture, s, tint, x, y) {
  const style = { colour: tint };
  if (s.low) {
    const up = s.x.map((v, i) => `${x(v).toFixed(1)},${y(s.high[i] ?? s.y[i]).toFixed(1)}`);
    const down = s.x.map((v, i) => `${x(v).toFixed(1)},${y(s.low[i] ?? s.y[i]).toFixed(1)}`).reverse();
    picture.append(svg("polygon", { ...style, class: "band", points: [...up, ...down].join(" ") }));
  }
  if (s.kind === "dots" || s.x.length === 1) {
    const dots = s.x.map((v, i) => isNumber(s.y[i]) && svg("circle", { cx: x(v).toFixed(1), cy: y(s.y[i]).toFixed(1), r: s.kind === "dots" ? 2.4 : 4 }));
    picture.append(svg("g", { ...style, class: "dots" }, dots));
    return;
  }
  let path = "", pen = "M";
  s.x.forEach((v, i) => {
    if (!isNumber(s.y[i])) { pen = "M"; return; }
    path += `${pen}${x(v).toFixed(1)} ${y(s.y[i]).toFixed(1)}`;
    pen = "L";
  });
  picture.append(svg("path", { ...style, class: `line ${s.kind || ""}`, d: path }));
}

const stackTotals = (bars) => {
  const rows = Object.values(bars.counts), length = Math.max(0, ...rows.map((r) => r.length));
  return Array.from({ length }, (_, i) => rows.reduce((sum, r) => sum + (r[i] || 0), 0));
};

function drawBars(picture, bars, count, x, y, spec) {
  const below = new Array(count).fill(0);
  Object.entries(bars.counts).forEach(([name, row], place) => {
    const tint = bars.colours ? bars.colours[name] : colour(place);
    const group = svg("g", { class: "bars", colour: tint });
    row.forEach((n, i) => {
      if (!n) return;
      const from = x(i * bars.width), to = x((i + 1) * bars.width);
      group.append(svg("rect", { x: from, width: Math.max(to - from - (to - from > 4 ? 1 : 0), 0.6), y: y(below[i] + n), height: Math.max(y(below[i]) - y(below[i] + n), 0) }));
      below[i] += n;
    });
    picture.append(group);
  });
}

function hover(picture, spec, shown, at) {
  const tip = svg("g", { class: "tip", visibility: "hidden" });
  picture.append(tip);
  const value = (event) => {
    const place = event.clientX - picture.getBoundingClientRect().left;
    return ((place - at.left) / (at.width - at.left - at.right)) * at.lastX;
  };
  picture.addEventListener("pointermove", (event) => {
    const here = value(event);
    if (here < 0 || here > at.lastX) { tip.setAttribute("visibility", "hidden"); return; }
    const lines = [];
    if (at.bars) {
      const bin = Math.floor(here / at.bars.width);
      lines.push(`${short(bin * at.bars.width)} to ${short((bin + 1) * at.bars.width)}`);
      for (const [name, row] of Object.entries(at.bars.counts)) if (row[bin]) lines.push(`${name}: ${number(row[bin])}`);
    } else {
      let step = null;
      for (const s of shown.slice(0, 9)) {
        const i = nearest(s.x, here);
        step ??= s.x[i];
        lines.push(`${s.name}: ${spec.percent ? percent(s.y[i]) : number(s.y[i])}`);
      }
      lines.unshift(`step ${number(Math.round(step))}`);
    }
    const wide = Math.max(...lines.map((l) => l.length)) * 6.1 + 14, tall = lines.length * 15 + 8;
    const px = at.left + (here / at.lastX) * (at.width - at.left - at.right);
    const left = Math.max(2, px + wide + 14 > at.width ? px - wide - 10 : px + 10);
    tip.replaceChildren(
      svg("line", { class: "hair", x1: px, x2: px, y1: PAD.top, y2: at.floor }),
      svg("rect", { x: left, y: 4, width: wide, height: tall, rx: 5 }),
      ...lines.map((text, i) => svg("text", { x: left + 7, y: 19 + 15 * i, class: i ? "" : "strong" }, text)),
    );
    tip.setAttribute("visibility", "visible");
  });
  picture.addEventListener("pointerleave", () => tip.setAttribute("visibility", "hidden"));
  if (spec.pick) {
    picture.classList.add("pickable");
    picture.addEventListener("click", (event) => spec.pick(value(event)));
  }
}

function nearest(xs, value) {
  let low = 0, high = xs.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (xs[middle] < value) low = middle + 1; else high = middle;
  }
  return low > 0 && value - xs[low - 1] < xs[low] - value ? low - 1 : low;
}

function summary(spec, shown) {
  const parts = shown.slice(0, 9).map((s) => {
    const found = s.y.filter(isNumber);
    return `${s.name}: ${found.length} points, last ${number(found.at(-1))}`;
  });
  return [spec.label, ...parts].filter(Boolean).join("; ");
}

function legend(series) {
  if (series.length < 2) return null;
  return el("p", { class: "legend" }, series.map((s, i) =>
    el("span", {}, el("i", { class: `key ${s.kind || ""}`, colour: s.colour || colour(i) }), s.name)));
}

function figure(title, caption, spec, more) {
  return el("figure", {}, el("h3", {}, title), more || legend(spec.legend || spec.series), chart({ label: title, ...spec }),
    caption && el("figcaption", {}, caption));
}

function spark(values, label) {
  const found = values.filter(isNumber);
  if (found.length < 2) return el("span", { class: "soft" }, "–");
  const low = Math.min(...found), high = Math.max(...found), w = 90, h = 22;
  const points = values.map((v, i) => `${((i / (values.length - 1)) * (w - 4) + 2).toFixed(1)},${(h - 3 - ((v - low) / (high - low || 1)) * (h - 6)).toFixed(1)}`);
  return svg("svg", { class: "spark", viewBox: `0 0 ${w} ${h}`, width: w, height: h, role: "img", "aria-label": label }, svg("polyline", { points: points.join(" ") }));
}

// The mean of each value and its neighbours before it.
function smoothed(series, window = 12) {
  const y = series.y.map((_, i) => {
    const part = series.y.slice(Math.max(0, i + 1 - window), i + 1).filter(isNumber);
    return part.length ? part.reduce((a, b) => a + b, 0) / part.length : null;
  });
  return { x: series.x, y };
}
