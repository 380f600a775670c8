// A reader's choices are drawn at once, and remembered while the page is reloaded.

const STORE = `transformer_norms ${location.pathname}`;

function inputs() {
  return [...document.querySelectorAll("#legend input, .controls input, .controls select")];
}

function remember() {
  const values = inputs().map((input) => (["checkbox", "radio"].includes(input.type) ? input.checked : input.value));
  try { sessionStorage.setItem(STORE, JSON.stringify({ names: study.names, values })); } catch { /* without storage nothing is remembered */ }
}

function recall() {
  let saved = null;
  try { saved = JSON.parse(sessionStorage.getItem(STORE)); } catch { return; }
  if (!saved || String(saved.names) !== String(study.names) || saved.values.length !== inputs().length) return;
  inputs().forEach((input, i) => {
    if (typeof saved.values[i] === "boolean") input.checked = saved.values[i];
    else input.value = saved.values[i];
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

function chooseAll(checked) {
  for (const box of document.querySelectorAll("#legend input")) box.checked = checked;
  update();
}

function update(event) {
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
  form.addEventListener("input", update);
  form.addEventListener("submit", (event) => event.preventDefault());
}
document.getElementById("all").addEventListener("click", () => chooseAll(true));
document.getElementById("none").addEventListener("click", () => chooseAll(false));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);

// On paper every section is open, and charts have the width of the paper.
function fitPaper(printing) {
  for (const details of document.querySelectorAll("details")) details.open = details.open || printing;
  drawAll();
  for (const chart of document.querySelectorAll(".chart.js-plotly-plot")) {
    const half = chart.closest(".pair") ? 320 : 660;
    Plotly.relayout(chart, printing ? { width: half, autosize: false } : { width: null, autosize: true });
  }
}
addEventListener("beforeprint", () => fitPaper(true));
addEventListener("afterprint", () => fitPaper(false));
