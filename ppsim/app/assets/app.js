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

  const state = { byHand: false, baseline: "", chosen: [], tab: "compare", times: {}, unknown: {} };
  const sent = { serial: 0, waiting: false, next: null, rest: 0, started: 0 };

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
    if (slider) slider.value = positionOf(slider, Number(text) || 0);
  };

  // --- the state as a query ---

  const sourceOf = () => form.querySelector("[name=source]:checked").value;
  const isShown = (field) => !["profile", "job"].includes(field.closest(".field").dataset.source) || field.closest(".field").dataset.source === sourceOf();
  const textOf = (field) => (field.value.trim() && field.dataset.unit ? field.value.trim() + field.dataset.unit : field.value.trim());

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
      show(fields[name], unit && value.endsWith(unit) ? value.slice(0, -unit.length) : value);
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
    for (const field of words) field.closest(".field").hidden = !isShown(field);
    for (const box of boxes) box.checked = state.chosen.includes(box.value);
    one("by-costs").hidden = !state.byHand;
    one("times-note").textContent = state.byHand
      ? "By hand, in equal stages." : `Of the ${sourceOf() === "job" ? "model on its cluster" : "profile"}, the baseline's mean rank; move one to set them by hand.`;
    for (const tab of ["compare", "tune"]) {
      one(tab).hidden = state.tab !== tab;
      one(`tab-${tab}`).setAttribute("aria-selected", String(state.tab === tab));
    }
    document.querySelector("#legend").hidden = false;
  }

  // --- asking ---

  function ask(quick, others = false) {
    const asked = query();
    history.replaceState(null, "", `?${asked}`);
    one("export").href = `table.csv?${asked}`;
    if (sent.waiting) {
      sent.next = { quick, others };
      return;
    }
    Object.assign(sent, { waiting: true, next: null, serial: sent.serial + 1, started: performance.now() });
    clearTimeout(sent.rest);
    dash_clientside.set_props("asked", { data: { query: asked, quick, others, dark: dark.matches, serial: sent.serial } });
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
    state.times = told.times;
    if (!state.byHand) {
      for (const field of words) if (told.times[field.name] !== undefined) show(field, told.times[field.name]);
    }
    if (told.table) one("table").innerHTML = told.table;
    const searching = told.missing ?? told.awaited.length;
    one("status").textContent = searching ? `fitting ${searching} table${searching > 1 ? "s" : ""} to these costs …` : "";
  }

  // A sentence stands beside its field; the last good picture stays.
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

  const search = { serial: 0, poll: 0 };

  function look(start) {
    clearTimeout(search.poll);
    search.serial += 1;
    dash_clientside.set_props("searched", { data: { query: query(), start, dark: dark.matches, serial: search.serial } });
  }

  function found(told) {
    complain(told.error ?? "", told.field ?? "", "tune.", "search-problem");
    one("search-command").textContent = told.command ?? "";
    if (told.status) one("search-status").textContent = told.status;
    if (told.error) one("search-status").textContent = "";
    if (told.table) {
      one("search-found").hidden = false;
      one("search-table").innerHTML = told.table;
      window.dispatchEvent(new Event("resize"));
    }
    if (!told.over) search.poll = setTimeout(() => look(false), POLL_MS);
  }

  function open(command) {
    one("search-opened").hidden = false;
    one("opened-about").innerHTML = "<p>projecting …</p>";
    search.serial += 1;
    dash_clientside.set_props("opened", { data: { query: query(), command, dark: dark.matches, serial: search.serial } });
  }

  function opened(told) {
    if (told.error) one("opened-about").textContent = told.error;
    else one("opened-about").innerHTML = told.told;
    one("search-opened").scrollIntoView({ block: "nearest", behavior: "smooth" });
    window.dispatchEvent(new Event("resize"));
  }

  // --- what is moved ---

  form.addEventListener("input", ({ target }) => {
    if (target.dataset.of) {
      const field = one(target.dataset.of);
      field.value = valueAt(target);
      if (BY_HAND.includes(field.name)) state.byHand = true;
    } else if (target.name === "schedule") {
      state.chosen = target.checked ? [...state.chosen, target.value] : state.chosen.filter((name) => name !== target.value);
    } else if (target.name === "source") {
      state.byHand = false;
    } else {
      if (sliderOf(target)) sliderOf(target).value = positionOf(sliderOf(target), Number(target.value) || 0);
      if (BY_HAND.includes(target.name)) state.byHand = true;
    }
    changed();
  });
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
  dark.addEventListener("change", () => ask(false));
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
