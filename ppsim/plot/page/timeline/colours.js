// --- colours: the fill of every cell is a place in `fills.colours` ---

const state = {
  colour: "kind", causes: false, path: true, links: true, hidden: new Set(), theme: "auto",
  from: picture.range[0], to: picture.range[1], range: null, kept: null, // [row, cell]
};

const among = ([first, last], share) => first + Math.round(Math.min(Math.max(share, 0), 1) * (last - first));

// How a busy cell is filled, by its action and what its colour tells.
function painterOf(row) {
  const plan = plans[row.plan], isTransfers = row.panel.kind === "transfers";
  const last = Math.max(plan.numMicrobatches - 1, 1);
  if (state.colour === "microbatch") {
    return (node) => among(fills.microbatches, plan.microbatch[isTransfers ? plan.source[node - plan.numActions] : node] / last);
  }
  if (isTransfers) return () => fills.transfer;
  if (state.colour === "error" && picture.errors) {
    return (node) => among(fills.errors, 0.5 + (0.5 * picture.errors.ofAction[node]) / picture.errors.limit);
  }
  return (node) => 2 * plan.op[node] + (plan.chunks[plan.stage[node]] % 2);
}

function recolour() {
  document.body.dataset.colour = state.colour;
  document.body.classList.toggle("causes", state.causes);
  for (const row of cells) {
    if (!row.node) continue;
    const painted = painterOf(row), idle = fills.transfer + (row.panel.kind === "transfers" ? 1 : 2);
    const { node, cause, fill } = row;
    for (let cell = 0; cell < node.length; cell++) {
      if (node[cell] !== NONE) fill[cell] = painted(node[cell]);
      else fill[cell] = state.causes && cause[cell] !== NONE ? fills.causes + cause[cell] : idle;
    }
  }
}

// The colours of the theme, which the style sheet has.
function themed() {
  const style = getComputedStyle(document.documentElement);
  const theme = Object.fromEntries(
    ["paper", "text", "quiet", "line", "idle", "casing", "path", "start", "strength"].map((name) => [name, style.getPropertyValue(`--${name}`).trim()]),
  );
  const colours = [...fills.colours];
  [colours[fills.transfer + 1], colours[fills.transfer + 2]] = [theme.paper, theme.idle];
  return { ...theme, fills: colours };
}

const isOddChunk = (fill) => fill < fills.transfer && fill % 2 === 1;
