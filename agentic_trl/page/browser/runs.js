// Runs: what they are, how they went over steps, and two or more side by side.

const CHARTS = [
  ['Success rate', ['success_rate']],
  ['Success rate, held out', ['eval_success_rate']],
  ['Return', ['return', 'reward']],
  ['Turns', ['turns/mean', 'turns/success_mean']],
  ['Tokens per episode', ['tokens_per_episode']],
  ['Tokens per turn', ['tokens_per_turn', 'tokens_per_turn/success']],
  ['Signal', /^signal\//],
  ['Flat groups', ['groups/flat', 'groups/no_advantage']],
  ['Clipped', ['clip_ratio/high', 'clip_ratio/low']],
  ['KL from the reference', ['kl', 'kl/mean']],
  ['Drift: ratio', ['ratio/mean']],
  ['Drift: sampler and policy', ['sampling/logprob_difference']],
  ['Staleness', ['rollout/staleness']],
  ['Entropy', ['entropy']],
  ['Gradient norm', ['grad_norm']],
];

const shownRuns = { hidden: new Set(), more: '' };

function figureNames() {
  return [...new Set(data.curves.flatMap((kind) => Object.keys(kind.figures)))].sort();
}

function runsView() {
  const page = h('div', { class: 'page' }, h('h1', {}, data.runs.length === 1 ? text(data.runs[0].name) : plural(data.runs.length, 'run')));
  page.append(runTable(), problems());
  const names = figureNames();
  if (!names.length) {
    page.append(h('p', { class: 'none' }, 'The runs have no log: no metrics.jsonl, and no checkpoint with one.'));
    return page;
  }
  const charts = h('div', { class: 'charts' });
  const draw = () => {
    const wanted = CHARTS.map(([title, of]) => [title, of instanceof RegExp ? names.filter((one) => of.test(one)) : of.filter((one) => names.includes(one))]);
    if (shownRuns.more) wanted.unshift([shownRuns.more, [shownRuns.more]]);
    charts.replaceChildren(...wanted.filter(([, of]) => of.length).map(([title, of]) => chart(visible(title), of, shownRuns.hidden)));
  };
  const bar = h('div', { class: 'filters' });
  if (data.curves.length > 1) {
    data.curves.forEach((kind, number) => bar.append(h('label', { class: 'legend' },
      h('input', { type: 'checkbox', checked: !shownRuns.hidden.has(number), on: { change: (event) => {
        if (event.target.checked) shownRuns.hidden.delete(number); else shownRuns.hidden.add(number);
        draw();
      } } }),
      svg('svg', { class: 'swatch', viewBox: '0 0 18 8', 'aria-hidden': 'true' }, svg('line', { class: `curve line-${number % 8}`, x1: 0, x2: 18, y1: 4, y2: 4 })),
      h('span', {}, text(nameOfKind(kind))))));
  }
  bar.append(choice('Another figure', [['', 'none'], ...names.map((one) => [one, one])], shownRuns.more, (more) => { shownRuns.more = more; draw(); }));
  const note = data.curves.some((kind) => kind.runs.length > 1) ? 'Bands are 95 % intervals over seeds (Student\u2019s t): runs whose configurations are the same but for the seed. ' : 'A band is the 95 % interval over the held-out tasks. ';
  page.append(h('h2', {}, 'Over steps'), h('p', { class: 'hint' }, `${note}The line below a chart has its figures at the step under the pointer, or by the arrow keys.`), bar, charts);
  page.append(sideBySide(), figureTable(names));
  draw();
  return page;
}

function cells(tag, values, given = {}) {
  return values.map((one) => h(tag, { ...given }, one));
}

function runTable() {
  const rows = data.runs.map((run, number) => {
    const { facts } = run;
    const episodes = data.columns.run.filter((one) => one === number).length;
    const said = (value) => text(value === undefined || value === null ? '\u2013' : typeof value === 'object' ? JSON.stringify(value) : value);
    return h('tr', {},
      h('th', { scope: 'row' }, h('a', { href: `#/groups?run=${number}&order=learned` }, text(run.name)), h('div', { class: 'path' }, text(run.path))),
      ...cells('td', [said(facts.method), said(facts.environment), said(facts.model), said(facts.seed)]),
      ...cells('td', [String(stepsOf(number).length), episodes.toLocaleString('en'), String(run.unread)], { class: 'number' }));
  });
  return h('div', { class: 'wide', tabIndex: 0, role: 'region', 'aria-label': 'Runs' }, h('table', {},
    h('thead', {}, h('tr', {}, ...['Run', 'Method', 'Environment', 'Model', 'Seed'].map((one) => h('th', { scope: 'col' }, one)),
      ...['Steps with episodes', 'Episodes', 'Unreadable lines'].map((one) => h('th', { scope: 'col', class: 'number' }, one)))),
    h('tbody', {}, rows)));
}

function problems() {
  const made = h('div', {});
  for (const run of data.runs) {
    if (run.tokens.missing) made.append(h('p', { class: 'note' }, text(`${run.name}: ${run.tokens.note}`)));
    if (run.unread) {
      made.append(h('details', { class: 'note' }, h('summary', {}, text(`${run.name}: ${plural(run.unread, 'line')} cannot be read; all others are shown`)),
        h('ul', {}, run.problems.map((one) => h('li', {}, text(one)))),
        run.unread > run.problems.length ? h('p', {}, `${plural(run.unread - run.problems.length, 'more line')} like these.`) : ''));
    }
  }
  return made;
}

// What differs between the runs, and the last figures of each.
function sideBySide() {
  if (data.runs.length < 2) return h('div', {});
  const facts = data.runs.map((run) => table(run.facts, run.facts.args, { args: undefined }));
  const keys = [...new Set(facts.flatMap((one) => Object.keys(one)))].filter((key) => key !== 'args' && key !== 'started');
  const differing = keys.filter((key) => new Set(facts.map((one) => JSON.stringify(one[key]))).size > 1);
  const head = h('tr', {}, h('th', { scope: 'col' }, 'Knob'), ...data.runs.map((run) => h('th', { scope: 'col' }, text(run.name))));
  const rows = differing.map((key) => h('tr', {}, h('th', { scope: 'row' }, text(key)), ...facts.map((one) => h('td', {}, text(one[key] === undefined ? '\u2013' : typeof one[key] === 'string' ? one[key] : JSON.stringify(one[key]))))));
  return h('section', {}, h('h2', {}, 'Side by side'),
    h('div', { class: 'wide', tabIndex: 0, role: 'region', 'aria-label': 'What differs' }, differing.length ? h('table', {}, h('thead', {}, head), h('tbody', {}, rows)) : h('p', { class: 'none' }, 'Their facts say no difference.')));
}

// Last figures, for eyes and for screen readers; two kinds of run have their difference beside them.
function figureTable(names) {
  const two = data.curves.length === 2;
  const head = h('tr', {}, h('th', { scope: 'col' }, 'Figure'), ...data.curves.map((kind) => h('th', { scope: 'col', class: 'number' }, text(nameOfKind(kind)))), two ? h('th', { scope: 'col', class: 'number' }, 'Difference') : '');
  const rows = names.map((name) => {
    const last = data.curves.map((kind) => kind.figures[name] && valueAt(kind.figures[name], Infinity));
    const gap = two && last[0] && last[1] ? signed(last[1].mean - last[0].mean) : '\u2013';
    return h('tr', {}, h('th', { scope: 'row' }, text(name)), ...cells('td', last.map(withInterval), { class: 'number' }), two ? h('td', { class: 'number' }, gap) : '');
  });
  return h('details', { class: 'figures' }, h('summary', {}, `Last figures, all ${names.length}`),
    h('div', { class: 'wide', tabIndex: 0, role: 'region', 'aria-label': 'Last figures' }, h('table', {}, h('thead', {}, head), h('tbody', {}, rows))));
}
