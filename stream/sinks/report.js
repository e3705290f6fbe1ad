"use strict";
// What a record says is shown by textContent alone, never as HTML.

const find = (selector) => document.querySelector(selector);

function make(tag, className = "", text = "") {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.textContent = visible(text);
  return element;
}

// Control characters, and those that change the direction of text, are shown as what they are.
function visible(text) {
  return String(text).replace(
    /[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g,
    (c) => "\\u" + c.charCodeAt(0).toString(16).padStart(4, "0"),
  );
}

// ---------------------------------------------------------------- the records, as they came

async function unpackRecords(element) {
  const bytes = Uint8Array.from(atob(element.textContent), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const text = await new Response(stream).text();
  const records = text.split("\n").filter(Boolean).map((line) => {
    const [row, mode, outcome] = line.split(" ", 3);
    const start = row.length + mode.length + outcome.length + 3;
    return { row: Number(row), mode: Number(mode), outcome, json: line.slice(start) };
  });
  return { name: element.dataset.name, records };
}

const sides = Promise.all([...document.querySelectorAll("script.records")].map(unpackRecords));
sides.then(() => document.documentElement.classList.add("ready"), () => {}); // told where one is opened

// ---------------------------------------------------------------- one record

const SECTIONS = ["result", "control", "effect", "corroboration", "payload", "operation", "run"];
const FIELDS = ["state", "observed_result", "expected", "claimed", "errno", "message", "verb", "target", "id", "name"];
const BLOCKS = ["stdout_snippet", "stderr_snippet", "command"]; // in a typewriter's letters
const TITLES = { corroboration: "kernel", payload: "evidence", stdout_snippet: "stdout", stderr_snippet: "stderr" };

// Those of the order that are there, in that order, before all others.
function inOrder(names, order) {
  return [...order.filter((one) => names.includes(one)), ...names.filter((one) => !order.includes(one))];
}

function valueElement(key, value) {
  if (value === null) return make("span", "unknown", "null");
  if (typeof value === "object") {
    if (!Object.keys(value).length) return make("span", "unknown", Array.isArray(value) ? "none" : "empty");
    if (Array.isArray(value) && value.every((one) => typeof one === "string")) return make("span", "", value.join(", "));
    return make("pre", "", JSON.stringify(value, null, 1));
  }
  if (value === "") return make("span", "unknown", "empty");
  const text = String(value);
  return make(BLOCKS.includes(key) || text.includes("\n") ? "pre" : "span", "", text);
}

function sectionElement(name, content) {
  const section = make("section");
  section.append(make("h4", "", TITLES[name] || name.replaceAll("_", " ")));
  const list = make("dl");
  const fields = content !== null && typeof content === "object" ? content : { [name]: content };
  for (const key of inOrder(Object.keys(fields), FIELDS)) {
    const term = make("dt", "", TITLES[key] || key.replaceAll("_", " "));
    const detail = make("dd");
    detail.append(valueElement(key, fields[key]));
    list.append(term, detail);
  }
  section.append(list);
  return section;
}

function fillRecord(details, json) {
  const record = JSON.parse(json);
  const names = Object.keys(record).filter((name) => typeof record[name] === "object");
  const plain = Object.fromEntries(Object.entries(record).filter(([name]) => !names.includes(name)));
  const grid = make("div", "sections");
  for (const name of inOrder(names, SECTIONS)) grid.append(sectionElement(name, record[name]));
  if (!record.control) grid.append(sectionElement("control", { state: "none: a record of this pattern has no control" }));
  grid.append(sectionElement("contract", plain));
  const line = make("details");
  line.append(make("summary", "", "The line as it came"), make("pre", "", json));
  details.append(grid, line);
}

function recordElement(one) {
  const details = make("details", "record");
  const summary = make("summary");
  const record = JSON.parse(one.json);
  const word = make("b", "cell " + one.outcome, one.outcome.replaceAll("-", " "));
  const operation = `${record.operation.verb} ${record.operation.target}`;
  summary.append(word, " ", make("code", "", record.probe.id), " ", make("span", "operation", operation));
  details.append(summary);
  details.addEventListener("toggle", () => fillOpened(details, one.json));
  return details;
}

function fillOpened(details, json) {
  if (details.open && details.children.length === 1) fillRecord(details, json);
}

// ---------------------------------------------------------------- the records of a cell

const SHOWN = 100;
const LOUDEST = [...document.querySelectorAll("dd[data-outcome]")].map((meaning) => meaning.dataset.outcome);

function sideElement(side, rows, mode) {
  const element = make("section", "side");
  const records = side.records
    .filter((one) => one.mode === mode && rows.includes(one.row))
    .sort((one, other) => LOUDEST.indexOf(one.outcome) - LOUDEST.indexOf(other.outcome));
  element.append(make("h3", "", `${side.name}: ${records.length} ${records.length === 1 ? "record" : "records"}`));
  if (!records.length) element.append(make("p", "cell not-measured", "There is no record of it here."));
  const add = (first) => {
    element.append(...records.slice(first, first + SHOWN).map(recordElement));
    const left = records.length - first - SHOWN;
    if (left <= 0) return;
    const more = make("button", "", `Show more: ${left} are left`);
    more.addEventListener("click", () => { more.remove(); add(first + SHOWN); });
    element.append(more);
  };
  add(0);
  const first = element.querySelector("details");
  if (first) {
    first.open = true;
    fillOpened(first, records[0].json);
  }
  return element;
}

const dialog = find("#records");
const table = find("#map");
const modeNames = [...table.tHead.rows[0].cells].slice(1).map((cell) => cell.textContent);

async function openRecords(rows, mode) {
  const place = table.querySelector(`tr[data-rows="${rows.join(" ")}"]`);
  const label = place.querySelector(".name").textContent;
  const cell = place.cells[mode + 1];
  const outcome = cell.classList[1];
  find("#records-title").replaceChildren(make("span", "", `${label} in ${modeNames[mode]}: `), make("b", cell.className, outcome.replaceAll("-", " ")));
  find("#records-meaning").textContent = find(`dd[data-outcome="${outcome}"]`).textContent;
  const content = find("#records-sides");
  try {
    content.replaceChildren(...(await sides).map((side) => sideElement(side, rows, mode)));
  } catch (error) {
    content.replaceChildren(make("p", "", `The records cannot be unpacked by this browser: ${error}`));
  }
  dialog.showModal();
  dialog.scrollTop = 0;
}

find("#close").addEventListener("click", () => dialog.close());
for (const button of document.querySelectorAll("button[data-rows]")) {
  button.addEventListener("click", () => openRecords([Number(button.dataset.rows)], Number(button.dataset.mode)));
}

// ---------------------------------------------------------------- the map

new ResizeObserver(() => {
  const frame = table.parentElement;
  const fits = table.offsetWidth <= frame.offsetWidth;
  frame.classList.toggle("fits", fits);
  frame.classList.toggle("wide", !fits);
}).observe(document.body);

table.setAttribute("role", "grid");
let current = table.querySelector("tr.row > *");
if (current) current.tabIndex = 0;

function moveTo(cell) {
  if (!cell) return;
  current.tabIndex = -1;
  current = cell;
  current.tabIndex = 0;
  current.focus({ preventScroll: true }); // it may scroll too little: below what is fixed
  current.scrollIntoView({ block: "nearest", inline: "nearest" });
}

function expand(head, isOpen) {
  head.setAttribute("aria-expanded", String(isOpen));
  head.closest("tbody").classList.toggle("expanded", isOpen);
}

function activate(cell) {
  const row = cell.parentElement;
  if (cell.cellIndex > 0) openRecords(row.dataset.rows.split(" ").map(Number), cell.cellIndex - 1);
  else if (cell.ariaExpanded) expand(cell, cell.ariaExpanded !== "true");
}

function shownRows() {
  return [...table.querySelectorAll("tr.row")].filter((row) => !row.matches(".probe") || row.parentElement.matches(".expanded"));
}

table.addEventListener("keydown", (event) => {
  const cell = event.target.closest("tr.row > *");
  if (!cell || event.altKey || event.metaKey) return;
  const rows = shownRows();
  const row = rows.indexOf(cell.parentElement);
  const at = (y, x) => rows[Math.min(Math.max(y, 0), rows.length - 1)].cells[x];
  const column = cell.cellIndex;
  const last = modeNames.length;
  const moves = {
    ArrowRight: () => at(row, Math.min(column + 1, last)),
    ArrowLeft: () => at(row, Math.max(column - 1, 0)),
    ArrowDown: () => at(row + 1, column),
    ArrowUp: () => at(row - 1, column),
    PageDown: () => at(row + 10, column),
    PageUp: () => at(row - 10, column),
    Home: () => at(event.ctrlKey ? 0 : row, 0),
    End: () => at(event.ctrlKey ? rows.length : row, last),
  };
  if (event.key === "Enter" || event.key === " ") activate(cell);
  else if (event.key in moves) moveTo(moves[event.key]());
  else return;
  event.preventDefault();
});

table.addEventListener("click", (event) => {
  const cell = event.target.closest("tr.row > *");
  if (!cell) return;
  moveTo(cell);
  activate(cell);
});

// ---------------------------------------------------------------- the tools

find("#expand").addEventListener("click", ({ currentTarget: button }) => {
  const isOpen = button.ariaPressed !== "true";
  button.ariaPressed = String(isOpen);
  for (const head of table.querySelectorAll("th[aria-expanded]")) expand(head, isOpen);
});

const THEMES = ["system", "light", "dark"];
find("#theme").addEventListener("click", ({ currentTarget: button }) => {
  const root = document.documentElement;
  const theme = THEMES[(THEMES.indexOf(root.dataset.theme || "system") + 1) % THEMES.length];
  root.dataset.theme = theme;
  button.textContent = `Theme: ${theme}`;
});
