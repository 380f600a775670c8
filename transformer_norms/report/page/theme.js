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

function show(id, traces, how) {
  const place = document.getElementById(id);
  if (place) Plotly.react(place, traces, layout(how), CONFIG);
}
