"use strict";
// Everything as rows, with search: for those who read, and for screen readers.
const ROWS_A_PAGE = 100;
const tableState = { first: 0, found: [] };

const TABLES = {
  blocks: {
    heads: ["buffer", "bytes", "why", "made by", "last needed by", "address", "energy", "time"],
    count: (layer) => layer.blocks.born.length,
    row: (layer, place) => {
      const { born, dies, sizes, fates, offsets } = layer.blocks, [seconds, joules] = stepCost(layer, born[place]);
      return [blockName(layer, place), sizes[place].toLocaleString("en"), PICTURE.fates[fates[place]][0],
        stepName(layer, born[place]), stepName(layer, dies[place]),
        offsets[place] < 0 ? "outside" : offsets[place].toLocaleString("en"), scaledText(joules, "J"), scaledText(seconds, "s")];
    },
  },
  steps: {
    heads: ["step", "what", "begins", "energy", "time", "bytes held"],
    count: (layer) => layer.steps.actions.length,
    row: (layer, step) => {
      const [seconds, joules] = stepCost(layer, step);
      return [String(step), stepName(layer, step), scaledText(startOf(layer, step), "s"), scaledText(joules, "J"),
        scaledText(seconds, "s"), layer.steps.live_bytes[step].toLocaleString("en")];
    },
  },
  nodes: {
    heads: ["node", "operator", "phase", "energy", "time", "read from the store", "written to the store"],
    count: () => PICTURE.nodes.names.length,
    row: (_, node) => [PICTURE.nodes.names[node], PICTURE.nodes.operators[node], PICTURE.nodes.phases[node],
      scaledText(PICTURE.nodes.joules[node], "J"), scaledText(PICTURE.nodes.seconds[node], "s"),
      PICTURE.nodes.read_bytes[node].toLocaleString("en"), PICTURE.nodes.written_bytes[node].toLocaleString("en")],
  },
};
const TEXT_COLUMNS = new Set(["buffer", "why", "made by", "last needed by", "what", "node", "operator", "phase"]);

function searchTable() {
  const kind = TABLES[byId("table-kind").value], layer = currentLayer();
  const words = byId("table-search").value.toLowerCase().split(/\s+/).filter(Boolean);
  tableState.found = [];
  for (let place = 0; place < kind.count(layer); place += 1) {
    const text = words.length ? kind.row(layer, place).join(" ").toLowerCase() : "";
    if (words.every((word) => text.includes(word))) tableState.found.push(place);
  }
  tableState.first = 0;
  showTable();
}

function showTable() {
  const kind = TABLES[byId("table-kind").value], layer = currentLayer(), { first, found } = tableState;
  const last = Math.min(first + ROWS_A_PAGE, found.length);
  const cell = (tag, text, head) => {
    const made = document.createElement(tag);
    made.textContent = text;
    made.className = TEXT_COLUMNS.has(head) ? "name" : "n";
    if (made.className === "name") made.title = text;
    return made;
  };
  const line = (tag, texts) => {
    const row = document.createElement("tr");
    row.append(...texts.map((text, place) => cell(tag, text, kind.heads[place])));
    return row;
  };
  byId("table").tHead.replaceChildren(line("th", kind.heads));
  byId("table").tBodies[0].replaceChildren(...found.slice(first, last).map((place) => line("td", kind.row(layer, place))));
  const whole = kind === TABLES.nodes ? "" : ` of the ${layer.name} step`;
  byId("table-count").textContent = `${found.length ? first + 1 : 0} to ${last} of ${found.length.toLocaleString("en")}${whole}`;
  byId("table-before").disabled = first === 0;
  byId("table-after").disabled = last >= found.length;
}

function turnTable(pages) {
  tableState.first = Math.max(0, tableState.first + pages * ROWS_A_PAGE);
  showTable();
}
