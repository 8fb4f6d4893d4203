// SPDX-License-Identifier: Apache-2.0

// The answer of a suite can be copied, as text and as Markdown.
import { button, say } from './controls.js';

// clean is an element's text on one line, with plain spaces.
const clean = (element) => element.textContent.replace(/\s+/g, ' ').trim();

// markdown escapes what Markdown would take for its own.
const markdown = (text) => text.replace(/[\\`*_[\]<>|#]/g, '\\$&');

// enhance gives an answer its buttons.
export function enhance(answers) {
  const said = [...answers.querySelectorAll('.sentences > li')].map(clean);
  if (said.length === 0) return;
  const source = `${document.title}: ${clean(document.getElementById('source'))}`;
  const bar = document.createElement('div');
  bar.className = 'tools';
  [
    ['Copy as text', () => [...said, source].join('\n')],
    ['Copy as Markdown', () => [...said.map((line) => `- ${markdown(line)}`), '', markdown(source)].join('\n')],
  ].forEach(([name, text]) => {
    const control = button(name, 'tool', () => {
      const tell = (words) => { say(words); control.textContent = words; setTimeout(() => { control.textContent = name; }, 2000); };
      navigator.clipboard.writeText(text()).then(() => tell('copied'), () => tell('the browser does not let this page copy'));
    });
    bar.append(control);
  });
  answers.prepend(bar);
}
