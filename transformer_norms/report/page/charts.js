// Loss curves, where every seed ended, what tuning tried, and losses against a number.

function shown() {
  return [...document.querySelectorAll("#legend input:checked")].map((box) => Number(box.value));
}

function picked(form, name) {
  return document.querySelector(`#${form} [name=${name}]:checked`).value;
}

const X = {
  steps: { title: "steps", of: (curve, variant) => variant.tokens_per_step && curve.tokens.map((t) => t / variant.tokens_per_step) },
  tokens: { title: "tokens", of: (curve) => curve.tokens },
  FLOPs: { title: "FLOPs", of: (curve, variant) => variant.flops_per_token && curve.tokens.map((t) => t * variant.flops_per_token) },
  seconds: { title: "seconds of training", of: (curve) => curve.seconds.length && curve.seconds },
};

function drawCurves() {
  const [x, key] = [picked("curve-controls", "x"), picked("curve-controls", "key")];
  const seeds = document.querySelector("#curve-controls [name=seeds]").checked;
  const whole = document.querySelector("#curve-controls [name=whole]").checked;
  const range = whole ? null : study.curves.ranges[key];
  const traces = [];
  for (const place of shown()) {
    const variant = study.curves.variants[place];
    const line = (curve, more) => {
      const along = X[x].of(curve, variant);
      if (along) traces.push({ x: along, y: curve.loss, type: "scatter", mode: "lines", ...more });
    };
    for (const run of variant.runs.filter((run) => run.key === key)) {
      const words = { name: `${study.names[place]}, ${run.text}`, hovertemplate: "%{fullData.name}<br>%{x:.4s} " + x + "<br>%{y:.4f} nats<extra></extra>" };
      if (seeds) line(run, { ...words, opacity: 0.4, line: { color: colour(place), width: 1 } });
      if (run.diverged) {
        const ended = run.loss.at(-1);
        const [low, high] = range || [ended, ended];
        // At the edge where it is out of view.
        const last = { tokens: run.tokens.slice(-1), loss: [Math.min(Math.max(ended, low), high)], seconds: run.seconds.slice(-1) };
        line(last, { ...words, hovertemplate: `%{fullData.name}<br>%{x:.4s} ${x}<br>${ended.toFixed(4)} nats<extra></extra>`, mode: "markers", marker: { symbol: "x", size: 9, color: colour(place) }, cliponaxis: false });
      }
    }
    const mean = variant.means[key];
    if (mean) line(mean, {
      name: study.names[place], line: { color: colour(place), width: 2.4, dash: dash(place) },
      hovertemplate: "%{fullData.name}, mean<br>%{x:.4s} " + x + "<br>%{y:.4f} nats<extra></extra>",
    });
  }
  const name = key === "val/loss" ? "validation loss" : "training loss";
  show("curves", traces, {
    height: 430,
    xaxis: axis(X[x].title, { rangemode: "tozero", exponentformat: "SI" }),
    yaxis: axis(`${name}, nats per token`, range ? { range } : {}),
  });
}

function drawFinals() {
  const rows = shown();
  const [from, to] = span(rows);
  const traces = [];
  rows.forEach((place, row) => {
    const { losses, texts, mean, half, diverged } = study.finals[place];
    const marker = { color: colour(place), size: 8, opacity: 0.7 };
    const dots = { name: study.names[place], text: texts, type: "scatter", mode: "markers", hovertemplate: "%{fullData.name}, %{text}<br>%{customdata:.4f} nats<extra></extra>", customdata: losses };
    traces.push({ ...dots, x: losses.map((loss) => (loss > to ? null : loss)), y: losses.map(() => row - 0.16), marker });
    if (losses.some((loss) => loss > to)) traces.push({ ...dots, x: losses.map((loss) => (loss > to ? 1 : null)), y: losses.map(() => row - 0.16), xaxis: "x2", marker: { ...marker, symbol: "triangle-right", size: 10 }, cliponaxis: false });
    if (mean !== null) traces.push({
      x: [mean], y: [row + 0.16], type: "scatter", mode: "markers", name: study.names[place],
      marker: { symbol: "line-ns", size: 14, line: { width: 2.5, color: colour(place) } },
      error_x: { type: "data", array: [half || 0], visible: half !== null, color: colour(place), thickness: 2 },
      hovertemplate: "%{fullData.name}, mean<br>%{x:.4f} nats<extra></extra>",
    });
    if (diverged) traces.push({
      x: Array(diverged).fill(1), y: Array(diverged).fill(0).map((_, i) => row - 0.3 + 0.6 * (i + 1) / (diverged + 1)), xaxis: "x2", type: "scatter", mode: "markers",
      marker: { symbol: "x", size: 9, color: colour(place) }, name: study.names[place], hovertemplate: "%{fullData.name} diverged<extra></extra>", cliponaxis: false,
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

// Every dot, but for what lies so far above the median that the others would be one, and the
// intervals as far as they leave the dots apart.
function span(rows) {
  const every = rows.flatMap((place) => study.finals[place].losses).sort((one, other) => one - other);
  if (!every.length) return [0, 1];
  const low = every[0];
  const far = low + 12 * (every[Math.floor(every.length / 2)] - low);
  const near = far > low ? every.filter((loss) => loss <= far) : every;
  const high = near[near.length - 1];
  const most = 1.5 * (high - low) || 0.01;
  const ends = rows.flatMap((place) => {
    const { mean, half } = study.finals[place];
    return half === null || mean > high ? [] : [Math.max(mean - half, low - most), Math.min(mean + half, high + most)];
  });
  const [first, last] = [Math.min(low, ...ends), Math.max(high, ...ends)];
  const room = 0.05 * (last - first) || 0.01;
  return [first - room, last + room];
}

function drawRates() {
  if (!study.rates) return;
  const traces = [];
  const { key, ticks, log, lines } = study.rates;
  const wanted = lines.filter((line) => shown().includes(line.variant));
  const losses = wanted.flatMap((line) => line.losses);
  const [low, high] = losses.length ? [Math.min(...losses), Math.max(...losses)] : [0, 1];
  const room = 0.08 * (high - low) || 0.1;
  for (const line of wanted) {
    const name = study.names[line.variant];
    const paint = colour(line.variant);
    const words = { name, hovertemplate: "%{fullData.name}<br>%{x}<br>%{y:.4f} nats<extra></extra>" };
    traces.push({ x: line.rates, y: line.losses, type: "scatter", mode: "lines+markers", line: { color: paint, dash: dash(line.variant), width: 2 }, marker: { size: 6 }, ...words });
    const best = line.rates.indexOf(line.best);
    if (best >= 0) traces.push({ x: [line.best], y: [line.losses[best]], type: "scatter", mode: "markers", marker: { symbol: "circle-open", size: 15, color: paint, line: { width: 2 } }, name, hovertemplate: "%{fullData.name}: chosen, %{x}<extra></extra>" });
    if (line.diverged.length) traces.push({ x: line.diverged, y: line.diverged.map(() => high + room), type: "scatter", mode: "markers", marker: { symbol: "x", size: 9, color: paint }, name, hovertemplate: "%{fullData.name}: a run diverged at %{x}<extra></extra>", cliponaxis: false });
  }
  show("rates", traces, {
    height: 400,
    xaxis: axis(key, { type: log ? "log" : "linear", tickvals: ticks, ticktext: ticks.map(String) }),
    yaxis: axis("validation loss, nats per token", { range: [low - room, high + room] }),
  });
}

function drawAxes() {
  const wanted = shown();
  study.axes.forEach(({ axis: key, log, ticks, lines }, number) => {
    const points = lines.map((line) => line.points.filter((point) => wanted.includes(point.variant)));
    const losses = points.flat().map((point) => point.loss).filter((loss) => loss !== null);
    const [low, high] = losses.length ? [Math.min(...losses), Math.max(...losses)] : [0, 1];
    const room = 0.12 * (high - low) || 0.1;
    const traces = [];
    lines.forEach(({ name }, place) => {
      const ended = points[place].filter((point) => point.loss !== null);
      const lost = points[place].filter((point) => point.diverged);
      const words = name || study.loss;
      traces.push({
        x: ended.map((point) => point.x), y: ended.map((point) => point.loss), name: words, type: "scatter", mode: "lines+markers",
        line: { color: colour(place), dash: dash(place), width: 2 }, error_y: { type: "data", array: ended.map((point) => point.half || 0), color: colour(place), thickness: 1.2 },
        hovertemplate: "%{fullData.name}<br>%{x}<br>%{y:.4f} nats<extra></extra>",
      });
      if (lost.length) traces.push({ x: lost.map((point) => point.x), y: lost.map(() => high + room), name: words, type: "scatter", mode: "markers", marker: { symbol: "x", size: 9, color: colour(place) }, hovertemplate: "%{fullData.name}: a run diverged at %{x}<extra></extra>", cliponaxis: false, showlegend: false });
    });
    show(`axis-${number}`, traces, {
      height: 400, showlegend: lines.length > 1, legend: { orientation: "h", y: 1.02, yanchor: "bottom" },
      xaxis: axis(key, { type: log ? "log" : "linear", tickvals: ticks, ticktext: ticks.map(String) }),
      yaxis: axis(`${study.loss}, nats per token`, { range: [low - room, high + room] }),
    });
  });
}
