// What the lists show: filters, search and order, which the address of the page holds.

const filters = { run: '', step: '', outcome: '', flags: [], query: '', order: '' };
const ORDERS = table({
  '': ['as played', null],
  learned: ['most learned', (at) => -(data.columns.learned[at] ?? -1)],
  score: ['highest score', (at) => -(data.columns.score[at] ?? -Infinity)],
  low: ['lowest score', (at) => data.columns.score[at] ?? Infinity],
  turns: ['most turns', (at) => -data.columns.turns[at]],
  tokens: ['most tokens', (at) => -data.columns.tokens[at]],
});

function readFilters(words) {
  for (const name of ['run', 'step', 'outcome', 'query', 'order']) filters[name] = words.get(name) ?? '';
  filters.flags = (words.get('flags') ?? '').split(',').filter((one) => data.flags.includes(one));
}

function writtenFilters(changes = {}) {
  const words = new URLSearchParams();
  for (const [name, value] of Object.entries({ ...filters, ...changes })) if (String(value)) words.set(name, value);
  return words.size ? `?${words}` : '';
}

// Numbers of the episodes that pass, in their order; `without` leaves one filter out.
function passing(without = '') {
  const { run, step, success, flags, chunk } = data.columns;
  const wanted = filters.flags.reduce((bits, one) => bits | (1 << data.flags.indexOf(one)), 0);
  const outcome = table({ success: 1, failure: 0 })[filters.outcome];
  const found = [];
  for (let at = 0; at < data.count; at++) {
    if (filters.run !== '' && run[at] !== Number(filters.run)) continue;
    if (filters.step !== '' && step[at] !== Number(filters.step)) continue;
    if (outcome !== undefined && success[at] !== outcome) continue;
    if (without !== 'flags' && (flags[at] & wanted) !== wanted) continue;
    if (filters.query && searched.hits && !searched.hits[at]) continue;
    found.push(at);
  }
  const key = ORDERS[filters.order]?.[1];
  return key && without !== 'flags' ? found.map((at) => [key(at), at]).sort((a, b) => a[0] - b[0] || a[1] - b[1]).map((one) => one[1]) : found;
}

function choice(label, options, value, change) {
  const box = h('select', { on: { change: (event) => change(event.target.value) } });
  for (const [key, shown] of options) box.append(h('option', { value: key, selected: String(key) === String(value) }, visible(shown)));
  return h('label', { class: 'choice' }, h('span', {}, label), box);
}

const stepsOf = (run) => [...new Set(data.columns.step.filter((_, at) => run === '' || data.columns.run[at] === Number(run)))].sort((a, b) => a - b);

// The bar above a list; `set` takes what has changed.
function filterBar(set, orders, order) {
  const steps = stepsOf(filters.run);
  const bar = h('form', { class: 'filters', 'aria-label': 'Filters', on: { submit: (event) => event.preventDefault() } });
  if (data.runs.length > 1) {
    bar.append(choice('Run', [['', 'all'], ...data.runs.map((run, at) => [at, run.name])], filters.run, (run) => set({ run })));
  }
  const now = steps.indexOf(Number(filters.step));
  const stepper = h('span', { class: 'stepper' },
    choice('Step', [['', 'all'], ...steps.map((one) => [one, one])], filters.step, (step) => set({ step })),
    h('button', { type: 'button', 'aria-label': 'Step before', disabled: filters.step === '' || now <= 0, on: { click: () => set({ step: steps[now - 1] }) } }, '\u2039'),
    h('button', { type: 'button', 'aria-label': 'Step after', disabled: now === steps.length - 1, on: { click: () => set({ step: steps[filters.step === '' ? 0 : now + 1] }) } }, '\u203a'));
  bar.append(stepper,
    choice('Outcome', [['', 'all'], ['success', 'success'], ['failure', 'no success']], filters.outcome, (outcome) => set({ outcome })),
    choice('Order', orders, order, (value) => set({ order: value })));
  const chips = h('div', { class: 'chips', role: 'group', 'aria-label': 'Only episodes that are' });
  const counts = data.flags.map(() => 0);
  const wanted = filters.flags.reduce((bits, one) => bits | (1 << data.flags.indexOf(one)), 0);
  for (const at of passing('flags')) {
    data.flags.forEach((flag, bit) => {
      const bits = wanted | (1 << bit);
      if ((data.columns.flags[at] & bits) === bits) counts[bit]++;
    });
  }
  data.flags.forEach((flag, bit) => {
    const on = filters.flags.includes(flag);
    const flags = on ? filters.flags.filter((one) => one !== flag) : [...filters.flags, flag];
    chips.append(h('button', { type: 'button', class: 'chip', 'aria-pressed': String(on), 'data-flag': flag, on: { click: () => set({ flags }) } },
      flag, ' ', h('span', { class: 'count' }, counts[bit].toLocaleString('en'))));
  });
  bar.append(chips);
  return bar;
}

// How far the search is, above a list.
function searchState(clear) {
  const box = h('div', { class: 'searching', hidden: !filters.query });
  box.update = () => {
    const total = data.first.length;
    const done = searched.done >= total;
    box.replaceChildren(
      h('span', {}, `\u201c`, text(filters.query.slice(0, 80)), `\u201d: ${plural(searched.found ?? 0, 'episode')}${done ? '' : ' so far'}`),
      done ? '' : h('progress', { max: total, value: searched.done, 'aria-label': 'Searched' }),
      h('button', { type: 'button', on: { click: clear } }, 'Clear search'));
    if (done) say(`${plural(searched.found ?? 0, 'episode')} found`);
  };
  return box;
}
