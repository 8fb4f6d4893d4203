// SPDX-License-Identifier: Apache-2.0

// A table as CSV: the lines and columns that are shown, in their order.
import { csvFormatRows } from 'd3-dsv';
import { button, fileName, save, say } from './controls.js';

// textOf is a cell's text on one line, without the marks' padding.
export function textOf(cell) {
  const parts = [...cell.children].filter((child) => child.tagName === 'DIV');
  const text = parts.length > 0 ? parts.map((part) => part.textContent).join('; ') : cell.textContent;
  return text.replace(/\s+/g, ' ').trim();
}

// shown tells whether a line or cell is on the screen, unless its whole table is not.
export function shown(element) {
  const style = getComputedStyle(element);
  return style.display !== 'none' && style.visibility !== 'hidden';
}

// field is a cell's text for a spreadsheet: a figure without commas, nothing in place of a dash, and no formula.
function field(text) {
  if (text === '–') return '';
  if (/^[+-]?\d{1,3}(,\d{3})+(\.\d+)?$/.test(text)) return text.replaceAll(',', '');
  return /^[=+@\t-]/.test(text) && !/^[+-]?[\d.,]+( ?%)?( to [+-]?[\d.,]+( ?%)?)?[~?]?$/.test(text) ? `'${text}` : text;
}

// rowsOf lists the headings, with the table's unit, and the cells of the lines that are shown.
function rowsOf(table) {
  const unit = table.dataset.unit ? ` (${table.dataset.unit})` : '';
  const columns = [...table.rows[0].cells].map((head) => shown(head));
  return [...table.rows].filter(shown).map((row) => [...row.cells].filter((_, i) => columns[i]).map((cell) => {
    if (cell.closest('thead')) return field(textOf(cell) + (cell.classList.contains('num') ? unit : ''));
    return shown(cell) ? field(textOf(cell)) : '';
  }));
}

// copyButtons makes the buttons that copy and download a table.
export function copyButtons(table, name) {
  const text = () => csvFormatRows(rowsOf(table));
  const tell = (words, control) => {
    say(words);
    control.textContent = words;
    setTimeout(() => { control.textContent = 'copy'; }, 2000);
  };
  const copy = button('copy', 'tool', () => {
    navigator.clipboard.writeText(text()).then(() => tell('copied', copy), () => tell('the browser does not let this page copy', copy));
  });
  const section = table.closest('section').classList;
  const download = button('CSV', 'tool', () => {
    save(new Blob([text()], { type: 'text/csv' }), fileName(table, `${section[section.length - 1]} ${name.replace(/ \(.*/, '')}`, 'csv'));
  });
  copy.ariaLabel = `Copy ${name} as CSV`;
  download.ariaLabel = `Download ${name} as CSV`;
  return [copy, download];
}
