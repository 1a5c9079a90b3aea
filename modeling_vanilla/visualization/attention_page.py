"""The page that `visualize` shows attention on: HTML, CSS and JavaScript in one file, which asks no network."""

import html
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .attention import AttentionMap


# Weights below draw no line: where every word attends to every other a little, they would cover the rest.
MIN_WEIGHT = 0.05


def attention_page(maps: Sequence["AttentionMap"], colours: Sequence[str], title: str) -> str:
    """The page of some uses of attention, to choose use, layer and heads on.

    Args:
        colours: of the heads, "#rrggbb", at least as many as any use has.
    """
    data = {
        "colours": list(colours),
        "least": MIN_WEIGHT,
        "maps": [
            {
                "name": one.name,
                "rows": one.rows,
                "columns": one.columns,
                # In thousandths: a third of the size, and no difference that could be seen.
                "weights": (1000 * one.weights).round().int().tolist(),
            }
            for one in maps
        ],
    }
    # In JSON, "<" stands in strings alone; written as an escape it can end no script and begin no comment.
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    before, behind = _PAGE.split("DATA")
    return before.replace("TITLE", html.escape(title)) + text + behind


_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<title>TITLE</title>
<style>
body { font: 14px system-ui, sans-serif; color: #222; background: #fff; margin: 1em; }
h1 { font-size: 1.2em; overflow-wrap: anywhere; }
form { display: flex; flex-wrap: wrap; gap: 0.5em 1.5em; align-items: center; }
form > span { display: flex; flex-wrap: wrap; gap: 0.2em 0.7em; align-items: center; }
#pictures { display: flex; flex-wrap: wrap; gap: 3em; align-items: flex-start; margin-top: 1em; }
text { font-size: 13px; fill: currentColor; white-space: pre; }
text.word { cursor: pointer; }
text.chosen { font-weight: bold; }
</style>
</head>
<body>
<h1>TITLE</h1>
<form>
<label>Attention <select id="kind"></select></label>
<label>Layer <select id="layer"></select></label>
<span id="heads"></span>
<span><button type="button" id="all">all heads</button> <button type="button" id="none">none</button></span>
</form>
<p>Words on the left attend to words on the right: a line's colour is its head's, its thickness the weight; weights
below <span id="least"></span> have none. Point at a word to see its lines alone. The heat map is the mean of the
chosen heads; point at a cell for its weight. Layers and heads count from 0.</p>
<div id="pictures"><svg id="lines"></svg><svg id="heat"></svg></div>
<script type="application/json" id="data">DATA</script>
<script>
"use strict";
const byId = (id) => document.getElementById(id);
const data = JSON.parse(byId("data").textContent);
const kind = byId("kind"), layer = byId("layer"), heads = byId("heads");
const ROW = 22, GAP = 260, CHARACTER = 8;
let boxes = [];

function add(parent, name, attributes, text) {
  const node = document.createElementNS(parent.namespaceURI, name);
  for (const key in attributes) node.setAttribute(key, attributes[key]);
  if (text !== undefined) node.textContent = text;
  parent.appendChild(node);
  return node;
}

function options(select, names) {
  const before = select.value;
  select.replaceChildren();
  names.forEach((name, number) => add(select, "option", {value: number}, name));
  if (Number(before) < names.length && before !== "") select.value = before;
}

function width(words) {
  return 20 + CHARACTER * Math.max(...words.map((word) => word.length));
}

function clear(svg, across, down) {
  svg.replaceChildren();
  svg.setAttribute("width", across);
  svg.setAttribute("height", down);
}

function chosenHeads() {
  return boxes.flatMap((box, head) => box.checked ? [head] : []);
}

function drawLines(map, weights) {
  const svg = byId("lines"), left = width(map.rows), right = left + GAP;
  clear(svg, right + width(map.columns), ROW * (Math.max(map.rows.length, map.columns.length) + 1));
  const middle = (place) => ROW * (place + 0.7);
  const lines = [], words = [];
  for (const head of chosenHeads()) {
    weights[head].forEach((row, from) => row.forEach((weight, to) => {
      if (weight < 1000 * data.least) return;
      const line = add(svg, "line", {x1: left, y1: middle(from), x2: right, y2: middle(to),
        stroke: data.colours[head], "stroke-width": 8 * weight / 1000, "stroke-opacity": 0.1 + 0.9 * weight / 1000});
      add(line, "title", {}, `head ${head}: ${map.rows[from]} to ${map.columns[to]}, ${weight / 1000}`);
      lines.push({line, from, to});
    }));
  }
  const only = (side, place) => {
    for (const one of lines) one.line.style.display = side && one[side] !== place ? "none" : "";
    for (const one of words) one.node.classList.toggle("chosen", one.side === side && one.place === place);
  };
  const write = (side, list, x, anchor) => list.forEach((word, place) => {
    const node = add(svg, "text", {x, y: middle(place) + 4, "text-anchor": anchor, class: "word"}, word);
    node.addEventListener("pointerenter", () => only(side, place));
    node.addEventListener("pointerleave", () => only());
    words.push({node, side, place});
  });
  write("from", map.rows, left - 6, "end");
  write("to", map.columns, right + 6, "start");
}

function drawHeat(map, weights) {
  const svg = byId("heat"), left = width(map.rows), top = width(map.columns), chosen = chosenHeads();
  clear(svg, left + ROW * map.columns.length + top, top + ROW * map.rows.length);
  map.rows.forEach((word, row) =>
    add(svg, "text", {x: left - 6, y: top + ROW * (row + 0.7), "text-anchor": "end"}, word));
  map.columns.forEach((word, column) => {
    const x = left + ROW * (column + 0.6), y = top - 6;
    add(svg, "text", {x, y, transform: `rotate(-60 ${x} ${y})`}, word);
  });
  map.rows.forEach((from, row) => map.columns.forEach((to, column) => {
    const sum = chosen.reduce((total, head) => total + weights[head][row][column], 0);
    const mean = sum / 1000 / Math.max(1, chosen.length);
    const cell = add(svg, "rect", {x: left + ROW * column, y: top + ROW * row, width: ROW - 1, height: ROW - 1,
      fill: "#08519c", "fill-opacity": mean, stroke: "#ddd", "stroke-width": 0.5});
    add(cell, "title", {}, `${from} to ${to}: ${mean.toFixed(3)}`);
  }));
}

function draw() {
  const map = data.maps[kind.value], weights = map.weights[layer.value];
  drawLines(map, weights);
  drawHeat(map, weights);
}

function chooseKind() {
  const map = data.maps[kind.value];
  options(layer, map.weights.map((_, number) => String(number)));
  heads.replaceChildren();
  boxes = map.weights[0].map((_, head) => {
    const label = add(heads, "label", {style: `color:${data.colours[head]}`});
    const box = add(label, "input", {type: "checkbox"});
    box.checked = true;
    box.addEventListener("change", draw);
    add(label, "span", {}, ` ${head}`);
    return box;
  });
  draw();
}

function checkAll(checked) {
  for (const box of boxes) box.checked = checked;
  draw();
}

byId("least").textContent = data.least;
options(kind, data.maps.map((map) => map.name));
kind.addEventListener("change", chooseKind);
layer.addEventListener("change", draw);
byId("all").addEventListener("click", () => checkAll(true));
byId("none").addEventListener("click", () => checkAll(false));
chooseKind();
</script>
</body>
</html>
"""
