// SPDX-License-Identifier: Apache-2.0

import { bits, element, quantity } from "./page.js";

// Sizes are in units of the picture's view box.
const width = 1100, rowHeight = 40, gap = 10, headHeight = 26;
const left = { x: 10, width: 270 }, middle = { x: 370, width: 250 }, right = { x: 770, width: 320 };
const most = 60; // endpoints that are drawn

function svg(tag, attributes = {}, text) {
  const e = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) e.setAttribute(name, value);
  if (text !== undefined) e.textContent = text;
  return e;
}

function cut(text, length) {
  return text.length > length ? `${text.slice(0, Math.floor(length) - 1)}…` : text;
}

// box draws two lines of text in a frame, and returns where arrows meet it.
function box(parent, column, y, first, second, className = "") {
  const g = svg("g");
  g.append(
    svg("rect", { class: "node", x: column.x, y, width: column.width, height: rowHeight - 4, rx: 4 }),
    svg("text", { x: column.x + 8, y: y + 15 }, cut(first, column.width / 6.8)),
    svg("text", { x: column.x + 8, y: y + 30, class: `small ${className}` }, cut(second, column.width / 6.5)),
    svg("title", {}, `${first}\n${second}`));
  parent.append(g);
  return { in: [column.x, y + rowHeight / 2 - 2], out: [column.x + column.width, y + rowHeight / 2 - 2] };
}

function arrow(parent, from, to, share) {
  const [x1, y1] = from, [x2, y2] = to, x = (x1 + x2) / 2;
  parent.prepend(svg("path", { d: `M${x1},${y1} C${x},${y1} ${x},${y2} ${x2},${y2}`, "stroke-width": 1 + 4 * share }));
}

// about says what a frontend is, where it is served and for whom.
function about(f) {
  if (f.owner) return `taken by ${f.owner}`;
  return [f.kind, f.servedAt && ` at ${f.servedAt.join(", ")}`, f.sourceRanges && `, for clients in ${f.sourceRanges} only`].filter(Boolean).join("");
}

const chosen = (p) => (p.backends ? `${p.backends} backends, ${p.algorithm}` : `no backend: ${p.ifEmpty}`);

// picture draws a Service port: frontends, what the policies choose, endpoints by zone and node.
export function picture(service, port, i) {
  const traffic = service.traffic?.[i];
  const name = `Port ${port.name.split(":").slice(1).concat(`(${port.protocol}, ${port.family})`).join(" ")}`;
  const root = svg("svg", { class: "picture", role: "img", "aria-label": `${name}: frontends, policies and endpoints` });
  const frontends = port.frontends ?? [], pools = port.pools ?? [], endpoints = (port.endpoints ?? [])
    .sort((a, b) => (a.zone ?? "").localeCompare(b.zone ?? "") || b.here - a.here).slice(0, most);
  const poolAt = {};
  pools.forEach((p, n) => {
    poolAt[p.scope] = box(root, middle, headHeight + n * (rowHeight + gap), `${p.scope}: ${p.takes}`, chosen(p), p.backends ? "" : "bad");
  });
  const total = traffic?.total;
  frontends.forEach((f, n) => {
    const at = box(root, left, headHeight + n * (rowHeight + gap), f.address, about(f), f.owner ? "bad" : "");
    const pool = poolAt[f.kind === "ClusterIP" ? service.internalTrafficPolicy : service.externalTrafficPolicy] ?? Object.values(poolAt)[0];
    if (pool && !f.owner) arrow(root, at.out, pool.in, 0.2);
  });
  let y = headHeight;
  const zones = Map.groupBy(endpoints, (e) => `${e.zone ? `Zone ${e.zone}` : "No zone"}, ${e.here ? "this node" : e.node === "another" ? "other nodes" : "node unknown"}`);
  const rate = (address) => {
    const r = traffic?.endpointRates?.[address];
    return r ? [`, ${quantity(r.connectionsPerSecond)}/s`, total?.accounting && bits(r.bytesPerSecond ?? 0)].filter(Boolean).join(", ") : "";
  };
  const weighted = endpoints.some((e) => e.weight !== endpoints[0].weight);
  const all = Math.max(1, ...Object.values(traffic?.endpoints ?? {}).map((c) => c.connections));
  for (const [zone, members] of zones) {
    root.append(svg("text", { x: right.x, y: y - 6, class: "small" }, zone));
    for (const e of members) {
      const count = traffic?.endpoints?.[e.address];
      const unused = Object.values(e.use).every((u) => u !== "used");
      const why = unused ? Object.values(e.use).join(", ") : `${weighted ? `weight ${e.weight}, ` : ""}${e.terminating ? "terminating, " : ""}${count ? `${count.connections} ${count.connections === 1 ? "connection" : "connections"}` : "no connection"}${rate(e.address)}`;
      const at = box(root, right, y, e.address, why, unused ? "bad" : "");
      for (const p of pools.filter((p) => e.use[p.scope] === "used")) {
        arrow(root, poolAt[p.scope].out, at.in, (count?.connections ?? 0) / all);
      }
      y += rowHeight;
    }
    y += headHeight + gap;
  }
  const height = Math.max(y, headHeight + (rowHeight + gap) * Math.max(frontends.length, pools.length)) + gap;
  root.setAttribute("viewBox", `0 0 ${width} ${height}`);
  for (const [column, text] of [[left, "Frontends"], [middle, "Policies"]]) root.append(svg("text", { x: column.x, y: headHeight - 10, class: "small" }, text));
  const counted = total?.connectionsPerSecond === undefined ? "" : `${quantity(total.connectionsPerSecond)} new connections a second, ${total.accounting ? bits(total.bytesPerSecond) : "bytes unknown (net.netfilter.nf_conntrack_acct is 0)"}`;
  const facts = [
    `${port.readyEndpoints} of ${port.totalEndpoints} endpoints are ready`,
    traffic ? `${traffic.connections} connections, ${traffic.offloaded} of them on the fast path` : "",
    counted,
    traffic?.rejectedPackets ? `${traffic.rejectedPackets} packets refused or dropped` : "",
    service.affinitySeconds ? `session affinity for ${service.affinitySeconds} s` : "",
    port.endpoints?.length > most ? `${most} endpoints are drawn` : "",
  ].filter(Boolean).join("; ");
  return element("div", {}, element("h3", {}, name), element("p", { className: "note" }, `${facts}.`), scroll(`Picture of ${name}`, root), words(frontends, pools), list(port, traffic));
}

// words say what the picture shows beside the endpoints, also where there is no picture.
function words(frontends, pools) {
  return element("ul", {},
    ...frontends.map((f) => element("li", {}, `${f.address}: ${about(f)} (`, element("a", { href: `#explain//${encodeURIComponent(f.servedAt?.[0] ?? f.address)}`, ariaLabel: `Explain ${f.address}` }, "explain"), ")")),
    ...pools.map((p) => element("li", { className: p.backends ? "" : "bad" }, `Policy ${p.scope}: ${p.takes.replace(/,$/, "")}; ${chosen(p)}`)));
}

// scroll is a region that scrolls sideways, also by the keyboard.
function scroll(name, content) {
  return element("div", { className: "scroll", tabIndex: 0, role: "region", ariaLabel: name }, content);
}

// The style sheet hides the picture in a window as narrow as this.
const narrow = matchMedia("(max-width: 62rem)");

// list has all endpoints as a table, also for those who do not see the picture.
function list(port, traffic) {
  const cells = (tag, all) => element("tr", {}, ...all.map((text) => element(tag, tag === "th" ? { scope: "col" } : {}, String(text))));
  const rows = (port.endpoints ?? []).map((e) => cells("td", [e.address, Object.entries(e.use).map(([scope, use]) => `${scope}: ${use}`).join(", "),
    traffic?.endpoints?.[e.address]?.connections ?? 0, e.ready ? "ready" : "not ready", e.node, e.zone ?? ""]));
  return element("details", { open: narrow.matches }, element("summary", {}, `All ${rows.length} endpoints`), scroll("Endpoints",
    element("table", {}, element("thead", {}, cells("th", ["Endpoint", "Use", "Connections", "Ready", "Node", "Zone"])), element("tbody", {}, ...rows))));
}
