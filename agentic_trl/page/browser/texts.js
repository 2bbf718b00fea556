// Elements, texts and numbers. Whatever runs hold reaches the page through `text` and `h` alone: as text, never as markup.

const HIDDEN = /(?![\n\t])[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu;

// A character that shows nothing or turns the text around it, as a sign.
function sign(char) {
  const code = char.codePointAt(0);
  if (code < 32) return String.fromCharCode(0x2400 + code);
  if (code === 127) return '\u2421';
  return `\u2039U+${code.toString(16).toUpperCase().padStart(4, '0')}\u203a`;
}

// A text for an attribute, a title or an option.
const visible = (value) => String(value).replace(HIDDEN, sign);

// A text whose hidden characters are marked.
function text(value) {
  const part = document.createDocumentFragment();
  let end = 0;
  const whole = String(value);
  for (const found of whole.matchAll(HIDDEN)) {
    part.append(whole.slice(end, found.index), h('span', { class: 'sign' }, sign(found[0])));
    end = found.index + found[0].length;
  }
  part.append(whole.slice(end));
  return part;
}

// An element: `on` holds listeners, properties with a hyphen or in ATTRIBUTES are attributes, others the element's own.
const ATTRIBUTES = new Set(['class', 'role', 'for', 'href', 'list', 'colspan', 'scope']);
function h(tag, given = {}, ...children) {
  return fill(document.createElement(tag), given, children);
}

function svg(tag, given = {}, ...children) {
  const made = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [name, value] of Object.entries(given)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function fill(made, given, children) {
  for (const [name, value] of Object.entries(given)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === 'on') for (const [event, listener] of Object.entries(value)) made.addEventListener(event, listener);
    else if (ATTRIBUTES.has(name) || name.includes('-')) made.setAttribute(name, value);
    else made[name] = value;
  }
  for (const child of children.flat()) if (child !== null && child !== undefined && child !== false) made.append(child);
  return made;
}

// A number in four digits; what is not finite is a text in the data.
function figure(value) {
  if (value === null || value === undefined) return '\u2013';
  if (typeof value === 'string') return visible(value);
  if (!Number.isFinite(value)) return String(value);
  if (Number.isInteger(value)) return String(value).replace('-', '\u2212');
  return String(Number(value.toPrecision(4))).replace(/-/g, '\u2212');
}

const signed = (value) => (typeof value === 'number' && value > 0 ? `+${figure(value)}` : figure(value));
const plural = (count, word) => `${count.toLocaleString('en')} ${word}${count === 1 ? '' : 's'}`;

// A long text in part, with a button that brings the rest.
const LONG = 6000;
function block(value, kind) {
  const whole = String(value);
  const shown = h('pre', { class: kind }, text(whole.slice(0, LONG)));
  if (whole.length <= LONG) return shown;
  const more = h('button', { type: 'button', class: 'more', on: {
    click: () => { shown.replaceChildren(text(whole)); more.remove(); },
  } }, `Show all ${whole.length.toLocaleString('en')} characters`);
  return h('div', {}, shown, more);
}

// A table that knows what is in it, and not what every object has: names of runs may be `constructor`.
const table = (...parts) => Object.assign(Object.create(null), ...parts);
const say = (words) => { document.getElementById('status').textContent = words; };
