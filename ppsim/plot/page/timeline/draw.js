// --- drawing on a canvas: what is in view and large enough; the rest as how much of it there is ---

const SMALLEST_PX = 2, SMALLEST_NARROW_PX = 1; // of a row's cells on average: below it they are drawn as shares
const A_BAR = 12; // cells that one bar of shares stands for, so that their order makes no pattern with the pixels
const LABELLED_PX = 7; // the smallest print
const SEPARATED_PX = 8; // of a row's typical cell, from which on there are lines between cells and hatches

function painter(context, at, { from, to }, theme, ratio) {
  const x = (time) => at.left + ((time - from) / (to - from)) * at.wide;
  const snap = (px) => Math.round(px * ratio) / ratio;
  return { context, at, from, to, theme, ratio, x, snap, perTime: at.wide / (to - from) };
}

function drawAll(context, at, theme, ratio) {
  const draw = painter(context, at, state, theme, ratio);
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.fillStyle = theme.paper;
  context.fillRect(0, 0, at.width, at.height);
  state.isSummed = false;
  for (const panel of shownPanels()) {
    drawCaption(draw, panel);
    context.save();
    context.beginPath();
    context.rect(at.left, panel.topPx, at.wide, panel.shownPx);
    context.clip();
    if (panel.kind === "memory") drawMemory(draw, panel);
    else drawRows(draw, panel);
    if (state.path) for (const path of panel.paths ?? []) drawPath(draw, panel, path);
    context.restore();
    if (panel.numRanks) drawRanks(draw, panel);
    else drawMemoryAxis(draw, panel);
  }
  drawTime(draw, at.bottom);
  document.getElementById("summed").hidden = !state.isSummed;
}

function write(context, text, x, y, { colour, font = 12, align = "left", isBold = false }) {
  context.font = `${isBold ? "bold " : ""}${font}px ${FONT}`;
  context.fillStyle = colour;
  context.textAlign = align;
  context.textBaseline = "alphabetic";
  context.fillText(text, x, y);
}

function drawCaption({ context, at, theme }, panel) {
  panel.captionLines.forEach((words, line) => {
    for (const { word, isBold, x } of words) {
      const colour = isBold ? theme.text : theme.quiet;
      write(context, word, at.left + x, panel.captionPx + (line + 1) * LINE_PX, { colour, isBold, font: 13 });
    }
  });
}

// The ranks that are named beside their rows: as many as there is room for.
function drawRanks({ context, at, theme }, panel) {
  const every = [1, 2, 4, 8, 16, 32, 64, 128, 256].find((step) => (step * panel.shownPx) / panel.numRanks >= 14) ?? panel.numRanks;
  for (let rank = 0; rank < panel.numRanks; rank += every) {
    write(context, at.isNarrow ? String(rank) : `rank ${rank}`, at.left - 6, yOf(panel, rank) + 4, { colour: theme.text, align: "right" });
  }
}

function drawTime({ context, at, from, to, theme, x }, top) {
  const { ticks, digits } = ticksOf(from, to, at.wide / 90);
  context.fillStyle = theme.text;
  context.fillRect(at.left, top, at.wide, 1);
  for (const tick of ticks) {
    context.fillRect(x(tick), top, 1, 5);
    write(context, fixed(tick, digits), x(tick), top + 18, { colour: theme.text, align: "center" });
  }
  write(context, `time (${unit})`, at.left + at.wide / 2, top + 36, { colour: theme.text, align: "center" });
}

// The time axis at the foot of the window, as long as that of the picture is below it.
function drawAxisInView(at, theme, ratio) {
  const axis = document.getElementById("axis"), box = canvas.getBoundingClientRect();
  axis.hidden = box.bottom <= window.innerHeight || box.top > window.innerHeight - 3 * AXIS_PX;
  if (axis.hidden) return;
  [axis.width, axis.height] = [Math.round(at.width * ratio), Math.round(AXIS_PX * ratio)];
  [axis.style.width, axis.style.height, axis.style.left] = [`${at.width}px`, `${AXIS_PX}px`, `${box.left}px`];
  const context = axis.getContext("2d"), draw = painter(context, at, state, theme, ratio);
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.fillStyle = theme.paper;
  context.fillRect(0, 0, at.width, AXIS_PX);
  drawTime(draw, 0);
}

// All rows of a panel in one way, by the fullest of them.
function drawRows(draw, panel) {
  const isTransfers = panel.kind === "transfers", spans = panel.rows.map((row) => within(row, draw.from, draw.to));
  const most = spans.reduce((most, [first, last]) => Math.max(most, last - first), 1);
  // A transfer is half of its row's cells, and needs room beside it to be seen as one.
  const smallest = draw.at.isNarrow ? SMALLEST_NARROW_PX : SMALLEST_PX;
  const isDense = most * (isTransfers ? 3 : smallest) > draw.at.wide;
  state.isSummed ||= isDense && panel.kind === "compute";
  const px = Math.min(Math.max(2, Math.ceil((A_BAR * draw.at.wide) / most)), 32);
  panel.rows.forEach((row, place) => {
    const [first, last] = spans[place], [top, bottom] = boundsOf(row);
    if (isDense) {
      const count = sharesOf(draw, row, first, last, px);
      if (isTransfers) drawLoad(draw, px, count, top, bottom);
      else drawShares(draw, px, count, top, bottom);
    } else {
      drawCells(draw, row, first, last, top, bottom);
      if (isTransfers) drawStarts(draw, row, first, last, top, bottom);
    }
  });
}

// The share of every fill in the bars of a row, which are so many pixels wide; returns how many there are.
const FILLS = fills.colours.length;
let shares = new Float64Array(0);

function sharesOf({ at, from, to }, row, first, last, px) {
  const count = Math.ceil(at.wide / px), perTime = at.wide / px / (to - from), { edges, fill } = row;
  if (shares.length < count * FILLS) shares = new Float64Array(count * FILLS);
  shares.fill(0, 0, count * FILLS);
  let begin = Math.max((edges[first] - from) * perTime, 0);
  for (let cell = first; cell < last; cell++) {
    const end = Math.min((edges[cell + 1] - from) * perTime, count), kind = fill[cell];
    let bar = Math.floor(begin);
    for (; bar + 1 < end; bar++) {
      shares[bar * FILLS + kind] += bar + 1 - begin;
      begin = bar + 1;
    }
    if (bar < count) shares[bar * FILLS + kind] += end - begin;
    begin = end;
  }
  return count;
}

// A row as a bar every few pixels, in which every fill takes its share of the height.
function drawShares({ context, at, theme }, px, count, top, bottom) {
  const used = [];
  for (let kind = 0; kind < FILLS; kind++) {
    for (let bar = 0; bar < count; bar++) if (shares[bar * FILLS + kind] > 0) { used.push(kind); break; }
  }
  const from = new Float64Array(count).fill(bottom);
  for (const kind of used) {
    context.fillStyle = theme.fills[kind];
    context.beginPath();
    for (let bar = 0; bar < count; bar++) {
      const share = shares[bar * FILLS + kind];
      if (share <= 0) continue;
      const high = share * (bottom - top);
      context.rect(at.left + bar * px, from[bar] - high, px, high);
      from[bar] -= high;
    }
    context.fill();
  }
}

// A lane of transfers as the part of the time that something is under way, smooth over neighbouring bars.
function drawLoad({ context, at, theme, ratio }, px, count, top, bottom) {
  const blank = fills.transfer + 1;
  const load = Array.from({ length: count }, (_, bar) => {
    let busy = 0;
    for (let kind = 0; kind < FILLS; kind++) if (kind !== blank) busy += shares[bar * FILLS + kind];
    return busy;
  });
  const smooth = load.map((one, bar) => ((load[bar - 1] ?? one) + 2 * one + (load[bar + 1] ?? one)) / 4);
  context.fillStyle = theme.fills[fills.transfer];
  context.beginPath();
  context.moveTo(at.left, bottom);
  smooth.forEach((share, bar) => context.lineTo(at.left + (bar + 0.5) * px, bottom - share * (bottom - top)));
  context.lineTo(at.left + count * px, bottom);
  context.fill();
  drawGround(context, at, theme, ratio, top, bottom);
}

// The foot of a lane, where it does not fill it.
function drawGround(context, at, theme, ratio, top, bottom) {
  if (bottom - top < 3) return;
  context.fillStyle = theme.line;
  context.fillRect(at.left, bottom - 1 / ratio, at.wide, 1 / ratio);
}

function drawCells(draw, row, first, last, top, bottom) {
  const { context, at, theme, x, snap } = draw, { edges, fill, node } = row;
  const blank = fills.transfer + 1, right = at.right + 1, high = bottom - top, isAlone = row.panel.kind === "transfers";
  for (let cell = first; cell < last; cell++) {
    const kind = fill[cell];
    if (kind === blank) continue;
    const exact = x(edges[cell]), begin = Math.max(snap(exact), at.left - 1), until = Math.min(x(edges[cell + 1]), right);
    context.fillStyle = theme.fills[kind];
    // What lies alone is drawn as thin as it is: rounded, some of those alike would be seen and others not.
    if (isAlone) context.fillRect(exact, top, until - exact, high);
    else if (snap(until) > begin) context.fillRect(begin, top, snap(until) - begin, high);
    else if (node && node[cell] !== NONE) context.fillRect(exact, top, until - exact, high);
  }
  if (row.panel.kind !== "compute" || row.typical * draw.perTime <= SEPARATED_PX) return;
  hatch(draw, row, first, last, top, high);
  context.fillStyle = theme.paper;
  for (let cell = Math.max(first, 1); cell < last; cell++) context.fillRect(snap(x(edges[cell]) - 0.5), top, 1, high);
  drawLabels(draw, row, first, last, top, bottom);
}

// Stripes over the cells of every other chunk; toward white, so that black print gains by them.
function hatch({ context, at, x, ratio }, row, first, last, top, high) {
  let pattern = null;
  for (let cell = first; cell < last; cell++) {
    if (!isOddChunk(row.fill[cell])) continue;
    const begin = Math.max(x(row.edges[cell]), at.left), end = Math.min(x(row.edges[cell + 1]), at.right);
    if (end - begin < SEPARATED_PX) continue;
    context.fillStyle = pattern ??= stripes(context, ratio);
    context.fillRect(begin, top, end - begin, high);
  }
}

function stripes(context, ratio) {
  const tile = document.createElement("canvas"), px = 8 * ratio;
  tile.width = tile.height = px;
  const lines = tile.getContext("2d");
  lines.strokeStyle = "rgb(255 255 255 / 55%)";
  lines.lineWidth = 1.4 * ratio;
  lines.beginPath();
  for (const from of [-px, 0, px]) {
    lines.moveTo(from - px, 2 * px);
    lines.lineTo(from + 2 * px, -px);
  }
  lines.stroke();
  const pattern = context.createPattern(tile, "repeat");
  pattern.setTransform(new DOMMatrix().scale(1 / ratio));
  return pattern;
}

function inPercent(error) {
  const rounded = Math.min(Math.round(100 * error), 999);
  return `${rounded < 0 ? "−" : "+"}${Math.abs(rounded)}`;
}

// A row's labels come and go together: where its typical cell has room for its longest.
function drawLabels({ context, at, x, perTime }, row, first, last, top, bottom) {
  const font = Math.min(12, Math.floor(bottom - top - 1)), plan = plans[row.plan];
  if (font < LABELLED_PX) return;
  const byError = state.colour === "error" && picture.errors;
  context.font = `${font}px ${FONT}`;
  const longest = byError ? "−100" : String(plan.numMicrobatches - 1);
  if (context.measureText(longest).width + 3 > row.typical * perTime) return;
  context.textAlign = "center";
  context.textBaseline = "alphabetic";
  const y = (top + bottom) / 2 + 0.36 * font;
  for (let cell = first; cell < last; cell++) {
    const node = row.node[cell];
    if (node === NONE) continue;
    const begin = Math.max(x(row.edges[cell]), at.left), end = Math.min(x(row.edges[cell + 1]), at.right);
    const text = byError ? inPercent(picture.errors.ofAction[node]) : String(plan.microbatch[node]);
    if (context.measureText(text).width + 2 > end - begin) continue;
    context.fillStyle = fills.inks[row.fill[cell]];
    context.fillText(text, (begin + end) / 2, y);
    row.panel.numLabels = (row.panel.numLabels ?? 0) + 1;
  }
}

// Transfers are often thinner than a pixel: a mark at the foot of each says where it starts.
function drawStarts({ context, at, theme, x, snap, ratio }, row, first, last, top, bottom) {
  drawGround(context, at, theme, ratio, top, bottom);
  context.fillStyle = theme.start;
  const high = Math.max(0.3 * (bottom - top), 2);
  for (let cell = first; cell < last; cell++) {
    if (row.node[cell] === NONE || row.edges[cell] < state.from) continue;
    context.fillRect(snap(x(row.edges[cell])), bottom - high, 1, high);
  }
}

// The critical path: a thin line where it turns so often that a broad one would cover what it runs through.
function drawPath({ context, at, from, to, theme, x }, panel, path) {
  const first = Math.max(above(path.x, from) - 1, 0), last = Math.min(above(path.x, to) + 1, path.x.length);
  const isDense = last - first > at.wide / 10;
  const thin = Math.min(2.5, panel.shownPx / panel.numRanks / 7), width = isDense ? Math.max(0.5 * thin, 1.2) : thin;
  context.beginPath();
  for (let place = first; place < last; place++) {
    const y = yOf(panel, path.rank[place] + path.offset);
    if (place === first) context.moveTo(x(path.x[place]), y);
    else context.lineTo(x(path.x[place]), y);
  }
  context.lineJoin = "round";
  if (!isDense) {
    [context.strokeStyle, context.lineWidth] = [theme.casing, 2 * width];
    context.stroke();
  }
  context.globalAlpha = isDense ? 0.85 : 1;
  [context.strokeStyle, context.lineWidth] = [theme.path, width];
  context.stroke();
  context.globalAlpha = 1;
}

const heldY = (panel, held) => panel.topPx + (1 - held / panel.top) * panel.shownPx;

// A line per rank, in steps; of many points in one pixel the lowest and the highest.
function drawMemory({ context, at, from, to, theme, x }, panel) {
  const y = (held) => heldY(panel, held);
  for (const line of panel.lines) {
    const first = Math.max(above(line.x, from) - 1, 0), last = Math.min(above(line.x, to) + 1, line.x.length);
    context.beginPath();
    context.moveTo(x(line.x[first]), y(line.y[first]));
    for (let place = first + 1; place < last;) {
      const px = Math.floor(x(line.x[place])), before = y(line.y[place - 1]);
      let [low, high] = [before, before];
      do {
        const here = y(line.y[place]);
        [low, high] = [Math.min(low, here), Math.max(high, here)];
        place++;
      } while (place < last && Math.floor(x(line.x[place])) === px);
      context.lineTo(px, before);
      if (low < before || high > before) { context.lineTo(px, low); context.lineTo(px, high); }
      context.lineTo(px, y(line.y[place - 1]));
    }
    [context.strokeStyle, context.lineWidth] = [`color-mix(in srgb, ${line.colour} ${theme.strength}, white)`, 1.5];
    context.stroke();
  }
  if (!panel.limit) return;
  const [limit, label] = panel.limit;
  context.fillStyle = theme.path;
  for (let dash = at.left; dash < at.right; dash += 10) context.fillRect(dash, y(limit) - 0.75, 6, 1.5);
  write(context, label, at.right - 4, y(limit) + 13, { colour: theme.text, align: "right", font: 11 });
}

function drawMemoryAxis({ context, at, theme }, panel) {
  const { ticks, digits } = ticksOf(0, panel.top, panel.shownPx / 32);
  ticks.forEach((tick, place) => {
    const named = `${fixed(tick, digits)}${place === ticks.length - 1 && !at.isNarrow ? ` ${panel.unit}` : ""}`;
    context.fillStyle = theme.line;
    context.fillRect(at.left, heldY(panel, tick), at.wide, 0.5);
    write(context, named, at.left - 6, heldY(panel, tick) + 4, { colour: theme.text, align: "right" });
  });
}
