// A map of all devices, node by node (view_data_types/communication_groups.py). The groups of the device under the
// pointer, or of the chosen one, have the colours of their kinds of communication.

charts.devices = (figure, report) => {
  const data = valueAt(report, figure.dataset.source);
  const nodes = data.nodes.flatMap((run) => Array.from({ length: run.count }, (_, place) => (
    { first: run.first + place * run.devices, devices: run.devices }
  )));
  const classes = data.classes.map((one, number) => ({
    ...one, number, members: new Set(patternDevices(one.devices)),
    groups: data.groups.filter((group) => group.device_class === number),
  }));
  const palette = [...data.kinds.map((_, number) => `--series-${number}`), "--line", "--ink"];
  const other = data.kinds.length, self = other + 1;
  let chosen = data.classes[data.shown].devices.first, layout = null, hovered = -1, cell = 4;

  const picker = document.createElement("select");
  picker.setAttribute("aria-label", "Device");
  for (const one of classes) picker.append(new Option(`${one.stage}: device ${one.devices.first}`, one.devices.first));
  picker.value = chosen;
  picker.addEventListener("change", () => choose(Number(picker.value)));
  const tools = [
    picker, chartButton("Previous device", () => choose(chosen - 1)), chartButton("Next device", () => choose(chosen + 1)),
  ];
  const chart = canvasChart(figure, { height: 10, tools, draw });
  const note = figure.querySelector(".map-note");
  if (note) note.textContent = "Each square is a device, each block a node. Point at a device, or move with the arrow keys.";

  function place() {
    // Nodes in lines as long as the canvas is wide.
    if (layout && layout.width === chart.width) return layout;
    cell = Math.min(Math.max(Math.floor(Math.sqrt(chart.width * 270 / data.devices)), 4), 24);
    const widest = Math.max(...nodes.map((node) => node.devices));
    const perRow = Math.max(Math.min(widest, Math.floor(chart.width / cell)), 1);
    const blockWidth = perRow * cell + cell, blockHeight = Math.ceil(widest / perRow) * cell + Math.ceil(cell / 2);
    const columns = Math.max(Math.floor((chart.width + cell) / blockWidth), 1);
    const height = Math.ceil(nodes.length / columns) * blockHeight;
    layout = { width: chart.width, perRow, blockWidth, blockHeight, columns, height };
    chart.resizeHeight(height);
    return layout;
  }

  function corner(node, index) {
    const { columns, blockWidth, blockHeight, perRow } = layout;
    return [
      node % columns * blockWidth + index % perRow * cell,
      Math.floor(node / columns) * blockHeight + Math.floor(index / perRow) * cell,
    ];
  }

  function draw() {
    place();
    const colours = palette.map(styleColour), shown = hovered >= 0 ? hovered : chosen;
    const colourOf = groupColours(shown), size = cell - 1;
    const batches = palette.map(() => []);
    nodes.forEach((node, number) => {
      for (let index = 0; index < node.devices; index += 1) {
        batches[colourOf.get(node.first + index) ?? other].push(corner(number, index));
      }
    });
    batches.forEach((corners, colour) => {
      chart.context.fillStyle = colours[colour];
      for (const [x, y] of corners) chart.context.fillRect(x, y, size, size);
    });
    chart.canvas.dataset.device = shown;
    chart.canvas.dataset.marked = [...colourOf.keys()].sort((one, two) => one - two).join(" ");
  }

  function groupColours(device) {
    const found = new Map();
    const groups = groupsOf(device).sort((one, two) => two.kind - one.kind || two.size - one.size);
    for (const group of groups) for (const member of group.members) found.set(member, group.kind);
    found.set(device, self);
    return found;
  }

  function groupsOf(device) {
    const own = classes.find((one) => one.members.has(device));
    if (!own || (!own.shifts && device !== own.devices.first)) return [];
    return own.groups.map((group) => ({ ...group, members: groupAround(group.group, device) }));
  }

  function deviceText(device) {
    const own = classes.find((one) => one.members.has(device));
    if (!own) return `device ${device}: it runs nothing in the listed classes`;
    const lines = groupsOf(device).map((group) => `${group.name}: ${group.size} devices, `
      + `${formatNumber(group.sent_bytes, "bytes")} a step over ${group.tier}`);
    if (!lines.length) lines.push(own.shifts ? "it sends nothing" : "its groups are listed for the first device of its class");
    return [`device ${device}, ${own.stage}`, ...lines].join("\n");
  }

  function choose(device) {
    chosen = Math.min(Math.max(device, 0), data.devices - 1);
    hovered = -1;
    const own = classes.find((one) => one.members.has(chosen));
    if (own) picker.value = own.devices.first;
    chart.status.textContent = deviceText(chosen);
    chart.redraw();
  }

  function deviceAt(x, y) {
    const { columns, blockWidth, blockHeight, perRow } = place();
    const column = Math.floor(x / blockWidth), across = Math.floor(x % blockWidth / cell);
    const node = nodes[Math.floor(y / blockHeight) * columns + column];
    const index = Math.floor(y % blockHeight / cell) * perRow + across;
    if (!node || column >= columns || across >= perRow || index >= node.devices) return -1;
    return node.first + index;
  }

  chart.canvas.addEventListener("pointermove", (event) => {
    const device = deviceAt(event.offsetX, event.offsetY);
    if (device !== hovered) {
      hovered = device;
      chart.redraw();
    }
    showTip(chart, device >= 0 ? deviceText(device) : "", event.offsetX, event.offsetY);
  });
  chart.canvas.addEventListener("pointerleave", () => {
    hovered = -1;
    showTip(chart, "");
    chart.redraw();
  });
  chart.canvas.addEventListener("click", (event) => {
    const device = deviceAt(event.offsetX, event.offsetY);
    if (device >= 0) choose(device);
  });
  chart.canvas.addEventListener("keydown", (event) => {
    const across = place().columns;
    const node = nodes.find((one) => chosen < one.first + one.devices);
    const steps = {
      ArrowLeft: -1, ArrowRight: 1, ArrowUp: -across * node.devices, ArrowDown: across * node.devices,
      PageUp: -node.devices, PageDown: node.devices,
    };
    if (!(event.key in steps)) return;
    event.preventDefault();
    choose(chosen + steps[event.key]);
  });
  choose(chosen);
};

function patternDevices(pattern) {
  if (pattern.offsets) return pattern.offsets.split(",").map((offset) => pattern.first + Number(offset));
  return pattern.levels.reduce(
    (devices, [count, step]) => devices.flatMap((device) => Array.from({ length: count }, (_, place) => device + place * step)),
    [pattern.first],
  );
}

function groupAround(pattern, device) {
  // The group of another device: the pattern, shifted so that the device is in it.
  if (pattern.offsets) return patternDevices(pattern);
  let first = device;
  for (const [count, step] of pattern.levels) {
    const place = Math.floor((device - pattern.first) / step);
    first -= (place % count + count) % count * step;
  }
  return patternDevices({ ...pattern, first });
}
