// SPDX-License-Identifier: Apache-2.0

// A table as CSV: the rows that are shown, in their order.
import { csvFormatRows } from 'd3-dsv';
import { button, save, say } from './controls.js';

// textOf is a cell's text on one line, without the marks' padding.
export function textOf(cell) {
  const parts = [...cell.children].filter((child) => child.tagName === 'DIV');
  const text = parts.length > 0 ? parts.map((part) => part.textContent).join('; ') : cell.textContent;
  return text.replace(/\s+/g, ' ').trim();
}

// rowsOf lists the headings and the cells of the lines that are shown.
function rowsOf(table) {
  const shown = [...table.rows].filter((row) => !row.hidden);
  return shown.map((row) => [...row.cells].flatMap((cell) => {
    const empty = new Array(cell.colSpan - 1).fill('');
    return [textOf(cell), ...empty];
  }));
}

// copyButtons makes the buttons that copy and download a table.
export function copyButtons(table, name) {
  const text = () => csvFormatRows(rowsOf(table));
  const copy = button('copy', 'tool', () => {
    navigator.clipboard.writeText(text()).then(() => say('copied as CSV'), () => say('the browser does not let this page copy'));
  });
  const download = button('CSV', 'tool', () => save(new Blob([text()], { type: 'text/csv' }), `${name}.csv`));
  copy.ariaLabel = `Copy ${name} as CSV`;
  download.ariaLabel = `Download ${name} as CSV`;
  return [copy, download];
}
