// The page: the form, the address, dropped files, and one or two answers.

import { AnswerPart, eventsOf, figuresOf, table } from "/answer.js";
import { addressOf, bodyOf, fieldOf, isComplete, questionOfAddress, titleOf } from "/question.js";

const form = document.getElementById("question");
const answers = document.getElementById("answers");
const fault = document.getElementById("fault");
const cancel = document.getElementById("cancel");
const compare = document.getElementById("compare");
const LARGEST_FILE = 3_000_000;
const texts = { files: {}, launch: {} };
let running = null;
let comparedWith = "";

/** The question of the form. */
function questionOfForm() {
  const fields = {};
  for (const [name, value] of new FormData(form)) {
    if (typeof value === "string" && value.trim()) fields[name] = value.trim();
  }
  return { fields, files: { ...texts.files }, launch: { ...texts.launch } };
}

/** Fill the form with a question. */
function fill({ fields, files, launch }) {
  for (const element of form.elements) {
    if (element.name) element.value = fields[element.name] ?? "";
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

/** Ask a question, show its answer as it comes, and return its final document. */
async function ask(question, part, signal) {
  const [verb, body] = bodyOf(question);
  for await (const { name, data, text } of eventsOf(verb, body, signal)) {
    if (name === "progress") part.progress(data);
    else if (name === "error") part.fail(data);
    else if (verb === "advise") {
      part.showAdvice(data);
      await report(text, question, part, signal);
    } else {
      part.showPlan(data, text);
      await report(text, question, part, signal);
      if (data.certificate) part.offerWhatIf(() => searchWhatIf(text, question, part));
      return data;
    }
  }
  return null;
}

/** Make the report of a plan and show it. */
async function report(plan, question, part, signal, whatIf = false) {
  const { request: _, strategy: __, launch, ...given } = bodyOf(question)[1];
  const body = { ...given, plan, tokens: launch ? 0 : Number(question.fields.tokens ?? 0), what_if: whatIf };
  for await (const { name, data, id } of eventsOf("report", body, signal)) {
    if (name === "answer") part.showReport(id);
    else if (name === "error") part.failReport(data);
    else if (whatIf) part.setStatus(data.text);
  }
}

/** Run a search that "Cancel" ends, in place of the one before; its parts show an early end. */
async function runUntilCancelled(parts, search) {
  running?.abort();
  const controller = (running = new AbortController());
  cancel.disabled = false;
  compare.disabled = true;
  try {
    await search(controller.signal);
  } catch (error) {
    const text = error.name === "AbortError" ? "Cancelled." : `The connection ended: ${error.message}`;
    for (const part of parts) part.setStatus(text, true);
  } finally {
    if (running === controller) {
      running = null;
      cancel.disabled = true;
      compare.disabled = false;
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

/** Show the answers of questions, one below the other, and compare two. */
function answer(questions) {
  const parts = questions.map((question) => new AnswerPart(titleOf(question)));
  answers.replaceChildren(...parts.map((part) => part.element));
  return runUntilCancelled(parts, async (signal) => {
    const documents = await Promise.all(questions.map((question, n) => ask(question, parts[n], signal)));
    if (documents.length === 2 && documents.every(Boolean)) showComparison(questions, documents);
  });
}

/** A table of two answers, side by side. */
function showComparison(questions, documents) {
  const columns = documents.map((one) => figuresOf(one.prediction));
  const rows = columns[0].map(([name, text], n) => [name, text, columns[1][n][1]]);
  const strategies = documents.map((one) => one.strategy ?? one.name);
  const article = document.createElement("article");
  article.append(
    Object.assign(document.createElement("h2"), { textContent: "Side by side" }),
    table(["", ...questions.map(titleOf)], [["Strategy", ...strategies], ...rows]),
  );
  answers.prepend(article);
}

/** Answer the question of the address, as when a link is opened or with the back button. */
async function answerAddress() {
  const question = await questionOfAddress(location.search, location.hash);
  comparedWith = new URLSearchParams(location.search).get("with") ?? "";
  fill(question);
  const questions = [question];
  if (comparedWith) questions.push(await questionOfAddress(comparedWith, ""));
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
  await answer(questions);
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const question = questionOfForm();
  if (!isComplete(question)) {
    showFault("Give a model, a cluster, the sequence length and the global batch, or a launch script.");
    return;
  }
  const { address, isWhole } = await addressOf(question, comparedWith);
  history.pushState(null, "", address);
  document.getElementById("copied").textContent = isWhole
    ? "The address of this page is the question: share it."
    : "The files are too long for the address; the link has the rest of the question.";
  const others = comparedWith ? [await questionOfAddress(comparedWith, "")] : [];
  await tryAnswer([question, ...others]);
});
cancel.addEventListener("click", () => running?.abort());
compare.addEventListener("click", () => {
  comparedWith = new URLSearchParams(questionOfForm().fields).toString();
  document.getElementById("copied").textContent = "Change the form and ask again: both answers are shown.";
  document.getElementById("model").focus();
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

fillLists();
answerAddress();
