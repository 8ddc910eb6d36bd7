// Line charts: uPlot draws the data of a figure's source (view_data_types/line_chart_data.py) and shows the values
// at the pointer. Dragging selects a range of the horizontal axis, a double click shows all of it.

charts.line = (figure, report) => {
  const chart = valueAt(report, figure.dataset.source);
  const picture = figure.querySelector("svg.plot");
  const height = Number(picture.getAttribute("height"));
  const size = () => ({ width: Math.max(figure.clientWidth, 200), height });
  const form = (axis) => (plot, value) => formatNumber(value, axis.form);
  const lines = chart.series.map((series, number) => ({
    label: series.name, stroke: () => styleColour(`--series-${Math.min(number, 8)}`), width: 2,
    paths: chart.steps ? uPlot.paths.stepped({ align: 1 }) : uPlot.paths.linear(),
    points: { show: !chart.steps && chart.x.values.length < 40 }, value: form(chart.y),
  }));
  const data = [chart.x.values, ...chart.series.map((series) => series.values)];
  if (chart.capacity !== null) {
    lines.push({
      label: "capacity", stroke: () => styleColour("--ink"), width: 1.5, dash: [6, 4], points: { show: false },
      value: form(chart.y),
    });
    data.push(chart.x.values.map(() => chart.capacity));
  }
  const options = {
    ...size(),
    scales: { x: chartScale(chart.x, chart.x.values), y: chartScale(chart.y, []) },
    axes: [chartAxis(chart.x, 30), chartAxis(chart.y, 66)],
    series: [{ label: chart.x.name, value: form(chart.x) }, ...lines],
    padding: [null, 28, null, null],
    hooks: { draw: [(plot) => drawMarks(plot, chart.marks)] },
  };
  figure.replaceChildren();
  const plot = figure.plot = new uPlot(options, data, figure);
  if (chart.marks.length) {
    const name = document.createElement("span");
    const square = Object.assign(document.createElement("span"), { className: "swatch mark-swatch" });
    square.setAttribute("aria-hidden", "true");
    name.append(square, chart.marks_name);
    figure.append(Object.assign(document.createElement("div"), { className: "legend" }));
    figure.lastChild.append(name);
  }
  const wrap = figure.querySelector(".u-wrap");
  wrap.setAttribute("role", "img");
  wrap.setAttribute("aria-label", picture.getAttribute("aria-label"));
  new ResizeObserver(() => plot.setSize(size())).observe(figure);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => plot.redraw(false, true));
};

function drawMarks(plot, marks) {
  // A dotted vertical line at each marked value of the horizontal axis.
  const { left, top, width, height } = plot.bbox, ink = plot.ctx;
  ink.save();
  ink.strokeStyle = styleColour("--faint");
  ink.lineWidth = devicePixelRatio;
  ink.setLineDash([2 * devicePixelRatio, 3 * devicePixelRatio]);
  for (const mark of marks) {
    const across = Math.round(plot.valToPos(mark, "x", true));
    if (across < left || across > left + width) continue;
    ink.beginPath();
    ink.moveTo(across, top);
    ink.lineTo(across, top + height);
    ink.stroke();
  }
  ink.restore();
}

function chartScale(axis, values) {
  // The range of an axis is that of its ticks, and of a selection the selected one.
  const selected = (low, high) => values.length && (low > values[0] || high < values[values.length - 1]);
  return {
    time: false, distr: axis.logarithmic ? 3 : 1, log: 2,
    range: (plot, low, high) => selected(low, high) ? [low, high] : [axis.ticks[0], axis.ticks[axis.ticks.length - 1]],
  };
}

function chartAxis(axis, size) {
  const ticks = (low, high) => {
    const inside = axis.ticks.filter((tick) => tick >= low && tick <= high);
    return inside.length > 1 ? inside : roundTicks(low, high);
  };
  const line = { stroke: () => styleColour("--line"), width: 1 };
  return {
    label: axis.name, labelSize: 18, size, stroke: () => styleColour("--ink"),
    font: "12px system-ui, sans-serif", labelFont: "12px system-ui, sans-serif", grid: line, ticks: line,
    filter: (plot, values) => values,
    splits: (plot, number, low, high) => ticks(low, high),
    values: (plot, values) => values.map((value) => formatNumber(value, axis.form)),
  };
}

function roundTicks(low, high) {
  // Multiples of 1, 2 or 5 times a power of ten inside a selected range.
  const power = 10 ** Math.floor(Math.log10((high - low) / 5));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((step) => (high - low) / step <= 6);
  const first = Math.ceil(low / step), last = Math.floor(high / step);
  return Array.from({ length: last - first + 1 }, (_, place) => (first + place) * step);
}
