// --- data: what ppsim/plot/picture.py laid down, as ppsim/plot/packing.py packed it ---

const NONE = -1, BUSY = -2; // as a cell's cause: idle for no cause that anybody asked about; something runs
const TYPES = { f8: Float64Array, f4: Float32Array, i4: Int32Array, i2: Int16Array, i1: Int8Array };
const SUMS = { f8: Float64Array, i4: Int32Array, i2: Int32Array, i1: Int32Array };

if (!window.DecompressionStream) {
  document.getElementById("said").textContent = "This page needs a browser of 2023 or later: this one cannot unpack its numbers.";
  return;
}

async function inflated(id) {
  const element = document.getElementById(id), letters = atob(element.textContent), bytes = new Uint8Array(letters.length);
  element.remove();
  for (let index = 0; index < bytes.length; index++) bytes[index] = letters.charCodeAt(index);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// Of every row first come the lowest bytes of all numbers, then the next ones, and so on.
function kept(bytes, { type, at, length }) {
  const values = new TYPES[type](length), size = values.BYTES_PER_ELEMENT, whole = new Uint8Array(values.buffer);
  for (let plane = 0, from = at; plane < size; plane++) {
    for (let to = plane; to < whole.length; to += size) whole[to] = bytes[from++];
  }
  return values;
}

function numbers(bytes, row) {
  const values = kept(bytes, row);
  if (row.how === "") return values;
  const made = new SUMS[row.type](values.length);
  if (row.how === "back") return made.map((_, place) => (values[place] === 0 ? NONE : place - values[place]));
  for (let place = 0, sum = 0; place < made.length; place++) made[place] = sum += values[place];
  return made;
}

const picture = JSON.parse(new TextDecoder().decode(await inflated("picture")));
const drawn = await inflated("drawn");
const { panels, plans, fills, unit, unitSeconds, decimals } = picture;
const timesOf = (row) => numbers(drawn, row).map((ticks) => ticks * picture.tick);

for (const plan of plans) {
  for (const name of ["op", "stage", "microbatch", "source", "target"]) plan[name] = numbers(drawn, plan[name]);
  plan.rowOf = new Int32Array(plan.numActions + plan.source.length).fill(NONE); // of a node: its row, and its cell there
  plan.cellOf = new Int32Array(plan.rowOf.length);
}

const cells = []; // all rows of cells, of all panels
for (const panel of panels) {
  if (panel.kind === "memory") {
    for (const line of panel.lines) [line.x, line.y] = [timesOf(line.x), numbers(drawn, line.y)];
    continue;
  }
  for (const path of panel.paths ?? []) [path.x, path.rank] = [timesOf(path.x), numbers(drawn, path.rank)];
  const edges = timesOf(panel.edges), causes = panel.causes && numbers(drawn, panel.causes);
  const transfers = panel.nodes && numbers(drawn, panel.nodes);
  let edge = 0, cell = 0, transfer = 0;
  for (const row of panel.rows) {
    row.panel = panel;
    row.edges = edges.subarray(edge, edge + row.cells + 1);
    row.fill = panel.fill ? Uint8Array.from(panel.fill.slice(cell, cell + row.cells)) : new Uint8Array(row.cells);
    row.told = panel.told?.slice(cell, cell + row.cells);
    if (causes) {
      const plan = plans[row.plan];
      row.cause = causes.subarray(cell, cell + row.cells);
      row.node = new Int32Array(row.cells).fill(NONE);
      for (let place = 0, action = plan.rankOffsets[row.rank]; place < row.cells; place++) {
        if (row.cause[place] !== BUSY) continue;
        const node = transfers ? transfers[transfer++] : action++;
        row.node[place] = node;
        plan.rowOf[node] = cells.length;
        plan.cellOf[node] = place;
      }
    }
    edge += row.cells + 1;
    cell += row.cells;
    cells.push(row);
  }
}

// What is only asked once somebody points at a cell is unpacked behind the first picture.
async function unpackTold() {
  const told = await inflated("told");
  for (const plan of plans) {
    plan.needs = plan.needs.map((row) => numbers(told, row));
    plan.blocker = numbers(told, plan.blocker);
    plan.held = plan.held && numbers(told, plan.held);
  }
  const { errors } = picture;
  if (!errors) return;
  for (const name of ["ofAction", "measured", "projected", "behind"]) errors[name] = numbers(told, errors[name]);
}

// The first place in ascending `values` whose value exceeds `at`.
function above(values, at, low = 0, high = values.length) {
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] > at) high = middle;
    else low = middle + 1;
  }
  return low;
}

// The cells of a row that lie within a time, from the first to before the last.
const within = (row, from, to) => [
  Math.max(above(row.edges, from) - 1, 0), Math.min(above(row.edges, to), row.cells),
];
