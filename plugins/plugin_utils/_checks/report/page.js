"use strict";
(function () {
  const data = JSON.parse(document.getElementById("pairs").textContent);

  function element(tag, text, className) {
    const made = document.createElement(tag);
    // Only textContent, so that text from hosts is never interpreted.
    if (text !== undefined) { made.textContent = text; }
    if (className) { made.className = className; }
    return made;
  }

  function significant(value) {
    const size = Math.abs(value);
    return value.toFixed(size >= 100 ? 0 : size >= 10 ? 1 : size >= 0.01 || size === 0 ? 2 : 4);
  }

  function describe(key) {
    const ends = key.split(",").map(Number);
    const pair = data.pairs[key];
    const made = [element("h4", data.machines[ends[0]] + " → " + data.machines[ends[1]])];
    if (!pair) { made.push(element("p", "Not measured.", "said")); return made; }
    const list = element("dl");
    [["Round trip", pair.rtt_ms, "ms"], ["Path MTU", pair.path_mtu, "bytes"], ["Clock difference", pair.offset_s, "s"],
      ["Bandwidth", pair.bandwidth_gbps, "Gbit/s"], ["RDMA", pair.rdma_gbps, "Gbit/s"],
      ["RDMA latency", pair.rdma_latency_us, "µs"]].forEach(function (row) {
      if (row[1] === undefined) { return; }
      const item = element("div");
      const shown = Number.isInteger(row[1]) ? String(row[1]) : significant(row[1]);
      item.append(element("dt", row[0]), element("dd", shown + " " + row[2]));
      list.append(item);
    });
    if (list.children.length) { made.push(list); }
    if (pair.message) { made.push(element("p", pair.message, "said")); }
    if (pair.remedy) { made.push(element("p", pair.remedy, "todo")); }
    return made;
  }

  document.querySelectorAll("table.matrix").forEach(function (table) {
    const detail = document.querySelector('.detail[data-for="' + table.id + '"]');
    const show = function (event) {
      const cell = event.target.closest("td.cell");
      if (cell) { detail.replaceChildren(...describe(cell.dataset.pair)); }
    };
    table.addEventListener("mouseover", show);
    table.addEventListener("focusin", show);
    table.addEventListener("click", show);
    const first = table.querySelector("td.cell");
    if (first) { first.tabIndex = 0; }
    table.addEventListener("keydown", function (event) {
      const move = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key];
      const cell = event.target.closest("td.cell");
      if (!move || !cell) { return; }
      event.preventDefault();
      let place = cell.dataset.pair.split(",").map(Number);
      let next = null;
      do {
        place = [place[0] + move[0], place[1] + move[1]];
        next = table.querySelector('[data-pair="' + place.join(",") + '"]');
        // The diagonal has no cell, so skip it.
      } while (!next && place[0] === place[1] && place[0] >= 0 && place[0] < data.machines.length);
      if (next) {
        cell.tabIndex = -1;
        next.tabIndex = 0;
        next.focus();
      }
    });
  });
}());
