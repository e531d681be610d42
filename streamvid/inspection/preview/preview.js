"use strict";
// Filters and the table. All text of the dataset goes into the page as textContent.
(() => {
  const PAGE = 50, SHOWN = 14;
  const { columns, cards } = JSON.parse(document.getElementById("data").textContent);
  const count = columns.length ? columns[0].values.length : 0;
  const element = (id) => document.getElementById(id);
  const make = (tag, properties = {}, ...children) => {
    const made = Object.assign(document.createElement(tag), properties);
    made.append(...children);
    return made;
  };
  const number = (value) => (value === "inf" ? Infinity : value === "-inf" ? -Infinity : value);
  const text = (column, row) => {
    const value = column.values[row];
    if (value === null) return "";
    if (column.kind === "choice") return column.names[value];
    return typeof value === "number" && !Number.isInteger(value) ? String(Number(value.toPrecision(6))) : String(value);
  };

  const filters = new Map(); // column number → function of a row
  let matching = [], sortedBy = null, page = 0;
  const filled = columns.flatMap((column, n) => (column.values.some((value) => value !== null) ? [n] : []));
  let shown = filled.slice(0, SHOWN);

  const apply = () => {
    const tests = [...filters.values()].filter((test) => test !== null);
    const fits = new Uint8Array(count);
    matching = [];
    for (let row = 0; row < count; row++) {
      if (tests.every((test) => test(row))) {
        fits[row] = 1;
        matching.push(row);
      }
    }
    let strips = 0;
    document.querySelectorAll(".clip").forEach((card, n) => {
      const fit = fits[cards[n]] === 1;
      card.hidden = !fit;
      strips += fit;
    });
    const all = matching.length === count ? "" : ` of ${count.toLocaleString("en")}`;
    element("count").textContent =
      `${matching.length.toLocaleString("en")}${all} clips of the table fit; ${strips.toLocaleString("en")} with frames`;
    sort();
  };

  const sort = () => {
    matching.sort((a, b) => a - b);
    if (sortedBy !== null) {
      const { column: n, falling } = sortedBy, column = columns[n], sign = falling ? -1 : 1;
      const key = column.kind === "number" ? (row) => number(column.values[row]) : (row) => text(column, row);
      const keys = new Map(matching.map((row) => [row, column.values[row] === null ? null : key(row)]));
      matching.sort((a, b) => {
        const left = keys.get(a), right = keys.get(b);
        if (left === null || right === null) return (left === null) - (right === null);
        return left < right ? -sign : left > right ? sign : a - b;
      });
    }
    page = 0;
    draw();
  };

  const draw = () => {
    const pages = Math.max(1, Math.ceil(matching.length / PAGE));
    const head = make("tr");
    for (const n of shown) {
      const sorted = sortedBy !== null && sortedBy.column === n ? sortedBy : null;
      const button = make("button", { type: "button" }, make("bdi", { textContent: columns[n].name }));
      if (sorted) button.append(sorted.falling ? " ▼" : " ▲");
      button.addEventListener("click", () => {
        sortedBy = { column: n, falling: sorted !== null && !sorted.falling };
        sort();
        element("head").querySelectorAll("button")[shown.indexOf(n)].focus();
      });
      const cell = make("th", { scope: "col" }, button);
      if (sorted) cell.ariaSort = sorted.falling ? "descending" : "ascending";
      head.append(cell);
    }
    const rows = matching.slice(page * PAGE, (page + 1) * PAGE).map((row) =>
      make("tr", {}, ...shown.map((n) => make("td", { className: columns[n].kind },
        make("bdi", { textContent: text(columns[n], row), title: text(columns[n], row) })))));
    element("head").replaceChildren(head);
    element("rows").replaceChildren(...rows);
    element("page").textContent = `page ${page + 1} of ${pages.toLocaleString("en")}`;
    element("back").disabled = page === 0;
    element("next").disabled = page + 1 >= pages;
  };

  const control = (n) => {
    const column = columns[n];
    const label = make("legend", {}, make("bdi", { textContent: column.name }));
    const box = make("fieldset", {}, label);
    const set = (test) => { filters.set(n, test); apply(); };
    if (column.kind === "number") {
      const field = (words) => make("input", { type: "number", step: "any", ariaLabel: `${column.name}: ${words}` });
      const least = field("at least"), most = field("at most");
      box.append("from", least, "to", most);
      box.addEventListener("input", () => {
        if (least.value === "" && most.value === "") return set(null);
        const low = least.value === "" ? -Infinity : Number(least.value);
        const high = most.value === "" ? Infinity : Number(most.value);
        set((row) => column.values[row] !== null && number(column.values[row]) >= low && number(column.values[row]) <= high);
      });
    } else if (column.kind === "choice") {
      const names = column.values.includes(null) ? [...column.names, null] : column.names;
      const boxes = names.map((name) => {
        const tick = make("input", { type: "checkbox" });
        box.append(make("label", {}, tick, " ", name === null ? make("i", { textContent: "none" })
          : make("bdi", { textContent: name === "" ? "(empty)" : name })));
        return tick;
      });
      box.addEventListener("input", () => {
        const wanted = new Set(boxes.flatMap((tick, i) => (tick.checked ? [names[i] === null ? null : i] : [])));
        set(wanted.size ? (row) => wanted.has(column.values[row]) : null);
      });
    } else {
      const field = make("input", { type: "search", ariaLabel: `${column.name} contains` });
      box.append("contains", field);
      box.addEventListener("input", () => {
        const wanted = field.value.toLowerCase();
        set(wanted ? (row) => text(column, row).toLowerCase().includes(wanted) : null);
      });
    }
    const remove = make("button", { type: "button", textContent: "remove", ariaLabel: `remove the filter ${column.name}` });
    const line = make("div", { className: "filter" }, box, remove);
    remove.addEventListener("click", () => { line.remove(); filters.delete(n); apply(); choices(); });
    filters.set(n, null);
    element("filters").append(line);
    choices();
    return box;
  };

  const choices = () => {
    element("add").replaceChildren(make("option", { value: "", textContent: "choose a column" }),
      ...columns.flatMap((column, n) => (filters.has(n) ? [] : [make("option", { value: n, textContent: column.name })])));
  };

  element("add").addEventListener("change", (event) => {
    if (event.target.value === "") return;
    control(Number(event.target.value)).querySelector("input").focus();
  });
  element("form").addEventListener("submit", (event) => event.preventDefault());
  element("clear").addEventListener("click", () => {
    const open = [...filters.keys()];
    filters.clear();
    element("filters").replaceChildren();
    open.forEach(control);
    apply();
  });
  element("back").addEventListener("click", () => { page--; draw(); });
  element("next").addEventListener("click", () => { page++; draw(); });
  element("choose").addEventListener("toggle", () => {
    if (element("choices").childElementCount) return;
    element("choices").append(...columns.map((column, n) => {
      const tick = make("input", { type: "checkbox", checked: shown.includes(n) });
      tick.addEventListener("input", () => {
        shown = columns.map((_, m) => m).filter((m) => (m === n ? tick.checked : shown.includes(m)));
        draw();
      });
      return make("label", {}, tick, " ", make("bdi", { textContent: column.name }));
    }));
  });

  const named = (name) => filled.find((n) => columns[n].name === name) ?? -1;
  ["key", named("class") < 0 ? "label" : "class", "seconds", "codec"].map(named).filter((n) => n >= 0).forEach(control);
  document.querySelectorAll(".scripted").forEach((part) => { part.hidden = false; });
  apply();
})();
