// Measures inside the models: by block at one step, and over training for one variant.

const probes = study.probes;
const ENDS = ["embedding", "embed", "final", "head"];

function control(name) {
  return document.querySelector(`#probe-controls [name=${name}]`);
}

function unescaped(text) {  // of a label that was escaped for plotly
  return text.replace(/&lt;/g, "<").replace(/&gt;/g, ">").replace(/&amp;/g, "&");
}

function option(value, text) {
  return Object.assign(document.createElement("option"), { value, textContent: text });
}

function fillMeasures() {
  control("measure").replaceChildren(...probes.measures.map((measure, i) => option(i, unescaped(measure.title))));
  fillParts();
}

function fillParts() {
  const { name, parts } = probes.measures[control("measure").value];
  const before = control("part").value;
  const inside = parts.filter((part) => probes.variants.some((variant) =>
    variant && Object.keys(variant.values[name]?.[part] ?? {}).some((block) => /^\d+$/.test(block))));
  const whole = inside.includes("") ? "each block" : "outside the blocks";
  control("part").replaceChildren(...parts.map((part) => option(part, part ? unescaped(part) : whole)));
  control("part").value = [before, ...inside, ...parts].find((part) => inside.includes(part) || (part && parts.includes(part))) ?? parts[0];
  control("part").disabled = parts.length < 2;
}

function values(place) {
  const variant = probes.variants[place];
  const measure = probes.measures[control("measure").value].name;
  const parts = (variant && variant.values[measure]) || {};
  return Object.hasOwn(parts, control("part").value) ? parts[control("part").value] : null;
}

// The embedding first, then blocks by number, then what follows them.
function order(blocks) {
  const rank = (block) => (ENDS.slice(0, 2).includes(block) ? -1 : /^\d+$/.test(block) ? Number(block) : 1e6);
  return [...blocks].sort((a, b) => rank(a) - rank(b) || (a < b ? -1 : 1));
}

function probeAxis() {
  const measure = probes.measures[control("measure").value];
  return axis(measure.title, measure.log ? { type: "log", exponentformat: "power", nticks: 6 } : {});
}

function drawProbes() {
  if (!probes) return;
  document.getElementById("meaning").textContent = probes.measures[control("measure").value].meaning;
  drawProfile();
  drawHistory();
}

function drawProfile() {
  const places = chosenVariants().filter((place) => values(place));
  const step = probes.steps[control("step").value];
  const blocks = order(new Set(places.flatMap((place) => Object.keys(values(place)))));
  const traces = [];
  for (const place of places) {
    const at = probes.variants[place].steps.indexOf(step);
    if (at < 0) continue;
    const y = blocks.map((block) => (values(place)[block] || [])[at] ?? null);
    traces.push({
      x: blocks.map((_, i) => i), y, name: study.names[place], type: "scatter", mode: "lines+markers", marker: { size: 6 },
      line: { color: colour(place), dash: dash(place), width: 2 }, hovertemplate: "%{fullData.name}<br>%{y:.4g}<extra></extra>",
    });
  }
  control("shown").textContent = step;
  control("step").setAttribute("aria-valuetext", `step ${step}`);
  const every = Math.ceil(blocks.length / 16);
  const ticks = blocks.map((_, i) => i).filter((i) => i % every === 0);
  show("profile", traces, {
    height: 380, yaxis: probeAxis(),
    xaxis: axis(`block, at step ${step}`, { tickvals: ticks, ticktext: ticks.map((i) => blocks[i]) }),
  });
}

function drawHistory() {
  const place = Number(control("of").value);
  const byBlock = values(place) || {};
  const blocks = order(Object.keys(byBlock));
  const traces = blocks.map((block, i) => ({
    x: probes.variants[place].steps, y: byBlock[block], name: /^\d+$/.test(block) ? `block ${block}` : block, type: "scatter", mode: "lines",
    line: { color: depth(blocks.length > 1 ? i / (blocks.length - 1) : 1), width: 2 },
    hovertemplate: "%{fullData.name}, step %{x}<br>%{y:.4g}<extra></extra>",
  }));
  show("history", traces, {
    height: 380, showlegend: blocks.length <= 12, legend: { orientation: "h", y: 1.02, yanchor: "bottom", font: { size: 11 } },
    xaxis: axis(`steps, ${study.names[place]}`), yaxis: probeAxis(),
  });
}
