// A question: from the form, from and to the address of the page, and as the body of the API.

const NUMBERS = ["seq_len", "global_batch", "max_devices", "cluster_nodes", "tokens"];
const TEXTS = [
  "model", "cluster", "cluster_accelerator", "runtime", "precision", "strategy", "pins", "excludes",
  "space", "objective",
];
const REQUEST = ["model", "cluster", "seq_len", "global_batch", "runtime", "precision", "max_devices", "space", "objective"];
const LARGEST_FRAGMENT = 24000;

/** The question of a page's address: {fields, files, launch}. */
export async function questionOfAddress(search, hash) {
  const given = new URLSearchParams(search);
  const fields = {};
  for (const name of [...NUMBERS, ...TEXTS]) {
    if (given.get(name)) fields[name] = given.get(name);
  }
  const texts = new URLSearchParams(hash.replace(/^#/, "")).get("files");
  const { files = {}, launch = {} } = texts ? await unpacked(texts) : {};
  return { fields, files, launch };
}

/** Address of a question, without its files where they are too long for one. */
export async function addressOf(question, other = "") {
  const query = new URLSearchParams(question.fields);
  if (other) query.set("with", other);
  const hasFiles = Object.keys(question.files).length + Object.keys(question.launch).length > 0;
  const packedFiles = hasFiles ? await packed({ files: question.files, launch: question.launch }) : "";
  const isWhole = packedFiles.length <= LARGEST_FRAGMENT;
  return { address: `?${query}${packedFiles && isWhole ? `#files=${packedFiles}` : ""}`, isWhole };
}

/** True if a question names a model, a cluster and a job. */
export function isComplete({ fields, files, launch }) {
  const hasLaunch = Object.keys(launch).length > 0;
  return Boolean(
    (fields.model || files.model) && (fields.cluster || files.cluster) &&
    (hasLaunch || (fields.seq_len && fields.global_batch)),
  );
}

/** Verb of the API and body of a question; throws an Error with a message for people. */
export function bodyOf({ fields, files, launch }) {
  const request = { model: "", cluster: "", seq_len: 0, global_batch: 0 };
  for (const name of REQUEST) {
    if (fields[name]) request[name] = NUMBERS.includes(name) ? wholeNumber(name, fields[name]) : fields[name];
  }
  request.pins = choices("pins", fields.pins);
  request.excludes = choices("excludes", fields.excludes);
  const body = { request, files };
  if (files.model) request.model = "";
  if (files.cluster) {
    request.cluster = "";
    if (fields.cluster_nodes) body.cluster_nodes = wholeNumber("cluster_nodes", fields.cluster_nodes);
    if (fields.cluster_accelerator) body.cluster_accelerator = fields.cluster_accelerator;
  }
  if (Object.keys(launch).length) return ["advise", { ...body, launch }];
  if (fields.strategy) return ["simulate", { ...body, strategy: fields.strategy }];
  return ["plan", body];
}

/** Heading of a question. */
export function titleOf({ fields, files, launch }) {
  const model = files.model ? "config.json" : fields.model;
  const cluster = files.cluster ? "the given cluster" : fields.cluster;
  const job = Object.keys(launch).length
    ? Object.keys(launch).join(", ")
    : `${counted(fields.global_batch, "sequence")} of ${counted(fields.seq_len, "token")}`;
  return `${model} on ${cluster}: ${job}`;
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
