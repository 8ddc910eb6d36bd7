// The page: the form, the address, the questions that were asked, dropped files, and one or two answers.

import { AnswerPart, eventsOf } from "/answer.js";
import { CONTENTS, sideBySide } from "/answer_contents.js";
import { addressOf, bodyOf, fieldOf, isComplete, keyOf, questionsOfAddress, titleOf } from "/question.js";

const form = document.getElementById("question");
const answers = document.getElementById("answers");
const fault = document.getElementById("fault");
const cancel = document.getElementById("cancel");
const others = document.getElementById("with");
const note = document.getElementById("note");
const LARGEST_FILE = 3_000_000;
const ASKED = "asked";
const MOST_ASKED = 20;
const texts = { files: {}, launch: {} };
let running = null;
let asked = [];

/** The question of the form, as the button that was pressed asks it. */
function questionOfForm(button) {
  const fields = {};
  for (const [name, value] of new FormData(form, button)) {
    if (typeof value === "string" && value.trim()) fields[name] = value.trim();
  }
  return { fields, files: { ...texts.files }, launch: { ...texts.launch } };
}

/** Fill the form with a question. */
function fill({ fields, files, launch }) {
  for (const element of form.elements) {
    if (element.name && element.type !== "submit") element.value = fields[element.name] ?? "";
  }
  Object.assign(texts, { files, launch });
  const more = document.getElementById("more");
  if ([...more.querySelectorAll("[name]")].some((element) => element.value)) more.open = true;
  showFiles();
}

/** Show which files the question has. */
function showFiles() {
  for (const line of document.querySelectorAll(".file")) {
    const field = line.dataset.of;
    const names = field === "launch" ? Object.keys(texts.launch) : texts.files[field] ? [`${texts.files[field].length.toLocaleString("en")} letters given`] : [];
    line.hidden = !names.length;
    line.firstElementChild.textContent = names.join(", ");
  }
  document.getElementById("of-cluster-file").hidden = !texts.files.cluster;
}

function showFault(text) {
  fault.textContent = text;
  fault.hidden = !text;
}

/** Ask a question, show its answer as it comes, and return its summary, or null. */
async function ask(question, part, signal) {
  const [verb, body] = bodyOf(question);
  for await (const { name, data, text, id } of eventsOf(verb, body, signal)) {
    if (name === "progress") part.progress(data);
    else if (name === "error") part.fail(data);
    else {
      const contents = CONTENTS[verb](data, text);
      part.showContents(contents, data);
      if (verb === "guide") part.showPage(id, "guide");
      else await report(text, question, part, signal);
      if (data.certificate) part.offerWhatIf(() => searchWhatIf(text, question, part));
      return contents.summary;
    }
  }
  return null;
}

/** Make the report of an answer and show it. */
async function report(plan, question, part, signal, whatIf = false) {
  const [verb, { files, cluster_nodes, cluster_accelerator }] = bodyOf(question);
  const hasTokens = ["plan", "simulate"].includes(verb);
  const body = { files, cluster_nodes, cluster_accelerator, plan, tokens: hasTokens ? Number(question.fields.tokens ?? 0) : 0, what_if: whatIf };
  for await (const { name, data, id } of eventsOf("report", body, signal)) {
    if (name === "answer") part.showPage(id, "report");
    else if (name === "error") part.failReport(data);
    else if (whatIf) part.setStatus(data.text);
  }
}

/** Run a search that "Cancel" ends, in place of the one before; its parts show an early end. */
async function runUntilCancelled(parts, search) {
  running?.abort();
  const controller = (running = new AbortController());
  cancel.disabled = false;
  try {
    await search(controller.signal);
  } catch (error) {
    const text = error.name === "AbortError" ? "Cancelled." : `The connection ended: ${error.message}`;
    for (const part of parts) part.setStatus(text, true);
  } finally {
    if (running === controller) {
      running = null;
      cancel.disabled = true;
    }
  }
}

/** Search the best plans of changed requests, and show them in the report. */
function searchWhatIf(plan, question, part) {
  return runUntilCancelled([part], async (signal) => {
    await report(plan, question, part, signal, true);
    part.setStatus("The report has the best plans of changed requests.", true);
  });
}

/** Show the answer of a question, or of two side by side with a comparison. */
async function answer(questions) {
  const isPair = questions.length === 2;
  const addresses = isPair ? await Promise.all(questions.map(async (question) => (await addressOf(question)).address)) : [];
  const parts = questions.map((question, n) => new AnswerPart(titleOf(question), addresses[n]));
  answers.classList.toggle("compared", isPair);
  answers.replaceChildren(...parts.map((part) => part.element));
  await runUntilCancelled(parts, async (signal) => {
    const summaries = await Promise.all(questions.map((question, n) => ask(question, parts[n], signal)));
    if (isPair && summaries.every(Boolean)) showComparison(questions, summaries);
  });
}

/** Show the figures of two answers above them. */
function showComparison(questions, summaries) {
  const article = document.createElement("article");
  const heading = Object.assign(document.createElement("h2"), { textContent: "Side by side" });
  article.className = "comparison";
  article.append(heading, ...sideBySide(questions.map(titleOf), summaries));
  answers.prepend(article);
}

/** Add questions to those that were asked in this tab, and offer all but the first one for a comparison with it. */
function remember(questions) {
  const keys = questions.map(keyOf);
  asked = [...questions, ...asked.filter((one) => !keys.includes(keyOf(one)))].slice(0, MOST_ASKED);
  try {
    sessionStorage.setItem(ASKED, JSON.stringify(asked));
  } catch {
    sessionStorage.removeItem(ASKED); // too many large files: this page alone still has them
  }
  const options = asked.map((one, n) => new Option(titleOf(one), n)).slice(1);
  others.replaceChildren(new Option("no other question", ""), ...options);
  others.value = questions.length > 1 ? "1" : "";
  others.disabled = !options.length;
}

/** Answer the questions of the address, as when a link is opened or with the back button. */
async function answerAddress() {
  const questions = await questionsOfAddress(location.search, location.hash);
  fill(questions[0]);
  answers.replaceChildren();
  if (questions.every(isComplete)) await tryAnswer(questions);
}

async function tryAnswer(questions) {
  showFault("");
  try {
    questions.forEach(bodyOf);
  } catch (error) {
    showFault(error.message);
    return;
  }
  remember(questions);
  await answer(questions);
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const question = questionOfForm(event.submitter);
  if (!isComplete(question)) {
    showFault("Give a model, a cluster, the sequence length and the global batch, or a launch script.");
    return;
  }
  const other = others.value ? asked[others.value] : null;
  const questions = other && keyOf(other) !== keyOf(question) ? [question, other] : [question];
  const { address, isWhole } = await addressOf(...questions);
  history.pushState(null, "", address);
  note.textContent = isWhole
    ? "The address of this page is the question: share it."
    : "The files are too long for the address; the link has the rest of the question.";
  await tryAnswer(questions);
});

cancel.addEventListener("click", () => running?.abort());
others.addEventListener("change", () => {
  form.requestSubmit(form.querySelector(asked[0].fields.ask === "guide" ? "#guide" : "#ask"));
});
document.getElementById("examples").addEventListener("click", (event) => {
  if (event.target.dataset.cluster) document.getElementById("cluster").value = event.target.dataset.cluster;
});

/** Keep the text of a file for a field of the question. */
async function take(file, field) {
  if (file.size > LARGEST_FILE) {
    showFault(`${file.name} is too large: a configuration or a topology has less than 3 MB.`);
    return;
  }
  const text = await file.text();
  const target = field ?? fieldOf(file.name, text);
  if (target === "launch") texts.launch[file.name.replace(/[^\w.-]/g, "_").replace(/^[.-]+/, "").slice(-64) || "launch.sh"] = text;
  else texts.files[target] = text;
  showFiles();
}

for (const input of document.querySelectorAll('input[type="file"]')) {
  input.addEventListener("change", async () => {
    for (const file of input.files) await take(file, input.dataset.field);
    input.value = "";
  });
}
for (const line of document.querySelectorAll(".file")) {
  line.querySelector("button").addEventListener("click", () => {
    if (line.dataset.of === "launch") texts.launch = {};
    else delete texts.files[line.dataset.of];
    showFiles();
  });
}
document.addEventListener("dragover", (event) => {
  event.preventDefault();
  document.body.classList.add("over");
});
document.addEventListener("dragleave", () => document.body.classList.remove("over"));
document.addEventListener("drop", async (event) => {
  event.preventDefault();
  document.body.classList.remove("over");
  for (const file of event.dataTransfer.files) await take(file);
});
addEventListener("popstate", answerAddress);

/** Fill the lists of names from the catalogs. */
async function fillLists() {
  const catalog = await (await fetch("/api/catalog")).json();
  const lists = {
    models: catalog.models,
    accelerators: catalog.accelerators.map((one) => one.name),
    clusters: [...catalog.accelerators.map((one) => `${one.name}:8`), ...catalog.instances.map((name) => `${name}:1`), ...catalog.clusters],
    runtimes: catalog.runtimes,
    precisions: catalog.precisions,
  };
  for (const [id, names] of Object.entries(lists)) {
    document.getElementById(id).append(...names.map((value) => Object.assign(document.createElement("option"), { value })));
  }
}

try {
  asked = JSON.parse(sessionStorage.getItem(ASKED) ?? "[]");
} catch {
  asked = [];
}
fillLists();
answerAddress();
