// SPDX-License-Identifier: Apache-2.0

// A part of the page that a link leads to opens.

// open unfolds what the page's address names.
function open() {
  const part = document.getElementById(decodeURIComponent(window.location.hash.slice(1)));
  if (!part) return;
  const folded = part.querySelector(':scope > details');
  if (folded) folded.open = true;
  for (let at = part; at; at = at.parentElement) if (at.tagName === 'DETAILS') at.open = true;
  part.scrollIntoView();
}

// enhance opens the part of the address, now and when it changes.
export function enhance() {
  window.addEventListener('hashchange', open);
  document.querySelectorAll('.parts a').forEach((link) => {
    link.addEventListener('click', () => setTimeout(open)); // to a part that was left, too
  });
  open();
}
