// --- who waits for whom: outlines and lines above the picture ---

const SVG = "http://www.w3.org/2000/svg";
const overlay = document.getElementById("links");
let at = null; // the layout of what is drawn

// The box of a cell in pixels of the picture, or null where its panel is hidden.
function boxOf([row, cell]) {
  if (!isShown(row.panel)) return null;
  const x = (time) => at.left + ((time - state.from) / (state.to - state.from)) * at.wide, [top, bottom] = boundsOf(row);
  return { left: x(row.edges[cell]), right: x(row.edges[cell + 1]), top, bottom };
}

const cellOfNode = (plan, node) => (plan.rowOf[node] === NONE ? null : [cells[plan.rowOf[node]], plan.cellOf[node]]);

function placesOf(column, value) {
  const places = [];
  for (let place = column.indexOf(value); place !== -1; place = column.indexOf(value, place + 1)) places.push(place);
  return places;
}

// The nodes whose results a node needs, those that need its own, and what it waited for last.
function linksOf(plan, node) {
  const transfer = node - plan.numActions, blocker = plan.blocker[node];
  if (transfer >= 0) return { before: [plan.source[transfer]], behind: [plan.target[transfer]], carried: [], blocker };
  const before = plan.needs.map((column) => column[node]).filter((other) => other !== NONE);
  const behind = plan.needs.flatMap((column) => placesOf(column, node));
  const carried = [...placesOf(plan.target, node), ...placesOf(plan.source, node)].map((place) => plan.numActions + place);
  return { before, behind, carried, blocker };
}

function element(name, attributes) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  overlay.append(made);
  return made;
}

function outline(box, kind, width) {
  const left = Math.max(box.left, at.left), wide = Math.min(box.right, at.right) - left;
  if (wide < 0) return;
  const place = { x: left, y: box.top, width: Math.max(wide, 1), height: box.bottom - box.top };
  element("rect", { ...place, class: "casing", "stroke-width": width + 2 });
  element("rect", { ...place, class: kind, "stroke-width": width });
}

// Between rows a line, within one an arc above it, clear of what lies between.
function connect(from, to, kind, dash) {
  const start = [from.right, (from.top + from.bottom) / 2], end = [to.left, (to.top + to.bottom) / 2];
  const height = from.bottom - from.top;
  const arc = start[1] === end[1] ? `C ${start[0]} ${from.top - height}, ${end[0]} ${to.top - height},` : "L";
  const shape = { d: `M ${start.join(" ")} ${arc} ${end.join(" ")}`, "clip-path": "url(#inside)" };
  element("path", { ...shape, class: "casing", "stroke-width": 4 });
  element("path", { ...shape, class: kind, "stroke-width": 1.8, "stroke-dasharray": dash });
}

function drawLinks() {
  overlay.replaceChildren();
  drawSelected();
  const chosen = state.kept ?? pointed, [row, cell] = chosen ?? [], node = row?.node?.[cell] ?? NONE;
  if (!picture.isTold || node === NONE) return;
  const here = boxOf(chosen);
  if (!here) return;
  if (state.links) drawWaits(plans[row.plan], node, here);
  if (state.links || state.kept) outline(here, "plain", 2.5);
}

function drawWaits(plan, node, here) {
  const clip = element("clipPath", { id: "inside" });
  clip.innerHTML = `<rect x="${at.left}" y="0" width="${at.wide}" height="${at.height}"/>`;
  const { before, behind, carried, blocker } = linksOf(plan, node);
  const boxAt = (other) => { const found = cellOfNode(plan, other); return found && boxOf(found); };
  const kind = (other) => (other === blocker ? "blocker" : "plain");
  for (const [others, dash] of [[before, "none"], [behind, "5 3"]]) {
    for (const other of others) {
      const box = boxAt(other);
      if (!box) continue;
      if (others === before) connect(box, here, kind(other), dash);
      else connect(here, box, kind(other), dash);
      outline(box, kind(other), 1.5);
    }
  }
  if (blocker !== NONE && !before.includes(blocker) && boxAt(blocker)) outline(boxAt(blocker), "blocker", 1.5);
  for (const other of carried) if (boxAt(other)) outline(boxAt(other), kind(other), 1);
}

// The range that was selected, and what is being dragged over.
function drawSelected() {
  for (const [range, kind] of [[state.range, "range"], [dragged?.range, dragged?.isRange ? "range" : "zooming"]]) {
    if (!range) continue;
    const [left, right] = range.map((time) => at.left + ((time - state.from) / (state.to - state.from)) * at.wide);
    const x = Math.max(left, at.left), width = Math.min(right, at.right) - x;
    if (width > 0) element("rect", { x, y: TOP_PX, width, height: at.bottom - TOP_PX, class: kind });
  }
}
