// Addresses, keys, and what is shown when.

const narrow = () => window.matchMedia('(max-width: 720px)').matches;
const TABS = [['runs', 'Runs'], ['groups', 'Groups'], ['episodes', 'Episodes']];
const KEYS = [
  ['j, k or \u2193, \u2191', 'next episode or group, the one before'],
  ['Enter', 'open the row at hand'],
  ['n, p', 'next turn, the one before'],
  ['\u2190, \u2192', 'in the tokens of a turn, or in a chart: one further'],
  ['1 to 9, 0', 'colour the tokens by kind, advantage, \u2026'],
  ['g', 'the group of this episode'],
  ['u', 'up: from an episode or a group to its list'],
  ['/', 'search all texts'],
  ['t', 'dark or light'],
  ['?', 'these keys'],
];

// The list that j and k go through, also from within an episode.
const walk = { items: null, list: null, by(move) {
  const [view, parts] = place();
  if (view === 'episodes' || view === 'groups') {
    const at = Math.max(0, Math.min(this.items.length - 1, this.list.current + move));
    if (this.items.length) this.list.mark(at, true);
    return;
  }
  const items = this.around(view);
  const now = items.indexOf(view === 'episode' ? findEpisode(...parts.map(Number)) : location.hash.split('?')[0]); // of the address: what it names may not be shown yet
  const next = items[now + move];
  if (next !== undefined) location.hash = view === 'episode' ? addressOf(next) : next;
  else say('There is no further one.');
}, around(view) {
  if (view === 'episode') return passing();
  return groupsOf(passing(), filters.order).map((one) => `#/group/${one.key}`);
} };

// The view of the address, its parts and its words.
function place() {
  const [path, words] = location.hash.replace(/^#\/?/, '').split(/\?(.*)/s);
  const [view, ...parts] = path.split('/');
  return [view || 'runs', parts, new URLSearchParams(words ?? '')];
}

function set(changes) {
  const [view] = place();
  location.hash = `#/${view}${writtenFilters(changes)}`;
}

const missing = (words) => h('div', { class: 'page' }, h('p', { class: 'none' }, words));
let current = null;
let asked = 0;

async function viewOf(view, parts, words) {
  if (view === 'groups' || view === 'episodes') {
    readFilters(words);
    document.getElementById('query').value = filters.query;
    if (filters.query !== searched.query) search(filters.query, () => current?.update?.());
    return view === 'groups' ? groupsView(set) : episodesView(set);
  }
  if (view === 'group') return groupView(parts.join('/'));
  if (view === 'episode') {
    const at = findEpisode(...parts.map(Number));
    return at < 0 ? missing('There is no such episode on this page.') : episodeView(at);
  }
  return runsView();
}

// What tells a control of a view from others, so that the one that had the focus gets it back when the view is drawn anew.
function controlName(control) {
  if (!control?.closest?.('main .filters, main .searching')) return '';
  return control.dataset.flag ?? control.getAttribute('aria-label') ?? control.closest('label')?.textContent.slice(0, 12) ?? '';
}

async function show() {
  const mine = ++asked;
  const control = controlName(document.activeElement);
  const [view, parts, words] = place();
  const colour = words.get('colour');
  if (MODES.some((mode) => mode.name === colour)) shownEpisode.colour = colour;
  const same = view === 'episode' && current?.address === parts.join('/');
  if (!same) {
    let page;
    try { page = await viewOf(view, parts, words); } catch (error) { page = missing(`This part of the page cannot be read: ${visible(error.message)}`); console.warn(error); }
    if (mine !== asked) return; // something else has been asked for since
    current?.leave?.();
    current = page;
    current.address = view === 'episode' ? parts.join('/') : '';
    document.getElementById('main').replaceChildren(page);
    page.update?.();
    window.scrollTo(0, 0);
    if (control) [...page.querySelectorAll('.filters button, .filters select')].find((one) => controlName(one) === control)?.focus();
  } else if (colour) current.paint();
  const turn = Number(words.get('turn'));
  if (view === 'episode' && turn) goTurn(turn, false);
  else if (view === 'episode' && !same) shownEpisode.turn = 0;
  const tab = { group: 'groups', episode: 'episodes' }[view] ?? view;
  for (const link of document.querySelectorAll('#tabs a')) {
    if (link.dataset.view === tab) link.setAttribute('aria-current', 'page'); else link.removeAttribute('aria-current');
  }
  document.title = visible(`${document.querySelector('main h1')?.textContent.trim() ?? 'Runs'} \u00b7 agentic_trl`);
  document.body.dataset.shown = view;
}

function goTurn(turn, write) {
  const card = document.getElementById(`turn-${turn}`);
  if (!card) return;
  shownEpisode.turn = turn;
  card.scrollIntoView({ block: 'start' });
  card.focus({ preventScroll: true });
  if (write) history.replaceState(null, '', `${addressOf(shownEpisode.record.at)}?turn=${turn}`);
}

function theme() {
  const dark = document.documentElement.dataset.theme ?? (window.matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light');
  document.documentElement.dataset.theme = dark === 'dark' ? 'light' : 'dark';
}

function keyDown(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const field = event.target.matches('input[type=search], select, textarea');
  if (event.key === 'Escape' && field) event.target.blur();
  if (field || document.querySelector('dialog[open]')) return;
  const [view] = place();
  const radio = event.target.matches('input[type=radio]') && event.key.startsWith('Arrow');
  const arrows = (view === 'groups' || view === 'episodes') && event.key.startsWith('Arrow');
  const step = { j: 1, k: -1, ...(arrows && !radio ? { ArrowDown: 1, ArrowUp: -1 } : {}) }[event.key];
  const act = {
    n: () => view === 'episode' && goTurn(Math.min(shownEpisode.record.turns.length, shownEpisode.turn + 1), true),
    p: () => view === 'episode' && goTurn(Math.max(1, shownEpisode.turn - 1), true),
    g: () => { if (view === 'episode') { const { at } = shownEpisode.record; location.hash = `#/group/${data.columns.run[at]}/${data.columns.step[at]}/${data.columns.group[at]}`; } },
    u: () => { location.hash = `#/${{ episode: 'episodes', group: 'groups' }[view] ?? 'runs'}${writtenFilters()}`; },
    '/': () => document.getElementById('query').focus(),
    t: theme,
    '?': () => document.getElementById('keys').showModal(),
  }[event.key];
  const digit = /^\d$/.test(event.key) && view === 'episode';
  if (step) walk.by(step);
  else if (act) act();
  else if (digit) pickColour(Number(event.key));
  else return;
  event.preventDefault();
}

function pickColour(digit) {
  const radios = [...document.querySelectorAll('.colours input')];
  const radio = radios[digit === 0 ? 9 : digit - 1];
  if (radio) { radio.checked = true; radio.dispatchEvent(new Event('change')); }
}

function furnish() {
  document.getElementById('tabs').append(...TABS.map(([view, name]) => h('li', {}, h('a', { href: `#/${view}`, 'data-view': view }, name))));
  const dialog = document.getElementById('keys');
  dialog.append(h('h2', { id: 'keys-title' }, 'Keys'), h('dl', {}, KEYS.flatMap(([keys, what]) => [h('dt', {}, keys), h('dd', {}, what)])), h('form', { method: 'dialog' }, h('button', { type: 'submit' }, 'Close')));
  document.getElementById('help').addEventListener('click', () => dialog.showModal());
  document.getElementById('theme').addEventListener('click', theme);
  document.addEventListener('keydown', keyDown);
  let waiting = 0;
  document.getElementById('query').addEventListener('input', (event) => {
    clearTimeout(waiting);
    waiting = setTimeout(() => {
      const [view] = place();
      location.hash = `#/${view === 'groups' ? 'groups' : 'episodes'}${writtenFilters({ query: event.target.value.trim() })}`;
    }, 250);
  });
  window.addEventListener('hashchange', show);
  window.matchMedia('(max-width: 720px)').addEventListener('change', () => { if (current?.update) show(); });
}

async function start() {
  furnish();
  try { await openIndex(); } catch (error) {
    document.getElementById('main').replaceChildren(missing(`The page cannot be read (${visible(error.message)}). A browser of 2023 or later is needed, and the whole file.`));
    return;
  }
  if (!data.curves.some((kind) => Object.keys(kind.figures).length) && !location.hash) history.replaceState(null, '', '#/groups');
  await show();
}

start();
