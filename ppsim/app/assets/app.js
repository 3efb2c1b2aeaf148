"use strict";
// The form, the URL and what is asked for, in step. What the state means is Python's (ppsim/app/state.py): here it is
// a query, written by the fields and read back into them.

(() => {
  const REST_MS = 160; // without a change for so long, a quick answer is followed by a whole one
  const POLL_MS = 700; // while tables are searched for: those compared at once, others where nothing moved so long
  const VIEWS = ["colour", "path", "panel"];
  const BY_HAND = ["forward_ms", "backward_input_ms", "backward_weight_ms", "transfer_ms", "activation_memory"];
  const FIRST = { pp: "8", microbatches: "32", schedule: "1f1b,interleaved-1f1b,zb-h1" };

  const one = (id) => document.getElementById(id);
  const form = one("form"), dark = matchMedia("(prefers-color-scheme: dark)");
  const words = [...form.querySelectorAll("input[name], select[name]")].filter((field) => !["radio", "checkbox"].includes(field.type));
  const searchWords = [...one("search-form").querySelectorAll("input[name]")];
  const boxes = [...form.querySelectorAll("[name=schedule]")];

  const state = { byHand: false, baseline: "", chosen: [], tab: "compare", times: {}, stages: {}, shape: [0, 0], unknown: {} };
  const sent = { serial: 0, waiting: false, next: null, rest: 0, started: 0, inputs: "" };
  const shown = {}; // inputs of the answer on the page, by the parts of the page that it wrote

  // --- sliders ---

  // A scale goes by powers of ten, in 600 steps; its first step is 0.
  const positionOf = (slider, value) => {
    if (slider.dataset.least === undefined) return value;
    const { least, most } = slider.dataset;
    return value <= 0 ? 0 : Math.round(Math.min(Math.max((600 * (Math.log10(value) - least)) / (most - least), 1), 600));
  };
  const valueAt = (slider) => {
    const place = Number(slider.value);
    if (slider.dataset.least === undefined) return slider.min === "0" && place === 0 ? "" : String(place);
    const { least, most } = slider.dataset;
    return place === 0 ? "0" : String(Number((10 ** (Number(least) + (place / 600) * (most - least))).toPrecision(3)));
  };
  const sliderOf = (field) => one(`${field.name}-slider`);
  const show = (field, text) => {
    field.value = text;
    const slider = sliderOf(field);
    if (slider) slider.value = positionOf(slider, rankValue(field));
  };

  // --- stages: a field has one number, of a rank, or one per stage, "10,12,9" ---

  const isListed = (field) => field.value.includes(",");
  const partsOf = (field) => field.value.split(",").map((text) => Number(text) || 0);
  const wholeIn = (name, least) => Math.max(least, Math.floor(Number(one(name).value)) || 0);
  const shape = () => [wholeIn("pp", 0), wholeIn("vpp", 1)];
  const textOfParts = (parts) => parts.map((value) => Number(value.toPrecision(4))).join(",");
  // A rank takes all of its stages' times together; a hop is one of them.
  const rankValue = (field) => {
    if (!isListed(field)) return Number(field.value) || 0;
    const parts = partsOf(field), mean = parts.reduce((sum, value) => sum + value, 0) / parts.length;
    return field.name === "transfer_ms" || !state.shape[0] ? mean : (mean * parts.length) / state.shape[0];
  };
  // Parts of the model as those of so many stages: what they take on a rank stays.
  const spread = (field, parts, ranksBefore, [ranks, vpp]) => {
    const count = ranks * vpp, factor = field.name === "transfer_ms" ? 1 : parts.length / ranksBefore / vpp;
    return Array.from({ length: count }, (_, stage) => factor * parts[Math.floor(((stage + 0.5) * parts.length) / count)]);
  };
  const stageValues = (field) => {
    if (isListed(field)) return partsOf(field);
    const [ranks, vpp] = state.shape, known = state.stages[field.name];
    if (!state.byHand && known?.length) return spread(field, known, ranks, state.shape);
    return Array(ranks * vpp).fill(rankValue(field) / (field.name === "transfer_ms" ? 1 : vpp));
  };
  const setRank = (field, text) => {
    const before = rankValue(field);
    field.value = isListed(field) && before ? textOfParts(partsOf(field).map((value) => (value * Number(text)) / before)) : text;
  };
  const setStage = (field, stage, value) => {
    const parts = stageValues(field);
    parts[stage] = value;
    field.value = parts.length > 1 ? textOfParts(parts) : String(value);
    sliderOf(field).value = positionOf(sliderOf(field), rankValue(field));
  };

  function fitLists() {
    const now = shape(), [ranks, vpp] = state.shape;
    if (!now[0] || (now[0] === ranks && now[1] === vpp)) return;
    for (const field of words.filter((each) => ranks && BY_HAND.includes(each.name) && isListed(each))) {
      field.value = textOfParts(spread(field, partsOf(field), ranks, now));
    }
    state.shape = now;
  }

  function showStages() {
    for (const box of document.querySelectorAll(".stages[open]")) {
      const field = one(box.dataset.of), slider = sliderOf(field), values = stageValues(field), rows = box.lastElementChild;
      const label = document.querySelector(`label[for=${field.name}]`).textContent;
      while (rows.children.length > values.length) rows.lastElementChild.remove();
      for (let stage = rows.children.length; stage < values.length; stage += 1) {
        const row = document.createElement("label");
        row.innerHTML = `<span>${stage}</span><input type=range max=600 step=1><input type=text inputmode=decimal class=numeric>`;
        const [, mover, number] = row.children;
        Object.assign(mover.dataset, { stage, stageOf: field.name, least: slider.dataset.least, most: slider.dataset.most });
        Object.assign(number.dataset, { stage, stageOf: field.name });
        mover.min = slider.min;
        mover.ariaLabel = `${label}, stage ${stage}, slider`;
        number.ariaLabel = `${label}, stage ${stage}`;
        rows.append(row);
      }
      [...rows.children].forEach((row, stage) => {
        const [, mover, number] = row.children;
        if (mover !== document.activeElement) mover.value = positionOf(mover, values[stage]);
        if (number !== document.activeElement) number.value = Number(values[stage].toPrecision(4));
      });
    }
  }

  // --- the state as a query ---

  const sourceOf = () => form.querySelector("[name=source]:checked").value;
  const isShown = (field) => !["profile", "job"].includes(field.closest(".field").dataset.source) || field.closest(".field").dataset.source === sourceOf();
  const textOf = (field) => {
    const { unit } = field.dataset, text = field.value.trim();
    return text && unit ? text.split(",").map((part) => part + unit).join(",") : text;
  };

  function query() {
    const made = new URLSearchParams();
    const put = (name, value) => value && made.set(name, value);
    for (const field of words) {
      if (!isShown(field) || (BY_HAND.includes(field.name) && !state.byHand)) continue;
      put(field.name, textOf(field));
    }
    for (const [name, value] of Object.entries(state.unknown)) put(name, value);
    made.set("schedule", state.chosen.join(","));
    put("baseline", state.chosen.includes(state.baseline) ? state.baseline : "");
    for (const field of searchWords) put(field.name, field.value.trim());
    if (document.querySelector("[name=colour]:checked").value === "cause") made.set("colour", "cause");
    if (!document.querySelector("[name=path]").checked) made.set("path", "0");
    if (document.querySelector("[name=panel]").checked) made.set("panel", "memory");
    if (state.tab === "tune") made.set("tab", "tune");
    return made.toString().replaceAll("%2C", ",").replaceAll("%3A", ":");
  }

  function read(text) {
    const given = Object.fromEntries(new URLSearchParams(text));
    const all = Object.keys(given).length ? given : FIRST;
    const fields = Object.fromEntries([...words, ...searchWords].map((field) => [field.name, field]));
    for (const field of Object.values(fields)) show(field, "");
    state.unknown = {};
    for (const [name, value] of Object.entries(all)) {
      if (["schedule", "baseline", "tab", ...VIEWS].includes(name)) continue;
      if (!fields[name]) { state.unknown[name] = value; continue; }
      const { unit } = fields[name].dataset;
      const parts = value.split(",");
      show(fields[name], unit && parts.every((part) => part.endsWith(unit)) ? parts.map((part) => part.slice(0, -unit.length)).join(",") : value);
    }
    state.shape = shape();
    for (const name of BY_HAND) {
      show(fields[name], fields[name].value);
      if (isListed(fields[name])) document.querySelector(`.stages[data-of=${name}]`).open = true;
    }
    state.byHand = BY_HAND.some((name) => name in all);
    state.chosen = (all.schedule ?? "").split(",").filter(Boolean);
    state.baseline = all.baseline ?? "";
    form.querySelector(`[name=source][value=${all.model ? "job" : "profile"}]`).checked = true;
    document.querySelector(`[name=colour][value=${all.colour === "cause" ? "cause" : "kind"}]`).checked = true;
    document.querySelector("[name=path]").checked = all.path !== "0";
    document.querySelector("[name=panel]").checked = all.panel === "memory";
    state.tab = all.tab === "tune" ? "tune" : "compare";
    arrange();
  }

  function arrange() {
    fitLists();
    showStages();
    for (const field of words) field.closest(".field").hidden = !isShown(field);
    for (const box of boxes) box.checked = state.chosen.includes(box.value);
    one("by-costs").hidden = !state.byHand;
    one("times-note").textContent = state.byHand
      ? "By hand. One number is a rank's, in equal stages." : `Of the ${sourceOf() === "job" ? "model on its cluster" : "profile"}, the baseline's mean rank; move one to set them by hand.`;
    for (const tab of ["compare", "tune"]) {
      one(tab).hidden = state.tab !== tab;
      one(`tab-${tab}`).setAttribute("aria-selected", String(state.tab === tab));
    }
    document.querySelector("#legend").hidden = false;
  }

  // --- answers to inputs that the form no longer has: dimmed, and neither selected, copied nor clicked ---

  function inputs(without = []) {
    const asked = new URLSearchParams(query());
    for (const name of ["tab", "baseline", ...VIEWS, ...searchWords.map((field) => field.name), ...without]) asked.delete(name);
    return asked.toString();
  }
  const tableInputs = () => inputs(["schedule"]); // the table has all schedules
  const searchInputs = () => searchWords.map((field) => field.value.trim()).join("\n");

  function dimOld() {
    for (const [ids, now] of [
      [["cards", "drawn", "terminal"], inputs()], [["overview", "rows"], tableInputs()],
      [["search-found", "search-opened", "search-command"], searchInputs()],
    ]) {
      for (const id of ids) {
        const isOld = shown[id] !== undefined && shown[id] !== now;
        one(id).classList.toggle("stale", isOld);
        one(id).inert = isOld;
      }
    }
  }
  function showsNow(ids, now) {
    for (const id of ids) shown[id] = now;
    dimOld();
  }

  // --- asking ---

  const looks = () => ({ dark: dark.matches });

  function ask(quick, others = false) {
    const asked = query();
    history.replaceState(null, "", `?${asked}`);
    one("export").href = `table.csv?${asked}`;
    dimOld();
    if (sent.waiting) {
      sent.next = { quick, others };
      return;
    }
    Object.assign(sent, { waiting: true, next: null, serial: sent.serial + 1, started: performance.now() });
    Object.assign(sent, { inputs: inputs(), tableInputs: tableInputs() });
    clearTimeout(sent.rest);
    dash_clientside.set_props("asked", { data: { query: asked, quick, others, ...looks(), serial: sent.serial } });
  }

  function changed() {
    arrange();
    clearTimeout(sent.rest);
    ask(true);
  }

  function answered(told) {
    sent.waiting = false;
    document.body.dataset.answer = String(told.serial); // what tests wait for
    document.body.dataset.quick = String(told.quick);
    complain(told.error ?? "", told.field ?? "", "", "problem");
    if (!told.error) write(told);
    if (sent.next) return ask(sent.next.quick, sent.next.others);
    clearTimeout(sent.rest);
    if (told.quick && !told.error) sent.rest = setTimeout(() => ask(false), REST_MS);
    else if (told.missing) sent.rest = setTimeout(() => ask(false, true), POLL_MS);
  }

  function write(told) {
    one("cards").innerHTML = told.cards;
    one("command").textContent = told.command;
    Object.assign(state, { times: told.times, stages: told.stages });
    if (!state.byHand) {
      for (const field of words) if (told.times[field.name] !== undefined) show(field, told.times[field.name]);
      showStages();
    }
    if (told.table) one("table").innerHTML = told.table;
    showsNow(["cards", "drawn", "terminal"], sent.inputs);
    if (told.table) showsNow(["overview", "rows"], sent.tableInputs);
    const searching = told.missing ?? told.awaited.length;
    one("status").textContent = searching ? `fitting ${searching} table${searching > 1 ? "s" : ""} to these costs …` : "";
  }

  // A sentence stands beside its field; the last good picture stays, dimmed.
  function complain(sentence, field, prefix, elsewhere) {
    const scope = prefix ? one("search-form") : form;
    for (const place of scope.querySelectorAll(".error")) place.textContent = "";
    for (const input of scope.querySelectorAll("[aria-invalid]")) input.removeAttribute("aria-invalid");
    const place = field && one(`${prefix}${field}-error`);
    const isSeen = place && !place.closest("[hidden]");
    if (isSeen) place.textContent = sentence;
    one(elsewhere).textContent = isSeen ? "" : sentence;
    if (isSeen) one(`${prefix}${field}`)?.setAttribute("aria-invalid", "true");
  }

  // --- searching ---

  const search = { serial: 0, poll: 0, opened: "" };

  function look(start) {
    clearTimeout(search.poll);
    search.serial += 1;
    search.inputs = searchInputs();
    dash_clientside.set_props("searched", { data: { query: query(), start, ...looks(), serial: search.serial } });
  }

  function found(told) {
    complain(told.error ?? "", told.field ?? "", "tune.", "search-problem");
    one("search-command").textContent = told.command ?? "";
    if (!told.error) showsNow(["search-command"], search.inputs);
    if (told.status) one("search-status").textContent = told.status;
    if (told.error) one("search-status").textContent = "";
    if (told.table) {
      one("search-found").hidden = false;
      one("search-table").innerHTML = told.table;
      showsNow(["search-found", "search-opened"], search.inputs);
      window.dispatchEvent(new Event("resize"));
    }
    if (!told.over) search.poll = setTimeout(() => look(false), POLL_MS);
  }

  function open(command) {
    one("search-opened").hidden = false;
    search.opened = command;
    one("opened-about").innerHTML = "<p>projecting …</p>";
    search.serial += 1;
    dash_clientside.set_props("opened", { data: { query: query(), command, ...looks(), serial: search.serial } });
  }

  function opened(told) {
    if (told.error) one("opened-about").textContent = told.error;
    else one("opened-about").innerHTML = told.told;
    one("search-opened").scrollIntoView({ block: "nearest", behavior: "smooth" });
    window.dispatchEvent(new Event("resize"));
  }

  // --- what is moved ---

  form.addEventListener("input", ({ target }) => {
    if (target.dataset.stageOf) {
      const field = one(target.dataset.stageOf);
      setStage(field, Number(target.dataset.stage), Number(target.type === "range" ? valueAt(target) : target.value.replace(",", ".")) || 0);
      state.byHand = true;
    } else if (target.dataset.of) {
      const field = one(target.dataset.of);
      setRank(field, valueAt(target));
      if (BY_HAND.includes(field.name)) state.byHand = true;
    } else if (target.name === "schedule") {
      state.chosen = target.checked ? [...state.chosen, target.value] : state.chosen.filter((name) => name !== target.value);
    } else if (target.name === "source") {
      state.byHand = false;
    } else {
      if (sliderOf(target)) sliderOf(target).value = positionOf(sliderOf(target), rankValue(target));
      if (BY_HAND.includes(target.name)) state.byHand = true;
    }
    changed();
  });
  for (const box of document.querySelectorAll(".stages")) box.addEventListener("toggle", showStages);
  for (const name of VIEWS) {
    for (const input of document.querySelectorAll(`main [name=${name}]`)) input.addEventListener("change", () => ask(false));
  }
  document.addEventListener("click", async ({ target }) => {
    const { pin, toggle, command } = target.dataset ?? {};
    if (pin) state.baseline = pin;
    if (toggle) {
      state.chosen = state.chosen.includes(toggle) ? state.chosen.filter((name) => name !== toggle) : [...state.chosen, toggle];
      arrange();
    }
    if (pin || toggle) ask(false);
    if (command) open(command);
    if (target.getAttribute?.("role") === "tab") {
      state.tab = target.id.replace("tab-", "");
      arrange();
      ask(false);
      window.dispatchEvent(new Event("resize"));
    }
  });
  one("by-costs").addEventListener("click", () => {
    state.byHand = false;
    changed();
  });
  one("start-again").addEventListener("click", () => {
    read("");
    changed();
  });
  one("search-form").addEventListener("input", dimOld);
  one("search-form").addEventListener("submit", (event) => {
    event.preventDefault();
    history.replaceState(null, "", `?${query()}`);
    look(true);
  });
  one("copy").addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(one("command").textContent);
      one("copied").textContent = "copied";
    } catch {
      getSelection().selectAllChildren(one("command"));
      one("copied").textContent = "selected: copy it with the keyboard";
    }
    setTimeout(() => (one("copied").textContent = ""), 3000);
  });
  dark.addEventListener("change", () => {
    ask(false);
    if (!one("search-found").hidden) look(false);
    if (search.opened) open(search.opened);
  });
  window.addEventListener("popstate", () => {
    read(location.search);
    ask(false);
  });

  // --- Dash ---

  const legend = (entries) => {
    one("legend").innerHTML = entries.map(([name, colour]) => `<span><i style="background:${colour}"></i>${name}</span>`).join("");
  };
  window.dash_clientside = Object.assign(window.dash_clientside ?? {}, {
    ppsim: {
      answered: (told) => { if (told) { answered(told); if (told.legend) legend(told.legend); } return window.dash_clientside.no_update; },
      found: (told) => { if (told) found(told); return window.dash_clientside.no_update; },
      opened: (told) => { if (told) opened(told); return window.dash_clientside.no_update; },
      clicked: (point) => { if (point) open(point.points[0].customdata); return window.dash_clientside.no_update; },
      chosen: (point) => {
        const name = point?.points[0].customdata?.[0];
        if (name && !state.chosen.includes(name)) { state.chosen.push(name); arrange(); ask(false); }
        return window.dash_clientside.no_update;
      },
    },
  });

  // Dash renders the figures somewhere; once they are there, each goes to its place, and the first answer is asked for.
  read(location.search);
  const begin = setInterval(() => {
    const holders = [...document.querySelectorAll("[data-graph]")].map((place) => [place, one(`${place.dataset.graph}-holder`)]);
    if (!window.dash_clientside?.set_props || holders.some(([, holder]) => !holder)) return;
    clearInterval(begin);
    for (const [place, holder] of holders) place.append(holder);
    ask(true);
    if (searchWords.some((field) => field.value)) look(false);
  }, 20);
})();
