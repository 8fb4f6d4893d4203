// SPDX-License-Identifier: Apache-2.0

// What all controls share: buttons, files for the reader, and words for screen readers.

// button makes a button of a class.
export function button(text, kind, onclick) {
  const out = document.createElement('button');
  Object.assign(out, { type: 'button', className: kind, textContent: text });
  out.addEventListener('click', onclick);
  return out;
}

// fileName names a file after the suite of a part of the page, what it shows, and the start of the run.
export function fileName(part, title, kind) {
  const words = [part.closest('.suite').id, title].join(' ').replace(/[^\p{L}\p{N}]+/gu, '-').toLowerCase();
  return [words, document.body.dataset.stamp].filter(Boolean).join('-') + `.${kind}`;
}

// save hands a blob to the reader as a file.
export function save(blob, name) {
  const link = document.createElement('a');
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

// say tells screen readers what a control has done.
export function say(text) {
  document.getElementById('said').textContent = text;
}
