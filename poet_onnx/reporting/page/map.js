"use strict";
// The map: every buffer a rectangle, steps or time from left to right, addresses from bottom to top.
const view = { layer: LAYERS.length - 1, byTime: false, start: 0, end: 1, chosen: -1, fixed: false };
const currentLayer = () => LAYERS[view.layer];
const MARGIN = { left: 78, right: 10, top: 10, bottom: 26 };

const lastX = (layer) => (view.byTime ? layer.seconds : layer.steps.actions.length) || 1;
const xOf = (layer, step) => (view.byTime ? startOf(layer, step) : step);

function mapScale() {
  const layer = currentLayer(), canvas = byId("map"), width = canvas.clientWidth;
  const height = Number(canvas.getAttribute("data-height") || canvas.getAttribute("height"));
  const whole = lastX(layer), left = MARGIN.left, right = width - MARGIN.right, bottom = height - MARGIN.bottom;
  const shown = byId("same-scale").checked ? LAYERS : [layer];
  const budget = view.layer === LAYERS.length - 1 ? PICTURE.activation_budget_bytes || 0 : 0;
  const held = Math.max(...shown.map((each) => each.region_bytes));
  const top = Math.max(held, budget < 3 * held ? budget : 0, 1) * 1.1;
  const span = (view.end - view.start) * whole;
  return {
    layer, left, right, bottom, top,
    x: (value) => left + ((value - view.start * whole) / span) * (right - left),
    value: (x) => view.start * whole + ((x - left) / (right - left)) * span,
    y: (bytes) => bottom - (bytes / top) * (bottom - MARGIN.top),
    bytes: (y) => ((bottom - y) / (bottom - MARGIN.top)) * top,
  };
}

function drawMap() {
  const { context, width, height } = prepared(byId("map")), scale = mapScale();
  const { layer, left, right, bottom, top, x, y } = scale, { born, dies, offsets, sizes, fates } = layer.blocks;
  const inks = PICTURE.fates.map(([name]) => color(name));
  bytesAxis(context, top, left, right, y);
  context.save();
  context.beginPath();
  context.rect(left, 0, right - left, bottom);
  context.clip();
  for (let place = 0; place < born.length; place += 1) {
    if (offsets[place] < 0) continue;
    const from = x(xOf(layer, born[place])), to = x(xOf(layer, dies[place] + 1));
    if (to < left || from > right) continue;
    const upper = y(offsets[place] + sizes[place]), high = y(offsets[place]) - upper, wide = to - from;
    context.fillStyle = inks[fates[place]];
    context.fillRect(from, upper, Math.max(0.5, wide - (wide > 3 ? 0.6 : 0)), Math.max(0.5, high - (high > 3 ? 0.6 : 0)));
  }
  if (view.chosen >= 0 && offsets[view.chosen] >= 0) {
    const place = view.chosen, from = x(xOf(layer, born[place])), to = x(xOf(layer, dies[place] + 1));
    const upper = y(offsets[place] + sizes[place]), high = Math.max(2, y(offsets[place]) - upper);
    context.strokeStyle = color("paper");
    context.lineWidth = 4;
    context.strokeRect(from, upper, Math.max(2, to - from), high);
    context.strokeStyle = color("ink");
    context.lineWidth = 2;
    context.strokeRect(from, upper, Math.max(2, to - from), high);
  }
  context.restore();
  drawSteps(context, scale, width, height);
  if (view.layer === LAYERS.length - 1) {
    const budget = PICTURE.activation_budget_bytes, found = PICTURE.measured && PICTURE.measured.transient_peak_bytes;
    if (budget !== null && budget <= top) levelLine(context, `budget ${bytesText(budget)}`, budget, left, right, y, color("budget"));
    if (found) levelLine(context, `measured ${bytesText(found)}`, found, left, right, y, color("measured"), true);
  }
}

function drawSteps(context, scale, width, height) {
  const { layer, left, right, bottom, x } = scale, whole = lastX(layer);
  const from = view.start * whole, to = view.end * whole, step = niceStep(to - from, Math.max(2, width / 120), false);
  const peak = x(xOf(layer, layer.peak_step) + (view.byTime ? 0 : 0.5)), isShown = peak >= left && peak <= right;
  const text = `peak ${bytesText(layer.transient_peak_bytes)}`, wide = context.measureText(text).width / 2;
  const at = Math.min(Math.max(peak, left + wide), right - wide);
  for (let value = Math.ceil(from / step) * step; value <= to; value += step) {
    const text = view.byTime ? scaledText(value, "s") : String(Math.round(value));
    const room = context.measureText(text).width + wide + 10;
    if (isShown && Math.abs(x(value) - at) < room) continue;
    if (x(value) < right - 12) label(context, text, x(value), bottom + 16, x(value) < left + 14 ? "left" : "center", color("soft"));
  }
  if (!isShown) return;
  context.fillStyle = color("ink");
  context.beginPath();
  context.moveTo(peak, bottom);
  context.lineTo(peak - 5, bottom + 8);
  context.lineTo(peak + 5, bottom + 8);
  context.fill();
  label(context, text, at, bottom + 16, "center", color("ink"));
}

function blockAt(x, y) {
  const scale = mapScale(), { layer } = scale, value = scale.value(x), bytes = scale.bytes(y);
  const { born, dies, offsets, sizes } = layer.blocks;
  if (x < scale.left || x > scale.right) return -1;
  for (let place = 0; place < born.length; place += 1) {
    const inside = offsets[place] >= 0 && offsets[place] <= bytes && bytes < offsets[place] + sizes[place];
    if (inside && xOf(layer, born[place]) <= value && value < xOf(layer, dies[place] + 1)) return place;
  }
  return -1;
}

function blockName(layer, place) {
  const tensor = layer.blocks.tensors[place];
  if (tensor >= 0) return PICTURE.tensors.names[tensor];
  return `workspace of ${PICTURE.nodes.names[layer.steps.subjects[layer.blocks.born[place]]]}`;
}

function choose(place) {
  if (place === view.chosen) return;
  view.chosen = place;
  drawMap();
  describe();
}

function describe() {
  const layer = currentLayer(), place = view.chosen, box = byId("details");
  if (place < 0) {
    box.innerHTML = '<p class="hint">Point at a rectangle.</p>';
    return;
  }
  const { born, dies, offsets, sizes, fates, tensors } = layer.blocks, [name, means] = PICTURE.fates[fates[place]];
  const made = (tag, text, className) => Object.assign(document.createElement(tag), { textContent: text, className: className || "" });
  const chip = made("span", "", "chip");
  chip.style.background = `var(--${name.replace(/ /g, "-")})`;
  const why = made("p", "", "why");
  why.append(chip, made("strong", `${name}. `), means);
  const type = tensors[place] >= 0 ? `${PICTURE.tensors.types[tensors[place]]}, ` : "";
  const list = document.createElement("dl"), [seconds, joules] = stepCost(layer, born[place]);
  const [from, to] = [startOf(layer, born[place]), startOf(layer, dies[place] + 1)];
  for (const [term, text] of [
    ["made by", `${stepName(layer, born[place])}, step ${born[place]}`],
    ["that takes", `${scaledText(joules, "J")} and ${scaledText(seconds, "s")}`],
    ["last needed by", `${stepName(layer, dies[place])}, step ${dies[place]}`],
    ["is there", `${scaledText(to - from, "s")}: ${scaledText(from, "s")} to ${scaledText(to, "s")}`],
    ["address", offsets[place] < 0 ? "outside of the region"
      : `${offsets[place].toLocaleString("en")} to ${(offsets[place] + sizes[place]).toLocaleString("en")}`],
  ]) list.append(made("dt", term), made("dd", text));
  box.replaceChildren(made("h3", blockName(layer, place)),
    made("p", `${type}${bytesText(sizes[place])} (${sizes[place].toLocaleString("en")} bytes)`, "type"), why, list);
}

// Zoom to a share of what is shown, around a place between 0 and 1 of it.
function zoom(factor, around) {
  const span = Math.min(1, Math.max(4 / lastX(currentLayer()), (view.end - view.start) * factor)), whole = view.byTime;
  const least = whole ? Math.max(span, 1e-5) : span, centre = view.start + (view.end - view.start) * around;
  view.start = Math.min(Math.max(0, centre - least * around), 1 - Math.min(1, least));
  view.end = Math.min(1, view.start + least);
  drawMap();
}

function move(share) {
  const span = view.end - view.start;
  view.start = Math.min(Math.max(0, view.start + share * span), 1 - span);
  view.end = view.start + span;
  drawMap();
}

function reveal(place) {
  if (place < 0) {
    describe();
    return;
  }
  const layer = currentLayer(), centre = xOf(layer, layer.blocks.born[place]) / lastX(layer), span = view.end - view.start;
  if (centre < view.start || centre > view.end) {
    view.start = Math.min(Math.max(0, centre - span / 2), 1 - span);
    view.end = view.start + span;
  }
  choose(place);
}

function toPeak() {
  const layer = currentLayer(), { born, dies, sizes, offsets } = layer.blocks;
  let best = -1;
  for (let place = 0; place < born.length; place += 1) {
    const there = born[place] <= layer.peak_step && layer.peak_step <= dies[place] && offsets[place] >= 0;
    if (there && (best < 0 || sizes[place] > sizes[best])) best = place;
  }
  reveal(best);
}

// The next buffer by birth (left, right), or by address among those that are there at the same time (up, down).
function neighbour(key) {
  const { born, dies, offsets } = currentLayer().blocks, place = view.chosen;
  const step = key === "ArrowRight" ? 1 : -1;
  if (place < 0) return born.findIndex((_, each) => offsets[each] >= 0);
  if (key === "ArrowLeft" || key === "ArrowRight") {
    for (let each = place + step; each >= 0 && each < born.length; each += step) if (offsets[each] >= 0) return each;
    return place;
  }
  let best = place;
  for (let each = 0; each < born.length; each += 1) {
    if (offsets[each] < 0 || born[each] > born[place] || dies[each] < born[place]) continue;
    const above = offsets[each] - offsets[place], nearest = offsets[best] - offsets[place];
    const ahead = key === "ArrowUp" ? above : -above, known = key === "ArrowUp" ? nearest : -nearest;
    if (ahead > 0 && (best === place || ahead < known)) best = each;
  }
  return best;
}
