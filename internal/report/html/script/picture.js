// SPDX-License-Identifier: Apache-2.0

// A chart as a PNG, in the colors of the page at the moment.
import { button, fileName, save, say } from './controls.js';

// Pixels for each unit of a chart, and the room around it in units.
const scale = 3;
const room = 12;

// drawn turns a chart into an image that stands alone: it has its size, and colors in place of variables.
function drawn(svg) {
  const style = getComputedStyle(document.documentElement);
  const copy = svg.cloneNode(true);
  const hidden = [...svg.querySelectorAll('g')].map((part) => getComputedStyle(part).display === 'none');
  [...copy.querySelectorAll('g')].filter((_, i) => hidden[i]).forEach((part) => part.remove());
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

// The corners of the symbols of charts and the angle of the first, in degrees; others are circles.
const symbols = { gray: [5, -90], orange: [4, 45], purple: [4, 0], teal: [3, -90], olive: [3, 90], blue: [6, 0] };

// symbol draws that of a series.
function symbol(context, color, x, y) {
  const [corners, first] = symbols[color] || [60, 0];
  context.beginPath();
  for (let i = 0; i < corners; i += 1) {
    const angle = ((first + (360 * i) / corners) * Math.PI) / 180;
    context.lineTo(x + 5 * Math.cos(angle), y + 5 * Math.sin(angle));
  }
  context.fillStyle = getComputedStyle(document.documentElement).getPropertyValue(`--${color}`);
  context.fill();
}

// wrapped breaks a text into lines of a width.
function wrapped(context, text, width) {
  const lines = [];
  text.split(' ').forEach((word) => {
    const longer = `${lines[lines.length - 1] ?? ''} ${word}`.trim();
    if (lines.length > 0 && context.measureText(longer).width <= width) lines[lines.length - 1] = longer;
    else lines.push(word);
  });
  return lines;
}

// picture draws a figure on one canvas: title, legend, charts with their captions, how they are read, and where the figures are from.
async function picture(figure, title) {
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const font = getComputedStyle(document.body).fontFamily;
  const key = figure.closest('.answers')?.querySelector(':scope > .axis');
  const series = [...(key?.querySelectorAll('[data-series]') ?? [])];
  const parts = await Promise.all([...figure.querySelectorAll('svg.chart')].map(drawn));
  const width = Math.max(...parts.map((part) => part.width));
  const canvas = document.createElement('canvas');
  const context = canvas.getContext('2d');
  let at = room; // the height of what is drawn so far
  const draw = (paint) => { // paints, or only measures
    const words = (text, size, weight, ink) => {
      context.font = `${weight} ${size}px ${font}`;
      wrapped(context, text.replace(/\s+/g, ' ').trim(), width).forEach((line) => {
        at += size * 1.4;
        context.fillStyle = color(ink);
        if (paint) context.fillText(line, room, at - size * 0.4);
      });
    };
    at = room;
    words(title, 14, 'bold', '--text');
    let x = room;
    series.filter((item) => !item.closest(`.hide-${item.dataset.series}`)).forEach((item, i) => {
      context.font = `12px ${font}`;
      const long = context.measureText(item.textContent).width + 30;
      if (i === 0 || x + long > width + room) { x = room; at += 18; }
      if (paint) {
        symbol(context, item.dataset.series, x + 6, at - 4);
        context.fillStyle = color('--muted');
        context.fillText(item.textContent, x + 16, at);
      }
      x += long;
    });
    at += 8;
    const captions = [...figure.querySelectorAll('.axis')];
    parts.forEach((part, i) => {
      if (paint) context.drawImage(part.image, room, at, part.width, part.height);
      at += part.height;
      words(captions[i]?.textContent ?? '', 12, 'normal', '--muted');
      at += 8;
    });
    const read = [...(key?.childNodes ?? [])].filter((part) => !series.includes(part));
    words(read.map((part) => part.textContent).join(' '), 12, 'normal', '--muted');
    words(`${document.title}: ${document.getElementById('source').textContent}`, 11, 'normal', '--muted');
    at += room;
  };
  draw(false);
  canvas.width = (width + 2 * room) * scale;
  canvas.height = at * scale;
  context.scale(scale, scale);
  context.fillStyle = color('--surface');
  context.fillRect(0, 0, canvas.width, canvas.height);
  draw(true);
  return new Promise((resolve) => { canvas.toBlob(resolve, 'image/png'); });
}

// enhance gives a figure the button that saves it.
export function enhance(figure) {
  const title = figure.dataset.title;
  const control = button('PNG', 'tool', () => {
    picture(figure, title).then((blob) => save(blob, fileName(figure, title, 'png')), () => say('the browser could not draw the chart'));
  });
  control.ariaLabel = `Download the chart ${title} as PNG`;
  const bar = document.createElement('div');
  bar.className = 'tools';
  bar.append(control);
  figure.prepend(bar);
}
