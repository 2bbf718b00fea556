// The index and the chunks: base64 of gzip, unpacked when they are needed. `agentic_trl/page/build.py` says what is in them.

const KEPT = 24; // chunks that stay unpacked
const data = { runs: [], columns: {}, names: {}, flags: [], count: 0, curves: [], first: [] };
const opened = new Map();
const parsed = new Promise((done) => {
  if (document.readyState !== 'loading') done();
  else document.addEventListener('DOMContentLoaded', done, { once: true });
});

function bytesOf(base64) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(base64);
  return Uint8Array.from(atob(base64), (char) => char.charCodeAt(0));
}

async function unpack(name) {
  if (!document.getElementById(name)) await parsed; // chunks stand behind the script
  const packed = bytesOf(document.getElementById(name).textContent.trim());
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream('gzip'));
  const raw = await new Response(stream).arrayBuffer();
  const length = new DataView(raw).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(raw, 4, length)));
  return { head, floats: new Float32Array(raw, 4 + length), integers: new Int32Array(raw, 4 + length) };
}

async function openIndex() {
  Object.assign(data, (await unpack('index')).head);
  data.columns.chunk.forEach((chunk, at) => { data.first[chunk] ??= at; });
  for (const kind of data.curves) kind.figures = table(kind.figures);
  data.runs.forEach((run, number) => {
    try { run.facts = JSON.parse(run.facts); } catch { run.facts = {}; } // JSON of Python may hold NaN
    run.colour = number % 8;
  });
}

function chunk(number) {
  const known = opened.get(number);
  if (known) {
    opened.delete(number); // to the end of the queue
    opened.set(number, known);
    return known;
  }
  const found = unpack(`chunk-${number}`);
  opened.set(number, found);
  if (opened.size > KEPT) opened.delete(opened.keys().next().value);
  return found;
}

// The record of an episode, and the columns that it points into.
async function episode(at) {
  const number = data.columns.chunk[at];
  const { head, floats, integers } = await chunk(number);
  return { at, floats, integers, run: data.runs[data.columns.run[at]], ...head[at - data.first[number]] };
}

// Text of a token of a run; an id where there is no tokenizer.
function tokenText(run, id) {
  run.texts ??= new Map(run.tokens.texts.map((one, at) => [run.tokens.ids[at], one]));
  return run.texts.get(id) ?? `\u27e8${id}\u27e9`;
}

const has = (at, flag) => (data.columns.flags[at] >> data.flags.indexOf(flag)) & 1;

// ---- search in all texts, chunk after chunk; the page stays at hand between them
const searched = { query: '', hits: null, done: 0, running: 0 };

function textsOf(record) {
  const said = record.messages.flatMap((one) => Object.values(one));
  return [record.task, record.error, ...said, ...record.turns.flatMap((one) => [one.action, one.state_key])];
}

async function search(query, tell) {
  const turn = ++searched.running;
  const wanted = query.toLowerCase();
  Object.assign(searched, { query, hits: wanted ? new Uint8Array(data.count) : null, done: 0, found: 0 });
  if (!wanted) return tell();
  const total = data.first.length;
  for (let number = 0, told = 0; number < total; number++) {
    const { head } = await (opened.get(number) ?? unpack(`chunk-${number}`));
    if (turn !== searched.running) return;
    head.forEach((record, place) => {
      if (textsOf(record).some((one) => one.toLowerCase().includes(wanted))) {
        searched.hits[data.first[number] + place] = 1;
        searched.found++;
      }
    });
    searched.done = number + 1;
    const now = performance.now();
    if (now - told > 120 || searched.done === total) { told = now; tell(); }
    await new Promise((go) => setTimeout(go));
  }
}
