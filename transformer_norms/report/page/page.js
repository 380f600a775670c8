// What a reader changes is drawn at once, and remembered while the page is reloaded.

const KEPT = `transformer_norms ${location.pathname}`;

function inputs() {
  return [...document.querySelectorAll("#legend input, .controls input, .controls select")];
}

function remember() {
  const values = inputs().map((input) => (["checkbox", "radio"].includes(input.type) ? input.checked : input.value));
  try { sessionStorage.setItem(KEPT, JSON.stringify({ names: study.names, values })); } catch { /* without it, nothing is kept */ }
}

function recall() {
  let kept = null;
  try { kept = JSON.parse(sessionStorage.getItem(KEPT)); } catch { return; }
  const there = inputs();
  if (!kept || String(kept.names) !== String(study.names) || kept.values.length !== there.length) return;
  there.forEach((input, i) => {
    if (typeof kept.values[i] === "boolean") input.checked = kept.values[i];
    else input.value = kept.values[i];
    if (input.name === "measure") fillParts();
  });
}

function drawAll() {
  drawCurves();
  drawFinals();
  drawRates();
  drawAxes();
  drawProbes();
}

function choose(every) {
  for (const box of document.querySelectorAll("#legend input")) box.checked = every;
  changed();
}

function changed(event) {
  if (event && event.target.name === "measure") fillParts();
  remember();
  drawAll();
}

if (probes) {
  fillMeasures();
  control("step").max = probes.steps.length - 1;
  control("step").value = Math.floor((probes.steps.length - 1) / 2);  // at the end of a schedule little moves
}
recall();
drawAll();
for (const form of document.querySelectorAll("form")) {
  form.addEventListener("input", changed);
  form.addEventListener("submit", (event) => event.preventDefault());
}
document.getElementById("all").addEventListener("click", () => choose(true));
document.getElementById("none").addEventListener("click", () => choose(false));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);

// Paper has its own width, and everything is on it.
function paper(printing) {
  for (const details of document.querySelectorAll("details")) details.open = details.open || printing;
  drawAll();
  for (const chart of document.querySelectorAll(".chart.js-plotly-plot")) {
    const half = chart.closest(".pair") ? 320 : 660;
    Plotly.relayout(chart, printing ? { width: half, autosize: false } : { width: null, autosize: true });
  }
}
addEventListener("beforeprint", () => paper(true));
addEventListener("afterprint", () => paper(false));
