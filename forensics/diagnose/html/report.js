// Adds to a report that is complete without it: tabs, a read-out under the pointer or the arrow keys, buttons that copy.
(function () {
  "use strict";
  var data = JSON.parse(document.getElementById("report-data").textContent);

  function make(tag, text, attributes) {
    var made = document.createElement(tag);
    made.textContent = text;
    Object.keys(attributes || {}).forEach(function (name) { made.setAttribute(name, attributes[name]); });
    return made;
  }

  // -- tabs: all panels stand below each other until here ------------------------------------------------------------

  var panels = Array.from(document.querySelectorAll(".panel"));
  var tabs = panels.map(function (panel) {
    panel.setAttribute("role", "tabpanel");
    panel.setAttribute("aria-labelledby", "tab-" + panel.id);
    return make("button", panel.dataset.tab, {
      type: "button", role: "tab", id: "tab-" + panel.id, "aria-controls": panel.id,
    });
  });

  function show(index) {
    panels.forEach(function (panel, i) {
      panel.hidden = i !== index;
      tabs[i].setAttribute("aria-selected", String(i === index));
      tabs[i].tabIndex = i === index ? 0 : -1;
    });
  }

  function showNamed() {
    var wanted = panels.findIndex(function (panel) { return "#" + panel.id === location.hash; });
    if (wanted >= 0) show(wanted);
    return wanted >= 0;
  }

  if (panels.length > 1) {
    var list = make("div", "", { class: "tabs", role: "tablist", "aria-label": "Plots" });
    tabs.forEach(function (tab, i) {
      tab.addEventListener("click", function () { show(i); });
      tab.addEventListener("keydown", function (event) {
        var step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (!step) return;
        var next = (i + step + tabs.length) % tabs.length;
        show(next);
        tabs[next].focus();
      });
      list.appendChild(tab);
    });
    panels[0].parentNode.insertBefore(list, panels[0]);
    panels[0].parentNode.classList.add("tabbed");
    if (!showNamed()) show(0);
    window.addEventListener("hashchange", showNamed);
  }

  // -- the read-out: which column and row is under the pointer ------------------------------------------------------

  function ms(value) {
    if (value === null) return "?";
    return (value >= 1000 ? value.toFixed(0) : value >= 100 ? value.toFixed(1) : value.toFixed(2)) + " ms";
  }

  function timeTold(column, row) {
    var t = data.time;
    var requests = t.counts.reduce(function (sum, counts) { return sum + counts[column]; }, 0);
    var lines = [t.from[column] + " to " + t.from[column + 1] + " UTC: " + requests + " requests" +
      (requests ? ", median " + ms(t.median[column]) + ", " + t.p + " " + ms(t.slow[column]) : "")];
    if (row !== null) {
      var fromTop = t.counts.length - 1 - row;
      lines.push(ms(t.edges[fromTop]) + " to " + ms(t.edges[fromTop + 1]) + ": " + t.counts[fromTop][column] + " requests");
    }
    lines.push([
      t.arrivals[column] === null ? null : t.arrivals[column] + " arrivals per s",
      t.waiting[column] === null ? null : +t.waiting[column].toPrecision(3) + " waiting",
      t.busy[column] === null ? null : "devices " + Math.round(100 * t.busy[column]) + " % busy",
    ].filter(Boolean).join(", "));
    var happened = [];
    t.lanes.forEach(function (lane) {
      if (lane.names.length) {
        lane.names.forEach(function (name) {
          if (name[0] === column) happened.push(lane.title + ": " + name[1]);
        });
        return;
      }
      lane.bins.forEach(function (bin) {
        if (bin[0] === column) happened.push(lane.title + ": " + bin[1] + (bin[2] ? ", " + bin[2] + " ms in all" : ""));
      });
    });
    return lines.concat(happened.slice(0, 6)).join("\n");
  }

  function foldTold(column, row) {
    var f = data.fold;
    var lines = ["phase " + f.from[column] + " to " + f.from[column + 1] + ": " + f.requests[column] + " requests, " +
      (100 * f.slow[column] / Math.max(1, f.requests[column])).toFixed(1) + " % slow"];
    if (row !== null) {
      var first = row * f.per_row + 1;
      lines.push("cycle " + first + (f.per_row > 1 ? " to " + (first + f.per_row - 1) : "") + ": mean " +
        ms(f.mean[row][column]));
    }
    return lines.join("\n");
  }

  function readOut(plot, told) {
    var left = +plot.dataset.left, width = +plot.dataset.width, columns = +plot.dataset.columns;
    var top = +plot.dataset.top, height = +plot.dataset.height, rows = +plot.dataset.rows;
    var cursor = plot.querySelector(".cursor"), at = 0;
    var out = make("p", "Point at the plot, or focus it and use the arrow keys.", { class: "readout", "aria-live": "polite" });
    plot.parentNode.parentNode.insertBefore(out, plot.parentNode.nextSibling);
    plot.setAttribute("tabindex", "0");

    function move(column, row) {
      at = column;
      var x = left + (column + 0.5) * width / columns;
      cursor.setAttribute("x1", x);
      cursor.setAttribute("x2", x);
      cursor.setAttribute("visibility", "visible");
      out.textContent = told(column, row);
    }

    plot.addEventListener("pointermove", function (event) {
      var point = new DOMPoint(event.clientX, event.clientY).matrixTransform(plot.getScreenCTM().inverse());
      var column = Math.floor((point.x - left) / width * columns);
      var row = Math.floor((point.y - top) / height * rows);
      if (column >= 0 && column < columns) move(column, row >= 0 && row < rows ? row : null);
    });
    plot.addEventListener("keydown", function (event) {
      var step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      move(Math.min(columns - 1, Math.max(0, at + step)), null);
    });
  }

  [["plot-time", timeTold], ["plot-fold", foldTold]].forEach(function (pair) {
    var plot = document.getElementById(pair[0]);
    if (plot) readOut(plot, pair[1]);
  });

  // -- a part of a bar and its row in the table light up together ---------------------------------------------------

  panels.forEach(function (panel) {
    function light(letter) {
      panel.querySelectorAll("[data-part]").forEach(function (part) {
        var row = part.closest("tr");
        if (row) row.classList.toggle("lit", part.dataset.part === letter);
        else part.classList.toggle("dimmed", letter !== null && part.dataset.part !== letter);
      });
    }
    panel.querySelectorAll("g[data-part], tr:has([data-part])").forEach(function (item) {
      var letter = (item.dataset.part || item.querySelector("[data-part]").dataset.part);
      item.addEventListener("pointerenter", function () { light(letter); });
      item.addEventListener("pointerleave", function () { light(null); });
    });
  });

  // -- copying ------------------------------------------------------------------------------------------------------

  document.querySelectorAll(".copy").forEach(function (block) {
    var code = block.querySelector("code");
    var button = make("button", "Copy", { type: "button" });
    button.addEventListener("click", function () {
      function done() {
        button.textContent = "Copied";
        setTimeout(function () { button.textContent = "Copy"; }, 1500);
      }
      function select() {
        // Where a page from a file may not write the clipboard, the text is selected for whoever copies it.
        getSelection().selectAllChildren(code);
        if (document.execCommand("copy")) done();
      }
      if (navigator.clipboard) navigator.clipboard.writeText(code.textContent).then(done, select);
      else select();
    });
    block.appendChild(button);
  });

  // Paper has no clicks: what is folded is opened while it is printed.
  var opened = [];
  window.addEventListener("beforeprint", function () {
    opened = Array.from(document.querySelectorAll("details.query:not([open])"));
    opened.forEach(function (item) { item.open = true; });
  });
  window.addEventListener("afterprint", function () {
    opened.forEach(function (item) { item.open = false; });
  });
})();
