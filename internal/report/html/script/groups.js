// SPDX-License-Identifier: Apache-2.0

// A group of rows, a series, can be hidden in all charts and tables of its suite.
import { button, say } from './controls.js';

// enhance gives a suite a button for each of its series.
export function enhance(suite) {
  const series = new Map();
  suite.querySelectorAll('.legend li[data-series]').forEach((item) => {
    series.set(item.dataset.series, series.get(item.dataset.series) || item.textContent.trim());
  });
  if (series.size < 2) return;
  const bar = document.createElement('div');
  bar.className = 'tools groups';
  bar.setAttribute('role', 'group');
  bar.setAttribute('aria-label', 'Groups of rows');
  bar.append('Show: ');
  series.forEach((name, color) => {
    const control = button(name, `tool group ${color}`, () => {
      const hidden = suite.classList.toggle(`hide-${color}`);
      control.setAttribute('aria-pressed', String(!hidden));
      say(`${name} ${hidden ? 'hidden' : 'shown'}`);
    });
    control.setAttribute('aria-pressed', 'true');
    bar.append(control);
  });
  suite.querySelector('.answers').after(bar);
}
