const plot = document.getElementById("pareto"), theme = document.getElementById("theme");
const figure = JSON.parse(document.getElementById("figure").textContent);
const NARROW = { margin: { l: 66, r: 10, t: 64, b: 48 } };

const isDark = matchMedia("(prefers-color-scheme: dark)"), shape = matchMedia("(max-width: 600px)").matches ? NARROW : {};

// In a layout that has all the theme's colours; the style sheet follows.
function apply(name = theme.value) {
  if (name === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  const layout = figure[name === "dark" || (name === "auto" && isDark.matches) ? "dark" : "light"];
  return Plotly.react(plot, figure.data, { ...layout, ...shape }, { displaylogo: false, responsive: true, showSendToCloud: false });
}

apply();
for (const switched of [theme, isDark]) switched.addEventListener("change", () => apply());

plot.on("plotly_click", (event) => {
  const command = document.createElement("code");
  event.points[0].customdata.split(/ (?=--)/).forEach((part, index) => {
    const option = document.createElement("span"); // a line ends between options only
    option.textContent = part;
    command.append(index ? " " : "", option);
  });
  document.getElementById("command").replaceChildren(command);
});

// A page is not laid out anew for the printer: what is drawn for a window would be cut off.
window.addEventListener("beforeprint", () => { apply("light"); Plotly.relayout(plot, { autosize: false, width: 680, height: 440 }); });
window.addEventListener("afterprint", () => { apply(); Plotly.relayout(plot, { autosize: true, width: null, height: null }); });
