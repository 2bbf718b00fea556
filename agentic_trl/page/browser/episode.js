// An episode, turn by turn: what was observed, what was sampled, what came of it, and what was learned.

const shownEpisode = { colour: 'advantage', record: null, turn: 0 };
const PARTS = table({
  trajectory: ['of the trajectory', 'advantage of the whole episode within its group'],
  response: ['of the response', 'PlanPO: advantage of the response among those to the same situation'],
  alpha: ['alpha', 'PlanPO: share of the two levels'],
  state: ['of the state', 'GiGPO: advantage among the actions taken in the same state'],
  value: ['V', 'StepPO: the critic\u2019s value before the turn'],
  delta: ['\u03b4', 'StepPO: reward + \u03b3 V of the next turn \u2212 V'],
  return: ['return', 'the critic\u2019s target'],
  advantage: ['before whitening', 'StepPO: generalized advantage before it is whitened'],
});

const addressOf = (at) => `#/episode/${data.columns.run[at]}/${data.columns.step[at]}/${data.columns.rank[at]}/${data.columns.line[at]}`;

function findEpisode(run, step, rank, line) {
  const { columns } = data;
  for (let at = 0; at < data.count; at++) {
    if (columns.run[at] === run && columns.step[at] === step && columns.rank[at] === rank && columns.line[at] === line) return at;
  }
  return -1;
}

function pretty(task) {
  try { return JSON.stringify(JSON.parse(task), null, 2); } catch { return task; }
}

const taskBox = (task) => h('details', { class: 'task' }, h('summary', {}, h('span', { class: 'label' }, 'Task '), h('span', { class: 'one-line' }, text(task.slice(0, 300)))), block(pretty(task), 'said'));

// The words of a message: its reasoning, its content, its calls, and what else there is.
function wordsOf(message) {
  const { role, content, reasoning_content: thought, ...others } = message;
  return [thought, content, ...Object.entries(others).filter(([, one]) => one).map(([name, one]) => `${name}: ${one}`)].filter(Boolean).join('\n');
}

function responseText(record, turn) {
  if (turn.said[2] >= 0) return wordsOf(record.messages[turn.said[2]]);
  return turn.n ? Array.from({ length: turn.n }, (_, at) => tokenText(record.run, record.integers[turn.ids + at])).join('') : turn.action;
}

// A message; a long one of the system is closed at first, as it is the same in every episode.
function messageBox(message) {
  const role = h('span', { class: 'role' }, text(message.role ?? ''));
  const words = wordsOf(message);
  if (message.role === 'system' && words.length > 160) return h('details', { class: 'message' }, h('summary', {}, role, ' ', h('span', { class: 'role' }, `(${words.length.toLocaleString('en')} characters)`)), block(words, 'said'));
  return h('div', { class: 'message' }, role, block(words, 'said'));
}

const duration = (seconds) => (typeof seconds !== 'number' || seconds >= 1 ? `${figure(seconds)} s` : `${figure(seconds * 1000)} ms`);

function observationOf(record, turn) {
  const [from, end] = turn.said;
  if (from < 0) return [h('p', { class: 'hint' }, `The messages of the episode do not say what stood before this response (${plural(turn.observed, 'token')}); they are all listed below the turns.`)];
  return record.messages.slice(from, end).map(messageBox);
}

function creditOf(turn) {
  const parts = Object.entries(turn.credit).map(([name, value]) => {
    const [shown, meaning] = PARTS[name] ?? [name, ''];
    return h('span', { class: 'pair', title: meaning, 'data-part': visible(name) }, text(shown), ' ', h('b', {}, name === 'alpha' ? figure(value) : signed(value)));
  });
  const units = turn.units;
  if (units) {
    const count = [...units.clipped].filter((one) => one === '1').length;
    const of = { turn: 'ratio of the turn', sequence: 'ratio of the row' }[units.level] ?? 'mean ratio of tokens';
    const cut = units.level === 'token' ? `${count} of ${plural(turn.n, 'token')} clipped` : count ? 'clipped' : 'not clipped';
    parts.push(h('span', { class: count ? 'pair warn' : 'pair', 'data-part': 'units' }, `${of} `, h('b', {}, figure(units.ratio)), `, ${cut}`));
  }
  return parts;
}

function turnCard(record, number, watch) {
  const turn = record.turns[number];
  const advantages = turnColumn(record, turn, 'advantage');
  const facts = [
    ['reward', figure(turn.reward)], turn.penalty ? ['penalty', figure(turn.penalty)] : null, ['tokens', turn.n],
    advantages ? ['advantage', signed(meanOf([...advantages]))] : null,
    turn.seconds ? ['environment', duration(turn.seconds)] : null,
    turn.policy_version !== null ? ['policy after step', turn.policy_version] : null,
    turn.conversation ? ['conversation', turn.conversation] : null,
  ].filter(Boolean);
  const flags = [turn.valid ? '' : 'no accepted action', turn.truncated ? 'cut' : '', turn.extends || !number ? '' : 'rewritten prompt'].filter(Boolean);
  const card = h('section', { class: 'turn', id: `turn-${number + 1}`, tabIndex: -1, 'aria-labelledby': `turn-${number + 1}-title` },
    h('header', {}, h('h2', { id: `turn-${number + 1}-title` }, `Turn ${number + 1}`),
      facts.map(([name, value]) => h('span', { class: 'pair' }, `${name} `, h('b', {}, String(value)))), flags.map((one) => h('span', { class: 'flag' }, one))),
    h('div', { class: 'credit' }, creditOf(turn)),
    h('div', { class: 'observed' }, h('h3', {}, 'Observation'), observationOf(record, turn)));
  const sampled = h('div', { class: 'sampled' }, h('h3', {}, 'Response'));
  card.append(sampled);
  if (turn.n) {
    const place = h('div', { class: 'tokens-place' });
    place.style.minHeight = `${Math.min(600, 24 + turn.n * 1.6)}px`;
    place.number = number;
    sampled.append(place);
    watch.observe(place);
  } else sampled.append(block(responseText(record, turn), 'said'));
  if (turn.action) sampled.append(h('p', { class: 'action' }, h('span', { class: 'label' }, 'Action '), h('code', {}, text(turn.action.slice(0, LONG)))));
  if (turn.state_key) sampled.append(h('p', { class: 'action' }, h('span', { class: 'label' }, 'State '), h('code', {}, text(turn.state_key.slice(0, 200)))));
  return card;
}

function episodeHead(record) {
  const { at } = record;
  const [run, step, group] = [data.columns.run[at], record.step, record.group];
  const facts = [['score', figure(record.score)], ['turns', record.turns.length], ['tokens', data.columns.tokens[at].toLocaleString('en')], ['learned', figure(data.columns.learned[at])], ['rank', record.rank]];
  return h('div', {},
    h('p', { class: 'crumbs' }, h('a', { href: `#/episodes${writtenFilters()}` }, 'Episodes'), ' \u00b7 ', data.runs.length > 1 ? [text(record.run.name), ' \u00b7 '] : '', h('a', { href: `#/group/${run}/${step}/${group}` }, `group ${group} of step ${step}`)),
    h('div', { class: 'title' }, h('h1', {}, outcomeMark(at), ` Step ${step}, group ${group}, member ${record.member}`),
      h('span', { class: 'steps' },
        h('button', { type: 'button', title: 'Episode before (k)', 'aria-label': 'Episode before', on: { click: () => walk.by(-1) } }, '\u2039'),
        h('button', { type: 'button', title: 'Next episode (j)', 'aria-label': 'Next episode', on: { click: () => walk.by(1) } }, '\u203a'))),
    h('p', { class: 'facts' }, h('span', { class: 'flag' }, text(record.stop)), flagNames(at), facts.map(([name, value]) => h('span', { class: 'pair' }, `${name} `, h('b', {}, String(value))))),
    record.error ? h('div', { class: 'error' }, h('h2', {}, 'Error'), block(record.error, 'said')) : '',
    record.run.tokens.missing ? h('p', { class: 'note' }, text(record.run.tokens.note)) : '',
    taskBox(record.task));
}

function turnStrip(record) {
  const means = record.turns.map((turn) => { const all = turnColumn(record, turn, 'advantage'); return all ? meanOf([...all]) : null; });
  const most = Math.max(...means.map((one) => Math.abs(one ?? 0)));
  return h('nav', { class: 'strip', 'aria-label': 'Turns' }, record.turns.map((turn, at) => h('a', {
    href: `${addressOf(record.at)}?turn=${at + 1}`, class: `d${means[at] === null ? 0 : Math.round((5 * means[at]) / (most || 1))}${turn.valid ? '' : ' invalid'}`,
    title: `turn ${at + 1}: reward ${figure(turn.reward)}, advantage ${signed(means[at])}`, 'aria-label': `Turn ${at + 1}`,
  }, String(at + 1))));
}

function colourBar(record, paint) {
  const modes = modesOf(record);
  if (!modes.some((one) => one.name === shownEpisode.colour)) shownEpisode.colour = modes[Math.min(1, modes.length - 1)].name;
  return h('fieldset', { class: 'colours' }, h('legend', {}, 'Colour tokens by'), modes.map((mode) => h('label', {},
    h('input', { type: 'radio', name: 'colour', value: mode.name, checked: mode.name === shownEpisode.colour, on: { change: () => { shownEpisode.colour = mode.name; paint(); } } }),
    h('span', {}, mode.name))));
}

async function episodeView(at) {
  const record = await episode(at);
  shownEpisode.record = record;
  const panel = h('div', { class: 'inspector', id: 'inspector' }, h('span', { class: 'hint' }, 'Point at a token, or go through them with the arrow keys: its figures stand here.'));
  const tell = (number, place, aloud) => {
    panel.replaceChildren(...tokenPanel(record, number, place));
    if (aloud) say(panel.textContent.replace(/(\d)(?=[a-z])/g, '$1, '));
  };
  const boxes = [];
  const scale = h('div', { class: 'scale' });
  const clips = record.turns.some((turn) => turn.units);
  const paint = () => {
    const mode = MODES.find((one) => one.name === shownEpisode.colour);
    const ends = scaleOf(record, mode);
    scale.replaceChildren(legend(mode, ends), clips && (mode.name === 'ratio' || mode.name === 'advantage') ? h('span', { class: 'what' }, h('span', { class: 'tok cut-off' }, 'boxed'), ' clipped') : '');
    boxes.forEach((one) => one.paint(mode, ends));
  };
  const watch = new IntersectionObserver((seen) => {
    for (const { target, isIntersecting } of seen) {
      if (!isIntersecting) continue;
      watch.unobserve(target);
      const box = tokenBox(record, target.number, tell);
      boxes.push(box);
      target.style.minHeight = '';
      target.replaceChildren(box);
      const mode = MODES.find((one) => one.name === shownEpisode.colour);
      box.paint(mode, scaleOf(record, mode));
    }
  }, { rootMargin: '700px 0px' });
  const sticky = h('div', { class: 'sticky' }, colourBar(record, paint), scale);
  const [end] = record.turns.length ? [record.turns.at(-1).said[2]] : [-1];
  const rest = record.messages.slice(end + 1);
  const after = rest.length ? h('section', { class: 'turn' }, h('header', {}, h('h2', {}, end >= 0 ? 'After the last response' : 'Messages')), rest.map(messageBox)) : '';
  const page = h('div', { class: 'page episode' }, episodeHead(record), turnStrip(record), sticky, record.turns.map((_, number) => turnCard(record, number, watch)), after, panel);
  page.paint = paint;
  page.leave = () => watch.disconnect();
  paint();
  return page;
}

// The list of the episodes that pass the filters.
function episodesView(set) {
  const page = h('div', { class: 'page full' }, h('h1', {}, 'Episodes'));
  const several = data.runs.length > 1 && filters.run === '';
  const list = new LongList('Episodes', narrow() ? 76 : 38, (at) => episodeRow(list.episodes[at], several));
  const count = h('p', { class: 'hint' });
  const searching = searchState(() => set({ query: '' }));
  const update = () => {
    searching.update();
    list.episodes = passing();
    walk.items = list.episodes;
    count.textContent = `${plural(list.episodes.length, 'episode')} of ${data.count.toLocaleString('en')}`;
    list.show(list.episodes.length);
  };
  const head = h('div', { class: 'head' }, ['Step', 'Group', 'Outcome', 'Score', 'Turns', 'Tokens', 'Learned', 'Task'].map((one, at) => h('span', { class: `e${at}` }, one)));
  page.append(filterBar(set, Object.entries(ORDERS).map(([key, [shown]]) => [key, shown]), filters.order), searching, count, h('div', { class: `table episodes${several ? ' several' : ''}` }, head, list.element));
  walk.list = list;
  page.update = update;
  update();
  return page;
}

function episodeRow(at, several) {
  const { step, group, member, score, turns, tokens, learned, stop, run } = data.columns;
  const usual = data.names.stop[stop[at]];
  return h('a', { class: 'row', href: addressOf(at) },
    h('span', { class: 'e0' }, String(step[at]), several ? h('span', { class: 'of' }, text(data.runs[run[at]].name)) : ''),
    h('span', { class: 'e1' }, `${group[at]}.${member[at]}`),
    h('span', { class: 'e2' }, outcomeMark(at), ' ', text(usual)),
    h('span', { class: 'e3 number' }, figure(score[at])), h('span', { class: 'e4 number' }, String(turns[at])), h('span', { class: 'e5 number' }, tokens[at].toLocaleString('en')),
    h('span', { class: 'e6 number' }, figure(learned[at])),
    h('span', { class: 'e7' }, flagNames(at), text(taskName(at))));
}
