"use strict";
// Figures as people read them, and the little that all drawings share. The data is in the page: see StepPicture.
const PICTURE = JSON.parse(document.getElementById("picture").textContent);
const LAYERS = PICTURE.layers;
const byId = (id) => document.getElementById(id);
const color = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name.replace(/ /g, "-")).trim();

const inkOf = (layer) => ["original", "ordered", "rewritten"][LAYERS.indexOf(layer)];

function bytesText(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let size = count, unit = 0;
  while (Math.abs(size) >= 1024 && unit < units.length - 1) { size /= 1024; unit += 1; }
  return unit === 0 ? `${count} B` : `${size.toFixed(2)} ${units[unit]}`;
}

function scaledText(value, unit) {
  if (value === 0) return `0 ${unit}`;
  const prefixes = [[1, ""], [1e-3, "m"], [1e-6, "\u00b5"], [1e-9, "n"]];
  const [factor, prefix] = prefixes.find(([least]) => Math.abs(value) >= least) || prefixes[3];
  return `${Number((value / factor).toPrecision(4))} ${prefix}${unit}`;
}

// Steps between grid lines: 1, 2 or 5 times a power of ten, or of two for bytes.
function niceStep(span, lines, binary) {
  const raw = span / lines;
  const base = binary ? 2 ** Math.floor(Math.log2(raw)) : 10 ** Math.floor(Math.log10(raw));
  for (const factor of binary ? [1, 2] : [1, 2, 5, 10]) if (base * factor >= raw) return base * factor;
  return base * 2;
}

function axisBytes(count, step) {
  if (count === 0) return "0";
  const power = count >= 2 ** 30 ? 30 : count >= 2 ** 20 ? 20 : count >= 2 ** 10 ? 10 : 0;
  const digits = Math.max(0, Math.ceil(-Math.log10(step / 2 ** power) - 1e-9));
  return `${(count / 2 ** power).toFixed(Math.min(digits, 3))} ${{ 30: "GiB", 20: "MiB", 10: "KiB", 0: "B" }[power]}`;
}

// A canvas with as many pixels as the screen has, cleared; its size in CSS pixels.
function prepared(canvas) {
  const height = Number(canvas.getAttribute("data-height") || canvas.getAttribute("height"));
  canvas.setAttribute("data-height", height);
  const width = canvas.clientWidth, ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.font = "12px system-ui, -apple-system, 'Segoe UI', Roboto, 'Liberation Sans', Arial, sans-serif";
  return { context, width, height };
}

function label(context, text, x, y, align, ink) {
  context.fillStyle = ink;
  context.textAlign = align;
  context.textBaseline = "middle";
  context.fillText(text, x, y);
}

function bytesAxis(context, top, left, right, y) {
  const step = niceStep(top, 5, true);
  for (let value = 0; value <= top; value += step) {
    context.fillStyle = color("line");
    context.fillRect(left, Math.round(y(value)), right - left, 1);
    label(context, axisBytes(value, step), left - 8, y(value), "right", color("soft"));
  }
}

function levelLine(context, text, value, left, right, y, ink, below) {
  context.strokeStyle = ink;
  context.lineWidth = 1.5;
  context.setLineDash([6, 4]);
  context.beginPath();
  context.moveTo(left, y(value));
  context.lineTo(right, y(value));
  context.stroke();
  context.setLineDash([]);
  const width = context.measureText(text).width;
  context.fillStyle = color("card");
  context.fillRect(right - width - 8, y(value) + (below ? 3 : -17), width + 8, 14);
  label(context, text, right - 4, y(value) + (below ? 10 : -10), "right", ink);
}

function legend(id, entries) {
  byId(id).innerHTML = "";
  for (const [name, ink, title] of entries) {
    const item = document.createElement("li"), chip = document.createElement("span");
    chip.className = "chip";
    chip.style.background = `var(--${ink.replace(/ /g, "-")})`;
    item.append(chip, name);
    if (title) item.title = title;
    byId(id).append(item);
  }
}

// Steps of a layer: what they do, in words.
const ACTION_WORDS = ["runs", "page-out begins", "page-out ends", "page-in begins", "page-in ends"];
const isCompute = (layer, step) => layer.steps.actions[step] === 0;

function stepName(layer, step) {
  const subject = layer.steps.subjects[step];
  if (!isCompute(layer, step)) return `${ACTION_WORDS[layer.steps.actions[step]]}: ${PICTURE.tensors.names[subject]}`;
  const again = layer.steps.copies[step] ? `, run ${layer.steps.copies[step] + 1}` : "";
  return `${PICTURE.nodes.operators[subject]} \u2018${PICTURE.nodes.names[subject]}\u2019${again}`;
}

// Seconds and joules of a step: of its node, or of the whole transfer that begins.
function stepCost(layer, step) {
  const subject = layer.steps.subjects[step], action = layer.steps.actions[step];
  if (action === 0) return [PICTURE.nodes.seconds[subject], PICTURE.nodes.joules[subject]];
  if (action === 1) return [PICTURE.tensors.page_out_seconds[subject], PICTURE.tensors.page_out_joules[subject]];
  if (action === 3) return [PICTURE.tensors.page_in_seconds[subject], PICTURE.tensors.page_in_joules[subject]];
  return [0, 0];
}
const startOf = (layer, step) => (step < layer.steps.starts.length ? layer.steps.starts[step] : layer.seconds);
