"use strict";
// The page works without this script. It names what is under the cursor at once, saves charts, and
// remembers a reader's choices while the page is loaded again.

const all = (selector, within = document) => [...within.querySelectorAll(selector)];
const label = document.getElementById("pointed");
const NEAR = [0, 3, 6].flatMap((far) => [[0, 0], [far, 0], [-far, 0], [0, far], [0, -far], [far, far], [-far, far], [far, -far], [-far, -far]]);

// The browser's own labels come late, and only exactly on a line.
for (const title of all(".chart title")) {
  title.parentNode.dataset.words = title.textContent;
  title.remove();
}

function wordsAt(x, y) {
  for (const [right, down] of NEAR) {
    const named = document.elementFromPoint(x + right, y + down)?.closest(".chart [data-words]");
    if (named) return named.dataset.words;
  }
  return "";
}

addEventListener("pointermove", ({ target, clientX, clientY }) => {
  label.textContent = target.closest?.(".chart") ? wordsAt(clientX, clientY) : "";
  label.style.left = `${Math.min(clientX + 12, innerWidth - label.offsetWidth - 8)}px`;
  label.style.top = `${clientY - label.offsetHeight - 10}px`;
});

// The chart as it is shown, for programs that know no page: without hidden parts, in plain colours.
function file(svg) {
  const copy = svg.cloneNode(true);
  const [shown, copied] = [svg, copy].map((one) => all("*", one));
  shown.forEach((part, i) => { if (getComputedStyle(part).display === "none") copied[i].remove(); });
  for (const part of all("[style]", copy)) part.setAttribute("style", part.getAttribute("style").replace(/var\([^,]*, (#\w+)\)/g, "$1"));
  return new Blob([new XMLSerializer().serializeToString(copy)], { type: "image/svg+xml" });
}

function save(chart) {
  const url = URL.createObjectURL(file(chart.querySelector("svg")));
  Object.assign(document.createElement("a"), { href: url, download: `${document.body.dataset.home}-${chart.id}.svg` }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}

for (const chart of all(".chart")) {
  const button = Object.assign(document.createElement("button"), { type: "button", className: "download", textContent: "save as SVG" });
  button.setAttribute("aria-label", `save as SVG: ${chart.querySelector("svg").getAttribute("aria-label")}`);
  button.addEventListener("click", () => save(chart));
  chart.append(button);
}

const STORE = `transformer_norms ${location.pathname}`;
const inputs = all("form input");
const names = all("#legend label").map((one) => one.textContent).join("\n");

function remember() {
  try { sessionStorage.setItem(STORE, JSON.stringify([names, inputs.map((input) => input.checked)])); } catch { /* without storage nothing is remembered */ }
}

try {
  const [saved, checked] = JSON.parse(sessionStorage.getItem(STORE)) ?? [];
  if (saved === names && checked.length === inputs.length) inputs.forEach((input, i) => { input.checked = checked[i]; });
} catch { /* as above */ }
addEventListener("input", remember);
addEventListener("reset", () => setTimeout(remember));
const none = document.getElementById("none");
none.hidden = false;
none.addEventListener("click", () => {
  for (const box of all("#legend input")) box.checked = false;
  remember();
});
