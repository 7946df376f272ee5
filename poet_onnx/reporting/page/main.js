"use strict";
// Wiring: what the controls, the pointer and the keys do.
function drawAll() {
  drawCurves();
  drawMap();
  drawLanes();
}

function showLayer(place) {
  Object.assign(view, { layer: place, start: 0, end: 1, chosen: -1, fixed: false });
  byId("layer-means").textContent = `${currentLayer().means} It takes ${bytesText(currentLayer().transient_peak_bytes)} at most, `
    + `${bytesText(currentLayer().region_bytes)} laid out.`;
  drawMap();
  toPeak();
  searchTable();
}

function makeChoices() {
  LAYERS.forEach((layer, place) => {
    const choice = document.createElement("label"), input = document.createElement("input");
    Object.assign(input, { type: "radio", name: "layer", value: String(place), checked: place === view.layer });
    input.addEventListener("change", () => showLayer(place));
    choice.append(input, ` ${layer.name}`);
    byId("layer-choice").append(choice, " ");
  });
  const used = new Set(LAYERS.flatMap((layer) => layer.blocks.fates));
  legend("map-legend", PICTURE.fates.filter((_, place) => used.has(place)).map(([name, means]) => [name, name, means]));
}

function listenToMap() {
  const canvas = byId("map");
  let dragged = null;
  const at = (event) => [event.clientX - canvas.getBoundingClientRect().left, event.clientY - canvas.getBoundingClientRect().top];
  const share = (event) => Math.min(1, Math.max(0, (at(event)[0] - MARGIN.left) / (canvas.clientWidth - MARGIN.left - MARGIN.right)));
  canvas.addEventListener("pointermove", (event) => {
    if (dragged === null) {
      if (!view.fixed) choose(blockAt(...at(event)));
      return;
    }
    move((dragged - event.clientX) / (canvas.clientWidth - MARGIN.left - MARGIN.right));
    dragged = event.clientX;
  });
  canvas.addEventListener("pointerdown", (event) => { dragged = event.clientX; canvas.setPointerCapture(event.pointerId); });
  canvas.addEventListener("pointerup", (event) => {
    if (dragged === event.clientX) {
      const place = blockAt(...at(event));
      view.fixed = place >= 0;
      choose(place);
    }
    dragged = null;
  });
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.shiftKey && document.activeElement !== canvas) return;
    event.preventDefault();
    zoom(event.deltaY > 0 ? 1.25 : 0.8, share(event));
  }, { passive: false });
  canvas.addEventListener("dblclick", (event) => zoom(0.4, share(event)));
  canvas.addEventListener("keydown", (event) => {
    const keys = {
      "+": () => zoom(0.7, 0.5), "=": () => zoom(0.7, 0.5), "-": () => zoom(1.4, 0.5), 0: () => zoom(1e9, 0.5), p: toPeak,
      Escape: () => { view.fixed = false; choose(-1); },
      Home: () => reveal(0), End: () => reveal(currentLayer().blocks.born.length - 1),
    };
    const act = event.key.startsWith("Arrow") ? () => { view.fixed = true; reveal(neighbour(event.key)); } : keys[event.key];
    if (!act || event.metaKey || event.altKey) return;
    event.preventDefault();
    act();
  });
}

function listenToControls() {
  for (const input of document.querySelectorAll("input[name=axis]")) {
    input.addEventListener("change", () => { Object.assign(view, { byTime: input.value === "time", start: 0, end: 1 }); drawMap(); });
  }
  byId("same-scale").addEventListener("change", drawMap);
  byId("zoom-in").addEventListener("click", () => zoom(0.6, 0.5));
  byId("zoom-out").addEventListener("click", () => zoom(1.7, 0.5));
  byId("zoom-all").addEventListener("click", () => zoom(1e9, 0.5));
  byId("to-peak").addEventListener("click", () => { view.fixed = true; toPeak(); });
  byId("table-kind").addEventListener("change", searchTable);
  byId("table-search").addEventListener("input", searchTable);
  byId("table-before").addEventListener("click", () => turnTable(-1));
  byId("table-after").addEventListener("click", () => turnTable(1));
  window.addEventListener("resize", drawAll);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
}

makeChoices();
listenToMap();
listenToControls();
listenToBudgets();
drawCurves();
drawLanes();
showLayer(view.layer);
document.documentElement.dataset.readyMilliseconds = String(Math.round(performance.now()));
