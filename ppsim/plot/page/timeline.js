"use strict";
// The interactive timeline. What is drawn is the data of ppsim/plot/picture.py; plotly.js draws it.

(async () => {
  const MARGIN = { l: 76, r: 22, t: 12, b: 50 };
  const FOOTER_PX = 44;
  const PRINTED = { width: 1040, height: 640 }; // an A4 page on its side, in CSS pixels
  const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif";
  const TYPES = { f8: Float64Array, f4: Float32Array, i4: Int32Array, i2: Int16Array, i1: Int8Array };
  const HOVER = "<b>%{customdata[0]}</b><br>%{customdata[1]}<br>%{customdata[2]}<br>%{customdata[3]}";
  const SVG = "http://www.w3.org/2000/svg";
  const NONE = -1;

  // --- data ---

  function bytesOf(text) {
    const letters = atob(text), bytes = new Uint8Array(letters.length);
    for (let index = 0; index < bytes.length; index++) bytes[index] = letters.charCodeAt(index);
    return bytes;
  }
  const numbers = ({ dtype, bdata }) => new TYPES[dtype](bytesOf(bdata).buffer);
  const unpacked = (id) => {
    const stream = new Blob([bytesOf(document.getElementById(id).textContent)]).stream();
    return new Response(stream.pipeThrough(new DecompressionStream("deflate"))).json();
  };

  const state = { colour: "kind", causes: false, path: true, links: true, hidden: new Set() };
  const picture = await unpacked("picture");
  const { panels, fills, colours } = picture;
  const plans = picture.plans.map((plan) => {
    const blocker = numbers(plan.blocker);
    return {
      ...plan,
      needs: plan.needs.map(numbers),
      source: numbers(plan.source),
      target: numbers(plan.target),
      blocker,
      rowOf: new Int32Array(blocker.length).fill(NONE), // of a node: its place in `cells`, and its cell there
      cellOf: new Int32Array(blocker.length),
    };
  });
  const cells = []; // all of them, a row each, in the order of their traces
  const traces = [];

  panels.forEach((panel, index) => {
    panel.yaxis = index ? `y${index + 1}` : "y";
    panel.axisName = index ? `yaxis${index + 1}` : "yaxis";
    panel.traces = [];
    const add = (trace) => {
      panel.traces.push(traces.length);
      traces.push({ showlegend: false, yaxis: panel.yaxis, ...trace });
      return traces.length - 1;
    };
    for (const row of panel.cells) {
      row.panel = panel;
      for (const name of ["x", "fill", "node", "microbatch", "cause", "error"]) if (row[name]) row[name] = numbers(row[name]);
      row.node?.forEach((node, cell) => {
        if (node === NONE) return;
        plans[row.plan].rowOf[node] = cells.length;
        plans[row.plan].cellOf[node] = cell;
      });
      row.trace = add({
        type: "heatmap", x: row.x, y: [row.middle - row.half, row.middle + row.half], z: [row.fill], customdata: [[]],
        coloraxis: "coloraxis",
        hovertemplate: `${HOVER}${row.error ? "<br>%{customdata[4]}" : ""}<extra>rank ${row.rank}</extra>`,
      });
      cells.push(row);
    }
    if (panel.labelPx) panel.labels = add(labelsOf(panel));
    for (const line of panel.lines) add(line);
  });

  // --- colours ---

  function filled(row) {
    const { fill, microbatch, cause, error } = row;
    const among = ([first, last], share) => first + Math.round(Math.min(Math.max(share, 0), 1) * (last - first));
    const last = Math.max(plans[row.plan].numMicrobatches - 1, 1);
    return fill.map((kind, cell) => {
      if (state.causes && cause && cause[cell] !== NONE) return fills.causes + cause[cell];
      if (state.colour === "microbatch" && microbatch && microbatch[cell] !== NONE) {
        return among(fills.microbatches, microbatch[cell] / last);
      }
      if (state.colour === "error" && error && !Number.isNaN(error[cell])) {
        return among(fills.errors, 0.5 + 0.5 * error[cell] / picture.errorLimit);
      }
      return kind;
    });
  }

  // Labels are texts of unseen bars, since plotly hides those that do not fit. They are made equally wide, so that
  // they come and go together: a space a quarter of the font size wide, twice, is about a digit.
  function labelsOf(panel) {
    const base = [], x = [], y = [], width = [];
    for (const row of panel.cells) {
      row.node.forEach((node, cell) => {
        if (node === NONE) return;
        base.push(row.x[cell]);
        x.push(row.x[cell + 1] - row.x[cell]);
        y.push(row.middle);
        width.push(2 * row.half);
      });
    }
    return {
      type: "bar", orientation: "h", base, x, y, width, ...writing(panel), textposition: "inside", insidetextanchor: "middle",
      textangle: 0, marker: { color: "rgba(0,0,0,0)", line: { width: 0 } }, hoverinfo: "skip",
    };
  }

  function inPercent(error) {
    const rounded = Math.min(Math.round(100 * error), 999);
    return `${rounded < 0 ? "−" : "+"}${Math.abs(rounded)}`;
  }

  function writing(panel) {
    const text = [], color = [];
    for (const row of panel.cells) {
      const now = row.z ?? row.fill;
      row.node.forEach((node, cell) => {
        if (node === NONE) return;
        const label = String(row.microbatch[cell]), space = "\u2005".repeat(row.digits - label.length);
        const error = state.colour === "error" && row.error ? row.error[cell] : NaN;
        text.push(Number.isNaN(error) ? `${space}${label}${space}` : inPercent(error));
        color.push(fills.inks[now[cell]]);
      });
    }
    return { text, textfont: { color, size: panel.labelPx } };
  }

  function recolour() {
    document.body.dataset.colour = state.colour;
    document.body.classList.toggle("causes", state.causes);
    const changed = cells.filter((row) => row.microbatch);
    for (const row of changed) row.z = filled(row);
    Plotly.restyle(plot, { z: changed.map((row) => [row.z]) }, changed.map((row) => row.trace));
    for (const panel of panels.filter((panel) => panel.labels !== undefined)) {
      const { text, textfont } = writing(panel);
      Plotly.restyle(plot, { text: [text], textfont: [textfont] }, [panel.labels]);
    }
  }

  // --- layout ---

  const isShown = (panel) => !state.hidden.has(panel.kind);

  // Stack the shown panels above one time axis; places are in pixels here and in shares of the height in plotly.
  // What would leave a part of the window empty is drawn up to half as high again; on paper all has to fit.
  function stacked(most) {
    const shown = panels.filter(isShown);
    const captionsPx = shown.reduce((sum, panel) => sum + panel.captionPx, 0);
    const rowsPx = shown.reduce((sum, panel) => sum + panel.heightPx, 0);
    const room = (most ?? window.innerHeight - document.querySelector("header").offsetHeight - FOOTER_PX) - MARGIN.t - MARGIN.b;
    const fitting = (room - captionsPx) / rowsPx;
    const stretch = most ? Math.min(1, fitting) : Math.min(Math.max(1, fitting), 1.5);
    const height = captionsPx + rowsPx * stretch;
    const layout = { height: Math.round(height + MARGIN.t + MARGIN.b), annotations: [], shapes: [] };
    let above = 0;
    for (const panel of panels) {
      const ranks = ranksNamed(panel.numRanks, panel.heightPx * stretch);
      // A hidden panel lies in the first caption: without a place it would cover the whole plot, white and in the
      // pointer's way.
      const axis = {
        anchor: "x", fixedrange: true, zeroline: false, ...panel.axis, ...ranks, visible: isShown(panel),
        domain: [1 - 1 / 2048, 1],
      };
      layout[panel.axisName] = axis;
      if (!isShown(panel)) continue;
      above += panel.captionPx;
      panel.topPx = MARGIN.t + above;
      panel.shownPx = panel.heightPx * stretch;
      axis.domain = [Math.max(1 - (above + panel.shownPx) / height, 0), 1 - above / height];
      above += panel.shownPx;
      layout.annotations.push({
        text: panel.caption, xref: "paper", x: 0, xanchor: "left", yref: "paper", y: axis.domain[1], yanchor: "bottom",
        yshift: 2, showarrow: false, font: { size: 13 },
      });
      layout.shapes.push(...panel.shapes.map((shape) => ({ ...shape, yref: panel.yaxis })));
    }
    layout["xaxis.anchor"] = shown.at(-1).yaxis;
    return layout;
  }

  // The ranks that are named beside their rows: as many as there is room for.
  function ranksNamed(count, height) {
    if (!count) return {};
    const step = [1, 2, 4, 8, 16, 32, 64, 128, 256].find((every) => (every * height) / count >= 14) ?? count;
    const named = Array.from({ length: Math.ceil(count / step) }, (_, index) => index * step);
    return { tickvals: named, ticktext: named.map((rank) => `rank ${rank}`) };
  }

  function colorscale() {
    const count = fills.colours.length;
    return fills.colours.flatMap((colour, index) => [[index / count, colour], [(index + 1) / count, colour]]);
  }

  const { "xaxis.anchor": anchor, ...stack } = stacked();
  const layout = {
    ...stack,
    margin: MARGIN,
    font: { family: FONT, size: 12, color: colours.text },
    paper_bgcolor: "#FFFFFF",
    plot_bgcolor: "#FFFFFF",
    hovermode: "closest",
    hoverlabel: { align: "left", bgcolor: "#FFFFFF", font: { color: colours.text }, namelength: -1 },
    dragmode: "zoom",
    barmode: "overlay",
    uniformtext: { mode: "hide", minsize: 7 },
    coloraxis: { cmin: -0.5, cmax: fills.colours.length - 0.5, colorscale: colorscale(), showscale: false },
    xaxis: {
      range: [...picture.range], minallowed: picture.range[0], maxallowed: picture.range[1], anchor,
      title: { text: `time (${picture.unit})`, standoff: 8 }, zeroline: false, showgrid: false, ticks: "outside",
    },
  };
  const plot = document.getElementById("timeline");
  await Plotly.newPlot(plot, traces, layout, {
    displaylogo: false,
    showSendToCloud: false, // plotly.js 4 shows a button that uploads the figure
    responsive: true,
    modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
  });

  // White lines between cells tell them apart, but would pale those of a few pixels and hide the smallest: a row has
  // them while its typical cell is wide enough. Drawn into plotly's layers, under labels and path: with the `xgap` of
  // its heatmaps everything would be drawn a second time.
  function separate() {
    const [from, to] = plot.layout.xaxis.range, wide = plot.clientWidth - MARGIN.l - MARGIN.r;
    for (const panel of panels.filter((one) => one.kind === "compute")) {
      const layer = plot.querySelector(`.subplot.x${panel.yaxis} .heatmaplayer`);
      panel.separators ??= document.createElementNS(SVG, "path");
      for (const [name, value] of [["stroke", colours.casing], ["shape-rendering", "crispEdges"]]) {
        panel.separators.setAttribute(name, value);
      }
      layer.after(panel.separators);
      const [bottom, top] = panel.axis.range;
      const y = (place) => (((place - top) / (bottom - top)) * panel.shownPx).toFixed(1);
      const lines = panel.cells.filter((row) => (row.typical / (to - from)) * wide > 8).flatMap((row) => {
        const reach = `V${y(row.middle + row.half)}`, high = y(row.middle - row.half);
        const seen = row.x.filter((edge) => edge > from && edge < to);
        return Array.from(seen, (edge) => `M${(((edge - from) / (to - from)) * wide).toFixed(1)} ${high}${reach}`);
      });
      panel.separators.setAttribute("d", lines.join(""));
    }
  }

  function rearrange(most) {
    const visible = panels.map((panel) => panel.traces.map((trace) => isShown(panel) && (state.path || traces[trace].meta !== "critical path")));
    Plotly.update(plot, { visible: visible.flat() }, stacked(most), panels.flatMap((panel) => panel.traces));
  }

  // --- who waits for whom ---

  const group = document.createElementNS(SVG, "g");
  group.id = "links";
  let pointed = null, kept = null; // [row, cell]

  // The box of a cell in pixels of the stage, or null where its panel is hidden.
  function boxOf([row, cell]) {
    if (!isShown(row.panel)) return null;
    const [from, to] = plot.layout.xaxis.range, wide = plot.clientWidth - MARGIN.l - MARGIN.r;
    const x = (time) => MARGIN.l + ((time - from) / (to - from)) * wide;
    const [bottom, top] = row.panel.axis.range; // of ranks: downwards
    const y = (place) => row.panel.topPx + ((place - top) / (bottom - top)) * row.panel.shownPx;
    return { left: x(row.x[cell]), right: x(row.x[cell + 1]), top: y(row.middle - row.half), bottom: y(row.middle + row.half) };
  }

  function followersOf(plan, node) {
    if (!plan.followers) {
      plan.followers = new Map();
      const add = (from, to) => from !== NONE && plan.followers.set(from, [...(plan.followers.get(from) ?? []), to]);
      for (const column of plan.needs) column.forEach(add);
    }
    return plan.followers.get(node) ?? [];
  }

  // The nodes whose results a node needs, those that need its own, and what it waited for last.
  function linksOf(plan, node) {
    const transfer = node - plan.numActions, blocker = plan.blocker[node];
    if (transfer >= 0) return { before: [plan.source[transfer]], behind: [plan.target[transfer]], blocker };
    const before = plan.needs.map((column) => column[node]).filter((other) => other !== NONE);
    const carried = [];
    plan.target.forEach((target, index) => target === node && carried.push(plan.numActions + index));
    plan.source.forEach((source, index) => source === node && carried.push(plan.numActions + index));
    return { before, behind: followersOf(plan, node), carried, blocker };
  }

  function drawLinks() {
    group.replaceChildren();
    plot.querySelector(".hoverlayer").before(group); // below what is said of the cell
    const chosen = kept ?? pointed;
    if (!state.links || !chosen) return;
    const [row, cell] = chosen, plan = plans[row.plan], node = row.node?.[cell] ?? NONE, here = boxOf(chosen);
    if (node === NONE || !here) return;
    const right = plot.clientWidth - MARGIN.r;
    const element = (name, attributes) => {
      const made = document.createElementNS(SVG, name);
      for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
      group.append(made);
    };
    const outline = (box, colour, width) => {
      const left = Math.max(box.left, MARGIN.l), wide = Math.min(box.right, right) - left;
      if (wide < 0) return;
      const place = { x: left, y: box.top, width: Math.max(wide, 1), height: box.bottom - box.top, fill: "none" };
      element("rect", { ...place, stroke: colours.casing, "stroke-width": width + 2 });
      element("rect", { ...place, stroke: colour, "stroke-width": width });
    };
    // Between rows a line, within one an arc above it, clear of what lies between.
    const line = (from, to, colour, dash) => {
      const start = [from.right, (from.top + from.bottom) / 2], end = [to.left, (to.top + to.bottom) / 2];
      const height = from.bottom - from.top;
      const arc = start[1] === end[1] ? `C ${start[0]} ${from.top - height}, ${end[0]} ${to.top - height},` : "L";
      const shape = { d: `M ${start.join(" ")} ${arc} ${end.join(" ")}`, fill: "none", "clip-path": "url(#inside)" };
      element("path", { ...shape, stroke: colours.casing, "stroke-width": 4 });
      element("path", { ...shape, stroke: colour, "stroke-width": 1.8, "stroke-dasharray": dash });
    };
    group.innerHTML = `<clipPath id="inside"><rect x="${MARGIN.l}" y="0" width="${right - MARGIN.l}" height="100%"/></clipPath>`;
    const { before, behind, carried = [], blocker } = linksOf(plan, node);
    const at = (other) => (plan.rowOf[other] === NONE ? null : boxOf([cells[plan.rowOf[other]], plan.cellOf[other]]));
    const draw = (others, dash, isInput) => {
      for (const other of others) {
        const box = at(other);
        if (!box) continue;
        const colour = other === blocker ? colours.blocker : colours.text;
        line(isInput ? box : here, isInput ? here : box, colour, dash);
        outline(box, colour, 1.5);
      }
    };
    draw(before, "none", true);
    draw(behind, "5 3", false);
    if (blocker !== NONE && !before.includes(blocker) && at(blocker)) outline(at(blocker), colours.blocker, 1.5);
    for (const other of carried) if (at(other)) outline(at(other), other === blocker ? colours.blocker : colours.text, 1);
    outline(here, colours.text, 2.5);
  }

  const cellOf = (event) => {
    const point = event.points.find((one) => one.data.type === "heatmap");
    return point ? [cells.find((row) => row.trace === point.curveNumber), point.pointNumber[1]] : null;
  };
  plot.on("plotly_hover", (event) => { pointed = cellOf(event); drawLinks(); });
  plot.on("plotly_unhover", () => { pointed = null; drawLinks(); });
  plot.on("plotly_click", (event) => {
    const cell = cellOf(event), isIdle = !cell || (cell[0].node?.[cell[1]] ?? NONE) === NONE;
    const isSame = kept && cell && kept[0] === cell[0] && kept[1] === cell[1];
    kept = isIdle || isSame ? null : cell;
    drawLinks();
  });
  for (const drawn of ["plotly_afterplot", "plotly_relayout"]) plot.on(drawn, () => { separate(); drawLinks(); });

  // What is said of a cell would stay where the cell was, when keys move the picture or the pointer leaves in a hurry.
  function unpoint() {
    Plotly.Fx.unhover(plot);
    pointed = null;
  }

  // --- controls ---

  let pointer = null; // the share of the plot's width where the pointer is
  document.getElementById("stage").addEventListener("mousemove", (event) => {
    const share = (event.clientX - plot.getBoundingClientRect().left - MARGIN.l) / (plot.clientWidth - MARGIN.l - MARGIN.r);
    pointer = share >= 0 && share <= 1 ? share : null;
  });
  document.getElementById("stage").addEventListener("mouseleave", () => { pointer = null; unpoint(); drawLinks(); });

  function show(from, to) {
    const [first, last] = picture.range, width = Math.min(to - from, last - first);
    const begin = Math.min(Math.max(from, first), last - width);
    unpoint();
    return Plotly.relayout(plot, { "xaxis.range": [begin, begin + width] });
  }

  function zoom(factor, share = pointer ?? 0.5) {
    const [from, to] = plot.layout.xaxis.range, middle = from + share * (to - from);
    return show(middle - share * (to - from) * factor, middle + (1 - share) * (to - from) * factor);
  }

  function move(share) {
    const [from, to] = plot.layout.xaxis.range;
    return show(from + share * (to - from), to + share * (to - from));
  }

  const controls = document.getElementById("controls");
  const toggle = (name) => controls.querySelector(`[name="${name}"]`)?.click();
  const paint = (name) => controls.querySelector(`[name="colour"][value="${name}"]`)?.click();
  const KEYS = {
    w: () => zoom(0.5), "+": () => zoom(0.5), "=": () => zoom(0.5), s: () => zoom(2), "-": () => zoom(2),
    a: () => move(-0.3), arrowleft: () => move(-0.3), d: () => move(0.3), arrowright: () => move(0.3),
    0: () => show(...picture.range), home: () => show(...picture.range),
    k: () => paint("kind"), m: () => paint("microbatch"), e: () => paint("error"),
    p: () => toggle("path"), i: () => toggle("causes"), l: () => toggle("links"),
    escape: () => { kept = null; unpoint(); drawLinks(); },
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.matches?.("input[type=radio]") && event.key.startsWith("Arrow")) return;
    const act = KEYS[event.key.toLowerCase()];
    if (act) { event.preventDefault(); act(); }
  });
  document.getElementById("stage").addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return; // without, the page scrolls
    event.preventDefault();
    zoom(event.deltaY > 0 ? 1.25 : 0.8);
  }, { passive: false });
  controls.addEventListener("submit", (event) => event.preventDefault());
  controls.addEventListener("click", (event) => event.target.dataset.key && KEYS[event.target.dataset.key]());
  controls.addEventListener("change", ({ target }) => {
    if (target.name === "colour") { state.colour = target.value; recolour(); }
    if (target.name === "causes") { state.causes = target.checked; recolour(); }
    if (target.name === "links") { state.links = target.checked; drawLinks(); }
    if (target.name === "path") { state.path = target.checked; rearrange(); }
    if (target.name === "panel") {
      state.hidden[target.checked ? "delete" : "add"](target.value);
      rearrange();
    }
  });

  // On paper the picture takes one page; what stands beside it follows.
  window.addEventListener("beforeprint", () => {
    rearrange(PRINTED.height);
    Plotly.relayout(plot, { width: PRINTED.width });
  });
  window.addEventListener("afterprint", () => {
    rearrange();
    Plotly.relayout(plot, { width: null, autosize: true });
  });

  separate();
  // Filled in place: plotly.js looks a text up when it is hovered over, so that nothing has to be drawn again.
  const texts = await unpacked("texts");
  cells.forEach((row, index) => {
    for (const text of texts[index]) plot.data[row.trace].customdata[0].push(text);
  });
  document.body.classList.add("ready");
})();
