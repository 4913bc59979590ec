'use strict';
// The contents of the page: the report, the texts of the trace, the names of streams, and the address of the trace if it is served.
const facts = JSON.parse(document.getElementById('facts').textContent);
const { report, texts, streams, unordered } = facts;
const byId = (id) => document.getElementById(id);

// An element with attributes and children. Texts of a trace become text nodes alone, since anybody may have written them.
function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === 'style') Object.assign(made.style, value); else made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}
const row = (...cells) => element('tr', {}, ...cells.map((cell) => cell instanceof Element && cell.tagName === 'TD' ? cell : element('td', {}, cell)));
const number = (text) => element('td', { class: 'number' }, text);
const percent = (part) => `${(100 * part / Math.max(report.total_ns, 1)).toFixed(part * 1000 < report.total_ns ? 1 : 0)} %`;

function time(ns) {
  if (ns < 1e3) return `${ns} ns`;
  if (ns < 1e6) return `${(ns / 1e3).toFixed(1)} µs`;
  if (ns < 1e9) return `${(ns / 1e6).toFixed(1)} ms`;
  return `${(ns / 1e9).toFixed(2)} s`;
}

// ---- Instructions: columns, by place in program order ----

let columns;

async function unpack() {
  const packed = Uint8Array.from(atob(byId('data').textContent.trim()), (char) => char.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream('deflate'));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// Reads what `write_instructions` in `mod.rs` has written: for each instruction its numbers, seven bits a byte.
function read(bytes, count) {
  let at = 0;
  const next = () => {
    let value = 0, scale = 1, byte;
    do {
      byte = bytes[at++];
      value += (byte & 127) * scale;
      scale *= 128;
    } while (byte > 127);
    return value;
  };
  const signed = () => {
    const value = next();
    return value % 2 ? -(value + 1) / 2 : value / 2;
  };
  const found = {
    stream: new Uint32Array(count), number: new Float64Array(count), order: new Float64Array(count), name: new Uint32Array(count), line: new Uint32Array(count),
    submitted: new Float64Array(count), begin: new Float64Array(count), end: new Float64Array(count), met: new Float64Array(count).fill(-1),
    before: new Int32Array(count).fill(-1), after: new Int32Array(count).fill(-1), firstSource: new Uint32Array(count + 1), sources: [],
  };
  const last = new Int32Array(streams.length).fill(-1), numbers = new Float64Array(streams.length);
  const sources = [];
  let begin = 0, order = 0;
  for (let i = 0; i < count; i++) {
    const stream = found.stream[i] = next();
    found.number[i] = numbers[stream] += signed();
    found.order[i] = order += signed();
    found.name[i] = next();
    found.line[i] = next();
    begin = found.begin[i] = begin + signed();
    found.submitted[i] = begin - signed();
    found.end[i] = begin + next();
    const met = next();
    if (met > 0) found.met[i] = begin - (met % 2 ? (met - 1) / 2 : -met / 2);
    if (last[stream] >= 0) {
      found.before[i] = last[stream];
      found.after[last[stream]] = i;
    }
    last[stream] = i;
    found.firstSource[i] = sources.length;
    for (let left = next(); left > 0; left--) sources.push(i - next());
  }
  found.firstSource[count] = sources.length;
  found.sources = Int32Array.from(sources);
  // Who waited for an instruction: its part of `waiters`.
  found.firstWaiter = new Uint32Array(count + 1);
  for (const source of found.sources) found.firstWaiter[source + 1]++;
  for (let i = 0; i < count; i++) found.firstWaiter[i + 1] += found.firstWaiter[i];
  found.waiters = new Int32Array(sources.length);
  const free = found.firstWaiter.slice();
  for (let i = 0; i < count; i++) {
    for (let k = found.firstSource[i]; k < found.firstSource[i + 1]; k++) found.waiters[free[found.sources[k]]++] = i;
  }
  return found;
}

const sourcesOf = (i) => columns.sources.subarray(columns.firstSource[i], columns.firstSource[i + 1]);
const waitersOf = (i) => columns.waiters.subarray(columns.firstWaiter[i], columns.firstWaiter[i + 1]);

// ---- The report ----

const PARTS = [['busy', 'busy'], ['waiting', 'waiting'], ['not_submitted', 'not submitted'], ['host_waits', 'host waits'], ['held', 'held'], ['late', 'late']];

function streamRows() {
  return report.streams.map((stream) => {
    const told = PARTS.filter(([key]) => stream[`${key}_ns`] > 0).map(([key, name]) => `${name} ${percent(stream[`${key}_ns`])}`).join(', ');
    const bar = element('div', { class: 'bar', role: 'img', title: told, 'aria-label': told });
    for (const [key] of PARTS) {
      if (stream[`${key}_ns`] > 0) bar.append(element('span', { style: { flexGrow: stream[`${key}_ns`], background: `var(--${key})` } }));
    }
    return row(streamCell(stream.stream), number(stream.instructions.toLocaleString('en')), element('td', { class: 'wide' }, bar), number(percent(stream.busy_ns)));
  });
}

// Of exactly this text.
const searchLink = (text) => element('a', { href: `#q=${encodeURIComponent(`"${text}"`)}` }, element('code', {}, text));
const streamCell = (stream) => element('td', { class: 'stream' }, searchLink(stream));
const place = (of) => of.stream === null ? element('span', {}, `${of.name} at `, searchLink(of.line)) : element('span', {}, `${of.name} at `, searchLink(of.line), ' on ', searchLink(of.stream));

function cause(idle) {
  const at = idle.at === null ? 'the end of the run' : searchLink(idle.at);
  const times = idle.times > 1 ? `, ${idle.times.toLocaleString('en')} times` : '';
  const of = idle.of === null ? null : place(idle.of);
  const said = {
    waited: ['waited for ', of], overwrites: ['waited to overwrite what is used by ', of], not_submitted: ['nothing was submitted until ', at], late: ['no thread ran ', at, ' yet'],
    host_waited: of === null ? ['the host waited at ', at, ' in vain'] : ['the host waited at ', at, ' for ', of],
    no_room: ['the host waited at ', at, ' until fewer instructions were pending'], no_memory: ['the host waited at ', at, ' for memory'],
    section: ['the host waited at ', at, ' for the end of a critical section'],
  }[idle.cause];
  return element('span', {}, ...said, times);
}

function size(bytes) {
  const units = ['B', 'KiB', 'MiB', 'GiB'];
  const unit = bytes < 1024 ? 0 : bytes < 2 ** 20 ? 1 : bytes < 2 ** 30 ? 2 : 3;
  return `${unit === 0 ? bytes : (bytes / 1024 ** unit).toFixed(unit === 3 ? 2 : 1)} ${units[unit]}`;
}

// The bytes in use over time, in steps; at the top are those of the peak.
function curve(pool) {
  const svg = (tag, attributes) => {
    const made = document.createElementNS('http://www.w3.org/2000/svg', tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    return made;
  };
  const values = [[pool.over_time[0][0], 0], ...pool.over_time], [begin, end] = [values[0][0], values[values.length - 1][0]];
  const points = values.map(([at, bytes]) => [1000 * (at - begin) / Math.max(end - begin, 1), 100 - 98 * bytes / Math.max(pool.peak_bytes, 1)]);
  const steps = points.map(([x, y], i) => `${i === 0 ? 'M' : 'H'}${x.toFixed(1)}${i === 0 ? ' ' : 'V'}${y.toFixed(1)}`).join('');
  const told = `${pool.pool} over time, up to ${size(pool.peak_bytes)}`;
  const picture = svg('svg', { class: 'curve', viewBox: '0 0 1000 101', preserveAspectRatio: 'none', role: 'img', 'aria-label': told });
  picture.append(svg('path', { d: `${steps}H1000V100H0Z` }));
  return picture;
}

function memory(pool, table) {
  const share = (bytes) => number(`${Math.round(100 * bytes / Math.max(pool.peak_bytes, 1))} %`);
  const rows = pool.owners.map((it) => row(number(size(it.bytes)), share(it.bytes), number(it.tensors.toLocaleString('en')), place(it.of)));
  if (pool.others_bytes > 0) rows.push(row(number(size(pool.others_bytes)), share(pool.others_bytes), '', 'others'));
  const told = `${size(pool.peak_bytes)} in use at the peak, ${pool.peak_at_ns === null ? 'before' : `${time(pool.peak_at_ns)} after`} the first submission; ${size(pool.reserved_bytes)} reserved`;
  return [
    element('h2', {}, `${pool.pool[0].toUpperCase()}${pool.pool.slice(1)}`), element('p', { class: 'dim' }, told),
    ...pool.over_time.length > 1 ? [curve(pool)] : [], table(['at the peak', '', 'tensors', 'of'], rows),
  ];
}

function show() {
  const root = byId('report'), many = (count, what) => `${count.toLocaleString('en')} ${what}${count === 1 ? '' : 's'}`;
  document.title = `${facts.title}: streamvm`;
  byId('title').textContent = `${facts.title}: ${time(report.total_ns)} in ${many(report.instructions, 'instruction')} on ${many(report.streams.length, 'stream')}${report.is_cut ? '; the trace is cut' : ''}`;
  const table = (head, rows) => element('table', {}, element('thead', {}, element('tr', {}, ...head.map((name) => element('th', { scope: 'col' }, name)))), element('tbody', {}, ...rows));
  root.append(element('h2', {}, 'How each stream spent the time'), table(['stream', 'instructions', '', 'busy'], streamRows()));
  root.append(element('div', { class: 'legend' }, ...PARTS.map(([key, name]) => element('span', {}, element('i', { style: { background: `var(--${key})` } }), name))));
  if (report.failed.length > 0) {
    root.append(element('h2', {}, 'Failed'), table([''], report.failed.map((of) => row(place(of)))));
  }
  if (report.pending.length > 0) {
    root.append(element('h2', {}, 'Not passed when the trace was written'), table(['for', 'stream', ''], report.pending.map((it) =>
      row(number(time(it.ns)), streamCell(it.of.stream), `${it.state}${it.of.name === '' ? '' : `: ${it.of.name} (${it.of.line})`}${it.waits_for.length > 0 ? `, for ${it.waits_for.join(', ')}` : ''}`))));
  }
  root.append(element('h2', { id: 'idle' }, 'Why streams were idle'), table(['time', '', 'stream', 'why'], report.idle.map((it) =>
    row(number(time(it.ns)), number(percent(it.ns)), streamCell(it.stream), cause(it)))));
  const path = report.critical_path;
  root.append(element('h2', { id: 'path' }, 'The critical path'), element('p', { class: 'dim' }, `${percent(path.ran_ns)} of instructions, ${percent(path.host_ns)} until the host had submitted, ${percent(path.late_ns)} until threads ran`));
  root.append(table(['time', '', 'times', 'would save', ''], path.groups.map((it) => row(number(time(it.ns)), number(percent(it.ns)), number(it.times.toLocaleString('en')), number(time(it.would_save_ns)), place(it.of)))));
  const copies = report.copies === null ? '' : `Copies took ${time(report.copies.copying_ns)}, ${Math.round(100 * report.copies.beside_ns / report.copies.copying_ns)} % of them beside computations. `;
  root.append(element('p', {}, `${copies}From submission to begin: ${time(report.queue.p50_ns)} (median), ${time(report.queue.p99_ns)} (99 %).`));
  if (report.hosts.length > 0) {
    root.append(element('h2', { id: 'threads' }, 'Threads of the host'), table(['thread', 'submissions', 'instructions', 'submitting', 'waiting', 'held'], report.hosts.map((it) =>
      row(it.thread, number(it.submissions.toLocaleString('en')), number(it.instructions.toLocaleString('en')), number(percent(it.submitting_ns)), number(percent(it.waiting_ns)), number(percent(it.held_ns))))));
  }
  if (report.waits !== null && report.waits.implied > 0) {
    root.append(element('h2', { id: 'waits' }, 'Waits that could go'), element('p', { class: 'dim' }, `${report.waits.implied.toLocaleString('en')} of ${report.waits.waits.toLocaleString('en')}: others imply them`));
    root.append(table(['times', 'of', 'for'], report.waits.groups.map((it) => row(number(it.times.toLocaleString('en')), place(it.of), place(it.source)))));
  }
  root.append(...report.memory.flatMap((pool) => memory(pool, table)));
}

// ---- The card of an instruction ----

const link = (i) => element('a', { href: `#i=${i}` }, texts[columns.name[i]]);
const told = (i) => element('span', {}, link(i), ' on ', `${streams[columns.stream[i]]} ${columns.number[i]}`);

// Up to `MOST` links: an instruction may have a million neighbours.
const MOST = 50;
function links(places) {
  if (places.length === 0) return '—';
  const items = Array.from(places.subarray(0, MOST), (i) => element('div', {}, told(i)));
  return element('div', {}, ...items, places.length > MOST ? `and ${(places.length - MOST).toLocaleString('en')} more` : '');
}

let current = -1;

function card(i) {
  current = i;
  const it = (name) => columns[name][i], before = it('before'), free = before < 0 || unordered[it('stream')] ? 0 : columns.end[before];
  const could = Math.max(it('submitted'), free), met = it('met'), begin = it('begin');
  const waited = met < 0 ? 0 : Math.max(0, Math.min(met, begin) - could);
  const entries = [
    ['line', searchLink(texts[it('line')])],
    ['stream', element('span', {}, searchLink(streams[it('stream')]), `, number ${it('number').toLocaleString('en')}`)],
    ['program order', it('order').toLocaleString('en')],
    ['submitted', `at ${time(it('submitted'))}`],
    ['began', `at ${time(begin)}, ${time(begin - it('submitted'))} later`],
    ['ran for', time(it('end') - begin)],
    ['its stream waited', waited > 0 ? `${time(waited)} for what is below` : sourcesOf(i).length > 0 ? 'no time: what is below was over before' : 'for nothing'],
    ['no thread ran it', time(Math.max(0, begin - Math.max(could, met)))],
    ['before', before < 0 ? '—' : told(before)],
    ['after', it('after') < 0 ? '—' : told(it('after'))],
    ['waited for', links(sourcesOf(i))],
    ['waited for it', links(waitersOf(i))],
  ];
  const definitions = element('dl', {}, ...entries.flatMap(([name, value]) => [element('dt', {}, name), element('dd', {}, value)]));
  // Perfetto fetches a trace from this address alone, and shows a time with so much around it.
  const around = Math.max(1000, it('end') - begin), from = Math.max(0, begin - around), until = it('end') + around;
  const perfetto = facts.trace === null ? null : element('p', {}, element('a', { href: `https://ui.perfetto.dev/#!/?url=${encodeURIComponent(facts.trace)}&visStart=${from}&visEnd=${until}`, target: '_blank', rel: 'noreferrer' }, 'Open this moment in Perfetto'));
  byId('side-title').textContent = 'Instruction';
  byId('card').replaceChildren(element('h3', {}, texts[it('name')]), definitions, ...(perfetto === null ? [] : [perfetto]));
}

function nothing() {
  current = -1;
  byId('side-title').textContent = 'Instruction';
  byId('card').replaceChildren('Click at a line, a stream, or an instruction.');
}

// ---- Search ----

let results = [];

function search(query) {
  const words = query.toLowerCase().trim();
  results = [];
  let found = 0;
  if (words !== '') {
    // In quotes: the whole text.
    const whole = /^"(.*)"$/s.exec(query.trim())?.[1];
    const matches = (list) => Uint8Array.from(list, (text) => Number(whole === undefined ? text.toLowerCase().includes(words) : text === whole));
    const text = matches(texts), stream = matches(streams), order = /^\d+$/.test(words) ? Number(words) : -1;
    for (let i = 0; i < columns.name.length; i++) {
      if (text[columns.name[i]] || text[columns.line[i]] || stream[columns.stream[i]] || columns.order[i] === order) {
        found += 1;
        if (results.length < 2 * MOST) results.push(i);
      }
    }
  }
  byId('count').textContent = words === '' ? '' : `${found.toLocaleString('en')} found`;
  if (words === '') return nothing();
  const rows = results.map((i) => row(element('td', {}, link(i)), searchLink(texts[columns.line[i]]), streamCell(streams[columns.stream[i]]), number(time(columns.end[i] - columns.begin[i]))));
  const more = found > results.length ? `and ${(found - results.length).toLocaleString('en')} more` : '';
  byId('side-title').textContent = 'Found';
  byId('card').replaceChildren(element('table', {}, element('tbody', {}, ...rows)), element('p', { class: 'dim' }, found === 0 ? 'nothing' : more));
}

// ---- Where the page is: an instruction (#i=PLACE) or a search (#q=TEXT), so that links and the browser's back work ----

function go() {
  const [kind, value] = [location.hash.slice(1, 3), location.hash.slice(3)];
  const i = Number(value);
  if (kind === 'i=' && Number.isInteger(i) && i >= 0 && i < columns.name.length) {
    card(i);
  } else if (kind === 'q=') {
    let text = '';
    try { text = decodeURIComponent(value); } catch { /* A damaged address searches nothing. */ }
    byId('search').value = text;
    search(text);
  } else {
    nothing();
  }
}

function keys(event) {
  const inSearch = document.activeElement === byId('search');
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === '/' && !inSearch) {
    byId('search').focus();
    byId('search').select();
  } else if (event.key === 'Enter' && inSearch) {
    if (results.length > 0) location.hash = `i=${results[0]}`;
    byId('search').blur();
  } else if (event.key === 'Escape') {
    byId('search').blur();
    location.hash = '';
  } else if (!inSearch && current >= 0 && event.key.startsWith('Arrow')) {
    // Of what it waited for, that which was over last; of those that waited, the first one to begin.
    const best = (places, worse) => places.reduce((best, i) => best < 0 || worse(best, i) ? i : best, -1);
    const to = {
      ArrowLeft: columns.before[current], ArrowRight: columns.after[current],
      ArrowUp: best(sourcesOf(current), (one, other) => columns.end[one] < columns.end[other]), ArrowDown: best(waitersOf(current), (one, other) => columns.begin[one] > columns.begin[other]),
    }[event.key];
    if (to < 0) return;
    location.hash = `i=${to}`;
  } else {
    return;
  }
  event.preventDefault();
}

function theme() {
  const root = document.documentElement, isDark = matchMedia('(prefers-color-scheme: dark)').matches;
  const now = root.dataset.theme ?? (isDark ? 'dark' : 'light');
  root.dataset.theme = now === 'dark' ? 'light' : 'dark';
}

show();
byId('theme').addEventListener('click', theme);
unpack().then((bytes) => {
  columns = read(bytes, facts.instructions);
  byId('search').addEventListener('input', () => search(byId('search').value));
  addEventListener('hashchange', go);
  addEventListener('keydown', keys);
  go();
  document.documentElement.dataset.ready = 'yes';
}, (error) => byId('card').replaceChildren(`The instructions of this page cannot be read: ${error}`));
