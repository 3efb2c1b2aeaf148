// --- what a cell says, as ppsim/plot/hover.py does ---

const OPS = "FBIW";
const MENTIONED = 1e-3; // of a gap: a cause with less than that is not worth a reader's time

const nameOf = (plan, action) => `${plan.stage[action]}${OPS[plan.op[action]]}${plan.microbatch[action]}`;
const rankOf = (plan, action) => above(plan.rankOffsets, action) - 1;
const placed = (plan, action) => `${nameOf(plan, action)} on rank ${rankOf(plan, action)}`;
const endsOf = (plan, transfer) => [plan.source[transfer - plan.numActions], plan.target[transfer - plan.numActions]];

function blockerOf(plan, node) {
  const blocker = plan.blocker[node];
  if (blocker === NONE) return "nothing";
  if (blocker < plan.numActions) return placed(plan, blocker);
  const [source, target] = endsOf(plan, blocker);
  if (target === node) return placed(plan, source);
  return `the transfer of ${nameOf(plan, source)} to rank ${rankOf(plan, target)}`;
}

function linesOf(row, cell) {
  const plan = plans[row.plan], [begin, end] = [row.edges[cell], row.edges[cell + 1]];
  if (row.panel.texts) return pieceLines(row, cell, begin, end);
  const node = row.node[cell];
  if (node >= plan.numActions) return transferLines(plan, node, begin, end);
  if (node !== NONE) return actionLines(plan, node, begin, end);
  if (row.panel.kind === "transfers") return ["nothing under way", times(begin, end), "", ""];
  return idleLines(row, cell, plan, begin, end);
}

function pieceLines(row, cell, begin, end) {
  const title = row.panel.titles[row.fill[cell]];
  if (!title) return ["", "", "", ""];
  return [title, times(begin, end), row.panel.texts[row.told[cell]], ""];
}

function actionLines(plan, node, begin, end) {
  const stage = plan.stage[node], held = plan.held?.[node];
  const [microbatch, slice] = [Math.floor(plan.microbatch[node] / plan.numSlices), plan.microbatch[node] % plan.numSlices];
  const [chain, modelStage] = [Math.floor(stage / plan.numModelStages), stage % plan.numModelStages];
  const isReplica = plan.numStages > plan.numModelStages;
  const where = `stage ${stage}${isReplica ? ` (stage ${modelStage} of chain ${chain})` : ""}`;
  const unitsOfChain = (plan.numMicrobatches * plan.numModelStages) / plan.numStages;
  const round = Math.floor(((plan.microbatch[node] % unitsOfChain) * plan.numRounds) / unitsOfChain);
  const inRound = plan.numRounds > 1 ? `, round ${round}` : "";
  const unit = `microbatch ${microbatch}${plan.numSlices > 1 ? `, slice ${slice}` : ""}${inRound}`;
  const waited = `waited for ${blockerOf(plan, node)}${held ? `; holds ${size(held)}` : ""}`;
  const lines = [nameOf(plan, node), times(begin, end), `${where}, chunk ${plan.chunks[stage]}, ${unit}`, waited];
  return picture.errors ? [...lines, errorLine(picture.errors, node)] : lines;
}

function errorLine({ ofAction, measured, projected, behind }, node) {
  const late = behind[node];
  return (
    `projected ${seconds(projected[node])}, measured ${seconds(measured[node])}: ${signedPercent(ofAction[node])}; ` +
    `ends ${seconds(Math.abs(late))} ${late > 0 ? "late" : "early"} in the projection`
  );
}

function transferLines(plan, node, begin, end) {
  const [source, target] = endsOf(plan, node);
  return [
    `${nameOf(plan, source)} to rank ${rankOf(plan, target)}`, times(begin, end), `for ${nameOf(plan, target)}`,
    `waited for ${blockerOf(plan, node)}`,
  ];
}

const causeOf = (cause) => (cause === NONE ? "idle" : `idle: ${picture.causes[cause]}`);
const COMMUNICATION = picture.causes.indexOf("exposed communication"), OVERHEAD = picture.causes.indexOf("overhead");

// The gap that a cell is a part of, from the action before it to the next: how long it is by cause, and what ends it.
function gapOf(row, cell) {
  let first = cell, last = cell;
  while (first > 0 && row.node[first - 1] === NONE) first--;
  while (last < row.cells && row.node[last] === NONE) last++;
  const parts = [];
  for (let part = first; part < last; part++) parts.push([row.cause[part], row.edges[part + 1] - row.edges[part], row.edges[part]]);
  return { parts, whole: row.edges[last] - row.edges[first], node: last < row.cells ? row.node[last] : NONE };
}

function idleLines(row, cell, plan, begin, end) {
  const { parts, whole, node } = gapOf(row, cell), cause = row.cause[cell];
  if (node === NONE) {
    const split = `${duration(end - begin)} ${picture.causes[cause] ?? "cool-down"}`;
    return [causeOf(cause), times(begin, end), `done: rank ${row.rank} waits for the step to end`, split];
  }
  const told = parts.filter(([, length]) => length > MENTIONED * whole);
  const queued = ([what, length, from]) => (what === COMMUNICATION ? queuedFor(plan, node, length, from) : "");
  let split = told.map((part) => `${duration(part[1])} ${picture.causes[part[0]]}${queued(part)}`).join(", ");
  if (told.length > 1) split = `of ${duration(whole)} idle: ${split}`;
  const isHost = told.length === 1 && told[0][0] === OVERHEAD;
  let waits = isHost ? `host time before ${nameOf(plan, node)}` : `${nameOf(plan, node)} waits for ${blockerOf(plan, node)}`;
  if (node === plan.rankOffsets[row.rank]) waits = `pipeline not reached yet: ${waits}`;
  return [causeOf(cause), times(begin, end), waits, split];
}

// How long the transfer that an action waits for could have started, but had not.
function queuedFor(plan, node, length, made) {
  const blocker = plan.blocker[node], row = blocker < plan.numActions ? NONE : plan.rowOf[blocker];
  if (row === NONE) return "";
  const queued = Math.min(cells[row].edges[plan.cellOf[blocker]] - made, length);
  return queued > MENTIONED * length ? ` (${duration(queued)} of it queued)` : "";
}
