// The pipeline's timeline (view_data_types/pipeline_timeline.py), from the whole step down to one microbatch. A row is a
// device: its actions and idle time in one lane, its messages, gathers and reductions in narrow lanes below.

const WORK_COLOURS = { F: "--line", R: "--line", B: "--faint", I: "--faint", W: "--ink", U: "--ink" };
const TIMELINE_LEFT = 64, TIMELINE_TOP = 4, TIMELINE_BOTTOM = 24;

charts.timeline = (figure, report) => {
  const data = valueAt(report, figure.dataset.source);
  const palette = ["--line", "--faint", "--ink", ...data.causes.map((_, number) => `--series-${number}`)];
  const workColours = data.works.map((work) => palette.indexOf(WORK_COLOURS[work.letter] || "--faint"));
  const causes = [...data.causes.map((cause) => cause.name), ...data.imbalances.map((stage) => `imbalance of ${stage.name}`)];
  const causeColours = causes.map((_, number) => 3 + Math.min(number, data.causes.length - 1));
  const main = data.rows.length > 16 ? 12 : 20;
  const rows = data.rows.map((row) => timelineRow(row, workColours, causeColours, main));
  let top = TIMELINE_TOP;
  for (const row of rows) {
    row.top = top;
    top += row.height;
  }
  const end = data.end_s / data.tick_s;
  const view = { low: 0, high: end };
  const selected = { row: 0, place: -1 };

  const zoom = (factor, at = (view.low + view.high) / 2) => {
    const span = Math.min(Math.max((view.high - view.low) * factor, 100), end);
    const share = (at - view.low) / (view.high - view.low);
    move(at - share * span, span);
  };
  const move = (low, span = view.high - view.low) => {
    view.low = Math.min(Math.max(low, 0), end - span);
    view.high = view.low + span;
    chart.redraw();
  };
  const shift = (share) => move(view.low + share * (view.high - view.low));
  const tools = [
    chartButton("Zoom in", () => zoom(0.5)), chartButton("Zoom out", () => zoom(2)),
    chartButton("Earlier", () => shift(-0.5)), chartButton("Later", () => shift(0.5)),
    chartButton("One microbatch", () => showMicrobatch()), chartButton("Whole step", () => move(0, end)),
  ];
  const chart = canvasChart(figure, { height: top + TIMELINE_BOTTOM, tools, draw });
  const pixels = () => Math.max(chart.width - TIMELINE_LEFT, 1);
  const timeAt = (x) => view.low + (x - TIMELINE_LEFT) / pixels() * (view.high - view.low);
  chart.status.textContent = "Drag to move, turn the wheel or pinch to zoom. Keys: plus and minus zoom, left and right"
    + " move, up and down choose a row, N and P the next and previous span, zero shows the whole step.";

  function draw() {
    const { context } = chart, colours = palette.map(styleColour), ink = styleColour("--ink");
    let drawn = 0;
    context.font = "12px system-ui, sans-serif";
    context.textBaseline = "middle";
    for (const row of rows) {
      context.fillStyle = ink;
      context.textAlign = "end";
      context.fillText(row.data.stage, TIMELINE_LEFT - 6, row.top + main / 2);
      context.textAlign = "center";
      for (const lane of row.lanes) {
        const top = row.top + lane.top, batches = new Map();
        for (const rectangle of spanRectangles(lane.spans, view, pixels(), palette.length)) {
          if (!batches.has(rectangle[2])) batches.set(rectangle[2], []);
          batches.get(rectangle[2]).push(rectangle);
        }
        for (const [colour, rectangles] of batches) {
          context.fillStyle = colours[colour];
          for (const [left, right] of rectangles) context.fillRect(TIMELINE_LEFT + left, top, right - left, lane.height);
          drawn += rectangles.length;
          if (lane.spans.name === "actions" && main >= 16 && colour < 3) drawLetters(row, lane, top, rectangles, colour);
        }
      }
    }
    drawSelected(ink);
    drawAxis(ink);
    chart.canvas.dataset.rectangles = drawn;
    chart.canvas.dataset.view = `${view.low} ${view.high}`;
  }

  function drawLetters(row, lane, top, rectangles, colour) {
    const { context } = chart;
    context.fillStyle = styleColour(palette[colour] === "--line" ? "--ink" : "--paper");
    for (const [left, right, , place] of rectangles) {
      if (place < 0 || right - left < 18) continue;
      const task = lane.spans.places[place];
      const { letter } = data.works[row.compute.works[task]], number = row.compute.microbatches[task];
      const text = number >= 0 && right - left > 34 ? `${letter}${number}` : letter;
      context.fillText(text, TIMELINE_LEFT + (left + right) / 2, top + main / 2);
    }
  }

  function drawSelected(ink) {
    const spans = rows[selected.row].compute;
    if (selected.place < 0) return;
    const scale = pixels() / (view.high - view.low);
    const left = Math.max((spans.starts[selected.place] - view.low) * scale, 0);
    const right = Math.min((spans.ends[selected.place] - view.low) * scale, pixels());
    if (right < 0 || left > pixels()) return;
    chart.context.strokeStyle = ink;
    chart.context.lineWidth = 2;
    chart.context.strokeRect(TIMELINE_LEFT + left, rows[selected.row].top, Math.max(right - left, 2), main);
  }

  function drawAxis(ink) {
    const { context } = chart, low = view.low * data.tick_s, high = view.high * data.tick_s;
    const whole = view.low === 0 && view.high === end;
    const most = Math.max(Math.floor(pixels() / 90), 2);
    const ticks = whole && data.axis.ticks.length <= most ? data.axis.ticks : evenTicks(low, high, most);
    const step = ticks.length > 1 ? ticks[1] - ticks[0] : high - low;
    context.strokeStyle = styleColour("--line");
    context.lineWidth = 1;
    for (const tick of ticks) {
      const x = TIMELINE_LEFT + (tick - low) / (high - low) * pixels();
      context.beginPath();
      context.moveTo(x, top);
      context.lineTo(x, top + 5);
      context.stroke();
      context.fillStyle = ink;
      context.textAlign = x > chart.width - 30 ? "end" : x < TIMELINE_LEFT + 30 ? "start" : "center";
      context.fillText(whole ? formatNumber(tick, data.axis.form) : instantText(tick, step), x, top + 15);
    }
  }

  function spanText(row, spans, place) {
    const start = spans.starts[place] * data.tick_s, length = (spans.ends[place] - spans.starts[place]) * data.tick_s;
    const work = spans.works[place], place_ = `${row.data.stage}, device ${row.data.device}`;
    const when = `starts at ${instantText(start, length / 10)}, takes ${formatNumber(length, "seconds")}`;
    if (spans.name === "idle") return `waits: ${causes[work]}\n${place_}\n${when}`;
    const { kind, chunk } = data.works[work], number = spans.microbatches[place];
    const subject = [chunk >= 0 ? `chunk ${chunk}` : "", number >= 0 ? `microbatch ${number}` : ""].filter(Boolean);
    const waited = spans.name === "compute" ? waitsBefore(row, spans.starts[place]) : "";
    return `${[kind, ...subject].join(", ")}\n${place_}\n${when}${waited}`;
  }

  function waitsBefore(row, start) {
    // The pieces of the idle stretch that the task ends.
    const { idle } = row, texts = [];
    let edge = start;
    for (let place = firstEndAfter(idle.ends, start - 2) ; place >= 0; place -= 1) {
      if (place >= idle.count || idle.starts[place] >= start) continue;
      if (Math.abs(idle.ends[place] - edge) > 1) break;
      const seconds = (idle.ends[place] - idle.starts[place]) * data.tick_s;
      texts.push(`\nwaited ${formatNumber(seconds, "seconds")} before: ${causes[idle.works[place]]}`);
      edge = idle.starts[place];
    }
    return texts.join("");
  }

  function spanUnder(x, y) {
    const time = timeAt(x);
    const row = rows.find((one) => y >= one.top && y < one.top + one.height);
    if (!row || x < TIMELINE_LEFT) return null;
    for (const lane of row.lanes) {
      const top = row.top + lane.top;
      if (y < top || y >= top + lane.height + 1) continue;
      const place = spanAt(lane.spans, time);
      if (place < 0) continue;
      if (lane.spans.name !== "actions") return { row, spans: lane.spans, place };
      return { row, spans: lane.spans.owner[place] ? row.idle : row.compute, place: lane.spans.places[place] };
    }
    return null;
  }

  function showMicrobatch() {
    // From the first to the last action of the microbatch that the middle of the view runs on the selected row.
    const spans = rows[selected.row].compute;
    const middle = Math.min(firstEndAfter(spans.ends, (view.low + view.high) / 2), spans.count - 1);
    const number = spans.microbatches[selected.place >= 0 ? selected.place : middle];
    let low = end, high = 0;
    for (const { compute: actions } of rows) {
      for (let place = 0; place < actions.count; place += 1) {
        if (actions.microbatches[place] !== number) continue;
        low = Math.min(low, actions.starts[place]);
        high = Math.max(high, actions.ends[place]);
      }
    }
    if (high <= low) return;
    move(low, high - low);
    chart.status.textContent = `microbatch ${number}: from ${instantText(low * data.tick_s, data.end_s / 1000)}`
      + ` to ${instantText(high * data.tick_s, data.end_s / 1000)}`;
  }

  function select(row, place) {
    const spans = rows[row].compute;
    selected.row = row;
    selected.place = Math.min(Math.max(place, 0), spans.count - 1);
    const start = spans.starts[selected.place], finish = spans.ends[selected.place];
    if (start < view.low || finish > view.high) move((start + finish - view.high + view.low) / 2);
    chart.status.textContent = spanText(rows[row], spans, selected.place);
    chart.redraw();
  }

  function selectRow(step) {
    const row = Math.min(Math.max(selected.row + step, 0), rows.length - 1);
    const old = rows[selected.row].compute;
    const time = selected.place >= 0 ? old.starts[selected.place] : (view.low + view.high) / 2;
    select(row, firstEndAfter(rows[row].compute.ends, time));
  }

  function selectNext(step) {
    const spans = rows[selected.row].compute;
    select(selected.row, selected.place < 0 ? firstEndAfter(spans.ends, view.low) : selected.place + step);
  }

  const keys = {
    "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), 0: () => move(0, end),
    ArrowLeft: () => shift(-0.2), ArrowRight: () => shift(0.2), ArrowUp: () => selectRow(-1), ArrowDown: () => selectRow(1),
    n: () => selectNext(1), p: () => selectNext(-1), Home: () => move(0), End: () => move(end),
    m: showMicrobatch, Escape: () => { selected.place = -1; showTip(chart, ""); chart.redraw(); },
  };
  chart.canvas.addEventListener("keydown", (event) => {
    const act = keys[event.key] || keys[event.key.toLowerCase()];
    if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    act();
  });
  chart.canvas.addEventListener("wheel", (event) => {
    const factor = Math.exp(Math.min(Math.max(event.deltaY, -200), 200) / 250);
    // A page that is shown whole scrolls on.
    if (factor > 1 && view.high - view.low >= end) return;
    event.preventDefault();
    zoom(factor, timeAt(event.offsetX));
  }, { passive: false });

  const pointers = new Map();
  chart.canvas.addEventListener("pointerdown", (event) => {
    pointers.set(event.pointerId, event.offsetX);
    chart.canvas.setPointerCapture(event.pointerId);
  });
  for (const name of ["pointerup", "pointercancel"]) {
    chart.canvas.addEventListener(name, (event) => pointers.delete(event.pointerId));
  }
  chart.canvas.addEventListener("pointerleave", () => showTip(chart, ""));
  chart.canvas.addEventListener("pointermove", (event) => {
    const before = pointers.get(event.pointerId);
    if (before === undefined) return hover(event);
    showTip(chart, "");
    pointers.set(event.pointerId, event.offsetX);
    const others = [...pointers].filter(([id]) => id !== event.pointerId).map(([, x]) => x);
    if (!others.length) return move(view.low - (event.offsetX - before) / pixels() * (view.high - view.low));
    const fixed = others[0], distance = (x) => Math.max(Math.abs(x - fixed), 8);
    zoom(distance(before) / distance(event.offsetX), timeAt(fixed));
  });
  function hover(event) {
    const found = spanUnder(event.offsetX, event.offsetY);
    showTip(chart, found ? spanText(found.row, found.spans, found.place) : "", event.offsetX, event.offsetY);
  }
};

function timelineRow(row, workColours, causeColours, main) {
  // Lanes of a row: the actions and the idle time share the first one, the others are narrow.
  const tracks = row.tracks.map((track) => spansOfTrack(track, track.name === "idle" ? causeColours : workColours));
  const [compute, idle] = ["compute", "idle"].map((name) => tracks.find((track) => track.name === name));
  const others = tracks.filter((track) => track !== compute && track !== idle);
  const lanes = [
    { spans: mergedSpans("actions", compute, idle), top: 0, height: main },
    ...others.map((spans, number) => ({ spans, top: main + 1 + 4 * number, height: 3 })),
  ];
  return { data: row, compute, idle, lanes, height: main + 4 * others.length + 6, top: 0 };
}

function evenTicks(low, high, most) {
  const power = 10 ** Math.floor(Math.log10((high - low) / most));
  const step = [1, 2, 5, 10, 20].map((factor) => factor * power).find((one) => (high - low) / one <= most);
  const first = Math.ceil(low / step), count = Math.floor(high / step) - first + 1;
  return Array.from({ length: Math.max(count, 0) }, (_, place) => (first + place) * step);
}

function instantText(seconds, precision) {
  // An instant with as many digits as tell instants apart that are `precision` seconds from each other.
  const digits = Math.min(Math.max(Math.ceil(-Math.log10(Math.max(precision, 1e-9)) - 1e-9), 0), 9);
  return `${seconds.toFixed(digits)} s`;
}
