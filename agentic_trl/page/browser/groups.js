// Groups: those of a step in a list, and the episodes of one side by side.

const GROUP_ORDERS = table({
  learned: ['most learned', (one) => -(one.learned ?? -1)],
  step: ['as played', (one) => one.members[0]],
  spread: ['widest scores', (one) => -(one.high - one.low)],
  low: ['lowest success', (one) => one.rate],
  high: ['highest success', (one) => -one.rate],
  tokens: ['most tokens', (one) => -one.tokens],
});

// The groups of some episodes, whole, in an order.
function groupsOf(episodes, order) {
  const { run, step, group, success, score, tokens, learned } = data.columns;
  const found = new Map();
  for (const at of episodes) {
    const key = `${run[at]}/${step[at]}/${group[at]}`;
    if (!found.has(key)) found.set(key, { key, run: run[at], step: step[at], group: group[at], members: [] });
  }
  allGroups().forEach((members, key) => { if (found.has(key)) found.get(key).members = members; });
  const made = [...found.values()];
  for (const one of made) {
    const scores = one.members.map((at) => score[at] ?? 0);
    const weights = one.members.filter((at) => learned[at] !== null);
    one.tokens = one.members.reduce((sum, at) => sum + tokens[at], 0);
    one.rate = one.members.filter((at) => success[at]).length / one.members.length;
    [one.low, one.high] = [scores.reduce((a, b) => Math.min(a, b)), scores.reduce((a, b) => Math.max(a, b))];
    one.score = scores.reduce((a, b) => a + b, 0) / scores.length;
    const total = weights.reduce((sum, at) => sum + tokens[at], 0);
    one.learned = weights.length ? weights.reduce((sum, at) => sum + learned[at] * tokens[at], 0) / (total || 1) : null;
  }
  const key = (GROUP_ORDERS[order] ?? GROUP_ORDERS.learned)[1];
  return made.map((one) => [key(one), one.members[0], one]).sort((a, b) => a[0] - b[0] || a[1] - b[1]).map((one) => one[2]);
}

// Members of every group, by their key.
function allGroups() {
  if (data.groups) return data.groups;
  const { run, step, group, member } = data.columns;
  data.groups = new Map();
  for (let at = 0; at < data.count; at++) {
    const key = `${run[at]}/${step[at]}/${group[at]}`;
    if (data.groups.has(key)) data.groups.get(key).push(at);
    else data.groups.set(key, [at]);
  }
  for (const members of data.groups.values()) members.sort((a, b) => member[a] - member[b]);
  return data.groups;
}

const taskName = (at) => data.names.task[data.columns.task[at]] || 'no task';
const outcomes = (members) => h('span', { class: 'outcomes' }, members.slice(0, 16).map((at) => outcomeMark(at)), members.length > 16 ? `+${members.length - 16}` : '');

function outcomeMark(at) {
  const good = data.columns.success[at];
  return h('span', { class: good ? 'mark good' : 'mark bad', role: 'img', 'aria-label': good ? 'success' : 'no success' }, good ? '\u2713' : '\u00d7');
}

function flagNames(at, extra = []) {
  return [...data.flags.filter((flag) => has(at, flag)), ...extra].map((flag) => h('span', { class: 'flag' }, flag));
}

function bar(value, most) {
  const inner = h('span', { class: 'fill' });
  inner.style.width = `${most > 0 && value ? Math.max(2, (100 * value) / most) : 0}%`;
  return h('span', { class: 'bar', 'aria-hidden': 'true' }, inner);
}

function groupsView(set) {
  const order = filters.order in GROUP_ORDERS ? filters.order : 'learned';
  const page = h('div', { class: 'page full' }, h('h1', {}, 'Groups'));
  const head = h('div', { class: 'head' });
  const several = data.runs.length > 1 && filters.run === '';
  const list = new LongList('Groups', narrow() ? 76 : 38, (at) => groupRow(list.groups[at], list.most, several));
  const count = h('p', { class: 'hint' });
  const searching = searchState(() => set({ query: '' }));
  const update = () => {
    searching.update();
    list.groups = groupsOf(passing(), order);
    list.most = list.groups.reduce((most, one) => Math.max(most, one.learned ?? 0), 0);
    walk.items = list.groups.map((one) => `#/group/${one.key}`);
    count.textContent = `${plural(list.groups.length, 'group')}${list.groups.length ? '' : ': no episode passes the filters'}. Learned is the mean of |advantage \u00d7 weight| over the sampled tokens of a group.`;
    list.show(list.groups.length);
  };
  head.replaceChildren(...['Step', 'Group', 'Outcomes', 'Score', 'Learned', 'Task'].map((one, at) => h('span', { class: `c${at}` }, one)));
  page.append(filterBar(set, Object.entries(GROUP_ORDERS).map(([key, [shown]]) => [key, shown]), order), searching, count, h('div', { class: `table groups${several ? ' several' : ''}` }, head, list.element));
  walk.list = list;
  page.update = update;
  update();
  return page;
}

function groupRow(one, most, several) {
  const flat = has(one.members[0], 'flat group');
  return h('a', { class: 'row', href: `#/group/${one.key}` },
    h('span', { class: 'c0' }, String(one.step), several ? h('span', { class: 'of' }, text(data.runs[one.run].name)) : ''),
    h('span', { class: 'c1' }, String(one.group)),
    h('span', { class: 'c2' }, outcomes(one.members)),
    h('span', { class: 'c3 number' }, figure(one.score), one.high > one.low ? h('span', { class: 'range' }, ` ${figure(one.low)}\u2013${figure(one.high)}`) : ''),
    h('span', { class: 'c4 number' }, bar(one.learned, most), h('span', { class: 'figure' }, figure(one.learned))),
    h('span', { class: 'c5' }, flat ? h('span', { class: 'flag' }, 'flat group') : '', text(taskName(one.members[0]))));
}

const meanOf = (values) => (values.length ? values.reduce((a, b) => a + b, 0) / values.length : null);

function turnColumn(record, turn, name) {
  const place = turn.columns[name];
  return place === undefined ? null : record.floats.subarray(place, place + turn.n);
}

// The episodes of a group, a column each, turn by turn in the same line.
async function groupView(key) {
  const members = allGroups().get(key);
  if (!members) return missing('There is no such group on this page.');
  const [run, step, group] = key.split('/');
  const records = await Promise.all(members.map(episode));
  const longest = Math.max(...records.map((one) => one.turns.length));
  const page = h('div', { class: 'page full' },
    h('p', { class: 'crumbs' }, h('a', { href: `#/groups?run=${run}&step=${step}&order=learned` }, `Groups of step ${step}`), data.runs.length > 1 ? h('span', {}, ' \u00b7 ', text(data.runs[run].name)) : ''),
    h('h1', {}, `Group ${group} of step ${step}`),
    taskBox(records[0].task), otherRuns(run, step, group));
  const heads = records.map((one) => h('th', { scope: 'col' },
    h('a', { href: addressOf(one.at) }, `Member ${one.member}`), ' ', outcomeMark(one.at),
    h('div', { class: 'facts' }, [`score ${figure(one.score)}`, plural(one.turns.length, 'turn'), plural(data.columns.tokens[one.at], 'token'),
      `advantage ${signed(data.columns.advantage[one.at])}`, `learned ${figure(data.columns.learned[one.at])}`].map((words) => h('span', {}, words))),
    h('div', {}, h('span', { class: 'flag' }, text(one.stop)), flagNames(one.at))));
  const most = Math.max(...records.flatMap((one) => one.turns.map((turn) => Math.abs(meanOf([...(turnColumn(one, turn, 'advantage') ?? [])]) ?? 0))));
  const rows = Array.from({ length: longest }, (_, at) => h('tr', {}, h('th', { scope: 'row' }, String(at + 1)), ...records.map((one) => turnCell(one, at, most))));
  page.append(h('div', { class: 'wide compare', tabIndex: 0, role: 'region', 'aria-label': 'Episodes side by side' },
    h('table', {}, h('thead', {}, h('tr', {}, h('th', { scope: 'col' }, 'Turn'), ...heads)), h('tbody', {}, rows))));
  return page;
}

function otherRuns(run, step, group) {
  const others = data.runs.flatMap((one, at) => (String(at) !== run && allGroups().has(`${at}/${step}/${group}`) ? [h('a', { href: `#/group/${at}/${step}/${group}` }, text(one.name))] : []));
  return others.length ? h('p', { class: 'hint' }, 'The same step and group of ', others.flatMap((one, at) => (at ? [', ', one] : [one]))) : '';
}

function turnCell(record, at, most) {
  const turn = record.turns[at];
  if (!turn) return h('td', { class: 'empty' });
  const advantage = meanOf([...(turnColumn(record, turn, 'advantage') ?? [])]);
  const shade = advantage === null ? 0 : Math.round((5 * advantage) / (most || 1));
  return h('td', {},
    h('div', { class: 'line' }, h('a', { href: `${addressOf(record.at)}?turn=${at + 1}` }, h('span', { class: `chipped d${shade}` }, `A ${signed(advantage)}`)),
      h('span', {}, `reward ${figure(turn.reward)}`), turn.penalty ? h('span', {}, `penalty ${figure(turn.penalty)}`) : '',
      turn.valid ? '' : h('span', { class: 'flag' }, 'invalid'), turn.truncated ? h('span', { class: 'flag' }, 'cut') : ''),
    h('pre', { class: 'short' }, text((turn.action || responseText(record, turn)).slice(0, 280))));
}
