"use strict";
// What the computing thread and the storage do over the time of the rewritten step.
function drawLanes() {
  const layer = LAYERS[LAYERS.length - 1], { context, width, height } = prepared(byId("lanes"));
  const left = 78, right = width - 10, x = (time) => left + (time / (layer.seconds || 1)) * (right - left);
  const lane = (name, top) => {
    label(context, name, left - 8, top + 18, "right", color("soft"));
    context.fillStyle = color("faint");
    context.fillRect(left, top, right - left, 36);
  };
  lane("compute", 6);
  lane("storage", 54);
  const inks = {}, used = new Set();
  for (const name of ["forward", "backward", "update", "recomputed", "paged out", "paged in", "store"]) inks[name] = color(name);
  layer.steps.actions.forEach((action, step) => {
    if (action !== 0) return;
    const node = layer.steps.subjects[step];
    const start = startOf(layer, step) + PICTURE.nodes.wait_seconds[node];
    const busy = PICTURE.nodes.seconds[node] - PICTURE.nodes.wait_seconds[node];
    const ink = layer.steps.copies[step] ? "recomputed" : PICTURE.nodes.phases[node];
    used.add(ink);
    context.fillStyle = inks[ink];
    context.fillRect(x(start), 6, Math.max(0.4, x(start + busy) - x(start)), 36);
  });
  layer.transfers.steps.forEach((step, place) => {
    const action = layer.steps.actions[step];
    const ink = action === 0 ? "store" : action === 1 ? "paged out" : "paged in";
    used.add(ink);
    context.fillStyle = inks[ink];
    const start = x(layer.transfers.starts[place]);
    context.fillRect(start, 54, Math.max(0.6, x(layer.transfers.ends[place]) - start), 36);
  });
  const step = niceStep(layer.seconds, Math.max(2, width / 130), false);
  for (let time = 0; time <= layer.seconds; time += step) {
    label(context, scaledText(time, "s"), x(time), height - 10, time ? "center" : "left", color("soft"));
  }
  const share = (seconds) => `${((100 * seconds) / (layer.seconds || 1)).toFixed(1)} %`;
  const moved = layer.transfers.starts.reduce((sum, start, place) => sum + layer.transfers.ends[place] - start, 0);
  byId("lanes-words").textContent = `Computing ${share(PICTURE.compute_seconds)} of the time, `
    + `waiting ${share(PICTURE.stall_seconds)}; the storage is busy ${share(moved)}.`;
  const names = { recomputed: "recompute", "paged out": "page out", "paged in": "page in" };
  legend("lanes-legend", Object.keys(inks).filter((ink) => used.has(ink)).map((ink) => [names[ink] || ink, ink]));
}
