// --- the address keeps the view: what is zoomed to, coloured, shown, selected and kept ---

const round = (time) => Number(time.toPrecision(9));
const isWhole = () => state.from === picture.range[0] && state.to === picture.range[1];

function keptName() {
  if (!state.kept) return null;
  const [row, cell] = state.kept, node = row.node[cell], plan = plans[row.plan];
  return node < plan.numActions ? `${row.plan}.${nameOf(plan, node)}` : null;
}

function writeHash() {
  const parts = new URLSearchParams(), kept = keptName();
  if (!isWhole()) parts.set("t", `${round(state.from)}~${round(state.to)}`);
  if (state.range) parts.set("range", state.range.map(round).join("~"));
  if (state.colour !== "kind") parts.set("colour", state.colour);
  if (state.hidden.size) parts.set("hide", [...state.hidden].join("~"));
  if (state.causes) parts.set("causes", "1");
  for (const name of ["path", "links"]) if (!state[name]) parts.set(name, "0");
  if (state.theme !== "auto") parts.set("theme", state.theme);
  if (kept) parts.set("at", kept);
  const hash = parts.size ? `#${parts}` : "";
  try {
    if (hash !== location.hash) history.replaceState(null, "", hash || location.pathname + location.search);
  } catch { /* a page in a frame without an address of its own has none to keep */ }
}

function spanIn(text) {
  const [from, to] = (text ?? "").split("~").map(Number);
  return Number.isFinite(from) && Number.isFinite(to) && to > from ? [from, to] : null;
}

// Set the state, and with it the controls, to what an address says; what it says wrong counts as not said.
function readHash() {
  const parts = new URLSearchParams(location.hash.slice(1)), [first, last] = picture.range;
  const span = spanIn(parts.get("t")) ?? picture.range;
  [state.from, state.to] = [Math.max(span[0], first), Math.min(span[1], last)];
  if (!(state.to > state.from)) [state.from, state.to] = picture.range;
  state.range = spanIn(parts.get("range"));
  const colour = parts.get("colour");
  state.colour = document.querySelector(`#controls [name=colour][value="${CSS.escape(colour ?? "")}"]`) ? colour : "kind";
  const kinds = new Set(panels.map((panel) => panel.kind));
  state.hidden = new Set((parts.get("hide") ?? "").split("~").filter((kind) => kinds.has(kind) && kind !== "compute"));
  state.causes = parts.get("causes") === "1";
  for (const name of ["path", "links"]) state[name] = parts.get(name) !== "0";
  state.theme = ["light", "dark"].includes(parts.get("theme")) ? parts.get("theme") : "auto";
  const [, plan, name] = /^(\d+)\.(.+)$/.exec(parts.get("at") ?? "") ?? [];
  state.kept = plan in plans ? found(plans[plan], name) : null;
  for (const input of document.querySelectorAll("#controls input")) {
    if (input.name === "colour") input.checked = input.value === state.colour;
    if (input.name === "panel") input.checked = !state.hidden.has(input.value);
    if (["causes", "path", "links"].includes(input.name)) input.checked = state[input.name];
  }
  document.querySelector("#controls [name=theme]").value = state.theme;
}
