// An answer as it comes: the events of a search, the proof as a picture, and the report.
// Numbers have the formats of the report: formatNumber is of number_formats.js.

const SVG = "http://www.w3.org/2000/svg";
const STATUS_INTERVAL_MS = 1500;
const SHORT = 20;

/** Events {name, data, text, id} of a question's answer; the signal ends the search. */
export async function* eventsOf(verb, body, signal) {
  const response = await fetch(`/api/${verb}`, {
    method: "POST",
    headers: { "content-type": "application/json", accept: "text/event-stream" },
    body: JSON.stringify(body),
    signal,
  });
  if (!response.ok) {
    yield { name: "error", data: await response.json() };
    return;
  }
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    text += value;
    const parts = text.split("\n\n");
    text = parts.pop();
    for (const part of parts) {
      const lines = part.split("\n");
      const name = lines.find((line) => line.startsWith("event: "))?.slice(7);
      const id = lines.find((line) => line.startsWith("id: "))?.slice(4);
      const data = lines.filter((line) => line.startsWith("data: ")).map((line) => line.slice(6)).join("\n");
      if (name) yield { name, id, text: data, data: JSON.parse(data) };
    }
  }
}

/** The part of the page with one answer. */
export class AnswerPart {
  constructor(title) {
    this.element = document.getElementById("answer").content.firstElementChild.cloneNode(true);
    this.element.querySelector("h2").textContent = title;
    this.now = this.element.querySelector(".now");
    this.points = [];
    this.statusAt = 0;
  }

  /** Show the present work, for screen readers not too often; the last text at once. */
  setStatus(text, isLast = false) {
    const at = performance.now();
    if (!isLast && at - this.statusAt < STATUS_INTERVAL_MS && this.statusAt) return;
    this.statusAt = at;
    this.now.textContent = text;
  }

  progress(event) {
    this.setStatus(event.text);
    if (event.best_s === null && event.lower_s === null) return;
    const last = this.points.at(-1);
    this.points.push({
      at: event.elapsed_s,
      best: event.best_s ?? last?.best ?? null,
      lower: event.lower_s, // each part of a search has a bound of its own
    });
    this.show(this.points.at(-1));
    this.draw();
  }

  show({ at, best, lower }) {
    this.element.querySelector(".live").hidden = false;
    this.live("best", formatNumber(best, "seconds"));
    this.live("lower", formatNumber(lower, "seconds"));
    this.live("gap", formatNumber(best === null || lower === null ? null : Math.max(1 - lower / best, 0), "percent"));
    this.live("elapsed", formatNumber(at, "seconds"));
  }

  live(name, text) {
    this.element.querySelector(`[data-live="${name}"]`).textContent = text;
  }

  /** The picture of the proof: the best step falls and the bound rises until they meet. */
  draw() {
    const svg = this.element.querySelector(".proof svg");
    if (this.points.length < 3) return;
    svg.parentElement.hidden = false;
    const values = this.points.flatMap(({ best, lower }) => [best, lower]).filter((value) => value !== null);
    const [low, high] = [Math.min(...values), Math.max(...values)];
    const [from, to] = [this.points[0].at, this.points.at(-1).at];
    const x = (at) => 8 + (584 * (at - from)) / Math.max(to - from, 1e-9);
    const y = (value) => 168 - (156 * (value - low)) / Math.max(high - low, 1e-12);
    svg.replaceChildren(...["best", "lower"].map((name) => {
      const path = document.createElementNS(SVG, "path");
      path.setAttribute("class", name);
      path.setAttribute("d", this.points.map((point, n) => {
        const at = x(point.at).toFixed(1);
        if (point[name] === null) return "";
        const isNew = n === 0 || this.points[n - 1][name] === null;
        return isNew ? `M${at} ${y(point[name]).toFixed(1)}` : `H${at}V${y(point[name]).toFixed(1)}`;
      }).join(""));
      return path;
    }));
    this.element.querySelector(".range").textContent =
      `Left to right: ${secondsText(from)} to ${secondsText(to)} of search. Bottom to top: ${secondsText(low)} to ${secondsText(high)} a step.`;
  }

  /** The final answer of a plan or a simulation, by its document and the document's text. */
  showPlan(plan, text) {
    const { prediction, certificate, request } = plan;
    if (certificate) {
      const at = Math.max(plan.search_time_s, this.points.at(-1)?.at ?? 0);
      this.points.push({ at, best: certificate.best_s, lower: certificate.lower_bound_s });
      this.show(this.points.at(-1));
      this.draw();
    }
    this.setStatus(certificate?.optimal
      ? "Proven: no plan of the searched space is faster."
      : certificate ? "The search stopped; a faster plan may exist within the gap." : "Predicted.", true);
    const answer = this.element.querySelector(".answer");
    const strategy = paragraph("strategy", plan.strategy ?? plan.name);
    answer.replaceChildren(strategy, figures(figuresOf(prediction)), linksOf(text), command(request, plan));
  }

  /** The advice on a launch, by its document. */
  showAdvice(advice) {
    this.setStatus(advice.legal ? "Predicted, and searched for faster changes." : "This launch cannot run as it is.", true);
    const answer = this.element.querySelector(".answer");
    const parts = [paragraph("strategy", `${advice.framework}: ${advice.strategy}`)];
    if (advice.prediction) parts.push(figures(figuresOf(advice.prediction)));
    if (advice.broken.length) parts.push(table(["Rule", "What is wrong"], advice.broken.map(({ rule, message, hint }) => [rule, `${message} ${hint}`])));
    const changes = [...advice.changes, ...(advice.best ? [advice.best] : [])];
    parts.push(table(
      ["Change", "Step", "Gain", "Settings"],
      changes.map((change) => [change.change, secondsText(change.step_time_s), formatNumber(change.gain, "percent"), settingsOf(change)]),
    ));
    answer.replaceChildren(...parts, paragraph("links", ""));
  }

  /** The page of the report, by the digest of its question. */
  showReport(digest) {
    const frame = this.element.querySelector("iframe");
    frame.src = `/report/${digest}`;
    frame.hidden = false;
    this.element.querySelector(".alone")?.remove();
    const link = document.createElement("a");
    Object.assign(link, { href: frame.src, target: "_blank", rel: "noopener", className: "alone", textContent: "Open the report alone" });
    this.element.querySelector(".links")?.append(link);
  }

  /** Offer to search the best plans of other batches, lengths, devices, rates and prices. */
  offerWhatIf(search) {
    const button = Object.assign(document.createElement("button"), {
      type: "button", className: "plain", textContent: "What if? Search other batches, lengths, devices and prices",
    });
    button.addEventListener("click", () => {
      button.remove();
      search();
    });
    this.element.querySelector(".links").append(button);
  }

  /** Say below the answer why it has no report. */
  failReport({ error }) {
    this.element.querySelector(".answer").append(paragraph("error", `No report: ${error.message}`));
  }

  fail({ error }) {
    this.now.className = "now error";
    this.now.replaceChildren(error.message);
    if (error.hint) this.now.append(Object.assign(document.createElement("span"), { className: "hint", textContent: error.hint }));
  }
}

/** Names and texts of a prediction's main figures. */
export function figuresOf(prediction) {
  const [used, capacity] = [prediction.peak_memory_bytes.reserved, prediction.capacity_bytes];
  return [
    ["Step", secondsText(prediction.step_time_s)],
    ["Tokens a second", formatNumber(prediction.tokens_per_s, "rate")],
    ["MFU", formatNumber(prediction.mfu_causal, "percent")],
    ["Memory of a device", `${formatNumber(used, "bytes")} of ${formatNumber(capacity, "bytes")}`],
    ["Fits", formatNumber(prediction.fits, "yes_no")],
  ];
}

/** A table with a heading for each column. */
export function table(heads, rows) {
  const element = document.createElement("table");
  const row = (cells, tag) => {
    const line = document.createElement("tr");
    line.append(...cells.map((text) => Object.assign(document.createElement(tag), {
      textContent: text, className: text.length <= SHORT ? "short" : "",
    })));
    return line;
  };
  const head = document.createElement("thead"), body = document.createElement("tbody");
  head.append(row(heads, "th"));
  body.append(...rows.map((cells) => row(cells, "td")));
  element.append(head, body);
  const scroll = Object.assign(document.createElement("div"), { className: "scroll", tabIndex: 0 });
  scroll.append(element);
  return scroll;
}

/** Settings that a change adds and removes, as text. */
function settingsOf({ add, remove }) {
  return [
    ...add.map(({ name, value }) => `${name} ${value}`),
    ...remove.map(({ name, value }) => `without ${name} ${value}`),
  ].join(", ");
}

function figures(pairs) {
  const list = Object.assign(document.createElement("dl"), { className: "figures" });
  for (const [name, text] of pairs) {
    const pair = document.createElement("div");
    pair.append(
      Object.assign(document.createElement("dt"), { textContent: name }),
      Object.assign(document.createElement("dd"), { textContent: text }),
    );
    list.append(pair);
  }
  return list;
}

function paragraph(className, text) {
  return Object.assign(document.createElement("p"), { className, textContent: text });
}

/** Links below an answer; the saved file has the numbers as the server wrote them. */
function linksOf(text) {
  const links = paragraph("links", "");
  const file = new Blob([`${text}\n`], { type: "application/json" });
  links.append(Object.assign(document.createElement("a"), {
    href: URL.createObjectURL(file), download: "plan.json", textContent: "Save the plan file",
  }));
  return links;
}

/** The command that gives the same answer. */
function command(request, plan) {
  const quoted = (text) => (/^[\w.:+=,/@-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`);
  const words = ["shardwright", plan.certificate ? "plan" : "simulate", request.model, request.cluster, "--seq-len", request.seq_len, "--global-batch", request.global_batch];
  if (!plan.certificate) words.push("--strategy", plan.strategy ?? "PLAN");
  for (const [flag, name] of [["--runtime", "runtime"], ["--precision", "precision"]]) {
    if (request[name]) words.push(flag, request[name]);
  }
  for (const [flag, name] of [["--pin", "pins"], ["--exclude", "excludes"]]) {
    for (const [axis, values] of Object.entries(request[name])) words.push(flag, `${axis}=${values.join(",")}`);
  }
  if (request.max_devices) words.push("--max-devices", request.max_devices);
  if (request.space !== "standard") words.push("--space", request.space);
  if (request.objective !== "time") words.push("--objective", request.objective);
  const block = document.createElement("pre");
  block.tabIndex = 0;
  block.append(Object.assign(document.createElement("code"), { textContent: words.map((word) => quoted(String(word))).join(" ") }));
  return block;
}

function secondsText(value) {
  return formatNumber(value, "seconds");
}
