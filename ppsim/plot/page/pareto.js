const plot = document.getElementById("pareto"), theme = document.getElementById("theme");
const figure = JSON.parse(document.getElementById("figure").textContent);
const NARROW = { margin: { l: 66, r: 10, t: 64, b: 48 } };

// The layout in the colours of the style sheet; dots are those of its accent.
function themed(name = theme.value) {
  if (name === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  const style = getComputedStyle(document.documentElement);
  const [paper, text, line, accent] = ["paper", "text", "line", "accent"].map((one) => style.getPropertyValue(`--${one}`).trim());
  const layout = { paper_bgcolor: paper, plot_bgcolor: paper, "font.color": text, "hoverlabel.bgcolor": paper, "hoverlabel.font.color": text };
  for (const axis of ["xaxis", "yaxis"]) Object.assign(layout, { [`${axis}.gridcolor`]: line, [`${axis}.linecolor`]: text });
  return { layout, accent };
}

const apply = (name) => {
  const { layout, accent } = themed(name);
  return Plotly.update(plot, { "marker.color": accent }, layout, [0]);
};

const shape = matchMedia("(max-width: 600px)").matches ? NARROW : {};
Plotly.newPlot(plot, figure.data, { ...figure.layout, ...shape }, { displaylogo: false, responsive: true, showSendToCloud: false }).then(() => apply());
theme.addEventListener("change", () => apply());
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => apply());

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
