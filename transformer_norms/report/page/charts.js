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
  const range = chosen.has("whole") ? wholeRange(key) : study.curves.ranges[key] || [0, 1];
  const traces = [];
  const beyond = [];  // the ends of curves above the frame
  let [row, runs] = [0, 0];
  for (const place of chosenVariants()) {
    const variant = study.curves.variants[place];
    const add = (curve, trace) => {
      const along = X[x].of(curve, variant);
      if (along) traces.push({ x: along, y: curve.loss, type: "scatter", mode: "lines", ...trace });
    };
    for (const run of variant.runs.filter((run) => run.key === key)) {
      const label = { name: `${study.names[place]}, ${run.text}`, hovertemplate: `%{fullData.name}<br>%{x:.4s} ${x}<br>%{y:.4f} nats<extra></extra>` };
      runs += 1;
      const along = X[x].of(run, variant);
      if (along && !run.failed && run.loss.at(-1) > range[1]) beyond.push({ place, x: along.at(-1), text: `${study.names[place]}, ${run.text}` });
      if (chosen.has("seeds")) add(run, { ...label, opacity: 0.4, line: { color: colour(place), width: 1 } });
    }
    const failed = variant.runs.filter((run) => run.key === key && run.failed).map((run) => X[x].of(run, variant)).filter(Boolean);
    if (failed.length) traces.push(failedEnds(place, failed, range, row));
    row += failed.length > 0;
    const mean = variant.means[key];
    if (mean) add(mean, {
      name: study.names[place], line: { color: colour(place), width: 2.4, dash: dash(place) },
      hovertemplate: `%{fullData.name}, mean<br>%{x:.4s} ${x}<br>%{y:.4f} nats<extra></extra>`,
    });
  }
  if (beyond.length) traces.push({
    x: beyond.map((end) => end.x), y: beyond.map(() => range[1]), text: beyond.map((end) => end.text), type: "scatter", mode: "markers",
    marker: { symbol: "triangle-up", size: 10, color: beyond.map((end) => colour(end.place)) }, cliponaxis: false, showlegend: false,
    hovertemplate: "%{text}<br>ends above the frame<extra></extra>",
  });
  document.getElementById("curves-shown").textContent = curvesShown(x, key, chosen, runs, beyond.length);
  show("curves", traces, {
    height: 430,
    xaxis: axis(X[x].title, { rangemode: "tozero", exponentformat: "SI" }),
    yaxis: axis(`${LOSSES[key]}, nats per token`, { range }),
    ...(key === "val/loss" ? ngrams(study.ngrams.validation, range, "y") : {}),
  });
}

// What the chart shows, in words.
function curvesShown(x, key, chosen, runs, beyond) {
  const single = chosen.has("seeds") ? `; thin lines, the ${runs} runs of all seeds` : "";
  const frame = chosen.has("whole") ? "" : " The frame leaves out the first steps.";
  const outside = beyond ? ` A triangle at the upper edge marks ${beyond === 1 ? "a run" : `${beyond} runs`} that ended above the frame.` : "";
  return `Shown is the ${LOSSES[key]} against ${X[x].title}: thick lines, means over the seeds that trained${single}. ` +
    `Nothing is smoothed, but a curve of more than ${study.curves.points} points is drawn by means of neighbours.${frame}${outside}`;
}

function wholeRange(key) {
  const ends = study.curves.variants.flatMap(({ runs }) => runs.filter((run) => run.key === key))
    .flatMap(({ loss }) => [Math.min(...loss), Math.max(...loss)]);
  return padded(ends, 0.05, 0.1);
}

// Crosses where runs ended that failed, in a row below the upper edge; `along` are their x values.
function failedEnds(place, along, range, row) {
  const ends = along.map((values) => values.at(-1));
  const places = [...new Set(ends)];
  const texts = places.map((end) => String(ends.filter((one) => one === end).length));
  return crosses(place, study.names[place], texts, { x: places, y: places.map(() => rowBelow(range, row)) });
}

// Crosses for runs that failed, with their number in words.
function crosses(place, name, texts, more) {
  return {
    name, type: "scatter", mode: "markers+text", marker: { symbol: "x", size: 9, color: colour(place) }, cliponaxis: false,
    text: texts, textposition: "middle left", textfont: { color: colour(place), size: 11 }, showlegend: false,
    hovertemplate: "%{fullData.name}: %{text} failed<extra></extra>", ...more,
  };
}

// The height of a variant's crosses: below the upper edge, each variant in a row of its own.
function rowBelow([low, high], row) {
  return high - (0.02 + 0.045 * row) * (high - low);
}

// The lines of n-grams that are in view, with their names: no axis is stretched for one. `value` is
// the axis of the losses.
function ngrams(lines, [low, high], value) {
  const other = value === "y" ? "x" : "y";
  const shown = lines.filter(({ loss }) => low < loss && loss < high);
  return {
    shapes: shown.map(({ loss }) => ({
      type: "line", layer: "below", line: { color: css("--faint"), width: 1, dash: "dot" },
      [`${value}0`]: loss, [`${value}1`]: loss, [`${other}ref`]: `${other} domain`, [`${other}0`]: 0, [`${other}1`]: 1,
    })),
    annotations: shown.map(({ name, loss }) => ({
      text: name, showarrow: false, font: { color: css("--faint"), size: 11 }, [value]: loss, [`${other}ref`]: `${other} domain`,
      [other]: 1, ...(value === "y" ? { xanchor: "right", yanchor: "bottom" } : { xanchor: "center", yanchor: "bottom" }),
    })),
  };
}

function drawFinals() {
  const rows = chosenVariants();
  const [from, to] = finalsRange(rows);
  const traces = [];
  rows.forEach((place, row) => {
    const { losses, texts, mean, half, failed, ended } = study.finals[place];
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
    if (failed) traces.push(crosses(place, name, [`${failed} of ${ended}`], { x: [1], y: [row + 0.16], xaxis: "x2" }));
  });
  const narrow = document.getElementById("finals").clientWidth < NARROW;
  show("finals", traces, {
    height: 100 + 34 * Math.max(1, rows.length), margin: { l: 60, r: 14, t: 24, b: 48 },
    xaxis: axis(`final ${study.loss}, nats per token`, { range: [from, to] }),
    xaxis2: { overlaying: "x", range: [0, 1], visible: false, fixedrange: true },
    ...ngrams(study.ngrams.final, [from, to], "x"),
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

// Losses against a number: a line for each of `lines` that has points of the chosen variants, and a
// dot for each run.
function drawAgainst(id, { key, ticks, log, lines }, title, reference, showlegend) {
  const chosen = chosenVariants();
  const drawn = lines.map((line) => ({ ...line, points: line.points.filter((point) => chosen.includes(point.variant)) }));
  const losses = drawn.flatMap(({ points }) => points.flatMap((point) => point.losses));
  const range = padded(losses, 0.1, 0.1);
  const traces = [];
  let row = 0;
  for (const { name, place, points, best } of drawn.filter(({ points }) => points.length)) {
    const ended = points.filter(({ loss }) => loss !== null);
    const trace = (points, hovertemplate) => ({ x: points.map(({ x }) => x), y: points.map(({ loss }) => loss), name, type: "scatter", hovertemplate });
    traces.push({
      ...trace(ended, "%{fullData.name}<br>%{x}<br>%{y:.4f} nats<extra></extra>"), mode: "lines",
      line: { color: colour(place), dash: dash(place), width: 2 },
      error_y: { type: "data", array: ended.map(({ half }) => half || 0), visible: ended.some(({ half }) => half), color: colour(place), thickness: 1.2 },
    });
    const runs = points.flatMap(({ x, losses, seeds }) => losses.map((loss, i) => ({ x, loss, seed: seeds[i] })));
    traces.push({
      ...trace(runs, "%{fullData.name}, seed %{customdata}<br>%{x}<br>%{y:.4f} nats<extra></extra>"), mode: "markers",
      customdata: runs.map(({ seed }) => seed), marker: { size: 6, color: colour(place), opacity: 0.7 }, showlegend: false,
    });
    const ring = ended.filter(({ x }) => x === best);
    if (ring.length) traces.push({ ...trace(ring, "%{fullData.name}: chosen, %{x}<extra></extra>"), mode: "markers", marker: { symbol: "circle-open", size: 15, color: colour(place), line: { width: 2 } }, showlegend: false });
    const lost = points.filter(({ failed }) => failed);
    if (lost.length) traces.push(crosses(place, name, lost.map(({ failed, ended }) => `${failed} of ${ended}`), {
      x: lost.map(({ x }) => x), y: lost.map(() => rowBelow(range, row)),
    }));
    row += lost.length > 0;
  }
  show(id, traces, {
    height: 400, showlegend, legend: { orientation: "h", y: 1.02, yanchor: "bottom" },
    xaxis: axis(key, { type: log ? "log" : "linear", tickvals: ticks, ticktext: ticks.map((tick) => String(Number(tick.toPrecision(3)))) }),
    yaxis: axis(`${title}, nats per token`, { range }),
    ...ngrams(reference, range, "y"),
  });
}

// A line for each variant; a map where two of the chosen ones have the same style.
function drawRates() {
  if (!study.rates) return;
  const chosen = chosenVariants();
  const lines = study.rates.lines.filter(({ place }) => chosen.includes(place));
  const mapped = new Set(lines.map(({ place }) => place % (COLOURS * DASHES.length))).size < lines.length;
  if (mapped) drawRatesMap(lines);
  else drawAgainst("rates", study.rates, "validation loss", study.ngrams.validation, false);
  document.getElementById("rates-shown").textContent = mapped
    ? `A row for each variant, a cell for each value that was tried: the lighter, the further its validation loss lies above the lowest of the row without a failed run; from ${FAR} nats on all look alike. ` +
      "A ring marks the value that was chosen. A cross marks a value at which runs failed. With fewer variants chosen above, they are lines."
    : "Validation loss: a dot for each tuning run, a line through the means. A ring marks the value that was chosen. " +
      "A cross at the upper edge marks a value at which runs failed.";
}

const FAR = 0.3;  // nats above the lowest loss of a row: what lies further has the last colour

// Squares, and no heatmap: plotly draws one as an image, which the page's policy forbids.
function drawRatesMap(lines) {
  const narrow = document.getElementById("rates").clientWidth < NARROW;
  const tried = [...new Set(lines.flatMap(({ points }) => points.map(({ x }) => x)))].sort((a, b) => a - b);
  const cells = lines.flatMap(({ name, points, best, lowest }, row) => points.map(({ x, loss, failed, ended }) => ({
    column: tried.indexOf(x), row, loss, failed, chosen: x === best && loss !== null, above: Math.max(0, Math.min(loss - lowest, FAR)),
    words: [name, x, loss === null ? "" : `${loss.toFixed(4)} nats`, failed ? `${failed} of ${ended} failed` : ""].filter(Boolean).join("<br>"),
  })));
  const marks = (wanted, marker) => {
    const at = cells.filter(wanted);
    return {
      x: at.map(({ column }) => column), y: at.map(({ row }) => row), type: "scatter", mode: "markers", cliponaxis: false, marker: marker(at),
      text: at.map(({ words }) => words), hovertemplate: "%{text}<extra></extra>",
    };
  };
  const ticks = [0, 0.01, 0.05, 0.1, 0.2, FAR];
  show("rates", [
    marks(({ loss }) => loss !== null, (at) => ({
      symbol: "square", size: 15, color: at.map(({ above }) => Math.sqrt(above)), cmin: 0, cmax: Math.sqrt(FAR), colorscale: "Cividis",
      colorbar: {
        orientation: "h", y: 1, yanchor: "bottom", thickness: 12, title: { text: "nats above the lowest", side: "top" },
        tickvals: ticks.map(Math.sqrt), ticktext: ticks.map(String),
      },
    })),
    marks(({ chosen }) => chosen, () => ({ symbol: "circle-open", size: 8, color: "#ffffff", line: { width: 2 } })),
    marks(({ failed }) => failed, () => ({ symbol: "x", size: 7, color: colour(2) })),
  ], {
    height: 150 + 17 * lines.length, margin: { l: 60, r: 14, t: 70, b: 48 },
    xaxis: axis(study.rates.key, {
      tickvals: tried.map((_, column) => column), ticktext: tried.map((rate) => String(Number(rate.toPrecision(3)))),
      range: [-0.5, tried.length - 0.5], showgrid: false,
    }),
    yaxis: axis("", {
      tickvals: lines.map((_, row) => row), ticktext: lines.map(({ place }) => (narrow ? study.short : study.names)[place]), tickfont: { size: 11 },
      range: [lines.length - 0.5, -0.5], showgrid: false,
    }),
  });
}

function drawAxes() {
  study.axes.forEach((chart, number) => drawAgainst(`axis-${number}`, chart, study.loss, study.ngrams.final, chart.lines.length > 1));
}
