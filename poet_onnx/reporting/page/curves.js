"use strict";
// The memory of the three ways over the time of the step.
function drawCurves() {
  const { context, width, height } = prepared(byId("curves"));
  const left = 78, right = width - 10, bottom = height - 24;
  const most = Math.max(...LAYERS.map((each) => each.transient_peak_bytes)), budget = PICTURE.activation_budget_bytes;
  const isNear = budget !== null && budget < 3 * most;  // a line far above would press the curves flat
  const top = Math.max(most, isNear ? budget : 0) * 1.08;
  const seconds = Math.max(...LAYERS.map((each) => each.seconds));
  const y = (bytes) => bottom - (bytes / (top || 1)) * (bottom - 8);
  const x = (time) => left + (time / (seconds || 1)) * (right - left);
  bytesAxis(context, top, left, right, y);
  for (const layer of LAYERS) {
    const ink = color(inkOf(layer)), isPlan = layer === LAYERS[LAYERS.length - 1];
    context.beginPath();
    context.moveTo(x(0), y(0));
    layer.steps.live_bytes.forEach((bytes, step) => {
      context.lineTo(x(startOf(layer, step)), y(bytes));
      context.lineTo(x(startOf(layer, step + 1)), y(bytes));
    });
    context.lineTo(x(layer.seconds), y(0));
    context.globalAlpha = isPlan ? 0.28 : 0.12;
    context.fillStyle = ink;
    context.fill();
    context.globalAlpha = 1;
    context.strokeStyle = ink;
    context.lineWidth = isPlan ? 1.8 : 1.2;
    context.stroke();
  }
  const step = niceStep(seconds, Math.max(2, width / 130), false);
  for (let time = 0; time <= seconds; time += step) {
    label(context, scaledText(time, "s"), x(time), bottom + 13, time ? "center" : "left", color("soft"));
  }
  if (isNear) {
    levelLine(context, "budget", budget, left, right, y, color("budget"));
  }
  legend("curves-legend", LAYERS.map((each) => [
    `${each.name}: at most ${bytesText(each.transient_peak_bytes)}`, inkOf(each), each.means]));
}
