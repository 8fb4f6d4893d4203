// SPDX-License-Identifier: Apache-2.0

// The rows of charts tell their figures under the pointer and the keyboard: Tab reaches a chart, arrows its rows.
import { computePosition, flip, offset, shift } from '@floating-ui/dom';

const tip = document.createElement('div');
tip.id = 'tip';
tip.hidden = true;

// show places the tip at a row of a chart.
function show(mark) {
  tip.textContent = mark.dataset.tip;
  tip.hidden = false;
  mark.closest('svg').querySelectorAll('.hit.on').forEach((other) => other.classList.remove('on'));
  mark.classList.add('on');
  computePosition(mark, tip, { placement: 'bottom', middleware: [offset(4), flip(), shift({ padding: 8 })] })
    .then(({ x, y }) => Object.assign(tip.style, { left: `${x}px`, top: `${y}px` }));
}

// hide takes the tip away.
function hide(mark) {
  tip.hidden = true;
  mark.classList.remove('on');
}

// step moves the focus from a row to another.
function step(marks, from, by) {
  const shown = marks.filter((mark) => getComputedStyle(mark).display !== 'none');
  if (shown.length === 0) return;
  const to = shown[Math.min(Math.max(shown.indexOf(from) + by, 0), shown.length - 1)];
  marks.forEach((mark) => mark.setAttribute('tabindex', mark === to ? '0' : '-1'));
  to.focus({ preventScroll: false });
}

// enhance gives a chart's rows their tips.
export function enhance(svg) {
  const marks = [...svg.querySelectorAll('.hit')];
  if (marks.length === 0) return;
  if (!tip.isConnected) document.body.append(tip);
  svg.setAttribute('role', 'group');
  marks.forEach((mark, i) => {
    mark.setAttribute('role', 'img');
    mark.setAttribute('aria-label', mark.dataset.tip);
    mark.setAttribute('tabindex', i === 0 ? '0' : '-1');
    mark.addEventListener('pointerenter', () => show(mark));
    mark.addEventListener('pointerleave', () => hide(mark));
    mark.addEventListener('focus', () => show(mark));
    mark.addEventListener('blur', () => hide(mark));
    mark.addEventListener('keydown', (event) => {
      const by = { ArrowDown: 1, ArrowUp: -1, Home: -marks.length, End: marks.length }[event.key];
      if (event.key === 'Escape') hide(mark);
      if (by === undefined) return;
      event.preventDefault();
      step(marks, mark, by);
    });
  });
}
