// --- the view: what is drawn when, and what is pointed at ---

const canvas = document.getElementById("picture-canvas"), stage = document.getElementById("stage");
const tooltip = document.getElementById("tooltip");
const context = canvas.getContext("2d", { alpha: false });
let theme = themed(), pointed = null, dragged = null, isAwaited = false;

function redraw(paper = null) {
  const ratio = paper ? 2 : Math.min(window.devicePixelRatio || 1, 2);
  const width = paper?.width ?? Math.max(stage.clientWidth, 240);
  for (const panel of panels) panel.numLabels = 0;
  at = laidOut(context, width, paper);
  const [wide, high] = [Math.round(at.width * ratio), Math.round(at.height * ratio)];
  if (canvas.width !== wide || canvas.height !== high) {
    [canvas.width, canvas.height] = [wide, high];
    [canvas.style.width, canvas.style.height] = [`${at.width}px`, `${at.height}px`];
  }
  drawAll(context, at, theme, ratio);
  if (!paper) drawAxisInView(at, theme, ratio);
  for (const [name, value] of [["width", at.width], ["height", at.height], ["viewBox", `0 0 ${at.width} ${at.height}`]]) {
    overlay.setAttribute(name, value);
  }
  drawLinks();
}

// Whatever asks for it, a frame is drawn once.
function refresh() {
  if (isAwaited) return;
  isAwaited = true;
  requestAnimationFrame(() => { isAwaited = false; redraw(); writeHash(); });
}

function show(from, to) {
  const [first, last] = picture.range, smallest = 1e-8 * (last - first);
  const width = Math.min(Math.max(to - from, smallest), last - first), begin = Math.min(Math.max(from, first), last - width);
  [state.from, state.to] = [begin, begin + width];
  unpoint();
  refresh();
}

function zoom(factor, share = pointerShare ?? 0.5) {
  const length = state.to - state.from, middle = state.from + share * length;
  show(middle - share * length * factor, middle + (1 - share) * length * factor);
}

const move = (share) => show(state.from + share * (state.to - state.from), state.to + share * (state.to - state.from));

// --- pointing ---

let pointerShare = null; // of the picture's width, where the pointer is

function placeOf(event) {
  const box = canvas.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
  const share = (x - at.left) / at.wide;
  return { x, y, share, time: state.from + Math.min(Math.max(share, 0), 1) * (state.to - state.from) };
}

const panelAt = (y) => shownPanels().find((panel) => y >= panel.topPx && y <= panel.topPx + panel.shownPx);

function cellAt({ y, share, time }) {
  const panel = panelAt(y);
  if (!panel?.numRanks || share < 0 || share > 1) return null;
  const place = ((y - panel.topPx) / panel.shownPx) * panel.numRanks - 0.5;
  const row = panel.rows.find(({ middle, half }) => Math.abs(place - middle) <= half);
  if (!row) return null;
  const cell = above(row.edges, time) - 1;
  return cell >= 0 && cell < row.cells ? [row, cell] : null;
}

// The line of memory that is nearest to the pointer.
function heldAt({ y, share, time }) {
  const panel = panelAt(y);
  if (panel?.kind !== "memory" || share < 0 || share > 1) return null;
  const found = panel.lines.map((line) => {
    const place = Math.min(Math.max(above(line.x, time) - 1, 0), line.x.length - 1);
    return { line, place, distance: Math.abs(heldY(panel, line.y[place]) - y) };
  }).sort((one, other) => one.distance - other.distance)[0];
  if (!found || found.distance > 12) return null;
  const { line, place } = found;
  return [`rank ${line.rank} holds ${fixed(line.y[place], 2)} ${panel.unit}`, `from ${fixed(line.x[place], decimals)} ${unit}`];
}

function toldOf([row, cell]) {
  const lines = linesOf(row, cell).filter((line) => line);
  return lines.length ? [...lines, `rank ${row.rank}`] : [];
}

function point(event) {
  const place = placeOf(event);
  pointerShare = place.share >= 0 && place.share <= 1 ? place.share : null;
  const found = picture.isTold ? cellAt(place) : null, lines = found ? toldOf(found) : heldAt(place) ?? [];
  const isNew = found?.[0] !== pointed?.[0] || found?.[1] !== pointed?.[1];
  pointed = found;
  say(lines, place);
  if (isNew) drawLinks();
}

function say(lines, { x, y }) {
  tooltip.hidden = lines.length === 0;
  tooltip.replaceChildren(...lines.map((line, index) => {
    const part = document.createElement(index ? "div" : "strong");
    part.textContent = line;
    return part;
  }));
  const left = x + 14 + tooltip.offsetWidth < stage.clientWidth ? x + 14 : Math.max(x - 14 - tooltip.offsetWidth, 0);
  [tooltip.style.left, tooltip.style.top] = [`${left}px`, `${y + 16}px`];
}

function unpoint() {
  pointed = null;
  tooltip.hidden = true;
}

// --- a drag zooms, with shift it selects a range; a click keeps an action ---

function click(event) {
  const cell = picture.isTold ? cellAt(placeOf(event)) : null, isIdle = !cell || (cell[0].node?.[cell[1]] ?? NONE) === NONE;
  const isSame = state.kept && cell && state.kept[0] === cell[0] && state.kept[1] === cell[1];
  state.kept = isIdle || isSame ? null : cell;
  refresh();
  if (event.pointerType === "touch") point(event); // a finger has no other way to ask
}

function select(range) {
  state.range = range;
  showRange();
  refresh();
}

stage.addEventListener("pointerdown", (event) => {
  const place = placeOf(event);
  if (event.button !== 0 || place.share < 0 || place.share > 1) return;
  dragged = { x: place.x, begin: place.time, range: null, isRange: event.shiftKey };
  canvas.setPointerCapture(event.pointerId);
});
stage.addEventListener("pointermove", (event) => {
  if (!dragged) return point(event);
  const place = placeOf(event);
  dragged.range = Math.abs(place.x - dragged.x) < 4 ? null : [Math.min(dragged.begin, place.time), Math.max(dragged.begin, place.time)];
  unpoint();
  drawLinks();
});
stage.addEventListener("pointerup", (event) => {
  const { range, isRange } = dragged ?? {};
  if (!dragged) return;
  dragged = null;
  if (!range) click(event);
  else if (isRange) select(range);
  else show(...range);
});
stage.addEventListener("pointercancel", () => { dragged = null; drawLinks(); });
stage.addEventListener("pointerleave", (event) => { if (event.pointerType === "touch") return; pointerShare = null; if (!dragged) { unpoint(); drawLinks(); } });
stage.addEventListener("dblclick", () => show(...picture.range));
stage.addEventListener("wheel", (event) => {
  if (!event.ctrlKey && !event.metaKey) return; // without, the page scrolls
  event.preventDefault();
  zoom(event.deltaY > 0 ? 1.25 : 0.8, placeOf(event).share);
}, { passive: false });
