// Curves over steps: a line a kind of run, with a band where it has an interval.

const SHARES = /rate|^signal\/|^groups\/|^clip_ratio\//;
const SHAPE = { width: 420, height: 190, left: 52, right: 12, top: 10, bottom: 26 };

const DRAWN = 2000; // most points of a line

// Places of the points of a line that are drawn: the first, the last, and the lowest and the highest of each of equal parts between them.
function drawn(values) {
  if (values.length <= DRAWN) return values.map((_, at) => at);
  const parts = DRAWN / 2 - 1;
  const inner = values.length - 2;
  const kept = [0];
  for (let part = 0; part < parts; part++) {
    const from = 1 + Math.floor((part * inner) / parts);
    const end = 1 + Math.floor(((part + 1) * inner) / parts);
    let low = from, high = from;
    for (let at = from; at < end; at++) {
      if (values[at] < values[low]) low = at;
      if (values[at] > values[high]) high = at;
    }
    kept.push(Math.min(low, high));
    if (low !== high) kept.push(Math.max(low, high));
  }
  kept.push(values.length - 1);
  return kept;
}

// Round numbers inside of a range.
function ticks(low, high, about) {
  const rough = (high - low) / about || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const unit = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= 0.7 * rough);
  const found = [];
  for (let at = Math.ceil(low / unit - 1e-9); at * unit <= high + unit * 1e-9; at++) found.push(Number((at * unit).toPrecision(12)));
  return found;
}

const nameOfKind = (kind) => {
  const names = kind.runs.map((one) => data.runs[one].name);
  return names.length === 1 ? names[0] : `${names[0]} (${plural(names.length, 'seed')})`;
};

// The value of a kind of run at a step, or at the last one before it.
function valueAt([steps, means, lows, highs], step) {
  let at = -1;
  while (at + 1 < steps.length && steps[at + 1] <= step) at++;
  return at < 0 ? null : { mean: means[at], low: lows[at], high: highs[at] };
}

const withInterval = (one) => (one ? `${figure(one.mean)}${one.low === undefined ? '' : ` (${figure(one.low)} to ${figure(one.high)})`}` : '\u2013');

// A chart of several figures, or of one, of the kinds of run that are not hidden.
function chart(title, names, hidden) {
  const lines = [];
  data.curves.forEach((kind, number) => {
    if (hidden.has(number)) return;
    names.forEach((name, which) => { if (kind.figures[name]) lines.push({ number, which, name, kind, points: kind.figures[name] }); });
  });
  const { width, height, left, right, top, bottom } = SHAPE;
  const every = [...new Set(lines.flatMap(({ points }) => points[0]))].sort((a, b) => a - b);
  let low = Infinity, high = -Infinity;
  for (const { points: [, ...columns] } of lines) {
    for (const values of columns) for (const one of values) { low = Math.min(low, one); high = Math.max(high, one); }
  }
  if (low >= 0 && low < high * 0.6) low = 0;
  if (low === high && low >= 0) [low, high] = [0, low ? 2 * low : 1];
  if (names.every((name) => SHARES.test(name))) [low, high] = [Math.max(low, 0), Math.min(high, 1)]; // an interval may leave what a share can be
  if (low === high) [low, high] = [low - Math.abs(low || 1) * 0.5, high + Math.abs(high || 1) * 0.5];
  const x = (step) => left + ((step - every[0]) / (every.at(-1) - every[0] || 1)) * (width - left - right);
  const y = (value) => height - bottom - ((Math.max(low, Math.min(high, value)) - low) / (high - low)) * (height - top - bottom);
  const picture = svg('svg', { viewBox: `0 0 ${width} ${height}`, class: 'chart', tabindex: 0, role: 'slider', 'aria-label': `${title} over steps`, 'aria-valuemin': every[0] ?? 0, 'aria-valuemax': every.at(-1) ?? 0 });
  for (const one of ticks(low, high, 4)) {
    picture.append(svg('line', { class: 'grid', x1: left, x2: width - right, y1: y(one), y2: y(one) }), svg('text', { class: 'tick', x: left - 6, y: y(one) + 3.5, 'text-anchor': 'end' }, shortFigure(one)));
  }
  for (const one of ticks(every[0], every.at(-1), 5).filter(Number.isInteger)) {
    picture.append(svg('text', { class: 'tick', x: x(one), y: height - 8, 'text-anchor': 'middle' }, String(one)));
  }
  for (const { number, which, points: [steps, means, lows, highs] } of lines) {
    const places = drawn(means);
    if (highs.some((high, at) => high > lows[at])) {
      const upper = places.map((at) => `${x(steps[at])},${y(highs[at])}`);
      const lower = places.map((at) => `${x(steps[at])},${y(lows[at])}`).reverse();
      picture.append(svg('polygon', { class: `band line-${number % 8}`, points: [...upper, ...lower].join(' ') }));
    }
    picture.append(svg('polyline', { class: `curve line-${number % 8} dash-${which % 4}`, points: places.map((at) => `${x(steps[at])},${y(means[at])}`).join(' ') }));
    if (steps.length < 3) steps.forEach((step, at) => picture.append(svg('circle', { class: `dot line-${number % 8}`, cx: x(step), cy: y(means[at]), r: 3 })));
  }
  const cursor = svg('line', { class: 'cursor', y1: top, y2: height - bottom, x1: -9, x2: -9 });
  picture.append(cursor);
  const readout = h('div', { class: 'readout' });
  const point = (step) => {
    cursor.setAttribute('x1', x(step));
    cursor.setAttribute('x2', x(step));
    const parts = lines.map((line) => [line, withInterval(valueAt(line.points, step))]);
    picture.setAttribute('aria-valuenow', step);
    picture.setAttribute('aria-valuetext', `step ${step}: ${parts.map(([line, value]) => `${visible(lineName(line, names))} ${value}`).join(', ')}`);
    readout.replaceChildren(h('span', { class: 'step' }, `step ${step}`), ...parts.map(([line, value]) => h('span', { class: 'value' },
      svg('svg', { class: 'swatch', viewBox: '0 0 18 8', 'aria-hidden': 'true' }, svg('line', { class: `curve line-${line.number % 8} dash-${line.which % 4}`, x1: 0, x2: 18, y1: 4, y2: 4 })),
      text(lineName(line, names)), ' ', h('b', {}, value))));
  };
  let now = every.length - 1;
  const go = (at) => { now = Math.max(0, Math.min(every.length - 1, at)); point(every[now]); };
  picture.addEventListener('pointermove', (event) => {
    const box = picture.getBoundingClientRect();
    const step = every[0] + (((event.clientX - box.left) / box.width) * width - left) / (width - left - right) * (every.at(-1) - every[0]);
    go(every.reduce((best, one, at) => (Math.abs(one - step) < Math.abs(every[best] - step) ? at : best), 0));
  });
  picture.addEventListener('keydown', (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -1e9, End: 1e9 }[event.key];
    if (move) { event.preventDefault(); event.stopPropagation(); go(now + move); }
  });
  if (every.length) go(now);
  const thinned = lines.some(({ points }) => points[0].length > DRAWN) ? h('p', { class: 'hint' }, `Of each part of a long line its lowest and its highest point are drawn, ${DRAWN.toLocaleString('en')} of a line at most.`) : '';
  return h('figure', { class: 'panel' }, h('figcaption', {}, title), picture, readout, thinned);
}

function lineName(line, names) {
  const of = data.curves.length > 1 ? nameOfKind(line.kind) : '';
  return names.length > 1 ? `${line.name}${of ? `, ${of}` : ''}` : of || line.name;
}

function shortFigure(value) {
  const size = Math.abs(value);
  if (size >= 1e6 || (size > 0 && size < 1e-3)) return value.toExponential(0).replace('-', '\u2212').replace('e+', 'e');
  if (size >= 1e4) return `${figure(value / 1000)}k`;
  return figure(value);
}
