// SPDX-License-Identifier: Apache-2.0

// The path that a row's packets cross opens beside the row: from its name in a table, or its mark in a chart.
import { button } from './controls.js';

const panel = document.createElement('dialog');
panel.className = 'path';
panel.setAttribute('aria-label', 'Path of the row');

// open shows a folded path of the page in the panel.
function open(details) {
  const title = document.createElement('h2');
  title.textContent = details.querySelector('summary').textContent;
  const close = button('close', 'tool', () => panel.close());
  panel.replaceChildren(close, title, ...[...details.children].slice(1).map((part) => part.cloneNode(true)));
  if (!panel.isConnected) document.body.append(panel);
  panel.showModal();
}

// enhance opens the paths of a suite's rows.
export function enhance(suite) {
  const path = (number) => document.getElementById(`${suite.id}-path-${number}`);
  suite.querySelectorAll('.hit[data-path]').forEach((mark) => {
    const show = () => open(path(mark.dataset.path));
    mark.addEventListener('click', show);
    mark.addEventListener('keydown', (event) => { if (event.key === 'Enter') show(); });
    mark.dataset.tip += ' Click or Enter: its path.';
  });
  suite.querySelectorAll(`td a[href^="#${suite.id}-path-"]`).forEach((link) => {
    link.addEventListener('click', (event) => {
      event.preventDefault();
      open(document.getElementById(link.hash.slice(1)));
    });
  });
}
