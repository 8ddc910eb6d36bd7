// Text of a number in a named format: the same names and texts as in markup/number_formats.py.

// Values halfway between two texts go to the even one, as in Python; toPrecision and toFixed take the larger one.
const TIE = /^50*$/;

function significant(value, digits) {
  const [mantissa, power] = Math.abs(value).toExponential(99).split("e");
  const exact = mantissa.replace(".", "");
  if (!TIE.test(exact.slice(digits)) || Number(exact[digits - 1]) % 2) return Number(value.toPrecision(digits));
  return Math.sign(value) * Number(`${exact[0]}.${exact.slice(1, digits)}e${power}`);
}

function decimals(value, digits) {
  const [whole, fraction] = value.toFixed(100).split(".");
  const kept = whole + fraction.slice(0, digits);
  if (!TIE.test(fraction.slice(digits)) || Number(kept[kept.length - 1]) % 2) return value.toFixed(digits);
  return digits ? `${whole}.${fraction.slice(0, digits)}` : whole;
}

function digits4(value) {
  // Python's format with four significant digits (.4g).
  if (value === 0) return "0";
  const rounded = significant(value, 4);
  const exponent = Number(rounded.toExponential().split("e")[1]);
  if (exponent >= -4 && exponent < 4) return String(rounded);
  const [mantissa, power] = rounded.toExponential().split("e");
  const size = String(Math.abs(Number(power))).padStart(2, "0");
  return `${mantissa}e${Number(power) < 0 ? "-" : "+"}${size}`;
}

function grouped(value) {
  // Nearest whole number with commas between thousands; halves go to the even neighbour.
  const floor = Math.floor(value);
  const half = value - floor === 0.5;
  const whole = half ? (floor % 2 === 0 ? floor : floor + 1) : Math.round(value);
  return String(BigInt(whole)).replace(/\B(?=(\d{3})+$)/g, ",");
}

function scaled(value, steps, separator, last) {
  for (const [scale, unit] of steps) {
    if (Math.abs(value) >= scale) return digits4(value / scale) + separator + unit;
  }
  return last(value);
}

const TIME_STEPS = [[1, "s"], [1e-3, "ms"], [1e-6, "us"], [1e-9, "ns"]];
const BYTE_STEPS = [[1024 ** 5, "PiB"], [1024 ** 4, "TiB"], [1024 ** 3, "GiB"], [1024 ** 2, "MiB"], [1024, "KiB"]];
const COUNT_STEPS = [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];
const PARAMETER_STEPS = [[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e3, "K"]];

const numberFormats = {
  text: String,
  command: String,
  count: grouped,
  short_count: (value) => scaled(value, COUNT_STEPS, " ", digits4),
  parameters: (value) => scaled(value, PARAMETER_STEPS, "", digits4),
  seconds: (value) => Math.abs(value) * 1e12 < 0.5 ? "0 s"
    : scaled(value, TIME_STEPS, " ", (small) => `${digits4(small / 1e-9)} ns`),
  bytes: (value) => scaled(value, BYTE_STEPS, " ", (small) => `${digits4(small)} B`),
  dollars: (value) => `${Math.abs(value) >= 1000 ? grouped(value) : digits4(value)} $`,
  percent: (value) => `${decimals(100 * value, 1)} %`,
  whole_percent: (value) => `${decimals(100 * value, 0)} %`,
  signed_percent: (value) => `${value < 0 ? "" : "+"}${decimals(100 * value, 1)} %`,
  days: (value) => `${value >= 100 ? grouped(value) : decimals(value, 1)} days`,
  yes_no: (value) => value ? "yes" : "no",
  number: digits4,
  rate: (value) => Math.abs(value) >= 1000 ? grouped(value) : digits4(value),
  factor: (value) => `${digits4(value)} times`,
  gigabytes_per_s: (value) => `${digits4(value / 1e9)} GB/s`,
};

function formatNumber(value, form) {
  return value === null || value === undefined ? "-" : numberFormats[form](value);
}
