"use strict";
// The slider over budgets for which a plan is known: those of a curve of RAM, or plans of the same graph.
const POINTS = PICTURE.curve.length ? PICTURE.curve : PICTURE.budgets;
const sizeOf = (point) => (PICTURE.curve.length ? point.process_bytes : point.transient_peak_bytes);

function showBudget() {
  const place = Number(byId("what-if").value), point = POINTS[place];
  const times = (now, before) => (before ? `${(now / before).toPrecision(3)} times` : "more than");
  const top = POINTS[POINTS.length - 1];
  const words = `With ${bytesText(sizeOf(point))} a step takes ${scaledText(point.energy_joules, "J")} and `
    + `${scaledText(point.seconds, "s")}`;
  const compared = point === top ? "." : `: ${times(point.energy_joules, top.energy_joules)} the energy and `
    + `${times(point.seconds, top.seconds)} the time of ${bytesText(sizeOf(top))}.`;
  byId("what-if-words").textContent = words + compared;
  byId("what-if").setAttribute("aria-valuetext", words + compared);
  [...byId("what-if-table").tBodies[0].rows].forEach((row, each) => row.classList.toggle("chosen", each === place));
}

function listenToBudgets() {
  if (!byId("what-if")) return;
  byId("what-if").addEventListener("input", showBudget);
  showBudget();
}
