// SPDX-License-Identifier: Apache-2.0

// A group of rows, a series, can be hidden in all charts and tables of its suite.
import { say } from './controls.js';

// compact closes the gaps of a chart's hidden rows: those above move down to the axis, and the chart ends at the first.
export function compact(svg) {
  let room = 0; // of the hidden rows below
  let any = false; // whether the group has a row
  [...svg.querySelectorAll('.head, .mark')].reverse().forEach((part) => {
    const head = part.classList.contains('head');
    const height = Number(head ? part.dataset.height : part.querySelector('.hit').getAttribute('height'));
    if (head) part.classList.toggle('gone', !any);
    const shown = getComputedStyle(part).display !== 'none';
    any = !head && (any || shown);
    part.setAttribute('transform', `translate(0 ${room})`);
    if (!shown) room += height;
  });
  svg.dataset.box ??= svg.getAttribute('viewBox');
  const [, , width, height] = svg.dataset.box.split(' ').map(Number);
  svg.setAttribute('viewBox', `0 ${room} ${width} ${height - room}`);
  svg.classList.toggle('cropped', room > 0);
}

// tidy leaves out the lines and columns of a table whose figures are all hidden.
function tidy(table) {
  const figures = [...table.tBodies[0].rows].map((row) => [...row.cells].map((cell) => {
    if (!cell.matches('.num.gray, .num.slate, .num.orange, .num.purple, .num.teal, .num.olive, .num.blue')) return undefined;
    return getComputedStyle(cell).visibility !== 'hidden';
  }));
  const gone = (cells) => cells.includes(false) && !cells.includes(true);
  const columns = figures[0].map((_, i) => gone(figures.map((line) => line[i])));
  [...table.rows].forEach((row, i) => {
    row.classList.toggle('gone', i >= table.tHead.rows.length && gone(figures[i - table.tHead.rows.length]));
    [...row.cells].forEach((cell, at) => cell.classList.toggle('gone', columns[at]));
  });
}

// enhance gives a suite a check box for each of its series.
export function enhance(suite) {
  const series = new Map();
  suite.querySelectorAll('.key [data-series]').forEach((item) => {
    series.set(item.dataset.series, series.get(item.dataset.series) || item.textContent.trim());
  });
  if (series.size < 2) return;
  const bar = document.createElement('div');
  bar.className = 'tools groups';
  bar.setAttribute('role', 'group');
  bar.setAttribute('aria-label', 'Groups of rows');
  bar.append('Show: ');
  series.forEach((name, color) => {
    const label = document.createElement('label');
    const box = Object.assign(document.createElement('input'), { type: 'checkbox', checked: true });
    const swatch = document.createElement('span');
    label.className = `group ${color}`;
    swatch.className = `swatch ${color}`;
    box.addEventListener('change', () => {
      suite.classList.toggle(`hide-${color}`, !box.checked);
      suite.querySelectorAll('svg.chart').forEach(compact);
      suite.querySelectorAll('.summary table').forEach(tidy);
      say(`${name} ${box.checked ? 'shown' : 'hidden'}`);
    });
    label.append(box, swatch, name);
    bar.append(label);
  });
  suite.querySelector('.answers').after(bar);
}
