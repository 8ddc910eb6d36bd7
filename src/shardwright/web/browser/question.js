// A question: from the form, from and to the address of the page, and as the body of the API.

const NUMBERS = ["seq_len", "global_batch", "max_devices", "cluster_nodes", "tokens", "answer_tokens"];
/** Fields of a question, in their order in its address: equal questions have equal addresses. */
const FIELDS = [
  "model", "cluster", "cluster_nodes", "cluster_accelerator", "seq_len", "global_batch", "runtime", "precision", "strategy",
  "pins", "excludes", "max_devices", "space", "objective", "tokens", "guide_for", "answer_tokens", "ask",
];
const REQUEST = ["model", "cluster", "seq_len", "global_batch", "runtime", "precision"];
const CHOICES = ["pins", "excludes"];
/** Further fields of a request that a verb reads, as its command line does. */
const FURTHER = {
  plan: [...CHOICES, "max_devices", "space", "objective"], simulate: [], compare: CHOICES,
  guide: [...CHOICES, "max_devices"], advise: [...CHOICES, "max_devices", "space", "objective"],
};
const LONGEST_TITLE_PART = 60;
const LARGEST_FRAGMENT = 24000;

/** The questions of a page's address, {fields, files, launch} each: its own, and the one that it is compared with. */
export async function questionsOfAddress(search, hash) {
  const given = new URLSearchParams(search);
  const texts = new URLSearchParams(hash.replace(/^#/, ""));
  const own = await questionOf(given, texts.get("files"));
  if (!given.get("with")) return [own];
  return [own, await questionOf(new URLSearchParams(given.get("with")), texts.get("with_files"))];
}

function queryOf(fields) {
  return new URLSearchParams(FIELDS.filter((name) => fields[name]).map((name) => [name, fields[name]]));
}

async function questionOf(given, packedFiles) {
  const fields = Object.fromEntries(FIELDS.filter((name) => given.get(name)).map((name) => [name, given.get(name)]));
  const { files = {}, launch = {} } = packedFiles ? await unpacked(packedFiles) : {};
  return { fields, files, launch };
}

/** {address, isWhole} of a question and of the one that it is compared with; without their files where those are too long. */
export async function addressOf(question, other = null) {
  const query = queryOf(question.fields);
  if (other) query.set("with", queryOf(other.fields));
  const texts = new URLSearchParams();
  for (const [name, one] of [["files", question], ["with_files", other]]) {
    if (one && hasFiles(one)) texts.set(name, await packed({ files: one.files, launch: one.launch }));
  }
  const fragment = `${texts}`;
  const isWhole = fragment.length <= LARGEST_FRAGMENT;
  return { address: `/?${query}${fragment && isWhole ? `#${fragment}` : ""}`, isWhole };
}

/** Text that equal questions have in common. */
export function keyOf({ fields, files, launch }) {
  return JSON.stringify([`${queryOf(fields)}`, files, launch]);
}

function hasFiles({ files, launch }) {
  return Object.keys(files).length + Object.keys(launch).length > 0;
}

/** True if a question names a model, a cluster and a job. */
export function isComplete(question) {
  const { fields, files } = question;
  return Boolean(
    (fields.model || files.model) && (fields.cluster || files.cluster) &&
    (verbOf(question) === "advise" || (fields.seq_len && fields.global_batch)),
  );
}

/** Verb of the API that answers a question. */
export function verbOf({ fields, launch }) {
  if (fields.ask === "guide") return "guide";
  if (Object.keys(launch).length) return "advise";
  if (!fields.strategy) return "plan";
  return strategiesOf(fields.strategy).length > 1 ? "compare" : "simulate";
}

/** Strategies of a text: one a line, or a whole plan in notation or JSON. */
function strategiesOf(text = "") {
  if (/^\s*(plan |\{)/.test(text)) return [text];
  return text.split("\n").map((line) => line.trim()).filter(Boolean);
}

/** Verb of the API and body of a question; throws an Error with a message for people. */
export function bodyOf(question) {
  const { fields, files, launch } = question;
  const verb = verbOf(question);
  const request = { model: "", cluster: "", seq_len: 0, global_batch: 0 };
  for (const name of [...REQUEST, ...FURTHER[verb]]) {
    if (CHOICES.includes(name)) request[name] = choices(name, fields[name]);
    else if (fields[name]) request[name] = NUMBERS.includes(name) ? wholeNumber(name, fields[name]) : fields[name];
  }
  const body = { request, files };
  if (files.model) request.model = "";
  if (files.cluster) {
    request.cluster = "";
    if (fields.cluster_nodes) body.cluster_nodes = wholeNumber("cluster_nodes", fields.cluster_nodes);
    if (fields.cluster_accelerator) body.cluster_accelerator = fields.cluster_accelerator;
  }
  return [verb, { ...body, ...furtherOf(verb, question) }];
}

/** Fields of a body beside its request and files. */
function furtherOf(verb, { fields, launch }) {
  if (verb === "advise") return { launch };
  if (verb === "simulate") return { strategy: strategiesOf(fields.strategy)[0] };
  if (verb === "compare") return { strategies: strategiesOf(fields.strategy), tokens: Number(fields.tokens ?? 0) };
  if (verb !== "guide" || fields.guide_for !== "serving") return {};
  return { serving: true, answer_tokens: wholeNumber("answer_tokens", fields.answer_tokens ?? "0") };
}

/** Heading of a question. */
export function titleOf(question) {
  const { fields, files, launch } = question;
  const verb = verbOf(question);
  const model = files.model ? "config.json" : fields.model;
  const cluster = files.cluster ? "the given cluster" : fields.cluster;
  const isServing = verb === "guide" && fields.guide_for === "serving";
  const [sequences, tokens] = [counted(fields.global_batch, isServing ? "request" : "sequence"), counted(fields.seq_len, "token")];
  const job = verb === "advise" ? Object.keys(launch).join(", ") : `${sequences} of ${tokens}`;
  const further = ["runtime", "precision", ...FURTHER[verb]].filter((name) => fields[name]).map((name) => `${name.replace("_", " ")} ${fields[name]}`);
  const strategies = ["simulate", "compare"].includes(verb) ? strategiesOf(fields.strategy) : [];
  const details = [...strategies, ...further].map((text) => `, ${text.slice(0, LONGEST_TITLE_PART)}`).join("");
  return `${verb === "guide" ? `Guide${isServing ? " for serving" : ""}: ` : ""}${model} on ${cluster}: ${job}${details}`;
}

/** Field of the question that a dropped file fills, by its name and its text. */
export function fieldOf(name, text) {
  const isJson = /\.json$/i.test(name);
  if (isJson && /"(architectures|model_type|hidden_size|num_hidden_layers)"\s*:/.test(text)) return "model";
  if (/\bGPU0\b[\s\S]*\bGPU1\b|NodeName=|SwitchName=|^\s*nodes\s*:|<system|"kind"\s*:\s*"(Node|List)"/m.test(text)) return "cluster";
  return "launch";
}

function wholeNumber(name, text) {
  const number = Number(text);
  if (!Number.isSafeInteger(number)) throw new Error(`${name.replace("_", " ")}: ${text} is not a whole number`);
  return number;
}

function counted(text, noun) {
  const number = Number(text);
  return `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
}

/** {axis: [values]} of words such as "tp=8 pp=4,8". */
function choices(name, text = "") {
  const chosen = {};
  for (const word of text.trim().split(/\s+/).filter(Boolean)) {
    const [, axis, values] = word.match(/^([A-Za-z_]+)=?(.+)$/) ?? [];
    if (!axis) throw new Error(`${name}: ${word} is not an axis with values, such as tp=8`);
    chosen[axis] = values.split(",");
  }
  return chosen;
}

async function packed(value) {
  const stream = new Blob([JSON.stringify(value)]).stream().pipeThrough(new CompressionStream("deflate-raw"));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  const binary = Array.from(bytes, (byte) => String.fromCharCode(byte)).join("");
  return btoa(binary).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

async function unpacked(text) {
  try {
    const binary = atob(text.replaceAll("-", "+").replaceAll("_", "/"));
    const bytes = Uint8Array.from(binary, (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
    return JSON.parse(await new Response(stream).text());
  } catch {
    return {};
  }
}
