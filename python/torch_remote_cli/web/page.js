// Asks for the figures once a second and shows them. Text from the server is only ever set as text
// (textContent), never as HTML.
"use strict";

const INTERVAL = 1000;
const SPAN = { minutes: 15 * 60, day: 24 * 3600 };

const $ = (id) => document.getElementById(id);
const state = { history: "minutes", last: 0, samples: [], columns: [], timer: 0, cursor: null };

// --- words and numbers

function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (Math.abs(count) >= 1024 && unit < units.length - 1) {
    count /= 1024;
    ++unit;
  }
  return [unit === 0 ? count.toFixed(0) : count.toFixed(count < 10 ? 2 : 1), units[unit]];
}

function number(count) {
  if (count >= 1e6) return [(count / 1e6).toFixed(2), "M"];
  return [count.toLocaleString("en", { maximumFractionDigits: count < 10 ? 1 : 0 }), ""];
}

function duration(seconds) {
  if (seconds === 0) return "0";
  if (seconds < 1e-3) return `${(seconds * 1e6).toFixed(0)} µs`;
  if (seconds < 1) return `${(seconds * 1e3).toFixed(1)} ms`;
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  const minutes = Math.floor(seconds / 60), hours = Math.floor(minutes / 60);
  if (hours >= 24) return `${Math.floor(hours / 24)}d ${hours % 24}h`;
  return hours ? `${hours}h ${minutes % 60}m` : `${minutes}m ${Math.floor(seconds % 60)}s`;
}

const joined = ([value, unit]) => (unit ? `${value} ${unit}` : value);

// --- elements

function element(tag, options = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(options)) made[name] = value;
  made.append(...children);
  return made;
}

function drawn(tag, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

// columns: [{name, className}], rows: arrays of strings, or of elements to put into the cell
function fill(table, columns, rows, empty) {
  if (rows.length === 0) {
    table.replaceChildren(element("tbody", {}, element("tr", {}, element("td", { className: "empty", textContent: empty }))));
    return;
  }
  const head = element("tr", {}, ...columns.map((column) => element("th", { textContent: column.name, className: column.className || "" })));
  const body = rows.map((cells) => element("tr", {}, ...cells.map((cell, i) => {
    const made = element("td", { className: columns[i].className || "" });
    if (cell instanceof Node) made.append(cell);
    else made.textContent = cell;
    if (columns[i].className?.includes("cut")) made.title = cell;
    return made;
  })));
  table.replaceChildren(element("thead", {}, head), element("tbody", {}, ...body));
}

function share(part, text) {
  const bar = element("i");
  bar.style.width = `${100 * Math.max(0, Math.min(1, part || 0))}%`;
  return element("div", { className: "share" }, element("div", { className: "track" }, bar), element("span", { textContent: text }));
}

// --- charts

function niceTop(most, step) {
  if (most <= 0) return step === 1024 ? 1 << 20 : 10;
  const scale = step ** Math.floor(Math.log(most) / Math.log(step));
  const factors = step === 1024 ? [1, 2, 4, 8, 16, 32, 64, 128, 256, 512] : [1, 2, 4, 10, 20, 40, 100, 200, 400];
  return (factors.find((factor) => factor * scale >= most) || step) * scale;
}

function clock(time, withSeconds) {
  return new Date(time * 1000).toLocaleTimeString("en-GB", withSeconds ? {} : { hour: "2-digit", minute: "2-digit" });
}

function chart(box, column, step, format, label) {
  const width = box.clientWidth, height = box.clientHeight;
  if (width === 0) return;
  const left = 62, bottom = 20, top = 8, right = 6;
  const index = state.columns.indexOf(column);
  const now = Date.now() / 1000;
  // While there are few samples, they fill the chart.
  const age = state.samples.length ? now - state.samples[0][0] : 0;
  const begin = now - Math.min(SPAN[state.history], Math.max(SPAN[state.history] / 15, age));
  const samples = state.samples.filter((sample) => sample[0] >= begin);
  const most = niceTop(samples.reduce((found, sample) => Math.max(found, sample[index]), 0), step);
  const x = (time) => left + ((time - begin) / (now - begin)) * (width - left - right);
  const y = (value) => top + (1 - value / most) * (height - top - bottom);
  const picture = drawn("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  for (const part of [0, 0.5, 1]) {
    picture.append(
      drawn("line", { class: "grid", x1: left, x2: width - right, y1: y(most * part), y2: y(most * part) }),
      drawn("text", { x: left - 8, y: y(most * part) + 4, "text-anchor": "end" }, part === 0 ? "0" : joined(format(most * part)).replace(/\.0+(?= |$)/, "")));
  }
  for (const part of width < 420 ? [0, 1] : [0, 0.5, 1]) {
    const anchor = part === 0 ? "start" : part === 1 ? "end" : "middle";
    const time = begin + part * (now - begin);
    picture.append(drawn("text", { x: x(time), y: height - 4, "text-anchor": anchor }, part === 1 ? "now" : clock(time, now - begin < 300)));
  }
  for (const run of unbroken(samples)) {
    const points = run.map((sample) => `${x(sample[0]).toFixed(1)},${y(sample[index]).toFixed(1)}`);
    const first = x(run[0][0]).toFixed(1), last = x(run[run.length - 1][0]).toFixed(1);
    picture.append(
      drawn("polygon", { class: "area", points: `${first},${y(0)} ${points.join(" ")} ${last},${y(0)}` }),
      drawn("polyline", { class: "curve", points: points.join(" ") }));
  }
  if (samples.length === 0)
    picture.append(drawn("text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, state.history === "day" ? "a value for each minute: none yet" : "no values yet"));
  addCursor(picture, samples, x, index, format, { left, right, top, bottom, width, height });
  box.replaceChildren(picture);
}

// Parts without a gap: while the server did not answer there are no samples.
function unbroken(samples) {
  const gap = state.history === "day" ? 180 : 5, runs = [];
  for (const sample of samples) {
    const run = runs[runs.length - 1];
    if (run && sample[0] - run[run.length - 1][0] <= gap) run.push(sample);
    else runs.push([sample]);
  }
  return runs;
}

function addCursor(picture, samples, x, index, format, box) {
  if (state.cursor === null || samples.length === 0) return;
  const place = state.cursor * box.width;
  const nearest = samples.reduce((best, sample) => (Math.abs(x(sample[0]) - place) < Math.abs(x(best[0]) - place) ? sample : best));
  const at = x(nearest[0]), isRight = at > box.width / 2;
  picture.append(
    drawn("line", { class: "cursor", x1: at, x2: at, y1: box.top, y2: box.height - box.bottom }),
    drawn("text", { class: "tip", x: at + (isRight ? -8 : 8), y: box.top + 12, "text-anchor": isRight ? "end" : "start" },
      `${joined(format(nearest[index]))} at ${clock(nearest[0], true)}`));
}

function drawCharts() {
  chart($("memory-chart"), "memory", 1024, bytes, "Memory in tensors over time");
  chart($("calls-chart"), "calls", 1000, number, "Calls per second over time");
}

// --- what is shown

function showTiles(server, sample) {
  const of = (column) => (sample ? sample[state.columns.indexOf(column)] : 0);
  const tiles = [
    ["Sessions", [String(server.sessions.length), `of ${server.sessions_total} so far`]],
    ["Memory in tensors", bytes(server.sessions.reduce((sum, one) => sum + one.memory, 0))],
    ["Calls per second", number(of("calls"))],
    ["Reads per second", number(of("reads"))],
    ["From clients", rate(bytes(of("received")))],
    ["To clients", rate(bytes(of("sent")))],
  ];
  $("tiles").replaceChildren(...tiles.map(([name, [value, unit]]) =>
    element("div", { className: "tile" }, element("span", { textContent: name }),
      element("b", {}, value, element("small", { textContent: unit })))));
}

const rate = ([value, unit]) => [value, `${unit}/s`];

function showSessions(server) {
  const columns = [
    { name: "session", className: "code" }, { name: "client", className: "left client" }, { name: "age", className: "optional" },
    { name: "memory" }, { name: "tensors", className: "optional" }, { name: "calls/s" }, { name: "reads/s", className: "optional" },
    { name: "in/s", className: "optional" }, { name: "out/s", className: "optional" }, { name: "queued", className: "optional" },
    { name: "errors" },
  ];
  fill($("sessions"), columns, server.sessions.map((one) => [
    one.id, one.peer || "not yet known", one.started ? duration(Math.max(0, server.time - one.started)) : "–",
    joined(bytes(one.memory)), joined(number(one.storages)), joined(number(one.per_second.calls)),
    joined(number(one.per_second.answers)), joined(bytes(one.per_second.received_bytes)),
    joined(bytes(one.per_second.sent_bytes)), joined(bytes(one.queued_bytes)), joined(number(one.errors)),
  ]), "No client is connected.");
  const killed = server.sessions_killed, refused = server.clients_refused;
  $("sessions-hint").textContent = `${killed} killed, ${refused} ${refused === 1 ? "client" : "clients"} refused since the start`;
}

function showOperators(server) {
  const most = Math.max(...server.operators.map((one) => one.recent_seconds), 1e-9);
  fill($("operators"), [
    { name: "operator", className: "code cut" }, { name: "time in the last 60 s" },
    { name: "calls", className: "optional" }, { name: "each" },
  ], server.operators.slice(0, 10).map((one) => [
    one.name.replace(/^aten::/, ""), share(one.recent_seconds / most, duration(one.recent_seconds)),
    joined(number(one.calls)), duration(one.seconds / one.calls),
  ]), "Nothing has run yet.");
}

function showWaits(clients) {
  const byLine = new Map();
  for (const wait of clients.flatMap((client) => client.waits)) {
    const sum = byLine.get(wait.line) || { line: wait.line, count: 0, seconds: 0 };
    sum.count += wait.count;
    sum.seconds += wait.seconds;
    byLine.set(wait.line, sum);
  }
  const all = [...byLine.values()].sort((a, b) => b.seconds - a.seconds);
  const most = Math.max(...all.map((wait) => wait.seconds), 1e-9);
  fill($("waits"), [
    { name: "line", className: "code cut" }, { name: "time" }, { name: "waits", className: "optional" }, { name: "each" },
  ], all.slice(0, 10).map((wait) => [
    wait.line.split("/").slice(-2).join("/") || "(unknown)", share(wait.seconds / most, duration(wait.seconds)),
    joined(number(wait.count)), duration(wait.seconds / wait.count),
  ]), "No program started by torch-remote run on this machine has waited yet.");
}

function showDevices(server) {
  const byName = new Map();
  for (const session of server.sessions) {
    if (!session.device) continue;
    const found = byName.get(session.device) || { memory: 0, total: session.device_memory, sessions: 0, count: session.devices };
    found.memory += session.memory;
    found.sessions += 1;
    byName.set(session.device, found);
  }
  const rows = [...byName].map(([name, one]) => {
    const bar = element("i");
    bar.style.width = `${one.total ? Math.min(100, (100 * one.memory) / (one.total * one.count)) : 0}%`;
    const total = joined(bytes(one.total * one.count));
    return element("div", { className: "device" },
      element("span", { textContent: one.count > 1 ? `${one.count} × ${name}` : name }),
      element("span", { textContent: `${joined(bytes(one.memory))} of ${total} in tensors` }),
      element("div", { className: "bar" }, bar));
  });
  if (rows.length === 0) rows.push(element("p", { className: "empty", textContent: "A server tells its devices once a client is connected." }));
  $("devices").replaceChildren(...rows);
}

function showLog(lines) {
  $("log-card").hidden = lines === null;
  if (lines === null) return;
  const log = $("log"), isAtEnd = log.scrollTop + log.clientHeight >= log.scrollHeight - 8;
  const text = lines.length ? lines.join("\n") : "The log is empty.";
  if (log.textContent === text) return;
  log.textContent = text;
  if (isAtEnd) log.scrollTop = log.scrollHeight;
}

function showState(text, kind) {
  $("state").textContent = text;
  $("state").className = kind;
}

function show(told) {
  state.columns = told.columns;
  state.samples.push(...told.samples);
  state.last = told.last;
  state.samples = state.samples.slice(-1440);
  $("login").hidden = true;
  $("page").hidden = false;
  drawCharts();
  showWaits(told.clients);
  showLog(told.log);
  if (told.error) showState(told.error, "lost");
  else showState("live", "live");
  const server = told.server;
  if (!server) return;
  $("server").textContent = `${server.host} · torch ${server.torch} · up ${duration(Math.max(1, server.time - server.started))}`;
  document.title = `${server.host} · torch-remote`;
  showTiles(server, told.error ? null : told.now);
  showSessions(server);
  showOperators(server);
  showDevices(server);
}

// --- asking

async function ask() {
  const answer = await fetch(`/api/figures?history=${state.history}&after=${state.last}`);
  if (answer.status === 401) return showLogin("");
  if (!answer.ok) throw new Error(`the page's server answers ${answer.status}`);
  show(await answer.json());
  return true;
}

async function repeat() {
  clearTimeout(state.timer);
  let goesOn = true;
  try {
    goesOn = await ask();
  } catch (error) {
    showState("torch-remote page does not answer", "lost");
    state.last = 0;
    state.samples = [];
  }
  if (goesOn) state.timer = setTimeout(repeat, INTERVAL);
}

function showLogin(text) {
  if (text) $("login-text").textContent = text;
  $("login").hidden = false;
  $("page").hidden = true;
  showState("token needed", "");
  return false;
}

async function logIn(token) {
  const answer = await fetch("/session", { method: "POST", headers: { Authorization: `Bearer ${token}` } });
  if (!answer.ok) return showLogin("This token is wrong. It is in the token file of torch-remote page.");
  return repeat();
}

function choose(history) {
  Object.assign(state, { history, last: 0, samples: [] });
  for (const button of document.querySelectorAll("[data-history]"))
    button.setAttribute("aria-pressed", String(button.dataset.history === history));
  repeat();
}

function start() {
  for (const button of document.querySelectorAll("[data-history]"))
    button.addEventListener("click", () => choose(button.dataset.history));
  $("login-form").addEventListener("submit", (event) => {
    event.preventDefault();
    logIn($("token").value.trim());
    $("token").value = "";
  });
  for (const box of document.querySelectorAll(".plot")) {
    box.addEventListener("pointermove", (event) => {
      const bounds = box.getBoundingClientRect();
      state.cursor = (event.clientX - bounds.left) / bounds.width;
      drawCharts();
    });
    box.addEventListener("pointerleave", () => {
      state.cursor = null;
      drawCharts();
    });
  }
  addEventListener("resize", drawCharts);
  addEventListener("hashchange", begin); // the URL with the token, opened where the page is already
  begin();
}

function begin() {
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  history.replaceState(null, "", location.pathname); // the token leaves the address bar
  if (token) logIn(token);
  else repeat();
}

start();
