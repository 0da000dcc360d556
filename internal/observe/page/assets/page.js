// SPDX-License-Identifier: Apache-2.0

import { picture } from "./picture.js";

const $ = (selector) => document.querySelector(selector);

// element makes an element with properties and children, which may be text.
export function element(tag, properties = {}, ...children) {
  const e = Object.assign(document.createElement(tag), properties);
  e.append(...children.filter((c) => c !== undefined && c !== ""));
  return e;
}

async function get(path, query = {}) {
  const r = await fetch(`data/${path}?${new URLSearchParams(query)}`, { signal: current?.signal });
  if (!r.ok) throw new Error((await r.text()).trim());
  return r.json();
}

const steps = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];

// quantity is a number in at most four characters and a unit's prefix.
export function quantity(n, unit = "") {
  if (n === undefined || n === null) return "";
  const [size, prefix] = steps.find(([size]) => n >= size) ?? [1, ""];
  const digits = Number.isInteger(n) && size === 1 ? 0 : n / size < 10 ? 2 : n / size < 100 ? 1 : 0;
  return `${(n / size).toFixed(digits)} ${prefix}${unit}`.trim();
}

export const bits = (bytes) => (bytes === undefined || bytes === null ? "" : quantity(bytes * 8, "bit/s"));

function duration(ns) {
  const [size, unit] = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"]].find(([size]) => ns >= size) ?? [1, "ns"];
  return `${Number((ns / size).toPrecision(3))} ${unit}`;
}

const clock = { hourCycle: "h23", timeZoneName: "short" };
const time = (at) => new Date(at).toLocaleString([], clock);

// Status

let chart;

const chartSize = () => ({ width: Math.max(320, $("#changes").clientWidth), height: 280 });

async function showStatus() {
  const [status, changes] = await Promise.all([get("status"), get("changes")]);
  $("#problems").replaceChildren(...(status.problems.length
    ? status.problems.map((p) => element("div", { className: "box" }, element("p", {}, p.what), element("p", { className: "quiet" }, `To do: ${p.remedy}.`)))
    : [element("div", { className: "box good" }, element("p", {}, "Nothing is wrong."))]));
  $("#facts").replaceChildren(...status.facts.flatMap((f) => [element("dt", {}, f.name), element("dd", {}, f.text)]));
  drawChanges((changes ?? []).slice(-1000));
}

function drawChanges(changes) {
  const box = $("#changes");
  chart?.destroy();
  box.replaceChildren();
  if (!changes.length) {
    box.append(element("p", { className: "quiet" }, "There was no change yet."));
    return;
  }
  const style = getComputedStyle(document.documentElement);
  const color = (name) => {
    const probe = element("span");
    probe.style.color = style.getPropertyValue(name);
    box.append(probe);
    const found = getComputedStyle(probe).color;
    probe.remove();
    return found;
  };
  const axis = { stroke: color("--quiet"), grid: { stroke: color("--line"), width: 1 }, ticks: { stroke: color("--line") } };
  const points = (label, name) => ({
    label, stroke: color(name), width: 0, points: { show: true, size: 5, fill: color(name) }, paths: () => null,
    value: (_, s) => (s === null ? "" : duration(s * 1e9)),
  });
  const seconds = (ns) => (ns ? ns / 1e9 : null);
  const powers = (_, splits) => splits.map((t) => (Math.abs(Math.log10(t) - Math.round(Math.log10(t))) < 1e-6 ? t : null));
  const y = { ...axis, size: 70, filter: powers, grid: { ...axis.grid, filter: powers }, ticks: { ...axis.ticks, filter: powers } };
  const at = changes.map((c) => Date.parse(c.at) / 1e3), now = Date.now() / 1e3;
  chart = new uPlot({
    ...chartSize(),
    scales: { x: { range: [Math.min(at[0], now - 60), now] }, y: { distr: 3 } },
    axes: [{ ...axis, space: 80, values: (_, ticks) => ticks.map((t) => new Date(t * 1e3).toLocaleTimeString([], { hourCycle: "h23" })) }, { ...y, values: (_, ticks) => ticks.map((t) => (t === null ? "" : duration(t * 1e9))) }],
    series: [{ label: "At", value: (_, t) => (t === null ? "" : time(t * 1e3)) }, points("Programming the kernel", "--accent"), points("Lag behind the cluster", "--warn")],
  }, [at, changes.map((c) => seconds(c.tookNanoseconds)), changes.map((c) => seconds(c.lagNanoseconds))], box);
}

// Services

const columns = [
  { name: "Service", key: "name" },
  { name: "Addresses" },
  { name: "Used", key: "endpoints", number: true },
  { name: "Connections", key: "connections", number: true },
  { name: "New/s", key: "rate", number: true },
  { name: "Bit/s", key: "bytes", number: true },
  { name: "Refused", key: "rejected", number: true },
];
const first = { search: "", sort: "name", descending: false, page: 0 };
const table = { ...first };

// to shows the table in another state, which the URL keeps. A step in the history is made of it unless it replaces the last.
function to(state, replace = false) {
  const next = { ...table, ...state };
  const query = new URLSearchParams(Object.entries(next).filter(([key, value]) => value !== first[key]).map(([key, value]) => [key, String(value)]));
  const hash = `#services${query.size ? `?${query}` : ""}`;
  if (location.hash === hash) show();
  else if (replace) location.replace(hash);
  else location.hash = hash;
}

function heading(c) {
  if (!c.key) return element("th", { scope: "col" }, c.name);
  const sorted = table.sort === c.key;
  const button = element("button", { type: "button" }, c.name + (sorted ? (table.descending ? " ▼" : " ▲") : ""));
  button.onclick = () => {
    to({ sort: c.key, descending: sorted ? !table.descending : c.key !== "name" && c.key !== "endpoints", page: 0 });
  };
  const th = element("th", { scope: "col", className: c.number ? "number" : "" }, button);
  if (sorted) th.setAttribute("aria-sort", table.descending ? "descending" : "ascending");
  return th;
}

const number = (text, name = "") => element("td", { className: `number ${name}` }, String(text));

function serviceRow(s, accounting) {
  const shown = s.addresses?.slice(0, 2) ?? [];
  const more = (s.addresses?.length ?? 0) - shown.length;
  const name = `${s.namespace}/${s.name}`;
  return element("tr", {},
    element("td", {}, element("a", { href: `#service/${name}` }, name)),
    element("td", { className: "mono" }, shown.join(", ") + (more > 0 ? `, ${more} more` : "")),
    number(`${s.used} of ${s.total}${s.used ? "" : ", not served"}`, s.used ? "" : "bad"),
    number(s.connections),
    number(quantity(s.connectionsPerSecond)),
    number(accounting ? bits(s.bytesPerSecond ?? 0) : "unknown"),
    number(s.rejectedPackets, s.rejectedPackets ? "warn" : ""));
}

async function showServices(_, query) {
  Object.assign(table, first, { search: query.get("search") ?? "", sort: query.get("sort") ?? first.sort, descending: query.has("descending"), page: Number(query.get("page") ?? 0) });
  if (document.activeElement !== $("#search").search) $("#search").search.value = table.search;
  const { search, sort, descending, page } = table;
  const rows = await get("services", { search, sort, page, ...(descending && { descending: "" }) });
  table.page = rows.page;
  const active = document.activeElement?.closest("th")?.cellIndex;
  const link = document.activeElement?.closest("tbody a")?.hash;
  $("#table thead tr").replaceChildren(...columns.map(heading));
  if (active >= 0) $("#table thead tr").cells[active].querySelector("button")?.focus();
  $("#table tbody").replaceChildren(...rows.rows.map((s) => serviceRow(s, rows.accounting)));
  if (link) $(`#table a[href="${link}"]`)?.focus();
  $("#matching").textContent = `${rows.matching.toLocaleString()} of ${rows.all.toLocaleString()}`;
  const pages = Math.max(1, Math.ceil(rows.matching / rows.size));
  $("#page").textContent = `Page ${rows.page + 1} of ${pages}`;
  $("#previous").disabled = rows.page === 0;
  $("#next").disabled = rows.page + 1 >= pages;
}

$("#search").onsubmit = (e) => e.preventDefault();
let typed;
$("#search").oninput = (e) => { // one search once the visitor pauses, not one for each letter
  clearTimeout(typed);
  typed = setTimeout(to, 150, { search: e.target.value, page: 0 }, true);
};
$("#previous").onclick = () => to({ page: table.page - 1 });
$("#next").onclick = () => to({ page: table.page + 1 });

// One Service

const kept = "details, summary, .scroll";

async function showService(name) {
  if ($("#service-name").textContent !== name) $("#service").replaceChildren(); // another Service's
  $("#service-name").textContent = name;
  const service = await get(`services/${name.split("/").map(encodeURIComponent).join("/")}`);
  // A refresh leaves lists open, what is scrolled where it is, and the focus.
  const old = [...$("#service").querySelectorAll(kept)].map((e) => [e.open, e.scrollLeft, e === document.activeElement]);
  $("#service").replaceChildren(...service.ports.map((p, i) => picture(service, p, i)));
  $("#service").querySelectorAll(kept).forEach((e, i) => {
    if (!old[i]) return;
    [e.open, e.scrollLeft] = old[i];
    if (old[i][2]) e.focus();
  });
}

// Explain

$("#question").onsubmit = async (e) => {
  e.preventDefault();
  const { from, to } = Object.fromEntries(new FormData(e.target));
  const hash = `#explain/${encodeURIComponent(from)}/${encodeURIComponent(to)}`;
  if (location.hash === hash) show(); // the same question again
  else location.hash = hash;
};

async function showExplain(argument) {
  const [from = "", to = ""] = argument.split("/").map(decodeURIComponent);
  const form = $("#question");
  if (!to) {
    $("#verdict").replaceChildren();
    return $("#steps").replaceChildren();
  }
  Object.assign(form.from, { value: from });
  Object.assign(form.to, { value: to });
  const answer = await get("explain", { from, to }).catch((err) => {
    if (err.name === "AbortError") throw err;
    return { verdict: `No answer: ${err.message}`, steps: [{ title: "Error", text: err.message, cause: "Error" }] };
  });
  const worst = answer.steps.some((s) => s.cause && !s.possible) ? "bad" : answer.steps.some((s) => s.cause) ? "warn" : "good";
  $("#verdict").replaceChildren(element("div", { className: `box ${worst}` }, element("p", {}, answer.verdict)));
  $("#steps").replaceChildren(...answer.steps.map((s) => element("li", {},
    element("strong", { className: s.cause ? (s.possible ? "warn" : "bad") : "" }, s.title), " ",
    s.cause ? element("strong", {}, `${s.possible ? "MAY STOP" : "STOPS HERE"} (${s.cause}): `) : "", s.text,
    s.rule ? element("span", { className: "mono" }, s.rule) : "")));
}

// Events

async function showEvents() {
  const [status, changes] = await Promise.all([get("status"), get("changes")]);
  $("#warnings").replaceChildren(...((status.warnings ??= []).length
    ? status.warnings.map((w) => element("div", { className: "box" },
      element("p", {}, element("strong", {}, w.reason), ` ${time(w.at)}${w.count > 1 ? `, ${w.count} times` : ""}`), element("p", {}, w.note),
      element("p", { className: "quiet" }, w.remedy ? `To do: ${w.remedy}.` : "")))
    : [element("p", { className: "quiet" }, "There was none since the start.")]));
  const last = (changes ?? []).slice(-50).reverse();
  $("#programmed thead").replaceChildren(element("tr", {}, ...["At", "Kind", "Took", "Lag", "Frontends", "Pools", "Elements"].map((n) => element("th", { scope: "col" }, n))));
  $("#programmed tbody").replaceChildren(...last.map((c) => element("tr", {},
    ...[time(c.at), c.kind, duration(c.tookNanoseconds), c.lagNanoseconds ? duration(c.lagNanoseconds) : "", c.frontends, c.pools, c.elements].map((v) => element("td", {}, String(v))))));
}

// Views

const views = {
  status: { show: showStatus, period: 15 },
  services: { show: showServices, period: 15 },
  service: { show: showService, period: 15 },
  explain: { show: showExplain },
  events: { show: showEvents, period: 15 },
};

let timer, shown, current;

async function show() {
  clearTimeout(timer);
  current?.abort(); // an answer to a former question must not replace this one's
  const { signal } = current = new AbortController();
  const [path, query = ""] = location.hash.slice(1).split("?");
  const [name = "", ...rest] = path.split("/");
  const view = views[name] ? name : "status";
  const argument = rest.join("/");
  for (const key of Object.keys(views)) $(`#view-${key}`).hidden = key !== view;
  for (const a of document.querySelectorAll("header nav a")) {
    const current = a.hash === `#${view}` || (view === "service" && a.hash === "#services");
    current ? a.setAttribute("aria-current", "page") : a.removeAttribute("aria-current");
  }
  const fresh = $("#fresh");
  try {
    await views[view].show(argument, new URLSearchParams(query));
    if (signal.aborted) return;
    fresh.className = "";
    fresh.removeAttribute("role");
    fresh.textContent = `as of ${new Date().toLocaleTimeString([], clock)}`;
  } catch (err) {
    if (signal.aborted) return;
    fresh.className = "bad";
    fresh.setAttribute("role", "alert");
    fresh.textContent = `${err.message} (${new Date().toLocaleTimeString([], clock)})`;
  }
  $("main").className = fresh.className && "stale";
  const period = shown === location.hash ? views[view].period : views[view].period && 2; // rates are known from the second answer on
  shown = location.hash;
  if (period && !document.hidden) timer = setTimeout(show, period * 1e3);
}

addEventListener("hashchange", show);
document.addEventListener("visibilitychange", () => { if (!document.hidden) show(); });
addEventListener("resize", () => chart?.setSize(chartSize()));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
get("status").then((s) => { $("#node").textContent = `${s.node}, mode ${s.mode}`; }, () => {});
show();
