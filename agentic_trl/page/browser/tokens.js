// Sampled tokens, coloured by one of their figures; all figures of one by pointer and by keyboard.

// Name, column, and how it is shown: apart around a middle, or from low to high. `of` makes the shown figure of a stored one.
const MODES = [
  { name: 'kind', title: 'kind' },
  { name: 'advantage', column: 'advantage', apart: true, title: 'advantage' },
  { name: 'weight', column: 'weight', title: 'weight' },
  { name: 'energy', column: 'energy', title: 'energy, nats' },
  { name: 'ratio', column: 'log ratio', apart: true, of: Math.exp, title: 'ratio at the last update' },
  { name: 'difference', column: 'sampler difference', apart: true, title: 'policy \u2212 sampler, nats' },
  { name: 'log-probability', column: 'sampler', title: 'sampler\u2019s log-probability' },
  { name: 'entropy', column: 'entropy', title: 'entropy, nats' },
  { name: 'value', column: 'value', apart: true, title: 'critic\u2019s value' },
  { name: 'return', column: 'return', apart: true, title: 'critic\u2019s target' },
];
const KINDS = ['other', 'reasoning', 'action'];
const ROUND = 1e-9; // below this nothing is shown apart from the middle

const columnAt = (record, turn, mode, at) => {
  const place = turn.columns[mode.column];
  return place === undefined ? null : record.floats[place + at];
};
const shownAs = (mode, value) => (value === null ? null : mode.of ? mode.of(value) : value);

function modesOf(record) {
  const there = new Set(record.turns.flatMap((turn) => Object.keys(turn.columns)));
  return MODES.filter((mode) => !mode.column || there.has(mode.column));
}

// The ends of a mode's scale over an episode.
function scaleOf(record, mode) {
  let low = Infinity, high = -Infinity;
  if (!mode.column) return { low, high };
  for (const turn of record.turns) {
    for (let at = 0; at < turn.n; at++) {
      const value = columnAt(record, turn, mode, at);
      if (value === null || !Number.isFinite(value)) continue;
      low = Math.min(low, value);
      high = Math.max(high, value);
    }
  }
  if (mode.apart) {
    const most = Math.max(Math.abs(low), Math.abs(high));
    return { low: -most, high: most };
  }
  if (mode.name === 'weight' || mode.name === 'entropy' || mode.name === 'energy') low = Math.min(low, 0);
  return { low, high };
}

function shadeOf(mode, value, { low, high }) {
  if (value === null || !Number.isFinite(value)) return 'unknown';
  if (mode.apart) return high > ROUND ? `d${Math.round((5 * value) / high)}` : 'd0';
  return high - low > ROUND ? `s${Math.round((8 * (value - low)) / (high - low))}` : 's4';
}

function legend(mode, scale) {
  const box = h('div', { class: 'legend-scale' }, h('span', { class: 'what' }, `${mode.title}:`));
  if (!mode.column) {
    box.append(h('span', { class: 'tok k1' }, 'reasoning'), h('span', { class: 'tok k2' }, 'action'), h('span', { class: 'tok k0' }, 'other'));
    return box;
  }
  if (scale.low > scale.high) return box;
  const steps = mode.apart ? [-5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5].map((one) => `d${one}`) : [0, 1, 2, 3, 4, 5, 6, 7, 8].map((one) => `s${one}`);
  const end = (value) => figure(shownAs(mode, value));
  if (scale.high - scale.low <= ROUND) {
    box.append(h('span', {}, 'all '), h('span', { class: `tok ${mode.apart ? 'd0' : 's4'}` }, end(scale.high)));
    return box;
  }
  box.append(h('span', { class: 'end' }, end(scale.low)), h('span', { class: 'ramp', 'aria-hidden': 'true' }, steps.map((one) => h('span', { class: `tok ${one}` }))), h('span', { class: 'end' }, end(scale.high)));
  if (mode.apart) box.append(h('span', { class: 'what' }, `${end(0)} in the middle, less is dotted`));
  return box;
}

// A token's text: spaces and ends of lines can be seen where they are all there is.
function tokenLabel(words) {
  if (words === '\n') return '\u21b5\n';
  if (words === ' ') return '\u2423';
  if (words === '\t') return '\u21e5';
  return words.replace(/\n/g, '\u21b5\n');
}

// Stretches of one kind; a response whose kinds change all the time is one.
function stretches(turn) {
  const found = [];
  for (let at = 0; at < turn.n; at++) {
    const kind = turn.kinds[at] ?? '0';
    if (found.length && found.at(-1).kind === kind) found.at(-1).end = at + 1;
    else found.push({ kind, from: at, end: at + 1 });
  }
  return found.length <= 12 ? found : [{ kind: '', from: 0, end: turn.n }];
}

// The tokens of a turn: a list box, of which the arrow keys go through the tokens.
function tokenBox(record, number, tell) {
  const turn = record.turns[number];
  const box = h('div', { class: 'tokens', tabIndex: 0, role: 'listbox', 'aria-label': `Sampled tokens of turn ${number + 1}; the arrow keys show the figures of each` });
  const spans = [];
  for (const { kind, from, end } of stretches(turn)) {
    const name = kind === '' ? '' : KINDS[kind] ?? 'other';
    const words = h('span', { class: 'words', role: 'presentation' });
    for (let at = from; at < end; at++) {
      const span = h('span', { role: 'option', 'aria-selected': 'false' }, text(tokenLabel(tokenText(record.run, record.integers[turn.ids + at]))));
      span.at = at;
      spans.push(span);
      words.append(span);
    }
    box.append(h('div', { class: `stretch of-${name || 'all'}`, role: 'group', 'aria-label': name || 'tokens' }, name ? h('span', { class: 'kind', 'aria-hidden': 'true' }, name) : '', words));
  }
  let active = -1;
  const activate = (at) => {
    if (active >= 0) { spans[active].removeAttribute('id'); spans[active].classList.remove('active'); spans[active].setAttribute('aria-selected', 'false'); }
    active = at;
    if (at < 0) { box.removeAttribute('aria-activedescendant'); return; }
    spans[at].id = `token-${number}`;
    spans[at].classList.add('active');
    spans[at].setAttribute('aria-selected', 'true');
    box.setAttribute('aria-activedescendant', spans[at].id);
    spans[at].scrollIntoView({ block: 'nearest' });
    tell(number, at, true);
  };
  box.addEventListener('mouseover', (event) => {
    const span = event.target.closest('[role=option]');
    if (span) tell(number, span.at, false);
  });
  box.addEventListener('click', (event) => {
    const span = event.target.closest('[role=option]');
    if (span) activate(span.at);
  });
  box.addEventListener('focus', () => { if (active < 0 && spans.length) activate(0); });
  box.addEventListener('keydown', (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -10, ArrowDown: 10, Home: -1e9, End: 1e9 }[event.key];
    if (!move || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    event.stopPropagation();
    activate(Math.max(0, Math.min(spans.length - 1, active + move)));
  });
  box.paint = (mode, scale) => {
    const clipped = turn.units?.clipped ?? '';
    const marks = mode.name === 'ratio' || mode.name === 'advantage';
    for (const span of spans) {
      const { at } = span;
      const shade = mode.column ? shadeOf(mode, columnAt(record, turn, mode, at), scale) : `k${turn.kinds[at] ?? 0}`;
      const classes = `tok ${shade}${marks && clipped[at] === '1' ? ' cut-off' : ''}${at === active ? ' active' : ''}`;
      if (span.className !== classes) span.className = classes;
    }
  };
  return box;
}

// All figures of a token, by name.
function tokenFigures(record, number, at) {
  const turn = record.turns[number];
  const found = [['kind', KINDS[turn.kinds[at]] ?? 'other']];
  for (const mode of MODES) {
    if (!mode.column) continue;
    const value = columnAt(record, turn, mode, at);
    if (value !== null) found.push([mode.name, Number.isNaN(value) ? '\u2013' : mode.apart && !mode.of ? signed(value) : figure(shownAs(mode, value))]);
  }
  if (turn.units?.clipped) found.push(['clipped', turn.units.clipped[at] === '1' ? 'yes' : 'no']);
  return found;
}

function tokenPanel(record, number, at) {
  const turn = record.turns[number];
  const id = record.integers[turn.ids + at];
  return [
    h('span', { class: 'token' }, text(tokenLabel(tokenText(record.run, id)))),
    h('span', { class: 'pair' }, `turn ${number + 1}, token ${at + 1} of ${turn.n}, id ${id}`),
    ...tokenFigures(record, number, at).map(([name, value]) => h('span', { class: 'pair', 'data-figure': name }, `${name} `, h('b', {}, value))),
  ];
}
