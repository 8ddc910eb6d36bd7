// A canvas that takes the place of a figure's picture: it has the pixels of the screen, is drawn at most once an
// animation frame, and is drawn again when its width or the colour scheme changes. Its legend stays.

function canvasChart(figure, { height, tools, draw }) {
  const picture = figure.querySelector("svg");
  const description = picture.getAttribute("aria-label");
  const bar = document.createElement("div");
  bar.className = "chart-tools";
  bar.append(...tools);
  const frame = document.createElement("div");
  frame.className = "chart-canvas";
  const canvas = document.createElement("canvas");
  canvas.tabIndex = 0;
  canvas.setAttribute("role", "application");
  canvas.setAttribute("aria-label", description);
  const tip = document.createElement("div");
  tip.className = "chart-tip";
  tip.hidden = true;
  const status = document.createElement("p");
  status.className = "chart-status";
  status.setAttribute("aria-live", "polite");
  frame.append(canvas, tip);
  picture.replaceWith(...(tools.length ? [bar] : []), frame, status);

  const context = canvas.getContext("2d");
  const chart = { canvas, context, tip, status, width: 0, height, frames: 0, redraw, resizeHeight };
  let waiting = false;
  function redraw() {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      chart.frames += 1;
      canvas.dataset.frames = chart.frames;
      const ratio = window.devicePixelRatio || 1;
      context.setTransform(ratio, 0, 0, ratio, 0, 0);
      context.clearRect(0, 0, chart.width, chart.height);
      draw(chart);
    });
  }
  function resize() {
    const ratio = window.devicePixelRatio || 1;
    const width = Math.max(Math.floor(frame.clientWidth), 200);
    if (width === chart.width) return;
    chart.width = width;
    canvas.width = Math.round(width * ratio);
    resizeHeight(chart.height);
    redraw();
  }
  function resizeHeight(pixels) {
    // Setting the height of a canvas erases it and its scale.
    const ratio = window.devicePixelRatio || 1;
    chart.height = pixels;
    canvas.height = Math.round(pixels * ratio);
    canvas.style.height = `${pixels}px`;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
  }
  new ResizeObserver(resize).observe(frame);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  resize();
  return chart;
}

function chartButton(words, act) {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = words;
  button.addEventListener("click", act);
  return button;
}

function showTip(chart, text, x, y) {
  chart.tip.hidden = !text;
  if (!text) return;
  chart.tip.textContent = text;
  const width = chart.tip.offsetWidth, below = y + 16 + chart.tip.offsetHeight < chart.height;
  chart.tip.style.left = `${Math.max(Math.min(x + 12, chart.width - width), 0)}px`;
  chart.tip.style.top = `${below ? y + 16 : Math.max(y - 12 - chart.tip.offsetHeight, 0)}px`;
}
