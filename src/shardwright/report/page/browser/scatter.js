// Scatter charts: a canvas with the points of a figure's chart (view_data_types/scatter_chart_data.py). The point
// nearest to the pointer, or the one that arrow keys reach, is described below the chart.

charts.scatter = (figure, report) => {
  const chart = valueAt(report, figure.dataset.source)[figure.dataset.name];
  const shared = figure.dataset.shared ? valueAt(report, figure.dataset.shared) : "";
  const height = Number(figure.querySelector("svg.plot").getAttribute("height"));
  const hint = "Point at a mark, or focus the chart and use the arrow keys.";
  const view = canvasChart(figure, { height, tools: [], draw });
  const { canvas, status: words } = view;
  canvas.setAttribute("aria-label", `${canvas.getAttribute("aria-label")}. Arrow keys go from point to point.`);
  words.className = "point-words";
  words.textContent = hint;
  const showNotation = notationBox(figure, report, words);
  const points = chart.points;
  const order = points.x.map((_, place) => place).sort((a, b) => points.x[a] - points.x[b] || points.y[a] - points.y[b]);
  let selected = -1;
  let places = [];

  function draw({ context, width }) {
    const area = { left: 64, top: 22, width: width - 72, height: height - 58, limit: figure.dataset.limit };
    places = drawScatter(context, chart, area, selected);
  }
  const select = (place) => {
    selected = place;
    words.textContent = place < 0 ? hint : pointText(chart, place, shared);
    showNotation(place);
    view.redraw();
  };
  canvas.addEventListener("pointermove", (event) => {
    const place = nearestPoint(places, event.offsetX, event.offsetY);
    if (place !== selected) select(place);
  });
  canvas.addEventListener("pointerleave", () => select(-1));
  canvas.addEventListener("keydown", (event) => {
    const moves = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: 50, PageDown: -50 };
    const last = order.length - 1;
    const now = order.indexOf(selected);
    const next = event.key === "Home" ? 0 : event.key === "End" ? last
      : event.key in moves ? (now < 0 ? 0 : Math.min(Math.max(now + moves[event.key], 0), last)) : -1;
    if (next < 0) return;
    event.preventDefault();
    select(order[next]);
  });
  figure.append(pointList(chart, order));
};

function notationBox(figure, report, words) {
  // Function that shows the notation of a point below its words, and no box where the point has none.
  if (!figure.dataset.notations) return () => {};
  const notations = valueAt(report, figure.dataset.notations).map((plan) => plan.notation || "");
  const box = document.createElement("pre");
  box.className = "point-notation";
  box.hidden = true;
  words.after(box);
  return (place) => {
    box.textContent = place < 0 ? "" : notations[place];
    box.hidden = !box.textContent;
  };
}

function pointList(chart, order) {
  // A closed list of all points, group by group: a line with both values and the label of each.
  const details = document.createElement("details");
  const summary = document.createElement("summary");
  summary.textContent = "The values of all marks";
  details.append(summary);
  details.addEventListener("toggle", () => {
    if (details.childElementCount > 1) return;
    const { x, y, groups, points } = chart;
    groups.forEach((group, number) => {
      const places = order.filter((place) => points.group[place] === number);
      if (!places.length) return;
      const heading = document.createElement("p");
      heading.textContent = `${group.name}: ${x.name}, ${y.name}, name`;
      const lines = document.createElement("pre");
      lines.className = "lines";
      lines.tabIndex = 0;
      lines.textContent = places.map((place) => [
        formatNumber(points.x[place], x.form).padEnd(9), formatNumber(points.y[place], y.form).padEnd(10), points.label[place],
      ].join("  ")).join("\n");
      details.append(heading, lines);
    });
  });
  return details;
}

function pointText(chart, place, shared) {
  const { x, y, groups, points } = chart;
  const label = [points.label[place], shared].filter((part) => part).join(" ");
  const values = [[x, points.x[place]], [y, points.y[place]]].map(([axis, value]) => `${axis.name} ${formatNumber(value, axis.form)}`);
  return `${label}: ${values.join(", ")}; ${groups[points.group[place]].name}`;
}

function axisPlace(axis, value) {
  const first = axis.ticks[0], last = axis.ticks[axis.ticks.length - 1];
  return axis.logarithmic ? Math.log(value / first) / Math.log(last / first) : (value - first) / (last - first);
}

function drawScatter(pen, chart, area, selected) {
  // Draws all points and returns their places on the canvas.
  const across = (value) => area.left + area.width * axisPlace(chart.x, value);
  const upwards = (value) => area.top + area.height * (1 - axisPlace(chart.y, value));
  drawAxes(pen, chart, area, across, upwards);
  const { x, y, group } = chart.points;
  const places = x.map((value, place) => [across(value), upwards(y[place])]);
  chart.groups.forEach((of, number) => {
    pen.fillStyle = styleColour(`--series-${Math.min(of.series, 8)}`);
    pen.globalAlpha = of.solid ? 1 : 0.5;
    places.forEach(([left, top], place) => {
      if (group[place] === number) dot(pen, left, top, of.solid ? 4 : 2.5);
    });
  });
  pen.globalAlpha = 1;
  if (chart.limit !== null) {
    const below = upwards(chart.limit) < area.top + 20;
    axisText(pen, area.limit, area.left + area.width, upwards(chart.limit) + (below ? 14 : -4), "right", "--ink");
  }
  if (selected >= 0) {
    pen.strokeStyle = styleColour("--ink");
    pen.lineWidth = 2;
    pen.beginPath();
    pen.arc(...places[selected], 7, 0, 2 * Math.PI);
    pen.stroke();
  }
  return places;
}

function drawAxes(pen, chart, area, across, upwards) {
  pen.font = "12px system-ui, sans-serif";
  pen.lineWidth = 1;
  const right = area.left + area.width, bottom = area.top + area.height;
  const text = (...given) => axisText(pen, ...given);
  for (const tick of chart.y.ticks) {
    line(pen, [[area.left, upwards(tick)], [right, upwards(tick)]], "--line");
    text(formatNumber(tick, chart.y.form), area.left - 6, upwards(tick) + 4, "right", "--ink");
  }
  chart.x.ticks.forEach((tick, number) => {
    const align = number === 0 ? "left" : number === chart.x.ticks.length - 1 ? "right" : "center";
    text(formatNumber(tick, chart.x.form), across(tick), bottom + 16, align, "--ink");
  });
  text(chart.y.name, area.left - 56, area.top - 10, "left", "--faint");
  text(chart.x.name, right, bottom + 32, "right", "--faint");
  line(pen, chart.line.map(([x, y]) => [across(x), upwards(y)]), "--series-3");
  if (chart.limit !== null) {
    pen.setLineDash([6, 4]);
    line(pen, [[area.left, upwards(chart.limit)], [right, upwards(chart.limit)]], "--ink");
    pen.setLineDash([]);
  }
}

function axisText(pen, words, left, top, align, colour) {
  // Words with a margin in the colour of the page, so that they can be read above points.
  pen.textAlign = align;
  pen.lineWidth = 3;
  pen.strokeStyle = styleColour("--paper");
  pen.strokeText(words, left, top);
  pen.lineWidth = 1;
  pen.fillStyle = styleColour(colour);
  pen.fillText(words, left, top);
}

function line(pen, corners, colour) {
  pen.strokeStyle = styleColour(colour);
  pen.beginPath();
  corners.forEach(([left, top]) => pen.lineTo(left, top));
  pen.stroke();
}

function dot(pen, left, top, radius) {
  pen.beginPath();
  pen.arc(left, top, radius, 0, 2 * Math.PI);
  pen.fill();
}

function nearestPoint(places, left, top) {
  // Place of the point within 20 pixels that is nearest; -1 without one. Of equally near ones the last drawn.
  let nearest = -1, least = 400;
  places.forEach(([x, y], place) => {
    const distance = (x - left) ** 2 + (y - top) ** 2;
    if (distance <= least) [nearest, least] = [place, distance];
  });
  return nearest;
}
