// The contents of an answer, from its document: a status, elements, and a summary to compare.
// Numbers have the formats of the report: formatNumber is of number_formats.js.

import { figures, link, paragraph, table } from "/elements.js";

/** Function of each verb: (document, its text) -> {status, elements, summary or null}. */
export const CONTENTS = {
  plan: planContents, simulate: planContents, compare: comparisonContents, advise: adviceContents, guide: guideContents,
};

/** A plan or a simulation. */
function planContents(plan, text) {
  const { certificate, prediction, command } = plan;
  const name = nameOf(plan);
  return {
    status: certificate?.optimal
      ? "Proven: no plan of the searched space is faster."
      : certificate ? "The search stopped; a faster plan may exist within the gap." : "Predicted.",
    elements: [
      paragraph("strategy", name), figures(figuresOf(prediction)), linksOf(text, "plan"), ...codeBlocks(command),
    ],
    summary: summaryOf(name, prediction),
  };
}

/** Several strategies of one request. */
function comparisonContents({ strategies, costs, command }, text) {
  const rows = figureRows(strategies.map((one) => summaryOf(nameOf(one), one.prediction)));
  if (costs.every(({ tokens }) => tokens)) {
    rows.push(["Days of training", ...costs.map((cost) => formatNumber(cost.training_s / 86400, "days"))]);
    rows.push(["Cost of training", ...costs.map((cost) => formatNumber(cost.training_usd, "dollars"))]);
  }
  return {
    status: "Predicted.",
    elements: [
      table(["Figure", ...strategies.map((_, n) => `Strategy ${n + 1}`)], rows), linksOf(text, "comparison"), ...codeBlocks(command),
    ],
    summary: null,
  };
}

/** The advice on a launch. */
function adviceContents(advice, text) {
  const elements = [paragraph("strategy", `${advice.framework}: ${advice.strategy}`)];
  if (advice.prediction) elements.push(figures(figuresOf(advice.prediction)));
  if (advice.broken.length) elements.push(table(["Rule", "What is wrong"], advice.broken.map(({ rule, message, hint }) => [rule, `${message} ${hint}`])));
  const changes = [...advice.changes, ...(advice.best ? [advice.best] : [])];
  elements.push(table(
    ["Change", "Step", "Gain", "Settings"],
    changes.map((change) => [change.change, secondsText(change.step_time_s), formatNumber(change.gain, "percent"), settingsOf(change)]),
  ), linksOf(text, "advice"));
  return {
    status: advice.legal ? "Predicted, and searched for faster changes." : "This launch cannot run as it is.",
    elements,
    summary: advice.prediction ? summaryOf(advice.strategy, advice.prediction) : null,
  };
}

/** The rules of thumb of a guide, each with what following it costs. */
function guideContents(guide, text) {
  const { best, kind } = guide;
  const isTraining = kind === "training";
  const pairs = [
    [isTraining ? "Step" : "Time of a token", secondsText(best.step_s)],
    ["Tokens a second", formatNumber(best.tokens_per_s, "rate")],
    [isTraining ? "Memory in use" : "Cache in use", formatNumber(best.memory_share, "percent")],
  ];
  const judged = guide.rules.filter(({ verdict }) => verdict);
  const elements = best.step_s === null ? [] : [paragraph("strategy", best.strategy), figures(pairs)];
  elements.push(table(
    ["Question", "Advice", "Here"],
    judged.map(({ question, verdict }) => [question, verdict.advice, verdict.sentence]),
  ));
  if (guide.skipped.length) elements.push(paragraph("skipped", `The time was over before these rules were judged: ${guide.skipped.join(", ")}.`));
  return {
    status: best.step_s === null
      ? `No plan fits: ${best.why}. ${guide.hint}`
      : isTraining ? "Each rule is judged by searched plans." : "Each rule is judged by simulated deployments.",
    elements: [...elements, linksOf(text, "guide"), ...codeBlocks(guide.command)],
    summary: best.step_s === null ? null : { name: best.strategy, pairs, tokensPerS: best.tokens_per_s },
  };
}

/** Two answers as a table, and the faster one in a sentence. */
export function sideBySide(titles, summaries) {
  const [first, second] = summaries.map(({ tokensPerS }) => tokensPerS);
  const reading = first === second
    ? "Both process equally many tokens a second."
    : first > second
      ? `The first processes ${formatNumber(first / second, "factor")} as many tokens a second as the second.`
      : `The second processes ${formatNumber(second / first, "factor")} as many tokens a second as the first.`;
  return [paragraph("reading", reading), table(["Figure", ...titles], figureRows(summaries))];
}

/** Rows with the name and the figures of each summary; "-" where one has none of a name. */
function figureRows(summaries) {
  const names = [...new Set(summaries.flatMap(({ pairs }) => pairs.map(([name]) => name)))];
  const texts = summaries.map(({ pairs }) => new Map(pairs));
  return [
    ["Strategy", ...summaries.map(({ name }) => name)],
    ...names.map((name) => [name, ...texts.map((one) => one.get(name) ?? "-")]),
  ];
}

function summaryOf(name, prediction) {
  return { name, pairs: figuresOf(prediction), tokensPerS: prediction.tokens_per_s };
}

function nameOf({ strategy, name }) {
  return strategy ?? name;
}

/** Names and texts of a prediction's main figures. */
function figuresOf(prediction) {
  const [used, capacity] = [prediction.peak_memory_bytes.reserved, prediction.capacity_bytes];
  return [
    ["Step", secondsText(prediction.step_time_s)],
    ["Tokens a second", formatNumber(prediction.tokens_per_s, "rate")],
    ["MFU", formatNumber(prediction.mfu_causal, "percent")],
    ["Memory of a device", `${formatNumber(used, "bytes")} of ${formatNumber(capacity, "bytes")}`],
    ["Fits", formatNumber(prediction.fits, "yes_no")],
  ];
}

/** Settings that a change adds and removes, as text. */
function settingsOf({ add, remove }) {
  return [
    ...add.map(({ name, value }) => `${name} ${value}`),
    ...remove.map(({ name, value }) => `without ${name} ${value}`),
  ].join(", ");
}

/** Links below an answer; the saved file has the numbers as the server wrote them. */
function linksOf(text, name) {
  const links = paragraph("links", "");
  const file = new Blob([`${text}\n`], { type: "application/json" });
  links.append(link(URL.createObjectURL(file), `Save the ${name} file`, { download: `${name}.json` }));
  return links;
}

/** The command that gives the same answer as code; nothing where the answer has none. */
function codeBlocks(command) {
  if (!command) return [];
  const block = Object.assign(document.createElement("pre"), { tabIndex: 0 });
  block.append(Object.assign(document.createElement("code"), { textContent: command }));
  return [block];
}

function secondsText(value) {
  return formatNumber(value, "seconds");
}
