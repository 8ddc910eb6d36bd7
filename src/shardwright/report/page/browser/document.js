// The report's JSON, which the page holds compressed, and the functions that make charts interactive.
// Each chart script adds a function to `charts` under the name in its figures' data-chart attribute.

const charts = {};

async function readDocument() {
  const text = document.getElementById("document").textContent;
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return JSON.parse(await new Response(stream).text());
}

function valueAt(report, pointer) {
  return pointer.split("/").slice(1).reduce((value, name) => value[name], report);
}

function styleColour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

async function startCharts() {
  const figures = document.querySelectorAll("figure[data-chart]");
  if (!figures.length) return;
  const report = await readDocument();
  for (const figure of figures) {
    charts[figure.dataset.chart](figure, report);
  }
}
