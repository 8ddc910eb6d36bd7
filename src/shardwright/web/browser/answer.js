// An answer as it comes: the events of a search, the proof as a picture, and the report or guide.
// Numbers have the formats of the report: formatNumber is of number_formats.js.

import { link, paragraph } from "/elements.js";

const SVG = "http://www.w3.org/2000/svg";
const STATUS_INTERVAL_MS = 1500;

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
  /** Part with the heading of a question, which links to `address` unless that is empty. */
  constructor(title, address = "") {
    this.element = document.getElementById("answer").content.firstElementChild.cloneNode(true);
    this.element.querySelector("h2").append(address ? link(address, title) : title);
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
    const isCounted = event.total && event.best_s === null;
    this.setStatus(isCounted ? `${event.text}: ${event.done} of ${event.total}` : event.text);
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

  /** The final answer, by its contents; a plan's certificate is the last point of the proof. */
  showContents({ status, elements }, { certificate, search_time_s: searched }) {
    if (certificate) {
      const at = Math.max(searched, this.points.at(-1)?.at ?? 0);
      this.points.push({ at, best: certificate.best_s, lower: certificate.lower_bound_s });
      this.show(this.points.at(-1));
      this.draw();
    }
    this.setStatus(status, true);
    this.element.querySelector(".answer").replaceChildren(...elements);
  }

  /** The page of a report or a guide, by the digest of its question. */
  showPage(digest, name) {
    const frame = this.element.querySelector("iframe");
    Object.assign(frame, { src: `/report/${digest}`, title: name, hidden: false });
    this.element.querySelector(".alone")?.remove();
    this.element.querySelector(".links").append(
      link(frame.src, `Open the ${name} alone`, { target: "_blank", rel: "noopener", className: "alone" }),
    );
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

function secondsText(value) {
  return formatNumber(value, "seconds");
}
