const plot = document.getElementById("pareto"), theme = document.getElementById("theme");
const figure = JSON.parse(document.getElementById("figure").textContent);
const NARROW = { margin: { l: 66, r: 10, t: 64, b: 48 } };

const isDark = matchMedia("(prefers-color-scheme: dark)"), shape = matchMedia("(max-width: 600px)").matches ? NARROW : {};

// In a layout that has all the theme's colours; the style sheet follows.
function apply(name = theme.value) {
  if (name === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  const layout = figure[name === "dark" || (name === "auto" && isDark.matches) ? "dark" : "light"];
  return Plotly.react(plot, figure.data, { ...layout, ...shape }, { displaylogo: false, responsive: true, displayModeBar: shape === NARROW ? false : "hover" });
}

apply();
for (const switched of [theme, isDark]) switched.addEventListener("change", () => apply());

// Show a configuration's command below the picture, and copy it.
function take(text) {
  const command = document.createElement("code"), copied = document.createElement("p");
  text.split(/ (?=--)/).forEach((part, index) => {
    const option = document.createElement("span"); // a line ends between options only
    option.textContent = part;
    command.append(index ? " " : "", option);
  });
  document.getElementById("command").replaceChildren(command, copied);
  copy(text).then(() => { copied.textContent = "Copied to the clipboard."; }, () => {});
}

// In a page from a file some browsers have no clipboard: a text field, selected, has one.
async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const field = document.createElement("textarea");
  field.value = text;
  document.body.append(field);
  field.select();
  const isDone = document.execCommand("copy");
  field.remove();
  if (!isDone) throw new Error("no clipboard");
}

plot.on("plotly_click", (event) => take(event.points[0].customdata));
document.querySelector("#listed tbody").addEventListener("click", ({ target }) => {
  const row = target.closest("tr");
  if (row) take(row.dataset.command);
});

// A page is not laid out anew for the printer: what is drawn for a window would be cut off.
window.addEventListener("beforeprint", () => { apply("light"); Plotly.relayout(plot, { autosize: false, width: 680, height: 440 }); });
window.addEventListener("afterprint", () => { apply(); Plotly.relayout(plot, { autosize: true, width: null, height: null }); });
