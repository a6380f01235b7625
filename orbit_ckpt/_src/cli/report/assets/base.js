// --- elements and numbers -----------------------------------------------------------------------
const $ = (id) => document.getElementById(id);

// Texts only ever become text nodes and attributes: a name may be anything.
function make(tag, fields = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(fields)) {
    if (name in node && name !== "list") node[name] = value; else node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}
const NS = $("seed").namespaceURI;
function draw(tag, fields, text) {
  const node = document.createElementNS(NS, tag);
  for (const [name, value] of Object.entries(fields)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

const whole = new Intl.NumberFormat("en-US");
const names = new Intl.Collator("en", { numeric: true });
function bytes(count) {
  if (count === null || count === undefined) return "";
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  let at = 0;
  while (count >= 999.95 && at < units.length - 1) { count /= 1000; at += 1; }
  return `${at ? count.toFixed(1) : Math.round(count)} ${units[at]}`;
}
function short(count) {
  const units = ["", " K", " M", " B", " T"];
  let at = 0;
  while (count >= (at ? 999.95 : 10000) && at < units.length - 1) { count /= 1000; at += 1; }
  return at ? `${count.toFixed(1)}${units[at]}` : whole.format(count);
}
function plural(count, one, many) {
  return `${whole.format(count)} ${count === 1 ? one : many || `${one}s`}`;
}
function percent(part, all) {
  if (!all) return "";
  const share = (100 * part) / all;
  return share > 0 && share < 0.1 ? "< 0.1 %" : `${share.toFixed(1)} %`;
}
function number(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "";
  const known = Number(value);
  if (!Number.isFinite(known)) return typeof value === "number" ? "\u221e" : String(value);
  const size = Math.abs(known);
  if (Number.isInteger(known) && size < 1e9) return String(known);
  return size < 1e-3 || size >= 1e6 ? known.toExponential(2) : String(Number(known.toPrecision(size < 1 ? 4 : 5)));
}
function change(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "";
  if (value === Infinity) return "from 0";
  if (value === 0) return "0";
  const share = 100 * value;
  return share < 0.01 || share >= 1e5 ? `${share.toExponential(1)} %` : `${Number(share.toPrecision(3))} %`;
}
const numeric = (value) => typeof value === "number" && Number.isFinite(value);

// --- colours ------------------------------------------------------------------------------------
const dark = matchMedia("(prefers-color-scheme: dark)");
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
function parts(colour) {
  return [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16));
}
// From little to much; `share` is 0 to 1.
function ramp(share) {
  const stops = ["--r0", "--r1", "--r2"].map((name) => parts(css(name)));
  const at = Math.max(0, Math.min(1, share)) * 2, i = Math.min(1, Math.floor(at));
  return stops[i].map((low, k) => Math.round(low + (stops[i + 1][k] - low) * (at - i)));
}
function makeRamp() {
  const known = Array.from({ length: 65 }, (_, i) => ramp(i / 64));
  return (share) => known[Math.round(64 * Math.max(0, Math.min(1, share || 0)))];
}
const rgb = (colour) => `rgb(${colour.join(" ")})`;
function luminance(colour) {
  const [r, g, b] = colour.map((x) => { x /= 255; return x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4; });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}
// Black or white, whichever stands out more.
const inkOn = (colour) => (luminance(colour) > 0.179 ? "#000000" : "#ffffff");

// Where a number lies between the least and the greatest, on a log scale if they are far apart.
function scale(values) {
  let low = Infinity, high = -Infinity, least = Infinity;
  for (const value of values) {
    if (!numeric(value)) continue;
    if (value < low) low = value;
    if (value > high) high = value;
    if (value > 0 && value < least) least = value;
  }
  if (low === Infinity) return null;
  const isLog = low >= 0 && high > 0 && high / least > 30;
  const place = (value) => {
    if (high === low) return 0.5;
    if (!isLog) return (value - low) / (high - low);
    return value <= 0 ? 0 : 0.06 + (0.94 * Math.log(value / least)) / Math.log(high / least);
  };
  return { low: isLog && low > 0 ? least : low, high, isLog, place };
}

async function copyText(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch { // a page from a file may not be allowed to
    const area = make("textarea", { value: text });
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
    button.focus();
  }
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = "Copy"; }, 1500);
}
for (const button of document.querySelectorAll("button.copy")) {
  button.setAttribute("aria-label", "Copy the line");
  button.addEventListener("click", () => copyText($(button.dataset.from).textContent, button));
}
