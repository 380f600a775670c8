"use strict";
// Colours and dashes by variant, as in the legend, light or dark; and what all charts share.

const study = JSON.parse(document.getElementById("study").textContent);
const COLOURS = 6;
const DASHES = ["solid", "9px,3px", "2px,2.5px", "10px,3px,2px,3px", "14px,5px"];
const NARROW = 520;

function css(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function colour(place) {
  return css(`--line-${place % COLOURS}`);
}

function dash(place) {
  return DASHES[place % DASHES.length];
}

// A colour between --low and --high, for blocks by depth.
function depth(share) {
  const ends = ["--low", "--high"].map((name) =>
    css(name).match(/[0-9a-f]{2}/gi).map((digits) => parseInt(digits, 16)));
  const mixed = ends[0].map((low, i) => Math.round(low + share * (ends[1][i] - low)));
  return `rgb(${mixed.join(",")})`;
}

function axis(title, more) {
  return { title: { text: title }, gridcolor: css("--rule"), linecolor: css("--faint"), zeroline: false, automargin: true, ...more };
}

function layout(more) {
  return {
    paper_bgcolor: css("--ground"), plot_bgcolor: css("--ground"),
    font: { color: css("--ink"), size: 13, family: "system-ui, Helvetica, Arial, sans-serif" },
    hoverlabel: { bgcolor: css("--panel"), bordercolor: css("--rule"), font: { color: css("--ink") }, align: "left", namelength: -1 },
    margin: { l: 60, r: 14, t: 14, b: 48 }, showlegend: false, hovermode: "closest", ...more,
  };
}

const CONFIG = { displayModeBar: false, responsive: true };  // its buttons are forty stops of the Tab key

// A title is broken at blanks into lines that a chart with long names has room for: plotly cuts it.
function broken(text, most) {
  const lines = [""];
  for (const word of text.split(" ")) {
    if (lines.at(-1) && `${lines.at(-1)} ${word}`.length > most) lines.push(word);
    else lines.push(`${lines.pop()} ${word}`.trim());
  }
  return lines.join(" <br>");  // the blank stays, so that the words stay apart where they are copied
}

function show(id, traces, how) {
  const place = document.getElementById(id);
  if (!place) return;
  how.xaxis.title.text = broken(how.xaxis.title.text, place.clientWidth / 16);
  Plotly.react(place, traces, layout(how), CONFIG);
  if (place.nextElementSibling) return;
  const button = Object.assign(document.createElement("button"), { type: "button", className: "download", textContent: "save as SVG" });
  button.setAttribute("aria-label", `save as SVG: ${place.getAttribute("aria-label")}`);
  button.addEventListener("click", () => save(place));
  place.after(button);
}

// Hands the chart to the browser as a file, as it is shown, with the names of its lines: outside the
// page it has no legend. The page itself loads nothing.
async function save(place) {
  const { data, layout } = place;
  const named = (trace) => trace.mode.startsWith("lines") && study.names.includes(trace.name);
  const alone = data.some(named)
    ? { data: data.map((trace) => ({ ...trace, showlegend: named(trace) })), layout: { ...layout, showlegend: true, legend: { orientation: "h", y: 1.02, yanchor: "bottom" } } }
    : { data, layout };
  const svg = await Plotly.toImage(alone, { format: "svg", imageDataOnly: true, width: place.clientWidth, height: place.clientHeight });
  const url = URL.createObjectURL(new Blob([svg], { type: "image/svg+xml" }));
  Object.assign(document.createElement("a"), { href: url, download: `${study.home}-${FILES[place.id]?.() ?? place.id}.svg` }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}

// The names of files, by chart, as the report's command gives them to figures.
const chosenOf = (form, name) => new FormData(document.getElementById(form)).get(name);
const fileName = (text) => text.replace(/[^A-Za-z0-9]+/g, "-").replace(/^-|-$/g, "");
const probeName = () => {
  const { name } = probes.measures[control("measure").value];
  return fileName(`${name} ${control("part").value}`);
};
const FILES = {
  curves: () => `loss-by-${chosenOf("curve-controls", "x").toLowerCase()}`,
  finals: () => "final-loss",
  rates: () => "tuning",
  profile: () => `probe-${probeName()}`,
  history: () => `probe-${probeName()}-of-${fileName(study.names[control("of").value])}`,
  ...Object.fromEntries(study.axes.map(({ key }, number) => [`axis-${number}`, () => `final-loss-by-${fileName(key)}`])),
};
