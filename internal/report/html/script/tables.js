// SPDX-License-Identifier: Apache-2.0

// Tables can be sorted by any column and filtered. The rows stay those of the page.
import {
  columnFilteringFeature, constructTable, createFilteredRowModel, createSortedRowModel, filterFn_includesString, globalFilteringFeature,
  rowSortingFeature, sortFn_alphanumeric, sortFn_basic, tableFeatures,
} from '@tanstack/table-core';
import { storeReactivityBindings } from '@tanstack/table-core/store-reactivity-bindings';
import { copyButtons, shown, textOf } from './csv.js';
import { button, say } from './controls.js';

const features = tableFeatures({
  coreReactivityFeature: storeReactivityBindings(), columnFilteringFeature, globalFilteringFeature, rowSortingFeature,
  filteredRowModel: createFilteredRowModel(), sortedRowModel: createSortedRowModel(),
  filterFns: { includesString: filterFn_includesString }, sortFns: { alphanumeric: sortFn_alphanumeric, basic: sortFn_basic },
});

// figure is the number at the start of a cell's text; undefined if there is none.
function figure(text) {
  const found = /^[≈~]?\s*([+−-]?[\d,]*\.?\d+)/.exec(text);
  return found ? Number(found[1].replace('−', '-').replaceAll(',', '')) : undefined;
}

// enhance gives a table headings that sort and, if it is long, a field that filters.
export function enhance(element) {
  const body = element.tBodies[0];
  const heads = [...element.tHead.rows[element.tHead.rows.length - 1].cells];
  const lines = [...body.rows];
  if (lines.length < 2 || element.tHead.rows.length > 1) {
    element.closest('.scroll').before(toolbar(element));
    return;
  }
  const columns = heads.map((head, i) => {
    const numeric = head.classList.contains('num');
    return {
      id: String(i), sortFn: numeric ? 'basic' : 'alphanumeric', sortUndefined: 'last', filterFn: 'includesString',
      accessorFn: (line) => (numeric ? figure(textOf(line.cells[i])) : textOf(line.cells[i])),
    };
  });
  columns.push({ id: 'all', accessorFn: (line) => line.textContent, filterFn: 'includesString' });
  const table = constructTable({
    features, columns, data: lines, globalFilterFn: 'includesString', getColumnCanGlobalFilter: (column) => column.id === 'all', enableSortingRemoval: true,
  });
  const nothing = Object.assign(document.createElement('p'), { className: 'note nothing', hidden: true });
  element.closest('.scroll').after(nothing);
  const show = () => {
    const rows = table.getRowModel().rows.map((row) => row.original);
    const kept = new Set(rows);
    lines.forEach((line) => { line.hidden = !kept.has(line); });
    body.append(...rows);
    heads.forEach((head, i) => {
      const order = table.getColumn(String(i)).getIsSorted();
      head.setAttribute('aria-sort', order === 'asc' ? 'ascending' : order === 'desc' ? 'descending' : 'none');
    });
    const seen = rows.filter(shown).length;
    nothing.hidden = seen > 0;
    nothing.textContent = seen > 0 ? '' : `no row has “${table.store.state.globalFilter}”`;
    say(nothing.textContent || `${seen} of ${lines.length} rows`);
  };
  heads.forEach((head, i) => {
    const column = table.getColumn(String(i));
    const control = button(head.textContent.trim() || 'name', 'sort', () => { column.toggleSorting(undefined, false); show(); });
    head.replaceChildren(control);
    head.setAttribute('aria-sort', 'none');
  });
  element.closest('.scroll').before(toolbar(element, lines.length < 6 ? undefined : (text) => { table.setGlobalFilter(text); show(); }));
}

// toolbar makes the controls above a table.
function toolbar(element, filter) {
  const bar = document.createElement('div');
  bar.className = 'tools';
  const name = element.dataset.title || 'table';
  if (filter) {
    const field = document.createElement('input');
    Object.assign(field, { type: 'search', placeholder: 'filter rows', ariaLabel: `Filter rows of ${name}` });
    field.addEventListener('input', () => filter(field.value));
    bar.append(field);
  }
  bar.append(...copyButtons(element, name));
  return bar;
}
