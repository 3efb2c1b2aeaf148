// --- layout: the shown panels above each other, in CSS pixels ---

const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif";
const PRINTED = { width: 1040, height: 640 }; // an A4 page on its side
const LINE_PX = 17, CAPTION_GAP_PX = 9, AXIS_PX = 44, TOP_PX = 4, FOOTER_PX = 44;

const isShown = (panel) => !state.hidden.has(panel.kind);
const shownPanels = () => panels.filter(isShown);

// The lines of a caption: its name bold, what follows it as far as there is room, the rest below.
function captionLines(context, [name, facts], width) {
  const lines = [[]];
  let used = 0;
  const add = (text, isBold) => {
    context.font = `${isBold ? "bold " : ""}13px ${FONT}`;
    for (const word of text.split(/(?<= )/)) {
      const wide = context.measureText(word).width;
      if (used && used + wide > width) [used] = [0, lines.push([])];
      lines.at(-1).push({ word, isBold, x: used });
      used += wide;
    }
  };
  if (name) add(`${name}   `, true);
  if (facts) add(facts, false);
  return lines;
}

// What would leave a part of the window empty is drawn up to half as high again; on paper all has to fit.
function laidOut(context, width, paper) {
  const isNarrow = width < 600, left = isNarrow ? 40 : 76, right = width - (isNarrow ? 10 : 22);
  const shown = shownPanels();
  for (const panel of shown) panel.captionLines = captionLines(context, panel.caption, right - left);
  const captionsPx = shown.reduce((sum, panel) => sum + panel.captionLines.length * LINE_PX + CAPTION_GAP_PX, 0);
  const rowsPx = shown.reduce((sum, panel) => sum + panel.heightPx, 0);
  const roomPx = window.innerHeight - document.querySelector("header").offsetHeight - FOOTER_PX;
  const fitting = ((paper?.height ?? roomPx) - TOP_PX - AXIS_PX - captionsPx) / rowsPx;
  const stretch = paper ? Math.min(1, fitting) : Math.min(Math.max(1, fitting), 1.5);
  let top = TOP_PX;
  for (const panel of shown) {
    panel.captionPx = top;
    panel.topPx = top + panel.captionLines.length * LINE_PX + CAPTION_GAP_PX - 3;
    panel.shownPx = panel.heightPx * stretch;
    top = panel.topPx + panel.shownPx + 3;
  }
  return { width, height: Math.ceil(top + AXIS_PX), left, right, wide: right - left, bottom: top, isNarrow };
}

// Where a place in a panel of ranks, whose rows are 1 apart and the first 0, is from the top.
const yOf = (panel, place) => panel.topPx + ((place + 0.5) / panel.numRanks) * panel.shownPx;
const boundsOf = (row) => [yOf(row.panel, row.middle - row.half), yOf(row.panel, row.middle + row.half)];

// Round places on an axis, about so many.
function ticksOf(from, to, most) {
  if (!(to > from)) return { ticks: [from], digits: 0 };
  const rough = (to - from) / Math.max(most, 1), power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
  const ticks = [];
  for (let tick = Math.ceil(from / step - 1e-9) * step; tick <= to + 1e-9 * step; tick += step) ticks.push(tick);
  return { ticks, digits: Math.max(0, -Math.floor(Math.log10(step) + 1e-9)) };
}
