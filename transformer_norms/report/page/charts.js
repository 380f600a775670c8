// Loss curves, where every seed ended, what tuning tried, and losses against a number.

const LOSSES = { "val/loss": "validation loss", "train/loss": "training loss" };

function chosenVariants() {
  return [...document.querySelectorAll("#legend input:checked")].map((box) => Number(box.value));
}

// Each returns the x values of a curve, or nothing where they are not known.
const X = {
  steps: { title: "steps", of: (curve, variant) => variant.tokens_per_step && curve.tokens.map((t) => t / variant.tokens_per_step) },
  tokens: { title: "tokens", of: (curve) => curve.tokens },
  FLOPs: { title: "FLOPs", of: (curve, variant) => variant.flops_per_token && curve.tokens.map((t) => t * variant.flops_per_token) },
  seconds: { title: "seconds of training", of: (curve) => curve.seconds.length && curve.seconds },
};

function drawCurves() {
  const chosen = new FormData(document.getElementById("curve-controls"));
  const [x, key] = [chosen.get("x"), chosen.get("key")];
  const range = chosen.has("whole") ? null : study.curves.ranges[key];
  const traces = [];
  for (const place of chosenVariants()) {
    const variant = study.curves.variants[place];
    const add = (curve, trace) => {
      const along = X[x].of(curve, variant);
      if (along) traces.push({ x: along, y: curve.loss, type: "scatter", mode: "lines", ...trace });
    };
    for (const run of variant.runs.filter((run) => run.key === key)) {
      const label = { name: `${study.names[place]}, ${run.text}`, hovertemplate: `%{fullData.name}<br>%{x:.4s} ${x}<br>%{y:.4f} nats<extra></extra>` };
      if (chosen.has("seeds")) add(run, { ...label, opacity: 0.4, line: { color: colour(place), width: 1 } });
      if (run.diverged) add(lastPoint(run, range), { ...label, ...cross(place), hovertemplate: `%{fullData.name}<br>%{x:.4s} ${x}<br>${run.loss.at(-1).toFixed(4)} nats<extra></extra>` });
    }
    const mean = variant.means[key];
    if (mean) add(mean, {
      name: study.names[place], line: { color: colour(place), width: 2.4, dash: dash(place) },
      hovertemplate: `%{fullData.name}, mean<br>%{x:.4s} ${x}<br>%{y:.4f} nats<extra></extra>`,
    });
  }
  show("curves", traces, {
    height: 430,
    xaxis: axis(X[x].title, { rangemode: "tozero", exponentformat: "SI" }),
    yaxis: axis(`${LOSSES[key]}, nats per token`, range ? { range } : {}),
  });
}

// The end of a curve, at the edge of the range where it is out of view.
function lastPoint(curve, range) {
  const ended = curve.loss.at(-1);
  const [low, high] = range || [ended, ended];
  return { tokens: curve.tokens.slice(-1), loss: [Math.min(Math.max(ended, low), high)], seconds: curve.seconds.slice(-1) };
}

function cross(place) {
  return { mode: "markers", marker: { symbol: "x", size: 9, color: colour(place) }, cliponaxis: false };
}

function drawFinals() {
  const rows = chosenVariants();
  const [from, to] = finalsRange(rows);
  const traces = [];
  rows.forEach((place, row) => {
    const { losses, texts, mean, half, failed } = study.finals[place];
    const name = study.names[place];
    const marker = { color: colour(place), size: 8, opacity: 0.7 };
    const dots = { name, y: losses.map(() => row - 0.16), text: texts, type: "scatter", mode: "markers", hovertemplate: "%{fullData.name}, %{text}<br>%{customdata:.4f} nats<extra></extra>", customdata: losses };
    traces.push({ ...dots, x: losses.map((loss) => (loss > to ? null : loss)), marker });
    if (losses.some((loss) => loss > to)) traces.push({ ...dots, x: losses.map((loss) => (loss > to ? 1 : null)), xaxis: "x2", marker: { ...marker, symbol: "triangle-right", size: 10 }, cliponaxis: false });
    if (mean !== null) traces.push({
      x: [mean], y: [row + 0.16], type: "scatter", mode: "markers", name,
      marker: { symbol: "line-ns", size: 14, line: { width: 2.5, color: colour(place) } },
      error_x: { type: "data", array: [half || 0], visible: half !== null, color: colour(place), thickness: 2 },
      hovertemplate: "%{fullData.name}, mean<br>%{x:.4f} nats<extra></extra>",
    });
    if (failed) traces.push({
      x: Array(failed).fill(1), y: Array(failed).fill(0).map((_, i) => row - 0.3 + 0.6 * (i + 1) / (failed + 1)), xaxis: "x2", type: "scatter",
      name, hovertemplate: "%{fullData.name} failed<extra></extra>", ...cross(place),
    });
  });
  const narrow = document.getElementById("finals").clientWidth < NARROW;
  show("finals", traces, {
    height: 90 + 34 * Math.max(1, rows.length),
    xaxis: axis(`final ${study.loss}, nats per token`, { range: [from, to] }),
    xaxis2: { overlaying: "x", range: [0, 1], visible: false, fixedrange: true },
    yaxis: axis("", { tickvals: rows.map((_, row) => row), ticktext: rows.map((place) => (narrow ? study.short : study.names)[place]), range: [rows.length - 0.4, -0.6] }),
  });
}

// The range leaves out losses so far above the median that the others would be one dot, and the
// parts of intervals that would press the dots together.
function finalsRange(rows) {
  const losses = rows.flatMap((place) => study.finals[place].losses).sort((a, b) => a - b);
  if (!losses.length) return [0, 1];
  const low = losses[0];
  const far = low + 12 * (losses[Math.floor(losses.length / 2)] - low);
  const high = far > low ? losses.filter((loss) => loss <= far).at(-1) : losses.at(-1);
  const most = 1.5 * (high - low) || 0.01;
  const ends = rows.flatMap((place) => {
    const { mean, half } = study.finals[place];
    return half === null || mean > high ? [] : [Math.max(mean - half, low - most), Math.min(mean + half, high + most)];
  });
  return padded([...ends, low, high], 0.05, 0.01);
}

// The range of the values with a margin: a share of it, or `least` where the values are equal.
function padded(values, share, least) {
  const [low, high] = values.length ? [Math.min(...values), Math.max(...values)] : [0, 1];
  const margin = share * (high - low) || least;
  return [low - margin, high + margin];
}

// Losses against a number: a line for each of `lines` that has points of the chosen variants.
function drawAgainst(id, { key, ticks, log, lines }, title, showlegend) {
  const chosen = chosenVariants();
  const drawn = lines.map((line) => ({ ...line, points: line.points.filter((point) => chosen.includes(point.variant)) }));
  const losses = drawn.flatMap(({ points }) => points.map(({ loss }) => loss)).filter((loss) => loss !== null);
  const range = padded(losses, 0.1, 0.1);
  const traces = [];
  for (const { name, place, points, best } of drawn.filter(({ points }) => points.length)) {
    const ended = points.filter(({ loss }) => loss !== null);
    const trace = (points, hovertemplate) => ({ x: points.map(({ x }) => x), y: points.map(({ loss }) => loss), name, type: "scatter", hovertemplate });
    traces.push({
      ...trace(ended, "%{fullData.name}<br>%{x}<br>%{y:.4f} nats<extra></extra>"), mode: "lines+markers",
      line: { color: colour(place), dash: dash(place), width: 2 }, marker: { size: 6 },
      error_y: { type: "data", array: ended.map(({ half }) => half || 0), visible: ended.some(({ half }) => half), color: colour(place), thickness: 1.2 },
    });
    const ring = ended.filter(({ x }) => x === best);
    if (ring.length) traces.push({ ...trace(ring, "%{fullData.name}: chosen, %{x}<extra></extra>"), mode: "markers", marker: { symbol: "circle-open", size: 15, color: colour(place), line: { width: 2 } }, showlegend: false });
    const lost = points.filter(({ failed }) => failed);
    if (lost.length) traces.push({ ...trace(lost, "%{fullData.name}: a run failed at %{x}<extra></extra>"), y: lost.map(() => range[1]), ...cross(place), showlegend: false });
  }
  show(id, traces, {
    height: 400, showlegend, legend: { orientation: "h", y: 1.02, yanchor: "bottom" },
    xaxis: axis(key, { type: log ? "log" : "linear", tickvals: ticks, ticktext: ticks.map(String) }),
    yaxis: axis(`${title}, nats per token`, { range }),
  });
}

function drawRates() {
  if (study.rates) drawAgainst("rates", study.rates, "validation loss", false);
}

function drawAxes() {
  study.axes.forEach((chart, number) => drawAgainst(`axis-${number}`, chart, study.loss, chart.lines.length > 1));
}
