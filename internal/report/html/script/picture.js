// SPDX-License-Identifier: Apache-2.0

// A chart as a PNG, in the colors of the page at the moment.
import { button, save, say } from './controls.js';

// Pixels for each unit of a chart, and the room around it in units.
const scale = 3;
const room = 12;

// drawn turns a chart into an image that stands alone: it has its size, and colors in place of variables.
function drawn(svg) {
  const style = getComputedStyle(document.documentElement);
  const copy = svg.cloneNode(true);
  copy.querySelectorAll('.hit').forEach((hit) => hit.remove());
  const [, , width, height] = svg.getAttribute('viewBox').split(' ').map(Number);
  const rules = document.createElementNS(svg.namespaceURI, 'style');
  rules.textContent = [...document.styleSheets[0].cssRules].filter((rule) => /^\.chart /.test(rule.selectorText)).map((rule) => rule.cssText).join('\n');
  copy.prepend(rules);
  copy.setAttribute('xmlns', 'http://www.w3.org/2000/svg');
  copy.setAttribute('width', width * scale);
  copy.setAttribute('height', height * scale);
  copy.setAttribute('font-family', getComputedStyle(document.body).fontFamily);
  const text = new XMLSerializer().serializeToString(copy).replace(/var\((--[a-z]+)\)/g, (_, name) => style.getPropertyValue(name).trim());
  const image = new Image();
  image.src = `data:image/svg+xml,${encodeURIComponent(text)}`;
  return image.decode().then(() => ({ image, width, height }));
}

// picture draws the charts of a figure below its title on one canvas.
async function picture(figure, title) {
  const style = getComputedStyle(document.documentElement);
  const parts = await Promise.all([...figure.querySelectorAll('svg.chart')].map(drawn));
  const canvas = document.createElement('canvas');
  canvas.width = (Math.max(...parts.map((part) => part.width)) + 2 * room) * scale;
  canvas.height = (parts.reduce((sum, part) => sum + part.height, 0) + 40 + room) * scale;
  const context = canvas.getContext('2d');
  context.fillStyle = style.getPropertyValue('--surface');
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.fillStyle = style.getPropertyValue('--text');
  context.font = `bold ${14 * scale}px ${getComputedStyle(document.body).fontFamily}`;
  context.fillText(title, room * scale, 24 * scale, canvas.width - 2 * room * scale);
  let at = 40 * scale;
  for (const part of parts) {
    context.drawImage(part.image, room * scale, at);
    at += part.height * scale;
  }
  return new Promise((resolve) => { canvas.toBlob(resolve, 'image/png'); });
}

// enhance gives a figure the button that saves it.
export function enhance(figure) {
  const title = figure.dataset.title;
  const control = button('PNG', 'tool', () => {
    picture(figure, title).then((blob) => save(blob, `${title}.png`), () => say('the browser could not draw the chart'));
  });
  control.ariaLabel = `Download the chart ${title} as PNG`;
  const bar = document.createElement('div');
  bar.className = 'tools';
  bar.append(control);
  figure.prepend(bar);
}
