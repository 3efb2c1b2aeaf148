const plot = document.getElementById("pareto");
const figure = JSON.parse(document.getElementById("figure").textContent);

Plotly.newPlot(plot, figure.data, figure.layout, { displaylogo: false, responsive: true, showSendToCloud: false });

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
window.addEventListener("beforeprint", () => Plotly.relayout(plot, { autosize: false, width: 680, height: 440 }));
window.addEventListener("afterprint", () => Plotly.relayout(plot, { autosize: true, width: null, height: null }));
