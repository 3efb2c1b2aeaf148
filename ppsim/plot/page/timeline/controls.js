// --- controls ---

const controls = document.getElementById("controls"), said = document.getElementById("said");
const toggle = (name) => controls.querySelector(`[name="${name}"]`)?.click();
const paint = (name) => controls.querySelector(`[name="colour"][value="${name}"]`)?.click();

// The cell of an action that is written as 3F12, or null.
function found(plan, name) {
  const [, stage, op, microbatch] = /^\s*(\d+)\s*([FBIW])\s*(\d+)\s*$/i.exec(name) ?? [];
  if (!op) return null;
  const kind = OPS.indexOf(op.toUpperCase());
  for (let action = 0; action < plan.numActions; action++) {
    if (plan.op[action] === kind && plan.stage[action] === Number(stage) && plan.microbatch[action] === Number(microbatch)) {
      return cellOfNode(plan, action);
    }
  }
  return null;
}

// Show the action so that some of its neighbours are in view, keep it, and say what it says; with several plans the
// next one's each time.
let lastFound = NONE;
function find(name) {
  if (!picture.isTold) return;
  const hits = plans.map((plan, place) => [place, found(plan, name)]).filter(([, cell]) => cell);
  if (!hits.length) {
    const ops = [...new Set(plans.flatMap((plan) => [...new Set(plan.op)]))].sort().map((op) => OPS[op]).join(", ");
    const [stages, units] = ["numStages", "numMicrobatches"].map((count) => Math.max(...plans.map((plan) => plan[count])) - 1);
    said.textContent = `no action '${name.trim()}' here: stages 0 to ${stages}, ${ops}, microbatches 0 to ${units}, as 0F0`;
    return;
  }
  const [place, [row, cell]] = hits.find(([plan]) => plan > lastFound) ?? hits[0];
  lastFound = hits.length > 1 ? place : NONE;
  const length = row.edges[cell + 1] - row.edges[cell], middle = (row.edges[cell] + row.edges[cell + 1]) / 2;
  const width = Math.max(24 * length, 1e-6 * (picture.range[1] - picture.range[0]));
  if (state.to - state.from > 4 * width || row.edges[cell] < state.from || row.edges[cell + 1] > state.to) {
    show(middle - width / 2, middle + width / 2);
  }
  state.kept = [row, cell];
  said.textContent = toldOf(state.kept).join(" · ");
  refresh();
}

function release() {
  state.kept = null;
  said.textContent = "";
  unpoint();
  select(null);
}

const KEYS = {
  w: () => zoom(0.5), "+": () => zoom(0.5), "=": () => zoom(0.5), s: () => zoom(2), "-": () => zoom(2),
  a: () => move(-0.3), arrowleft: () => move(-0.3), d: () => move(0.3), arrowright: () => move(0.3),
  0: () => show(...picture.range), home: () => show(...picture.range), r: () => select([state.from, state.to]),
  k: () => paint("kind"), m: () => paint("microbatch"), e: () => paint("error"),
  p: () => toggle("path"), i: () => toggle("causes"), l: () => toggle("links"),
  "/": () => controls.querySelector("[name=find]").focus(),
  escape: release,
};
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.matches?.("[name=find], select")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (event.target.matches?.("input[type=radio]") && event.key.startsWith("Arrow")) return;
  const act = KEYS[event.key.toLowerCase()];
  if (act) { event.preventDefault(); act(); }
});

controls.addEventListener("submit", (event) => { event.preventDefault(); find(controls.elements.find.value); });
controls.addEventListener("click", (event) => event.target.dataset.key && KEYS[event.target.dataset.key]());
document.getElementById("range-close").addEventListener("click", () => select(null));
document.getElementById("save").addEventListener("click", () => {
  canvas.toBlob((blob) => {
    const link = document.createElement("a");
    [link.href, link.download] = [URL.createObjectURL(blob), "timeline.png"];
    link.click();
    URL.revokeObjectURL(link.href);
  });
});
controls.addEventListener("change", ({ target }) => {
  if (target.name === "colour") { state.colour = target.value; recolour(); }
  if (target.name === "causes") { state.causes = target.checked; recolour(); }
  if (["links", "path"].includes(target.name)) state[target.name] = target.checked;
  if (target.name === "panel") state.hidden[target.checked ? "delete" : "add"](target.value);
  if (target.name === "theme") { state.theme = target.value; applyTheme(); }
  refresh();
});

function applyTheme(name = state.theme) {
  if (name === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  theme = themed();
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { applyTheme(); refresh(); });
window.addEventListener("hashchange", () => { readHash(); applyTheme(); recolour(); showRange(); refresh(); });
const atPresent = () => at && drawAxisInView(at, theme, Math.min(window.devicePixelRatio || 1, 2));
for (const what of ["scroll", "resize"]) window.addEventListener(what, atPresent, { passive: true });
new ResizeObserver(() => at && stage.clientWidth !== at.width && refresh()).observe(stage);

// On paper the picture takes one page, in light colours; what stands beside it follows.
window.addEventListener("beforeprint", () => { applyTheme("light"); redraw(PRINTED); });
window.addEventListener("afterprint", () => { applyTheme(); redraw(); });

// --- begin ---

if (picture.errors) await unpackTold(); // the colours may be those of errors
readHash();
applyTheme();
recolour();
redraw();
document.body.classList.add("drawn");
if (!picture.errors) {
  await new Promise((done) => setTimeout(done)); // the picture is seen first
  await unpackTold();
}
picture.isTold = true;
document.getElementById("timeline").ppsim = { state, cells, panels, linesOf, rowBounds: boundsOf, layout: () => at, show };
showRange();
drawLinks();
document.body.classList.add("ready");
