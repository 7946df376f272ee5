"use strict";
// The slider over budgets for which a plan is known. It is there where the page was given a curve.
function showBudget() {
  const place = Number(byId("what-if").value), point = PICTURE.curve[place];
  const times = (now, before) => (before ? `${(now / before).toPrecision(3)} times` : "more than");
  const top = PICTURE.curve[PICTURE.curve.length - 1];
  const words = `With ${bytesText(point.process_bytes)} a step takes ${scaledText(point.energy_joules, "J")} and `
    + `${scaledText(point.seconds, "s")}`;
  const compared = point === top ? "." : `: ${times(point.energy_joules, top.energy_joules)} the energy and `
    + `${times(point.seconds, top.seconds)} the time of ${bytesText(top.process_bytes)}.`;
  byId("what-if-words").textContent = words + compared;
  byId("what-if").setAttribute("aria-valuetext", words + compared);
  [...byId("what-if-table").tBodies[0].rows].forEach((row, each) => row.classList.toggle("chosen", each === place));
}

function listenToBudgets() {
  if (!PICTURE.curve.length) return;
  byId("what-if").addEventListener("input", showBudget);
  showBudget();
}
