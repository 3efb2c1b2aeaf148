// --- what happens in a range of time: busy, idle by cause, transfers, of each plan ---

// Per rank of a plan: seconds busy, by cause, and of transfers under way, and how many of them.
function sums(plan, from, to) {
  const ranks = plans[plan].rankOffsets.length - 1;
  const zeros = () => new Float64Array(ranks);
  const found = { busy: zeros(), causes: picture.causes.map(zeros), underWay: zeros(), transfers: zeros() };
  for (const row of cells) {
    if (row.plan !== plan || !row.node) continue;
    const [first, last] = within(row, from, to);
    for (let cell = first; cell < last; cell++) {
      const length = Math.min(row.edges[cell + 1], to) - Math.max(row.edges[cell], from);
      if (!(length > 0)) continue;
      const isBusy = row.node[cell] !== NONE;
      if (row.panel.kind === "transfers") {
        if (isBusy) found.underWay[row.rank] += length * unitSeconds;
        if (isBusy) found.transfers[row.rank] += 1;
      } else (isBusy ? found.busy : found.causes[row.cause[cell]])[row.rank] += length * unitSeconds;
    }
  }
  return found;
}

const total = (values) => values.reduce((sum, one) => sum + one, 0);

// As a table: the mean rank's seconds and its share of the range, then the transfers of all ranks.
function rangeTable(plan, from, to) {
  const { busy, causes, underWay, transfers } = sums(plan, from, to), whole = (to - from) * unitSeconds;
  const table = document.createElement("table"), body = table.createTBody();
  const add = (name, value, told, key) => {
    const line = body.insertRow();
    for (const text of [name, ...told]) line.insertCell().textContent = text;
    [line.dataset.key, line.dataset.value] = [key, value];
  };
  const mean = (name, values) => {
    const value = total(values) / values.length;
    add(name, value, [seconds(value), percent(value / whole)], name);
  };
  mean("busy", busy);
  picture.causes.forEach((cause, place) => mean(`idle: ${cause}`, causes[place]));
  const count = total(transfers);
  add("transfers under way", count, [String(count), ""], "transfers");
  mean("their time, by sending rank", underWay);
  return table;
}

function showRange() {
  const section = document.getElementById("range");
  section.hidden = !state.range;
  if (!state.range) return;
  const [from, to] = state.range;
  document.getElementById("range-times").textContent = `${times(from, to)}, of the mean rank`;
  const tables = plans.map((_, plan) => {
    const table = rangeTable(plan, from, to);
    if (plans.length > 1) table.createCaption().textContent = picture.titles[plan];
    return table;
  });
  document.getElementById("range-tables").replaceChildren(...tables);
}
