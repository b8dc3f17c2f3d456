"use strict";
// Text from topics is only ever set as text: query ids and details are what strangers wrote.

const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
let shown = null;
let failures = 0;

function el(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) made.setAttribute(name, value);
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}
function draw(tag, attributes, text) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
}
function svg(width, height, stretch) {
  const made = draw("svg", { viewBox: `0 0 ${width} ${height}` });
  if (stretch) made.setAttribute("preserveAspectRatio", "none");
  return made;
}
const number = (value, digits = 0) => value === null || value === undefined ? "–" : value.toLocaleString("en", { maximumFractionDigits: digits, minimumFractionDigits: digits });
const rate = (value) => value === null ? "–" : value >= 100 ? number(value) : number(value, 1);
const percent = (value, digits = 1) => value === null || value === undefined ? "–" : number(100 * value, digits);
function ago(at) {
  const seconds = Math.max(0, shown.now - at);
  return seconds < 60 ? `${Math.round(seconds)} s ago` : seconds < 3600 ? `${Math.round(seconds / 60)} min ago` : `${Math.round(seconds / 3600)} h ago`;
}
const sum = (values) => values.reduce((total, value) => total + (value || 0), 0);

// -- theme

function theme(name) {
  document.documentElement.dataset.theme = name;
  try { localStorage.setItem("theme", name); } catch { /* a browser that keeps nothing */ }
}
function startTheme() {
  let kept = null;
  try { kept = localStorage.getItem("theme"); } catch { /* as above */ }
  document.documentElement.dataset.theme = kept || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  $("theme").onclick = () => theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
}

// -- asking

async function ask() {
  const headers = {};
  const token = sessionStorage.getItem("token");
  if (token) headers.Authorization = `Bearer ${token}`;
  try {
    const answer = await fetch("/state", { headers, cache: "no-store" });
    if (answer.status === 401) { login(Boolean(token)); return; }
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    shown = await answer.json();
    failures = 0;
    document.body.classList.remove("stale");
    $("login").hidden = true;
    render();
  } catch (error) {
    failures += 1;
    if (failures > 2) { document.body.classList.add("stale"); health("bad", `no answer from this server (${error.message})`); }
  }
  setTimeout(ask, 1000);
}
function login(wrong) {
  sessionStorage.removeItem("token");
  $("login").hidden = false;
  $("refused").textContent = wrong ? "not that one" : "";
  health("warn", "token needed");
  $("login").onsubmit = (event) => { event.preventDefault(); sessionStorage.setItem("token", $("token").value); $("token").value = ""; ask(); };
}
function health(state, text) {
  $("health").className = state;
  $("health").lastElementChild.textContent = text;
}

// -- what is shown

function chosen() {
  const app = $("app").value;
  return app && shown.series[app] ? [app] : Object.keys(shown.series);
}
function series(name) {
  const apps = chosen();
  const length = shown.span;
  return Array.from({ length }, (_, i) => sum(apps.map((app) => shown.series[app][name][i])));
}

function render() {
  $("prefix").textContent = shown.prefix;
  const options = ["", ...shown.apps.map((app) => app.name)];
  if (options.length !== $("app").options.length) {
    const kept = $("app").value;
    $("app").replaceChildren(...options.map((name) => el("option", { value: name }, name || "all")));
    $("app").value = kept;
  }
  const alive = shown.devices.filter((device) => device.alive).length;
  const unsafe = shown.apps.filter((app) => app.state === "safe_mode");
  const unrouted = shown.apps.filter((app) => !app.routed);
  if (unrouted.length) health("bad", `nothing routes ${unrouted.map((app) => app.name).join(", ")}`);
  else if (!shown.plan) health("warn", "no plan yet");
  else if (unsafe.length) health("bad", `safe mode: ${unsafe.map((app) => app.name).join(", ")}`);
  else if (shown.host.starved) health("bad", "host starved");
  else if (alive < shown.devices.length) health("warn", `${shown.devices.length - alive} of ${shown.devices.length} devices silent`);
  else health("ok", "live");
  $("epoch").textContent = shown.plan ? `plan ${shown.plan.epoch.join(".")}, ${ago(shown.plan.created)}` : "";
  $("starved").hidden = !shown.host.starved;
  $("starved").textContent = shown.host.starved ? `Host starved: ${shown.host.detail}` : "";
  shaded();
  tiles(alive);
  flow();
  accuracy();
  mix();
  devices();
  decisions();
  misses();
}

function tiles(alive) {
  const apps = shown.apps.filter((app) => chosen().includes(app.name));
  const demand = sum(apps.map((app) => app.demand));
  const good = sum(apps.map((app) => app.goodput));
  const missed = sum(apps.map((app) => app.missed));
  const share = good + missed ? missed / (good + missed) : null;
  const weigh = (name) => good ? sum(apps.map((app) => (app[name] || 0) * app.goodput)) / good : null;
  const slowest = apps.filter((app) => app.p99_ms !== null).sort((a, b) => b.p99_ms / b.slo_ms - a.p99_ms / a.slo_ms)[0];
  const queued = sum(shown.devices.map((device) => device.queued));
  $("tiles").replaceChildren(
    tile("Demand", rate(demand), "rows/s", "asked, mean of 10 s"),
    tile("Goodput", rate(good), "queries/s", "answered on time"),
    tile("Violations", percent(share), "%", share === null ? "no queries" : `${rate(missed)} a second missed`, share > 0.05 ? "bad" : share > 0.005 ? "warn" : ""),
    tile("Accuracy", percent(weigh("accuracy")), "%", good ? `${percent(weigh("of_best"))} % of the best` : "nothing answered"),
    tile("p99 latency", slowest ? number(slowest.p99_ms) : "–", "ms", slowest ? `${slowest.name}, SLO ${number(slowest.slo_ms)} ms` : "", slowest && slowest.p99_ms > slowest.slo_ms ? "bad" : ""),
    ...apps.filter((app) => app.misses_left !== null).slice(0, 3).map((app) =>
      tile("Misses left", `${app.misses_left}`, app.name, `${app.promised}; the least of 10 s`, app.state === "safe_mode" ? "bad" : app.misses_left ? "" : "warn")),
    tile("Devices", `${alive}`, `of ${shown.devices.length}`, `${queued} queued, loops ${number(shown.host.late_ms)} ms late`, alive < shown.devices.length || shown.host.late_ms > 50 ? "warn" : ""),
  );
}
function tile(name, value, unit, note, state) {
  return el("div", { class: `tile ${state || ""}` }, el("span", {}, name), el("b", {}, value, el("small", {}, unit)), el("em", {}, note));
}

// -- charts: time from left to right, the last second at the right edge

const LEFT = 42, BOTTOM = 20, TOP = 6;
function frame(box, top, ticks, format) {
  const width = box.clientWidth || 600, height = box.clientHeight || 210;
  const picture = svg(width, height);
  const x = (i) => LEFT + (width - LEFT - 4) * i / (shown.span - 1);
  const y = (value) => TOP + (height - TOP - BOTTOM) * (1 - value / top);
  for (const tick of ticks) {
    picture.append(draw("line", { class: tick === ticks[0] ? "axis" : "grid", x1: LEFT, x2: width, y1: y(tick), y2: y(tick) }));
    picture.append(draw("text", { x: LEFT - 7, y: y(tick) + 4, "text-anchor": "end" }, format(tick)));
  }
  for (let back = 120; back >= 0; back -= 30) {
    const i = Math.max(0, shown.span - 1 - back);
    picture.append(draw("text", { x: x(i), y: height - 4, "text-anchor": back === 0 ? "end" : back === 120 ? "start" : "middle" }, back ? `−${back} s` : "now"));
  }
  return { picture, x, y, width, height };
}
function steps(top) {
  const raw = top / 4, size = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((f) => f * size).find((s) => s >= raw);
  return Array.from({ length: Math.ceil(top / step) + 1 }, (_, i) => i * step);
}
const block = (x, y, width, height) => `M${x.toFixed(2)} ${y.toFixed(2)}h${width.toFixed(2)}v${height.toFixed(2)}h${(-width).toFixed(2)}Z`;
const label = (tick) => tick.toLocaleString("en", { maximumFractionDigits: 1 });
function path(values, x, y) {
  let out = "", pen = false;
  values.forEach((value, i) => {
    if (value === null) { pen = false; return; }
    out += `${pen ? "L" : "M"}${x(i).toFixed(1)} ${y(value).toFixed(1)}`;
    pen = true;
  });
  return out;
}
function flow() {
  const demand = series("demand"), good = series("good_rows"), missed = series("missed_rows");
  const carries = known("capacity"), best = known("best_only");
  const box = $("flow");
  const asked = Math.max(10, ...demand, ...good.map((value, i) => value + missed[i]));
  // What is carried may be many times what is asked: it is shown up to twice that.
  const ticks = steps(Math.max(asked, Math.min(2 * asked, ...[Math.max(...carries.map((value) => value || 0), ...best.map((value) => value || 0))])));
  const most = ticks[ticks.length - 1];
  const { picture, x, y, width } = frame(box, ticks[ticks.length - 1], ticks, label);
  picture.append(draw("path", { class: "a-good", d: `${path(good, x, y)}L${x(shown.span - 1)} ${y(0)}L${x(0)} ${y(0)}Z` }));
  const bar = Math.max(1.5, (width - LEFT) / shown.span - 1);
  missed.forEach((value, i) => {
    if (value) picture.append(draw("rect", { class: "f-missed", x: x(i) - bar / 2, width: bar, y: y(value), height: Math.max(1, y(0) - y(value)) }));
  });
  const upTo = (values) => values.map((value) => value === null ? null : Math.min(value, most));
  picture.append(draw("path", { class: "f-plan", d: path(upTo(carries), x, y) }));
  picture.append(draw("path", { class: "f-best", d: path(upTo(best), x, y) }));
  picture.append(draw("path", { class: "f-demand", d: path(demand, x, y) }));
  picture.append(draw("path", { class: "f-good", d: path(good, x, y) }));
  place(box, picture, x, flow, (i) => `rows a second\ndemand ${number(demand[i])}\non time ${number(good[i])}\nmissed ${number(missed[i])}\nplan carries ${number(carries[i])}\nbest alone ${number(best[i])}`);
}
function known(name) {
  const lines = chosen().map((app) => shown.series[app][name]);
  return Array.from({ length: shown.span }, (_, i) => lines.every((line) => line[i] === null) ? null : sum(lines.map((line) => line[i])));
}
function mix() {
  const parts = chosen().flatMap((app) => Object.entries(shown.series[app].mix).map(([variant, counts]) => ({ app, variant, counts })));
  const rank = (part) => { const found = shown.variants.find((one) => one.app === part.app && one.name === part.variant); return found ? found.accuracy : 0; };
  parts.sort((a, b) => a.app === b.app ? rank(b) - rank(a) : a.app < b.app ? -1 : 1);
  const box = $("mix");
  const { picture, x, y, width } = frame(box, 1, [0, 0.5, 1], (tick) => `${100 * tick} %`);
  const bar = (width - LEFT) / shown.span;
  const totals = Array.from({ length: shown.span }, (_, i) => sum(parts.map((part) => part.counts[i])));
  const below = totals.map(() => 0);
  for (const part of parts) {
    let drawn = "";
    part.counts.forEach((count, i) => {
      if (!count) return;
      const share = count / totals[i];
      drawn += block(x(i) - bar / 2, y(below[i] + share), bar + 0.4, y(below[i]) - y(below[i] + share));
      below[i] += share;
    });
    if (drawn) picture.append(draw("path", { class: `c${shade(part.app, part.variant)}`, d: drawn }));
  }
  place(box, picture, x, mix, (i) => parts.filter((part) => part.counts[i]).map((part) => `${part.app}: ${part.variant} ${number(part.counts[i])}`).join("\n") || "no answers");
}
// Five colours, by four dashes: an app keeps its own, whichever are shown.
function stroke(app) {
  const at = Object.keys(shown.series).indexOf(app);
  return `l${at % 5} d${Math.floor(at / 5) % 4}`;
}
function sample(name) {
  const picture = svg(26, 10);
  picture.append(draw("path", { class: name, d: "M0 5L26 5" }));
  return picture;
}
function accuracy() {
  const apps = chosen();
  const values = apps.map((app) => shown.series[app].accuracy);
  const found = values.flat().filter((value) => value !== null);
  const low = found.length ? Math.max(0, Math.floor(20 * (Math.min(...found) - 0.01)) / 20) : 0.5;
  const ticks = steps(1 - low).filter((tick) => low + tick < 1.0001);
  const box = $("accuracy");
  const { picture, x, y } = frame(box, 1 - low, ticks, (tick) => `${label(100 * (low + tick))} %`);
  values.forEach((line, i) => picture.append(draw("path", { class: stroke(apps[i]), d: path(line.map((value) => value === null ? null : value - low), x, y) })));
  $("accuracy-legend").replaceChildren(...apps.map((app) => el("li", { class: "plain" }, sample(stroke(app)), app)));
  place(box, picture, x, accuracy, (i) => apps.map((app, n) => `${app} ${values[n][i] === null ? "–" : percent(values[n][i]) + " %"}`).join("\n"));
}
const pointers = new Map();
function place(box, picture, x, again, tell) {
  box.onpointermove = (event) => { pointers.set(box.id, event.clientX - box.getBoundingClientRect().left); again(); };
  box.onpointerleave = () => { pointers.delete(box.id); again(); };
  box.replaceChildren(picture);
  if (!pointers.has(box.id)) return;
  const step = x(1) - x(0);
  const i = Math.min(shown.span - 1, Math.max(0, Math.round((pointers.get(box.id) - x(0)) / step)));
  picture.append(draw("line", { class: "cross", x1: x(i), x2: x(i), y1: TOP, y2: box.clientHeight - BOTTOM }));
  const tip = el("div", { class: "tip" }, `${shown.span - 1 - i} s ago\n${tell(i)}`);
  box.append(tip);
  tip.style.left = `${Math.min(box.clientWidth - tip.offsetWidth, Math.max(LEFT, x(i) + 8))}px`;
}

// -- devices: darker (in the dark: lighter) is more accurate, within each app

let shades = new Map();
function shaded() {
  shades = new Map();
  const byApp = new Map();
  for (const { app, name } of shown.variants) byApp.set(app, [...(byApp.get(app) || []), name]);
  for (const [app, all] of byApp) all.forEach((name, at) => shades.set(`${app} ${name}`, all.length === 1 ? 4 : 1 + Math.round(5 * at / (all.length - 1))));
}
const shade = (app, variant) => shades.get(`${app} ${variant}`) || 3;
function strip(parts, title) {
  const picture = svg(100, 10, true);
  let at = 0;
  for (const [share, name, told] of parts) {
    const rect = draw("rect", { class: name, x: at, y: 0, width: Math.max(0, 100 * share - 0.4), height: 10 });
    rect.append(draw("title", {}, told || title || ""));
    picture.append(rect);
    at += 100 * share;
  }
  return el("div", { class: "bar" }, picture);
}
function meter(name, middle, value) {
  return el("div", { class: "meter" }, el("span", {}, name), middle, el("b", {}, value));
}
function spark(values) {
  const picture = svg(100, 22, true);
  const top = Math.max(4, ...values);
  const width = 100 / shown.span;
  const bars = values.map((value, i) => block(100 - (values.length - i) * width, 22 - 21 * value / top, width * 0.85, 21 * value / top));
  picture.append(draw("path", { class: "cool", d: bars.join("") }));
  return el("div", { class: "spark" }, picture);
}
function devices() {
  $("variant-legend").replaceChildren(
    ...shown.variants.map((known) => el("li", { class: "plain" }, el("i", { class: `c${shade(known.app, known.name)}` }), `${known.name} ${percent(known.accuracy)} %`)),
  );
  if (!shown.devices.length) { $("devices").replaceChildren(el("p", { class: "none" }, "No worker has told of itself yet.")); return; }
  $("devices").replaceChildren(...shown.devices.map(device));
}
function device(one) {
  const busy = one.utilisation === null ? 0 : one.utilisation;
  const state = one.alive ? `${rate(one.rate)} answers/s` : one.age === null ? "never heard" : `silent for ${number(one.age)} s`;
  const mix = one.mix.map((held) => [held.share, `c${shade(held.app, held.variant)}`, `${held.app}: ${held.variant} ${percent(held.share, 0)} %`]);
  return el("article", { class: `device ${one.alive ? "" : "gone"}`, "data-device": one.name },
    el("h3", {}, one.name, el("small", {}, one.type), el("em", {}, state)),
    meter("busy", strip([[busy, busy > 0.9 ? "hot" : "cool", ""]]), `${percent(busy, 0)} %`),
    meter("queue", spark(one.queue), number(one.queued)),
    meter("mix", strip(mix), mix.length ? `${mix.length} var.` : "idle"),
    ...(one.late_ms > 10 ? [meter("loop", strip([[Math.min(1, one.late_ms / 200), one.late_ms > 50 ? "hot" : "cool", "how late its event loop wakes"]]), `${number(one.late_ms)} ms`)] : []),
    one.slices.length ? el("div", { class: "slices" }, ...one.slices.map((part) => el("span", { class: part.overdue ? "gone" : part.busy_ms > 0 ? "runs" : "", title: `${part.queued} queued` }, el("b", {}, part.name), ` ${part.profile && part.profile !== part.name ? part.profile : ""} ${part.queued} queued${part.busy_ms > 0 ? `, ${number(part.busy_ms)} ms to run` : ""}`))) : null,
    el("ul", { class: "hosted" }, ...(one.hosted.length ? one.hosted.map((held) => el("li", {},
      el("span", { title: held.variants.join(", ") }, `${held.app}: ${held.variants.join(", ")}${held.slice === "whole" ? "" : ` on ${held.slice}`}`),
      el("span", {}, `${percent(held.share, 0)} % of demand, batch ≤ ${held.max_batch}`))) : [el("li", {}, "nothing hosted by the plan")])));
}

// -- decisions and misses

function decisions() {
  const plans = shown.plans.map((plan) => ({ at: plan.created, line: planLine(plan) }));
  const said = shown.said.map((one) => ({ at: one.at, line: saidLine(one) }));
  const all = [...plans, ...said].sort((a, b) => b.at - a.at).slice(0, 40);
  if (!all.length) { $("decisions").replaceChildren(el("li", { class: "none" }, "No plan has been published yet.")); return; }
  $("decisions").replaceChildren(...all.map((one) => one.line));
}
function planLine(plan) {
  const served = Object.entries(plan.served).filter(([, share]) => share < 0.9995).map(([app, share]) => `${app} served to ${percent(share)} %`);
  const demand = Object.entries(plan.demand).map(([app, rows]) => `${app} ${rate(rows)} rows/s`).join(", ");
  const gap = plan.bound > plan.objective + 0.0005 ? `, bound ${percent(plan.bound)} %` : "";
  const became = plan.changes.length ? `; ${plan.changes.join("; ")}` : plan.epoch[1] > 1 ? "; the same variants, other shares" : "";
  return el("li", {}, el("time", {}, ago(plan.created)), el("span", {}, el("b", {}, `plan ${plan.epoch.join(".")}`), ` because: ${plan.reason}${became}`),
    el("small", {}, `for ${demand || "no demand"}: accuracy ${percent(plan.objective)} %${gap} on ${plan.devices === 1 ? "one device" : `${plan.devices} devices`}, ${number(plan.solve_ms)} ms${served.length ? "; " + served.join(", ") : ""}`));
}
const SENTENCES = {
  safe_mode: ["Safe mode", "promises to NAME may break"], promise_kept: ["Promise kept", "to NAME again"],
  starved: ["Host starved", "the machine is short, not the models"], keeps_up: ["Host keeps up", "again"],
  shortage: ["Shortage", "the devices cannot serve all of NAME"], served: ["Enough", "all of NAME can be served again"],
  wrong: ["Profile corrected", "NAME is planned with as it was measured"], right: ["Profile right", "NAME is as profiled again"],
  lost: ["Device lost", "NAME; its queries go to others"], joined: ["Device joined", "NAME"], returned: ["Device returned", "NAME"],
  left: ["Device left", "NAME"], leaving: ["Device leaves", "NAME"], overdue: ["Device stuck", "nothing advances on NAME"],
  overrules: ["Stranger overruled", "the planner published again"], refuses_lease: ["Stranger refused", "a made-up claim to lead"],
  took_over: ["Leader changed", "another planner leads"], held: ["Leader", "this planner leads"],
  rows_refused: ["Large queries refused", "of NAME, for the promise made to it"], rows_taken: ["Large queries taken", "of NAME"],
  hop_exceeded: ["Late on their way", "queries of NAME, for the promise made to it"], hop_kept: ["In time on their way", "queries of NAME"],
  nothing_routes: ["Nothing routes", "NAME: its queries are rejected"], load_failed: ["Load failed", "on NAME"],
  set_aside: ["Device loads nothing", "plans do without NAME"],
};
function saidLine(one) {
  const kind = ["safe_mode", "starved", "lost", "shortage", "nothing_routes", "overdue"].includes(one.state) ? "safe" : ["promise_kept", "keeps_up", "served"].includes(one.state) ? "kept" : "";
  const name = one.subject.replace(/^[a-z]+:/, "");
  const [head, rest] = SENTENCES[one.state] || [one.state.replaceAll("_", " "), one.subject];
  return el("li", { class: kind }, el("time", {}, ago(one.at)), el("span", {}, el("b", {}, head), ` ${rest.replace("NAME", name)}`), el("small", {}, one.detail));
}
function misses() {
  const top = Math.max(1, ...shown.why.map((one) => one.count));
  $("why").replaceChildren(...(shown.why.length
    ? shown.why.map((one) => el("div", { class: "reason" }, el("span", {}, one.why), strip([[one.count / top, "red", ""]]), el("b", {}, number(one.count))))
    : [el("p", { class: "none" }, "None: every query was answered on time.")]));
  const mine = (all) => all.filter((one) => chosen().includes(one.app));
  const rows = [...mine(shown.misses).slice(0, 25), ...mine(shown.answers).slice(0, 5)].map((one) => el("tr", {},
    el("td", {}, ago(one.at)), el("td", { title: one.detail }, opens(one)),
    el("td", {}, one.reason ? `${one.kind}: ${one.reason}` : one.kind), el("td", {}, one.device || "–"), el("td", { class: "n" }, `${number(one.waited_ms)} ms`)));
  $("misses").lastElementChild.replaceChildren(...rows);
  $("misses").hidden = !rows.length;
}

function opens(one) {
  const button = el("button", { type: "button", class: "id", "data-query": one.id }, one.id);
  button.onclick = () => story(one);
  return button;
}
async function story(one) {
  const headers = {};
  const token = sessionStorage.getItem("token");
  if (token) headers.Authorization = `Bearer ${token}`;
  const answer = await fetch(`/outcome?${new URLSearchParams({ id: one.id, app: one.app })}`, { headers, cache: "no-store" });
  const told = await answer.json();
  const box = $("story");
  box.querySelector("h2").textContent = `Query ${one.id}`;
  const plain = (value) => value !== null && typeof value === "object" ? JSON.stringify(value) : String(value);
  box.querySelector("dl").replaceChildren(...Object.entries(told).flatMap(([name, value]) => [el("dt", {}, name.replaceAll("_", " ")), el("dd", {}, plain(value))]),
    el("dt", {}, "all of it"), el("dd", {}, el("code", {}, `sluice explain ${one.id} --app ${one.app}`)));
  if (!box.open) box.showModal();
}

startTheme();
$("app").onchange = () => shown && render();
addEventListener("resize", () => shown && render());
ask();
