// --- what the page knows ------------------------------------------------------------------------
const data = JSON.parse($("data").textContent);
const isRun = data.history.length > 0;
const steps = isRun ? data.history : [{ ...data.state, step: null, name: data.title, path: data.path, metrics: {}, bytes: data.stored_bytes, time: null }];
const rowOf = new Map(data.measured.map((step, row) => [step, row]));
const stepName = (i) => (isRun ? String(steps[i].step) : data.title);

const leaves = data.leaves.map((cells, index) => {
  const leaf = { index };
  data.columns.forEach((column, i) => { leaf[column] = cells[i]; });
  leaf.shapeText = leaf.shape ? `[${leaf.shape.join(", ")}]` : "";
  leaf.elements = leaf.shape ? leaf.shape.reduce((a, b) => a * b, 1) : 0;
  leaf.type = leaf.dtype || leaf.kind;
  leaf.shown = leaf.name || "(the tree)";
  leaf.ratio = leaf.stored ? leaf.nbytes / leaf.stored : null;
  leaf.text = `${leaf.shown} ${leaf.type} ${leaf.shapeText} ${leaf.sharding || ""}`.toLowerCase();
  return leaf;
});
const byName = new Map(leaves.map((leaf) => [leaf.shown, leaf]));
const total = leaves.reduce((sum, leaf) => sum + leaf.nbytes, 0);
const COUNT = leaves.length;

function decode(id) {
  const text = $(id) ? $(id).textContent : "";
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text).buffer;
  const raw = atob(text), found = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i += 1) found[i] = raw.charCodeAt(i);
  return found.buffer;
}
const matrices = new Map();
function matrix(name) {
  if (!matrices.has(name)) {
    const buffer = decode(`matrix-${name}`);
    matrices.set(name, data.matrix_dtype === "f8" ? new Float64Array(buffer) : new Float32Array(buffer));
  }
  return matrices.get(name);
}
const sparse = (rows) => new Map(rows.map(([row, leaf, ...rest]) => [row * COUNT + leaf, rest]));
const notFinite = sparse(data.not_finite), damaged = sparse(data.damage);
const absent = sparse(data.absent);

// Everything known of a leaf in one step; exact for the newest that can be read.
function valuesOf(leaf, step) {
  const row = rowOf.get(step);
  if (row === undefined || !data.has_statistics) return {};
  const at = row * COUNT + leaf.index;
  const [nans, infs] = notFinite.get(at) || [0, 0];
  const found = { absent: absent.has(at), damage: (damaged.get(at) || [null])[0] };
  for (const name of ["change", "l2", "min", "max", "mean"]) {
    const value = matrix(name)[at];
    found[name] = Number.isNaN(value) ? null : value;
  }
  if (step === data.shown) for (const name of ["l2", "min", "max", "mean", "zeros"]) found[name] = leaf[name];
  else found.zeros = null;
  const hasNumbers = found.l2 !== null || nans > 0 || infs > 0;
  return { ...found, nans: hasNumbers ? nans : null, infs: hasNumbers ? infs : null };
}
function histogramOf(leaf, step) {
  const row = rowOf.get(step);
  if (row === undefined || !$(`counts-${row}`)) return null;
  const key = `histogram ${row}`;
  if (!matrices.has(key)) matrices.set(key, [new Float64Array(decode(`edges-${row}`)), new Float32Array(decode(`counts-${row}`))]);
  const [edges, counts] = matrices.get(key);
  const [low, width, zeros] = edges.subarray(3 * leaf.index, 3 * leaf.index + 3);
  let last = 64;
  const bins = counts.subarray(64 * leaf.index, 64 * leaf.index + 64);
  while (last > 0 && !bins[last - 1]) last -= 1;
  return last ? { low, width, zeros, bins: Array.from(bins.subarray(0, last)) } : null;
}

for (const leaf of data.has_statistics ? leaves : []) {
  const norms = matrix("l2");
  for (let at = (data.measured.length - 1) * COUNT + leaf.index; at >= 0 && !leaf.hasNumbers; at -= COUNT) {
    leaf.hasNumbers = !Number.isNaN(norms[at]) || damaged.has(at) || notFinite.has(at);
  }
}

// --- the tree of modules ------------------------------------------------------------------------
const keysOf = (leaf) => leaf.shown.split("/");
function isParam(leaf) {
  const keys = keysOf(leaf), at = keys.indexOf("params");
  return at >= 0 && !keys.slice(0, at).some((key) => /^(opt|ema|mu$|nu$)/.test(key));
}
const hasParams = leaves.some(isParam) && !leaves.every(isParam);

function branch(name, path, parent) {
  return { name, path, parent, bytes: 0, children: new Map(), leaf: null, leaves: [], types: new Map() };
}
function grow(chosen) {
  const root = branch("all", "", null);
  for (const leaf of chosen) {
    let node = root;
    const passed = [root];
    keysOf(leaf).forEach((key) => {
      let next = node.children.get(key);
      if (!next) {
        next = branch(key, node === root ? key : `${node.path}/${key}`, node);
        node.children.set(key, next);
      }
      node = next;
      passed.push(node);
    });
    node.leaf = leaf;
    for (const at of passed) {
      at.bytes += leaf.nbytes;
      at.leaves.push(leaf.index);
      at.types.set(leaf.type, (at.types.get(leaf.type) || 0) + leaf.nbytes);
    }
  }
  return root;
}
const trees = new Map();
function tree(paramsOnly) {
  const key = Boolean(paramsOnly && hasParams);
  if (!trees.has(key)) trees.set(key, grow(key ? leaves.filter(isParam) : leaves));
  return trees.get(key);
}
function find(root, path) {
  let node = root;
  for (const key of path ? path.split("/") : []) {
    node = node.children.get(key);
    if (!node) return root;
  }
  return node.children.size ? node : root;
}

// One number for all leaves of a module in a row of the matrices.
function combined(node, by, row) {
  if (by === "nans") {
    let found = null;
    for (const leaf of node.leaves) {
      const at = row * COUNT + leaf;
      const here = notFinite.get(at);
      if (here || !Number.isNaN(matrix("l2")[at])) found = (found || 0) + (here ? here[0] + here[1] : 0);
    }
    return found;
  }
  const norms = matrix("l2"), changes = matrix("change");
  let sum = 0, moved = 0, before = 0, any = false;
  for (const leaf of node.leaves) {
    const at = row * COUNT + leaf;
    if (by === "l2") {
      if (!Number.isNaN(norms[at])) { sum += norms[at] ** 2; any = true; }
    } else if (!Number.isNaN(changes[at]) && row > 0) {
      const old = norms[at - COUNT];
      before += old ** 2;
      moved += changes[at] === Infinity ? norms[at] ** 2 : (changes[at] * old) ** 2;
      any = true;
    }
  }
  if (!any) return null;
  if (by === "l2") return Math.sqrt(sum);
  return before ? Math.sqrt(moved / before) : moved ? Infinity : 0;
}
const troubleIn = (node, row, known) => known.size > 0 && node.leaves.some((leaf) => known.has(row * COUNT + leaf));

// --- what is selected, as a line of Python ------------------------------------------------------
const python = (text) => JSON.stringify(text);
// A pattern for a leaf, or for all leaves below a module. `*` and signs of regular expressions in a
// name would be read as such.
function patternOf(path, isModule) {
  if (!/[*\\^$[\]()+?]/.test(path)) return python(isModule ? `${path}/**` : path);
  return isModule ? `re.compile(re.escape(${python(`${path}/`)}) + ".*")` : `re.compile(re.escape(${python(path)}))`;
}
function loadLine(step, pattern) {
  const path = steps[step] ? steps[step].path : data.path;
  return `orbit_ckpt.load(${python(String(path))}${pattern ? `, only=${pattern}` : ""})`;
}
