"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const panel = document.getElementById("panel");
  const root = document.documentElement;
  let chosen = -1, tab = "Source";

  /* Controls, and signs that turn the direction of writing, are shown as what they are: foreign. */
  const clean = (text) => String(text).replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069]/g, "\ufffd");
  const make = (tag, text, attributes) => {
    const element = document.createElement(tag);
    if (text !== undefined) element.textContent = clean(text);
    for (const [name, value] of Object.entries(attributes || {})) element.setAttribute(name, value);
    return element;
  };
  const ratio = (value) => value === undefined || value === null ? "-" : value.toFixed(2) + "x";
  const time = (value) => value === undefined || value === null ? "-"
    : value >= 1e6 ? (value / 1e6).toPrecision(3) + " s"
    : value >= 1e3 ? (value / 1e3).toPrecision(4) + " ms" : value.toPrecision(4) + " µs";
  const plain = (name) => String(name).replaceAll("_", " ");
  /* A source is stored as places of its lines: "0-40,55". */
  const places = (variant) => (variant.source || "").split(",").flatMap((run) => {
    if (!run) return [];
    const [from, to] = run.split("-").map(Number);
    return Array.from({length: (to === undefined ? from : to) - from + 1}, (_, step) => from + step);
  });
  const lines = (variant) => places(variant).map((index) => data.lines[index]);
  const text = (place) => place === null ? "(left out to keep this page small; the study has it)" : data.texts[place];
  const leftOut = (variant) => make("p", "Left out to keep this page small: kernelsearch show " + data.folder + " --variant " + variant.hash + " --source", {class: "empty"});

  /* --- one variant ------------------------------------------------------------------------- */

  const facts = (pairs) => {
    const list = make("dl", undefined, {class: "facts"});
    for (const [name, value] of pairs) {
      if (value === undefined || value === "" || value === null) continue;
      list.append(make("dt", name));
      const place = make("dd");
      place.append(typeof value === "string" ? clean(value) : value);
      list.append(place);
    }
    return list;
  };
  const link = (number) => make("a", data.variants[number].name, {href: "#v" + number});

  const source = (variant) => variant.source === null ? leftOut(variant) : make("pre", lines(variant).join("\n"), {class: "code", tabindex: "0"});

  /* The longest common subsequence of two lists of line numbers, as [kind, line] pairs. */
  const compare = (a, b) => {
    let start = 0, end = 0;
    while (start < a.length && start < b.length && a[start] === b[start]) start++;
    while (end < a.length - start && end < b.length - start && a[a.length - 1 - end] === b[b.length - 1 - end]) end++;
    const n = a.length - start - end, m = b.length - start - end;
    const found = a.slice(0, start).map((line) => [" ", line]);
    if (n * m > 2e7) {
      found.push(...a.slice(start, start + n).map((line) => ["-", line]), ...b.slice(start, start + m).map((line) => ["+", line]));
    } else {
      const width = m + 1, best = new Uint32Array((n + 1) * width);
      for (let i = n - 1; i >= 0; i--)
        for (let j = m - 1; j >= 0; j--)
          best[i * width + j] = a[start + i] === b[start + j] ? best[(i + 1) * width + j + 1] + 1
            : Math.max(best[(i + 1) * width + j], best[i * width + j + 1]);
      let i = 0, j = 0;
      while (i < n || j < m) {
        if (i < n && j < m && a[start + i] === b[start + j]) { found.push([" ", a[start + i]]); i++; j++; }
        else if (i < n && (j === m || best[(i + 1) * width + j] >= best[i * width + j + 1])) found.push(["-", a[start + i++]]);
        else found.push(["+", b[start + j++]]);
      }
    }
    return found.concat(a.slice(a.length - end).map((line) => [" ", line]));
  };

  const diff = (variant) => {
    if (variant.parent === undefined) return make("p", "This variant has no parent: the search began with it.", {class: "empty"});
    if (variant.source === null || data.variants[variant.parent].source === null) return leftOut(variant);
    const box = make("div");
    const about = make("p", "From ");
    about.append(link(variant.parent), " to this variant.");
    if (variant.second !== undefined) about.append(" Its second parent is ", link(variant.second), ".");
    const shown = make("pre", undefined, {class: "diff", tabindex: "0"});
    const pairs = compare(places(data.variants[variant.parent]), places(variant));
    const near = new Set();
    pairs.forEach(([kind], place) => { if (kind !== " ") for (let k = place - 3; k <= place + 3; k++) near.add(k); });
    let skipped = 0;
    const rest = () => { if (skipped) shown.append(make("span", "  ... " + skipped + (skipped === 1 ? " line" : " lines") + " as before", {class: "skipped"})); skipped = 0; };
    pairs.forEach(([kind, line], place) => {
      if (!near.has(place)) { skipped++; return; }
      rest();
      shown.append(make("span", kind + " " + data.lines[line], {class: kind === "+" ? "add" : kind === "-" ? "cut" : "same"}));
    });
    rest();
    box.append(about, shown);
    return box;
  };

  const evaluations = (variant) => {
    if (!variant.evaluations) return make("p", "No candidate of this variant was evaluated yet.", {class: "empty"});
    const scroller = make("div", undefined, {class: "scroller"});
    const table = make("table"), head = make("tr"), body = make("tbody");
    for (const name of ["parameters", "status", "time", "speed-up", "what happened"]) head.append(make("th", name, {scope: "col"}));
    const rows = variant.evaluations.slice().sort((a, b) => (b[2] || 0) - (a[2] || 0));
    for (const [params, status, speedup, us, message, confirmed] of rows) {
      const row = make("tr"), first = make("td");
      first.append(make("code", params || "none"));
      row.append(first, make("td", plain(status) + (confirmed ? ", confirmed" : "")), make("td", time(us), {class: "n"}), make("td", ratio(speedup), {class: "n"}), make("td", message));
      body.append(row);
    }
    const top = make("thead");
    top.append(head);
    table.append(top, body);
    scroller.append(table);
    return scroller;
  };

  const diagnosis = (variant) => {
    const found = variant.diagnosis;
    if (found === null) return make("p", "Left out to keep this page small: kernelsearch explain " + data.folder + " --variant " + variant.hash, {class: "empty"});
    if (!found) return make("p", "This variant was not diagnosed.", {class: "empty"});
    const box = make("div");
    box.append(facts([
      ["bottleneck", plain(found.label) + " (" + plain(found.group) + ")"],
      ["confidence", Math.round(100 * found.confidence) + " %, from " + found.source],
      ["speed of light", found.headroom ? ratio(found.headroom) + " away" : undefined],
      ["workload", found.workload], ["not known", found.reason],
    ]));
    for (const one of found.findings) {
      box.append(make("h4", plain(one.label) + (one.headroom ? ": removing it alone may gain up to " + ratio(one.headroom) : "")), make("p", text(one.says)));
      box.append(facts(Object.entries(one.evidence).map(([name, value]) => [name, String(value)])));
      if (text(one.directions)) box.append(make("p", "To try: " + text(one.directions) + "."));
    }
    return box;
  };

  const exchange = (variant) => {
    const found = variant.exchange;
    if (found === null) return make("p", "Left out to keep this page small; the study has it.", {class: "empty"});
    if (!found) return make("p", variant.by === "llm" ? "The prompt is not in the study." : "No language model was asked for this variant; it comes from " + plain(variant.by) + ".", {class: "empty"});
    const box = make("div");
    box.append(make("p", found.about));
    found.parts.forEach(([name, stored], place) => {
      const part = make("details");
      if (place >= found.parts.length - 1) part.open = true;
      part.append(make("summary", name + " (" + text(stored).length + " characters)"), make("pre", text(stored), {tabindex: "0"}));
      box.append(part);
    });
    return box;
  };

  const TABS = {"Source": source, "Diff to parent": diff, "Evaluations": evaluations, "Diagnosis": diagnosis, "Prompt": exchange};

  const open = (number, scroll) => {
    const variant = data.variants[number];
    if (!variant) return;
    chosen = number;
    panel.replaceChildren();
    panel.append(make("h3", variant.name));
    const state = variant.speedup === undefined ? plain(variant.status) : ratio(variant.speedup) + " over the baseline, " + time(variant.time);
    panel.append(facts([
      ["best", state], ["parameters", variant.params],
      ["change", variant.mutation ? plain(variant.mutation) + ", by " + plain(variant.by) : "by " + plain(variant.by)],
      ["why", variant.why],
      ["prediction", variant.predicted === undefined ? undefined
        : ratio(variant.predicted) + " over its parent" + (variant.gain === undefined ? "; it is not known what came of it" : "; it became " + ratio(variant.gain))],
      ["hash", variant.hash],
    ]));
    const list = make("div", undefined, {role: "tablist", "aria-label": "About this variant"});
    const body = make("div", undefined, {role: "tabpanel", id: "tabpanel", tabindex: "0"});
    const buttons = Object.keys(TABS).map((name, place) => make("button", name, {type: "button", role: "tab", id: "tab" + place, "aria-controls": "tabpanel"}));
    const select = (name) => {
      tab = name;
      buttons.forEach((button) => {
        const on = button.textContent === name;
        button.setAttribute("aria-selected", String(on));
        button.tabIndex = on ? 0 : -1;
        if (on) body.setAttribute("aria-labelledby", button.id);
      });
      body.replaceChildren(TABS[name](variant));
    };
    buttons.forEach((button, place) => {
      button.addEventListener("click", () => select(button.textContent));
      button.addEventListener("keydown", (event) => {
        const step = {ArrowRight: 1, ArrowLeft: -1}[event.key];
        if (!step) return;
        const next = buttons[(place + step + buttons.length) % buttons.length];
        select(next.textContent);
        next.focus();
        event.preventDefault();
      });
    });
    list.append(...buttons);
    panel.append(list, body);
    select(tab);
    panel.scrollTop = 0;
    mark(number);
    if (scroll) document.getElementById("lineage").scrollIntoView();
  };

  /* --- the tree ---------------------------------------------------------------------------- */

  const items = Array.from(document.querySelectorAll('svg.tree a[role="treeitem"]'));
  const forest = document.querySelector(".forest");
  const number = (item) => Number(item.id.slice(1));
  const mark = (chosenNumber) => {
    for (const item of items) {
      const on = number(item) === chosenNumber;
      item.setAttribute("aria-selected", String(on));
      item.setAttribute("tabindex", on ? "0" : "-1");
      if (on) {
        const row = item.getBoundingClientRect(), box = forest.getBoundingClientRect();
        if (row.top < box.top || row.bottom > box.bottom) forest.scrollTop += row.top - box.top - box.height / 2;
        const left = item.querySelector("circle").getBoundingClientRect().left - box.left;
        if (left < 0 || left > 0.7 * box.width) forest.scrollLeft += left - 40;
      }
    }
  };
  const focus = (place) => {
    const item = items[Math.max(0, Math.min(items.length - 1, place))];
    for (const other of items) other.setAttribute("tabindex", other === item ? "0" : "-1");
    item.focus();
  };
  items.forEach((item, place) => item.addEventListener("keydown", (event) => {
    const steps = {ArrowDown: place + 1, ArrowUp: place - 1, Home: 0, End: items.length - 1};
    let next = steps[event.key];
    if (event.key === "ArrowRight") next = items.findIndex((other) => data.variants[number(other)].parent === number(item));
    if (event.key === "ArrowLeft") next = items.findIndex((other) => number(other) === data.variants[number(item)].parent);
    if (next === -1) next = place;
    if (event.key === " ") item.click();
    if (next !== undefined) focus(next);
    if (next !== undefined || event.key === " ") event.preventDefault();
  }));

  document.addEventListener("click", (event) => {
    const anchor = event.target.closest("a");
    const match = anchor && /^#v(\d+)$/.exec(anchor.getAttribute("href") || "");
    if (!match || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    history.replaceState(null, "", "#v" + match[1]);
    const inside = anchor.closest("#lineage");
    open(Number(match[1]), !inside);
    if (!inside) panel.focus({preventScroll: true});
  });
  const asked = () => /^#v(\d+)$/.exec(location.hash);
  addEventListener("hashchange", () => { const match = asked(); if (match) open(Number(match[1]), true); });

  /* --- the table of variants --------------------------------------------------------------- */

  const table = document.getElementById("all"), body = table.tBodies[0];
  const filter = document.getElementById("filter"), matches = document.getElementById("matches");
  const texts = Array.from(body.rows, (row) => [row, row.textContent.toLowerCase()]);
  filter.disabled = false;
  filter.addEventListener("input", () => {
    const wanted = filter.value.trim().toLowerCase();
    let count = 0;
    for (const [row, text] of texts) {
      row.hidden = !text.includes(wanted);
      if (!row.hidden) count++;
    }
    matches.textContent = wanted ? count + " of " + texts.length : "";
  });
  const heads = Array.from(table.tHead.rows[0].cells);
  heads.forEach((head, column) => {
    const button = make("button", head.textContent, {type: "button"});
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const numeric = head.classList.contains("n");
      const before = head.getAttribute("aria-sort");
      const down = before ? before === "ascending" : numeric && head.textContent !== "time";
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const value = (row) => numeric ? Number(row.cells[column].dataset.v) : row.cells[column].textContent;
      const rows = Array.from(body.rows).sort((a, b) => {
        const [x, y] = [value(a), value(b)];
        return (numeric ? x - y : x.localeCompare(y)) * (down ? -1 : 1);
      });
      body.append(...rows);
    });
  });

  /* --- light and dark ---------------------------------------------------------------------- */

  const theme = document.getElementById("theme");
  const dark = () => root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const label = () => { theme.textContent = dark() ? "Light" : "Dark"; };
  theme.hidden = false;
  label();
  theme.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; label(); });

  if (data.variants.length) open(asked() ? Number(asked()[1]) : data.shown, Boolean(asked()));
})();
