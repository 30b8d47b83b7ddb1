"use strict";
// The page's numbers come from the JSON next to this script. Texts of documents are only ever set as text, never as HTML.
const data = JSON.parse(document.getElementById("data").textContent);
const documents = data.documents, views = data.views;
const byId = (id) => document.getElementById(id);
const SHAPES = {}; // of points, by group
data.groups.forEach((group, n) => { SHAPES[group] = ["circle", "triangle", "square"][n % 3]; });
const CLOSE = views.find((v) => v === "sinks dropped") || views[0];
const state = {
  first: views[0], second: views.includes(CLOSE) && CLOSE !== views[0] ? CLOSE : views[1] || null,
  x: views[0], y: CLOSE, document: 0, picked: {}, given: {}, sort: ["number", 1], query: "", step: data.steps.length - 1,
  sink: null, token: null,
};

// ---- small helpers
function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  fill(element, attributes, children);
  return element;
}
function draw(name, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  fill(element, attributes, children);
  return element;
}
function fill(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (value !== null && value !== undefined) element.setAttribute(key, value);
  }
  element.append(...children.filter((child) => child !== null));
}
const fixed = (value, digits = 3) => (value === undefined || value === null ? "–" : value.toFixed(digits));
const signed = (value) => (value < 0 ? "−" : "+") + Math.abs(value).toFixed(4);
const percent = (nats) => {
  const chance = 100 * Math.exp(-nats);
  return chance >= 0.1 ? `${chance.toFixed(1)}%` : `${chance.toPrecision(1)}%`;
};
const textOf = (d) => d.tokens.map((t) => data.texts[t]).join("");
const visible = (text) => text.replace(/\n/g, "↵\n") || "▯";
const times = (d) => (d.times === null ? "–" : `${d.times}×`);
const name = (d) => textOf(d).slice(0, 60).trim();
function table(columns, rows, attributes = () => ({})) {
  const isNumber = (value) => typeof value === "number" || value?.number !== undefined;
  const cell = (tag, value, like = value) => make(tag, isNumber(like) ? { class: "number" } : {}, value?.node ?? value?.number ?? String(value));
  return make("table", {},
    make("thead", {}, make("tr", {}, ...columns.map((column, n) => cell("th", column, rows[0]?.[n])))),
    make("tbody", {}, ...rows.map((row, n) => make("tr", attributes(n), ...row.map((value) => cell("td", value))))));
}
const number = (value, digits) => ({ number: fixed(value, digits) });
function tip(event, text) {
  const box = byId("tip");
  box.hidden = !text;
  if (!text) return;
  box.textContent = text;
  const { innerWidth: width, innerHeight: height } = window, size = box.getBoundingClientRect();
  box.style.left = `${Math.max(4, Math.min(event.clientX + 14, width - size.width - 6))}px`;
  box.style.top = `${event.clientY + 20 + size.height > height ? event.clientY - size.height - 10 : event.clientY + 16}px`;
}

// ---- a document, token by token
// How much of the colour a token has is the probability that its model gave it: e to the minus loss.
const tint = (nats) => `rgba(var(--known), ${Math.exp(-nats).toFixed(3)})`;
function legend() {
  byId("legend").replaceChildren("Loss of a token, nats:", ...[0, 0.1, 0.5, 1, 2, 4].map((nats) => {
    const box = make("i");
    box.style.background = tint(nats);
    return make("span", {}, box, nats === 0 ? "0, by heart" : nats === 4 ? "4 or more, a surprise" : String(nats));
  }), make("span", {}, "underlined: the beginning that it was given"),
  ...(documents.some((d) => d.says) ? [make("span", {}, "dotted: its context has a sink")] : []));
}
function paragraph(d, nats, options = {}) {
  const box = make("p", { class: "text" });
  d.tokens.forEach((token, i) => {
    const span = make("span", { class: "t", "data-i": i });
    span.textContent = visible(data.texts[token]);
    span.style.background = tint(nats[i] / 1000);
    if (i < (options.given || 0)) span.classList.add("given");
    if (options.at === i) span.classList.add("at");
    if (d.says && d.says[i] >= 0) span.classList.add("kept");
    box.append(span);
  });
  return box;
}
function tokenLabel(d, view, i) {
  const read = d.read[view], nats = read.nats[i] / 1000;
  const says = !d.says ? "" : d.says[i] < 0 ? "\nits context has no sink" : `\nthe sink of its context says ${JSON.stringify(data.texts[d.says[i]])}`;
  return `${JSON.stringify(data.texts[d.tokens[i]])}, ${view}\nloss ${nats.toFixed(3)} nats, probability ${percent(nats)}\n` +
    `rank ${read.rank[i] + 1}, its own guess ${JSON.stringify(data.texts[read.guess[i]])}${says}`;
}
const given = (d) => {
  const there = data.prefixes.filter((prefix) => views.some((view) => d.written[view]?.[prefix]));
  const asked = state.given[documents.indexOf(d)];
  return asked === undefined ? there[there.length - 1] : there.filter((prefix) => d.opening + prefix <= asked).pop() ?? there[0];
};
function continuation(d, view, prefix) {
  const written = prefix === undefined ? null : d.written[view]?.[prefix];
  if (!written) return null;
  const start = d.opening + prefix;
  let same = 0;
  const parts = written.map((token, i) => {
    const equal = token === d.tokens[start + i];
    same += equal;
    return make(equal ? "b" : "span", {}, visible(data.texts[token]));
  });
  const sentence = `After the first ${start} tokens it writes (${same} of ${Math.min(data.suffix, d.length - start)} as in the document): `;
  return make("div", { class: "written" }, make("span", { class: "note" }, sentence), ...parts);
}
const chosenViews = () => [state.first, ...(state.second && state.second !== state.first ? [state.second] : [])];
function panel(group) {
  const d = documents[state.picked[group]], mine = documents.filter((other) => other.group === group);
  const prefix = given(d), isChosen = documents[state.document] === d;
  const move = (by) => select(documents.indexOf(mine[(mine.indexOf(d) + by + mine.length) % mine.length]));
  const box = make("article", { class: `panel${isChosen ? " chosen" : ""}`, "data-group": group },
    make("header", {}, make("h3", {}, `${group[0].toUpperCase()}${group.slice(1)}, ${times(d)}`),
      make("span", {}, make("button", { type: "button", "aria-label": `previous ${group} document`, onclick: () => move(-1) }, "‹"), " ",
        make("button", { type: "button", "aria-label": `next ${group} document`, onclick: () => move(1) }, "›"))));
  for (const view of chosenViews()) {
    const text = paragraph(d, d.read[view].nats, { given: d.opening + prefix, at: isChosen && view === state.first ? state.token : null });
    const at = (event) => event.target.dataset?.i;
    text.addEventListener("pointermove", (event) => tip(event, at(event) === undefined ? "" : tokenLabel(d, view, +at(event))));
    text.addEventListener("pointerleave", (event) => tip(event, ""));
    text.addEventListener("click", (event) => {
      if (at(event) === undefined) return;
      state.given[documents.indexOf(d)] = +at(event);
      select(documents.indexOf(d), +at(event));
    });
    box.append(make("h4", {}, make("span", {}, view), make("span", { class: "note" }, `${fixed(d.loss[view])} nats per token`)), text);
    const written = continuation(d, view, prefix);
    if (written) box.append(written);
  }
  if (data.sinks && !d.own.length) box.append(make("p", { class: "note" }, "This document was read too rarely to open its sinks: with own sinks on, its loss is as with all dropped."));
  if (d.length > d.tokens.length) box.append(make("p", { class: "note" }, `The first ${d.tokens.length} of ${d.length} tokens; the losses cover all.`));
  box.append(make("p", { class: "note" }, `id ${d.id}`));
  return box;
}
function panels() {
  byId("panels").replaceChildren(...data.groups.map(panel));
  if (!document.body.classList.contains("tables")) return;
  const d = documents[state.document], shown = chosenViews();
  const columns = ["", "token", ...shown.flatMap((view) => [`${view}: loss`, "probability", "rank", "guess"])];
  const rows = d.tokens.map((token, i) => [i + 1, visible(data.texts[token]), ...shown.flatMap((view) => {
    const read = d.read[view];
    return [number(read.nats[i] / 1000), { number: percent(read.nats[i] / 1000) }, read.rank[i] + 1, visible(data.texts[read.guess[i]])];
  })]);
  byId("tokens-table").replaceChildren(make("div", {}, table(columns, rows)));
}

// ---- all documents
const STOPS = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]]; // viridis: safe for colour-blind eyes
const most = Math.max(1, ...documents.map((d) => d.times || 0));
function shade(d) {
  if (d.times === null) return "rgb(68, 1, 84)";
  const place = (1 - Math.log2(1 + d.times) / Math.log2(1 + most)) * (STOPS.length - 1), low = Math.min(Math.floor(place), STOPS.length - 2);
  return `rgb(${STOPS[low].map((c, k) => Math.round(c + (place - low) * (STOPS[low + 1][k] - c))).join(", ")})`;
}
const FRAME = { left: 48, right: 412, top: 10, bottom: 330 };
function scale(values, from, to) {
  const low = 0, high = Math.max(0.1, ...values) * 1.05;
  const unit = 10 ** Math.floor(Math.log10(high / 7)), step = [1, 2, 5, 10].map((n) => n * unit).find((s) => high / s <= 7);
  const ticks = [];
  for (let t = low; t <= high; t += step) ticks.push(+t.toFixed(6));
  return { at: (value) => from + ((value - low) / (high - low)) * (to - from), ticks, high };
}
function mark(shape, x, y, attributes) {
  if (shape === "circle") return draw("circle", { cx: x, cy: y, r: 5.5, ...attributes });
  if (shape === "square") return draw("rect", { x: x - 4.5, y: y - 4.5, width: 9, height: 9, ...attributes });
  return draw("path", { d: `M${x} ${y - 6}l5.5 10h-11z`, ...attributes });
}
let places = [];
function scatter() {
  const across = scale(documents.map((d) => d.loss[state.x]), FRAME.left, FRAME.right);
  const up = scale(documents.map((d) => d.loss[state.y]), FRAME.bottom, FRAME.top), parts = [];
  for (const t of across.ticks) {
    parts.push(draw("line", { class: "axis", x1: across.at(t), x2: across.at(t), y1: FRAME.top, y2: FRAME.bottom }),
      draw("text", { x: across.at(t), y: FRAME.bottom + 17, "text-anchor": "middle" }, String(t)));
  }
  for (const t of up.ticks) {
    parts.push(draw("line", { class: "axis", x1: FRAME.left, x2: FRAME.right, y1: up.at(t), y2: up.at(t) }),
      draw("text", { x: FRAME.left - 7, y: up.at(t) + 4, "text-anchor": "end" }, String(t)));
  }
  const end = Math.min(across.high, up.high);
  parts.push(draw("line", { class: "axis", x1: across.at(0), y1: up.at(0), x2: across.at(end), y2: up.at(end), "stroke-dasharray": "5 4" }),
    draw("text", { x: (FRAME.left + FRAME.right) / 2, y: 370, "text-anchor": "middle" }, `loss, ${state.x} (nats per token)`),
    draw("text", { transform: `translate(14 ${(FRAME.top + FRAME.bottom) / 2}) rotate(-90)`, "text-anchor": "middle" }, `loss, ${state.y}`));
  const found = new Set(matching());
  places = documents.map((d) => [across.at(d.loss[state.x]), up.at(d.loss[state.y])]);
  const order = documents.map((_, i) => i).filter((i) => i !== state.document).concat(state.document);
  for (const i of order) {
    const kind = `point${found.has(i) ? "" : " out"}${i === state.document ? " at" : ""}`;
    parts.push(mark(SHAPES[documents[i].group], ...places[i], { class: kind, fill: shade(documents[i]), "data-n": i }));
  }
  byId("scatter").replaceChildren(...parts);
  const marks = { circle: "●", triangle: "▲", square: "■" };
  byId("scatter-note").textContent = `${data.groups.map((g) => `${marks[SHAPES[g]]} ${g}`).join("  ")}. The darker, the more often it was read` +
    (most > 1 ? `: up to ${most}×.` : ".") + " On the broken line both lose the same.";
}
function nearest(event) {
  const svg = byId("scatter"), box = svg.getBoundingClientRect(), ratio = 420 / box.width;
  const x = (event.clientX - box.left) * ratio, y = (event.clientY - box.top) * ratio;
  let best = null, least = 24;
  places.forEach(([px, py], i) => {
    const far = Math.hypot(px - x, py - y);
    if (far < least) [best, least] = [i, far];
  });
  return best;
}
const COLUMNS = () => [["number", "", (i) => i], ["text", "document", (i) => name(documents[i])], ["group", "group", (i) => documents[i].group],
  ["times", "read", (i) => documents[i].times ?? Infinity], ...views.map((view) => [view, view, (i) => documents[i].loss[view]])];
const texts = documents.map((d) => `${textOf(d)} ${d.id} ${d.group} ${times(d)}`.toLowerCase());
function matching() {
  const words = state.query.toLowerCase().trim(), [key, direction] = state.sort;
  const value = COLUMNS().find((column) => column[0] === key)[2];
  return documents.map((_, i) => i).filter((i) => texts[i].includes(words))
    .sort((a, b) => direction * (value(a) < value(b) ? -1 : value(a) > value(b) ? 1 : 0));
}
function list() {
  const order = matching(), columns = COLUMNS().filter((column) => column[0] !== "number");
  const heads = columns.map(([key, label]) => ({ node: make("button", { type: "button",
    onclick: () => { state.sort = [key, state.sort[0] === key ? -state.sort[1] : 1]; list(); } },
  label + (state.sort[0] === key ? (state.sort[1] > 0 ? " ↑" : " ↓") : "")) }));
  const rows = order.map((i) => [name(documents[i]), documents[i].group, { number: times(documents[i]) },
    ...views.map((view) => number(documents[i].loss[view]))]);
  const made = table(heads, rows, (n) => ({ "data-n": order[n], class: order[n] === state.document ? "at" : null }));
  made.querySelectorAll("th").forEach((th, n) => th.setAttribute("aria-sort",
    columns[n][0] !== state.sort[0] ? "none" : state.sort[1] > 0 ? "ascending" : "descending"));
  const top = byId("list").scrollTop;
  byId("list").replaceChildren(made);
  byId("list").scrollTop = top;
  byId("found").textContent = `${order.length} of ${documents.length}`;
}

// ---- where it sits
const users = new Map(); // of a sink
documents.forEach((d, i) => {
  d.own.forEach((sink) => {
    if (!users.has(sink)) users.set(sink, []);
    users.get(sink).push(i);
  });
});
function links(indices, extra = () => "") {
  return make("div", { class: "links" }, ...indices.map((i) => make("button", { type: "button", onclick: () => select(i) },
    make("b", {}, extra(i)), `${documents[i].group}, ${times(documents[i])}: ${name(documents[i]).slice(0, 40)}`)));
}
function heat(d, top) {
  const { layers } = data, { own } = d, rises = d.carried;
  const left = 62, width = Math.min(22, (1180 - left) / own.length), height = 22, parts = [];
  for (let layer = 0; layer < layers; layer++) {
    parts.push(draw("text", { x: left - 8, y: layer * height + 15, "text-anchor": "end" }, `layer ${layer + 1}`));
    own.forEach((sink, j) => {
      const rise = rises ? rises[layer][j] : 0, shared = users.get(sink).length - 1;
      const strength = Math.min(1, Math.abs(rise) / top).toFixed(3);
      const cell = draw("rect", { x: left + j * width, y: layer * height, width: Math.max(width - 1, 1), height: height - 1, "data-sink": sink,
        stroke: state.sink === sink ? "var(--ink)" : "var(--line)", "stroke-width": state.sink === sink ? 2 : 0.5 });
      cell.style.fill = `rgba(var(${rise < 0 ? "--fall" : "--rise"}), ${strength})`;
      cell.addEventListener("pointermove", (event) => tip(event, `layer ${layer + 1}, sink ${sink}\n` +
        (rises ? `off alone: ${signed(rise)} nats per token\n` : "") + `shared with ${shared} of ${documents.length - 1} documents here`));
      cell.addEventListener("pointerleave", (event) => tip(event, ""));
      cell.addEventListener("click", () => { state.sink = sink; where(); });
      parts.push(cell);
    });
  }
  const full = left + own.length * width;
  return make("div", { class: "scroll" }, draw("svg", { viewBox: `0 0 ${full} ${layers * height}`, width: full, role: "img",
    "aria-label": `Layers and sinks of the document; the table has the numbers` }, ...parts));
}
function where() {
  const d = documents[state.document], { own } = d, rises = d.carried, parts = [];
  if (d.says) parts.push(make("p", {}, `Of its ${d.says.length} tokens ${d.says.filter((t) => t >= 0).length} follow a context that has a sink.` +
    (views.includes("its own removed") ? ' "Its own removed": without those that stand in no other document.' : "")));
  else if (!data.sinks) parts.push(make("p", {}, "No sinks of this model belong to single documents."));
  else if (!own.length) parts.push(make("p", {}, `This document came back too rarely for its sinks to open: they open at encounter ${data.opens_at}.`));
  else {
    const top = rises ? Math.max(1e-6, ...rises.flat().map(Math.abs)) : 1;
    parts.push(make("p", {}, `${own.length} of ${data.sinks} sinks are its own. ` + (rises
      ? `Blue: the document's loss rises when that sink alone is off in that layer, by up to ${top.toFixed(4)} nats per token; orange: it falls. Click a sink to see its documents.`
      : "The effect of each sink was not measured for this document: an audit has time to switch off only some sinks one by one.")));
    parts.push(heat(d, top));
    if (own.includes(state.sink)) {
      const there = users.get(state.sink);
      parts.push(make("p", { id: "sharing" }, `Sink ${state.sink} is on for ${there.length} documents of this page:`), links(there));
    }
    if (document.body.classList.contains("tables")) {
      const rows = own.map((sink, j) => [{ node: make("button", { type: "button", onclick: () => { state.sink = sink; where(); } }, String(sink)) },
        users.get(sink).length, ...(rises ? rises.map((row) => ({ number: signed(row[j] ?? 0) })) : [])]);
      parts.push(make("div", { class: "numbers" }, make("div", {}, table(["sink", "documents", ...(rises || []).map((_, l) => `layer ${l + 1}`)], rows))));
    }
    const shared = documents.map((other, i) => [i, own.filter((sink) => users.get(sink).includes(i)).length])
      .filter(([i, count]) => i !== state.document && count > 0).sort((a, b) => b[1] - a[1]).slice(0, 6);
    if (shared.length) parts.push(make("p", {}, "It shares most sinks with:"), links(shared.map(([i]) => i), (i) => `${shared.find(([j]) => j === i)[1]} `));
  }
  byId("where").replaceChildren(...parts);
}

// ---- over training
const DASHES = ["", "7 4", "2 4"];
const CURVES = { repeated_loss: "repeated documents, sinks dropped", repeated_loss_own: "repeated documents, own sinks on", held_out_loss: "held-out documents, sinks dropped" };
function over() {
  const d = documents[state.document], names = data.step_views, steps = data.steps, parts = [], curves = Object.entries(data.curves);
  if (!steps.length) {
    byId("over").replaceChildren(make("p", {}, "This is a model without its run: there are no checkpoints to read."));
    return;
  }
  const shown = steps.length === 1 ? `The run has one checkpoint, of step ${steps[0]}; training.keep_every keeps more.`
    : `The run has ${steps.length} checkpoints that are read here; training.keep_every keeps more.`;
  const last = Math.max(...steps, ...curves.flatMap(([, points]) => points.map((p) => p[0])));
  const highest = Math.max(...names.flatMap((v) => d.loss_over[v]), ...curves.flatMap(([, points]) => points.map((p) => p[1])));
  const across = scale([last / 1.05], 36, 410), up = scale([highest], 200, 10);
  for (const t of across.ticks.filter((t) => t <= last)) parts.push(draw("text", { x: across.at(t), y: 220, "text-anchor": "middle" }, String(t)));
  for (const t of up.ticks) parts.push(draw("line", { class: "axis", x1: 36, x2: 410, y1: up.at(t), y2: up.at(t) }),
    draw("text", { x: 30, y: up.at(t) + 4, "text-anchor": "end" }, String(t)));
  parts.push(draw("text", { x: 223, y: 240, "text-anchor": "middle" }, "step"));
  curves.forEach(([label, points], n) => {
    const line = { fill: "none", stroke: "var(--soft)", "stroke-width": 1.6, "stroke-dasharray": DASHES[n % 3] }, y = 262 + 18 * n;
    parts.push(draw("polyline", { ...line, points: points.map(([s, v]) => `${across.at(s)},${up.at(v)}`).join(" ") }),
      draw("line", { ...line, x1: 36, x2: 66, y1: y, y2: y }), draw("text", { x: 74, y: y + 4 }, CURVES[label]));
  });
  names.forEach((view, n) => {
    const shape = ["circle", "square"][n % 2], y = 262 + 18 * (curves.length + n), fill = n ? "rgb(var(--rise))" : "rgb(var(--known))";
    steps.forEach((step, k) => parts.push(mark(shape, across.at(step), up.at(d.loss_over[view][k]), { class: `point${k === state.step ? " at" : ""}`, fill })));
    parts.push(mark(shape, 51, y, { class: "point", fill }), draw("text", { x: 74, y: y + 4 }, `this document, ${view}`));
  });
  const tall = 262 + 18 * (curves.length + names.length);
  const slider = make("input", { type: "range", id: "step", min: 0, max: steps.length - 1, step: 1, "aria-label": "Checkpoint",
    oninput: (event) => { state.step = +event.target.value; over(); byId("step").focus(); } });
  slider.value = state.step;
  if (steps.length === 1) slider.disabled = true;
  const readings = names.map((view) => make("div", { class: "panel" },
    make("h4", {}, make("span", {}, view), make("span", { class: "note" }, `${fixed(d.loss_over[view][state.step])} nats per token`)),
    paragraph(d, d.over[view][state.step])));
  const columns = ["step", ...names];
  const rows = steps.map((step, k) => [step, ...names.map((view) => number(d.loss_over[view][k]))]);
  const curveRows = curves.flatMap(([label, points]) => points.map(([s, v]) => [CURVES[label], s, number(v)]));
  byId("over").replaceChildren(make("p", {}, `${shown} The lines are the run's own measures, over all documents of their kind.`),
    make("div", { class: "bar" }, make("label", { for: "step" }, `Step ${steps[state.step]}`), slider),
    make("div", { class: "two" }, draw("svg", { class: "small", viewBox: `0 0 420 ${tall}`, role: "img", "aria-label": "Loss at each checkpoint; the table has the numbers" }, ...parts),
      make("div", {}, ...readings)),
    ...(document.body.classList.contains("tables") ? [make("div", { class: "numbers" }, make("div", {}, table(columns, rows)),
      ...(curveRows.length ? [make("div", {}, table(["measure", "step", "nats per token"], curveRows))] : []))] : []));
}

// ---- what is chosen
function switches() {
  const button = (view, key, label) => make("button", { type: "button", "aria-pressed": String(state[key] === view), "data-view": view ?? "",
    onclick: () => { state[key] = view; render(); } }, label);
  byId("first").replaceChildren(...views.map((view) => button(view, "first", view)));
  byId("second").replaceChildren(...views.map((view) => button(view, "second", view)), button(null, "second", "none"));
  byId("tables").setAttribute("aria-pressed", String(document.body.classList.contains("tables")));
  for (const axis of ["x", "y"]) byId(axis).replaceChildren(...views.map((view) => {
    const option = make("option", { value: view }, view);
    option.selected = view === state[axis];
    return option;
  }));
}
function select(i, token = null) {
  if (i !== state.document) state.sink = null;
  Object.assign(state, { document: i, token });
  state.picked[documents[i].group] = i;
  render();
}
function render() {
  switches(); panels(); scatter(); list(); where(); over();
}
function toggleTables() {
  document.body.classList.toggle("tables");
  render();
}
function step(by) {
  const order = matching();
  if (order.length) select(order[(order.indexOf(state.document) + by + order.length) % order.length]);
  byId("list").querySelector("tr.at")?.scrollIntoView({ block: "nearest" });
}
function cursor(by) {
  const d = documents[state.document];
  const i = Math.max(0, Math.min(d.tokens.length - 1, (state.token ?? -1) + by));
  select(state.document, i);
  const box = document.querySelector(".panel.chosen .t.at").getBoundingClientRect();
  tip({ clientX: box.left, clientY: box.bottom }, tokenLabel(d, state.first, i));
}
function keyed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (/^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const compared = [...views, null];
  const actions = {
    "/": () => byId("search").focus(), t: toggleTables, j: () => step(1), k: () => step(-1),
    ArrowRight: () => cursor(1), ArrowLeft: () => cursor(-1), Escape: () => tip(event, ""),
    b: () => { state.second = compared[(compared.indexOf(state.second) + 1) % compared.length]; render(); },
  };
  if (/^[1-9]$/.test(event.key) && views[+event.key - 1]) actions[event.key] = () => { state.first = views[+event.key - 1]; render(); };
  if (!actions[event.key]) return;
  event.preventDefault();
  actions[event.key]();
}
function start() {
  const held = (d) => d.loss[CLOSE] - d.loss[views[0]]; // what its sinks hold
  data.groups.forEach((group, n) => {
    const mine = documents.map((_, i) => i).filter((i) => documents[i].group === group);
    state.picked[group] = n ? mine[0] : mine.reduce((best, i) => (held(documents[i]) > held(documents[best]) ? i : best), mine[0]);
  });
  state.document = state.picked[data.groups[0]];
  byId("about").textContent = `${documents.length} documents that the model of ${data.workdir} has read often, once, or never, ` +
    `each alone in its context. The darker a token, the better the model predicts it from those before. Losses are in nats per token, without end of text.` +
    (data.opens_at > 1 && data.sinks ? " The model's sinks open on return: with its own sinks removed, a document's loss is as with all dropped." : "");
  legend();
  byId("tables").addEventListener("click", toggleTables);
  byId("search").addEventListener("input", (event) => { state.query = event.target.value; list(); scatter(); });
  byId("x").addEventListener("change", (event) => { state.x = event.target.value; scatter(); });
  byId("y").addEventListener("change", (event) => { state.y = event.target.value; scatter(); });
  byId("scatter").addEventListener("pointermove", (event) => {
    const i = nearest(event);
    tip(event, i === null ? "" : `${name(documents[i])}\n${documents[i].group}, ${times(documents[i])}\n` +
      [...new Set([state.x, state.y])].map((view) => `${view} ${fixed(documents[i].loss[view])}`).join("\n"));
  });
  byId("scatter").addEventListener("pointerleave", (event) => tip(event, ""));
  byId("scatter").addEventListener("click", (event) => { const i = nearest(event); if (i !== null) select(i); });
  byId("list").addEventListener("click", (event) => {
    const row = event.target.closest("tr[data-n]");
    if (row) select(+row.dataset.n);
  });
  document.addEventListener("keydown", keyed);
  render();
}
start();
