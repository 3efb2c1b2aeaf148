// --- numbers in print, as ppsim/base/units.py writes them ---

// With halves to the even digit, as Python rounds what lies exactly between.
function fixed(value, digits) {
  const scaled = Math.abs(value) * 10 ** digits, floor = Math.floor(scaled);
  if (scaled - floor !== 0.5 || floor % 2) return value.toFixed(digits);
  return ((Math.sign(value) * floor) / 10 ** digits).toFixed(digits);
}

function inUnits(value, units) {
  for (const [name, factor] of units) {
    const part = value / factor, magnitude = Number(Math.abs(part).toPrecision(3));
    if (magnitude >= 1) return `${fixed(part, magnitude >= 100 ? 0 : magnitude >= 10 ? 1 : 2)} ${name}`;
  }
  return null;
}

const SECONDS = [["s", 1], ["ms", 1e-3], ["µs", 1e-6], ["ns", 1e-9]];
const BYTES = [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]];
const exponential = (value) => value.toExponential(1).replace(/e([+-])(\d)$/, "e$10$2");
const seconds = (value) => inUnits(value, SECONDS) ?? (value === 0 ? "0 s" : `${exponential(value)} s`);
const size = (value) => inUnits(value, BYTES) ?? `${fixed(value, 0)} B`;
const percent = (ratio) => `${fixed(100 * ratio, 2)} %`;
const signedPercent = (ratio) => (ratio < 0 ? "" : "+") + percent(ratio);

// A difference of times on the axis: 0.9999999999 ms is 1 ms.
const duration = (length) => seconds(Math.round(length * unitSeconds * 1e12) / 1e12);
const times = (begin, end) => `${fixed(begin, decimals)} to ${fixed(end, decimals)} ${unit} (${duration(end - begin)})`;
