// The sections beside the step: layers, planners, the stack.

/** A chart as wide as its place, drawn anew where that changes. */
function fitted(host, draw) {
  let width = 0;
  const fit = () => {
    if (host.clientWidth !== width) {
      width = host.clientWidth;
      host.replaceChildren(draw(width));
    }
  };
  new ResizeObserver(fit).observe(host);
  fit();
}

// ---- layers: upwards what a layer holds, downwards what it costs again

const kChoices = {
  kept: {color: 'tape', shape: '', means: 'keeps its tape'},
  lean: {color: 'value', shape: '', means: 'keeps a lean tape'},
  mixed: {color: 'grad', shape: '', means: 'its blocks differ'},
  frozen: {color: 'workspace', shape: '', means: 'has no backward'},
  recomputed: {color: 'param_shard', shape: 'hollow', means: 'runs again before its backward'},
};

function showLayers(layers) {
  byId('layers').hidden = false;
  const sum = key => layers.reduce((all, layer) => all + layer[key], 0);
  const counts = Object.keys(kChoices).map(choice => [choice, layers.filter(layer => layer.choice === choice).length])
    .filter(([, count]) => count > 0);
  const [bytes, full, seconds] = [sum('bytes'), sum('full_bytes'), sum('seconds')];
  byId('layers-lead').replaceChildren(
    counts.map(([choice, count]) => `${count} ${choice}`).join(', '), '. A micro-batch leaves ',
    element('b', {}, number(bytes, bytesText)), ' of ', number(full, bytesText), full > 0 ? ` (${percentText(bytes / full)})` : '',
    ', for ', element('b', {}, number(seconds, secondsText)), ' of work done again.');
  fitted(byId('layers-plot'), width => layersPlot(layers, width));
  byId('layers-legend').replaceChildren(
    ...counts.map(([choice]) => element('span', {}, swatch(kChoices[choice].color, kChoices[choice].shape),
      element('b', {}, choice), ' ' + kChoices[choice].means)),
    element('span', {}, swatch('line', 'hollow'), 'what it would leave in full'),
    ...(seconds > 0 ? [element('span', {}, swatch('recompute', 'hatched'), 'seconds again')] : []));
}

function layersPlot(layers, width) {
  const size = {width, left: 74, up: 150, down: layers.some(layer => layer.seconds > 0) ? 62 : 0, label: 24};
  const height = size.up + size.down + size.label + 8;
  const most = Math.max(1, ...layers.map(layer => layer.full_bytes), ...layers.map(layer => layer.bytes));
  const slowest = Math.max(1e-12, ...layers.map(layer => layer.seconds));
  const pitch = (size.width - size.left) / layers.length;
  const column = Math.min(Math.max(pitch - Math.min(6, pitch * 0.25), 0.6), 54);
  const up = bytes => 4 + size.up * (1 - bytes / most);
  const ground = 4 + size.up;
  const below = ground + size.label;
  const svg = drawn('svg', {viewBox: `0 0 ${width} ${height}`, height, role: 'img', 'aria-label': 'Bytes and seconds by layer'},
    drawn('defs', {}, hatchPattern('again', 'recompute')));
  for (const value of ticks(0, most, 4, true)) {
    svg.append(drawn('line', {class: 'grid', x1: size.left, x2: size.width, y1: up(value), y2: up(value)}),
      drawn('text', {x: size.left - 10, y: up(value) + 4, 'text-anchor': 'end'}, value === 0 ? '0' : bytesText(value)));
  }
  const every = Math.ceil(layers.length * 34 / (size.width - size.left));
  layers.forEach((layer, at) => {
    const x = size.left + pitch * at + (pitch - column) / 2;
    const {color: own, shape} = kChoices[layer.choice];
    const box = (top, bottom, attributes) => drawn('rect', {x, width: column, y: top, height: Math.max(bottom - top, 0), rx: 1.5, ...attributes});
    svg.append(box(up(layer.full_bytes), ground, {fill: 'none', stroke: 'var(--line)', 'stroke-width': 1.2}));
    svg.append(box(Math.min(up(layer.bytes), ground - 2.5), ground, shape === 'hollow'
      ? {fill: `var(--${own})`, 'fill-opacity': 0.25, stroke: `var(--${own})`} : {fill: `var(--${own})`}));
    if (layer.seconds > 0) {
      svg.append(box(below, below + (size.down - 6) * layer.seconds / slowest, {fill: 'url(#again)', stroke: 'var(--recompute)'}));
    }
    if (at % every === 0) {
      svg.append(drawn('text', {x: x + column / 2, y: ground + 16, 'text-anchor': 'middle'}, String(at)));
    }
    svg.append(telling(drawn('rect', {class: 'hit', x: size.left + pitch * at, width: pitch, y: 4, height: height - 8,
      'aria-label': `${layer.name}: ${layer.choice}`}), () => [element('b', {}, layer.name), `${layer.choice}: `,
      number(layer.bytes, bytesText), ` of ${bytesText(layer.full_bytes)}`,
      layer.seconds > 0 ? `, ${secondsText(layer.seconds)} again` : '']));
  });
  if (size.down > 0) {
    svg.append(drawn('text', {x: size.left - 10, y: below + 10, 'text-anchor': 'end'}, 'again'),
      drawn('text', {x: size.left - 10, y: below + 25, 'text-anchor': 'end'}, 'to ' + secondsText(slowest)));
  }
  return svg;
}

function hatchPattern(id, name) {
  return drawn('pattern', {id, width: 5, height: 5, patternUnits: 'userSpaceOnUse', patternTransform: 'rotate(45)'},
    drawn('rect', {width: 5, height: 5, fill: 'var(--card)'}), drawn('rect', {width: 2.2, height: 5, fill: `var(--${name})`}));
}

// ---- planners: seconds over bytes

const kMarkers = [
  (x, y) => drawn('circle', {cx: x, cy: y, r: 4.5}),
  (x, y) => drawn('rect', {x: x - 4, y: y - 4, width: 8, height: 8}),
  (x, y) => drawn('path', {d: `M${x} ${y - 5.5}l5 9h-10z`}),
  (x, y) => drawn('path', {d: `M${x} ${y - 5.5}l5.5 5.5l-5.5 5.5l-5.5 -5.5z`}),
  (x, y) => drawn('path', {d: `M${x} ${y + 5.5}l5 -9h-10z`}),
  (x, y) => drawn('path', {d: `M${x - 5} ${y}l2.5 -4.4h5l2.5 4.4l-2.5 4.4h-5z`}),
  (x, y) => drawn('path', {d: `M${x - 1.8} ${y - 5}h3.6v3.2h3.2v3.6h-3.2v3.2h-3.6v-3.2h-3.2v-3.6h3.2z`}),
  (x, y) => drawn('path', {d: `M${x - 5} ${y}l9 -5v10z`}),
  (x, y) => drawn('path', {d: `M${x} ${y - 6}l1.8 4.2l4.2 1.8l-4.2 1.8l-1.8 4.2l-1.8 -4.2l-4.2 -1.8l4.2 -1.8z`}),
];

function showPlanners(points, budget) {
  byId('planners').hidden = false;
  const names = [...new Set(points.filter(point => !point.chosen).map(point => point.planner))];
  byId('planners-lead').replaceChildren(...plannersLead(points.find(point => point.chosen)));
  fitted(byId('planners-plot'), width => plannersPlot(points, names, budget, width));
  byId('planners-legend').replaceChildren(
    ...names.map((name, at) => element('span', {}, icon(kMarkers[at % kMarkers.length](6.5, 6.5), `var(--p${at % 9})`), element('b', {}, name))),
    element('span', {}, icon(chosenMark(6.5, 6.5, 5.5), 'var(--ink)'), element('b', {}, 'this run')));
  tableOf(byId('planners-table'), ['planner', 'setting', 'peak', 'step', 'of the fastest'], points.map(point =>
    element('tr', {class: point.chosen ? 'chosen' : null}, element('th', {scope: 'row'}, point.planner),
      element('td', {class: 'text'}, point.setting || '–'), element('td', {}, number(point.peak_bytes, bytesText)),
      element('td', {}, number(point.seconds, secondsText)),
      element('td', {}, percentText(point.seconds / Math.min(...points.map(each => each.seconds)))))));
}

/** A run measures its blocks as it goes on: what its own plan promised is not what is simulated here. */
function plannersLead(chosen) {
  const promised = report.summary.predicted_step_s;
  const measured = chosen && promised !== null && Math.abs(chosen.seconds - promised) > 1e-9 * promised;
  const lead = ['Each planner at its settings, simulated on this model and device',
    measured ? ', with the seconds that this run has measured.' : '.'];
  return !chosen ? lead : [...lead, ' Chosen: ', element('b', {}, settingText(chosen)), ', ', number(chosen.peak_bytes, bytesText),
    ' and ', number(chosen.seconds, secondsText), ' a step',
    ...(measured ? [' (', number(promised, secondsText), ' when it was planned).'] : ['.'])];
}

function settingText(point) {
  return point.planner + (point.setting ? ', ' + point.setting : '');
}

function icon(mark, fill) {
  const svg = drawn('svg', {width: 13, height: 13, viewBox: '0 0 13 13', 'aria-hidden': 'true'}, mark);
  svg.style.cssText = `display: inline-block; width: 13px; vertical-align: -2px; margin-right: 6px; fill: ${fill}`;
  return svg;
}

function plannersPlot(points, names, budget, width) {
  const size = {width, left: 74, right: 24, top: 32, height: 330, bottom: 44};
  const xs = points.map(point => point.peak_bytes);
  const ys = points.map(point => point.seconds);
  const inSight = budget !== null && budget <= 1.3 * Math.max(...xs);
  const [low, high] = padded(Math.min(...xs), Math.max(...xs, inSight ? budget : 0));
  const [fast, slow] = padded(Math.min(...ys), Math.max(...ys));
  const wide = slow > 2.5 * fast; // a planner at its least budget may take many times as long
  const height = wide ? Math.log : value => value;
  const x = bytes => size.left + (bytes - low) / (high - low) * (size.width - size.left - size.right);
  const y = seconds => size.top + (1 - (height(seconds) - height(fast)) / (height(slow) - height(fast))) * size.height;
  const ground = size.top + size.height;
  const svg = drawn('svg', {viewBox: `0 0 ${width} ${ground + size.bottom}`, height: ground + size.bottom, role: 'img', 'aria-label': 'Step time over peak memory'});
  for (const value of ticks(low, high, width / 150, true)) {
    svg.append(drawn('line', {class: 'grid', x1: x(value), x2: x(value), y1: size.top, y2: ground}),
      drawn('text', {x: x(value), y: ground + 18, 'text-anchor': 'middle'}, bytesText(value)));
  }
  for (const value of slow > 12 * fast ? doublings(fast, slow) : ticks(fast, slow, 5)) {
    svg.append(drawn('line', {class: 'grid', x1: size.left, x2: size.width - size.right, y1: y(value), y2: y(value)}),
      drawn('text', {x: size.left - 10, y: y(value) + 4, 'text-anchor': 'end'}, secondsText(value)));
  }
  const title = wide ? '↑ a step, logarithmic' : '↑ a step';
  svg.append(drawn('text', {x: size.width - size.right, y: ground + 36, 'text-anchor': 'end'}, 'predicted peak on the device →'),
    drawn('text', {x: 0, y: 14}, title));
  if (inSight) {
    const text = 'budget ' + bytesText(budget);
    const room = textWidth(text) / 2;
    svg.append(drawn('rect', {x: x(budget), y: size.top, width: Math.max(0, size.width - size.right - x(budget)), height: size.height,
      fill: 'var(--budget)', 'fill-opacity': 0.06}),
      drawn('line', {class: 'budget', x1: x(budget), x2: x(budget), y1: size.top - 6, y2: ground}),
      drawn('text', {class: 'budget', x: Math.max(textWidth(title) + 16 + room, Math.min(x(budget), size.width - room)), y: 14,
        'text-anchor': 'middle'}, text));
  }
  const marks = points.map(point => ({point, x: x(point.peak_bytes), y: y(point.seconds)}));
  const ofPlanner = name => marks.filter(({point}) => point.planner === name && !point.chosen);
  names.forEach((name, at) => {
    const own = ofPlanner(name).sort((a, b) => a.x - b.x);
    svg.append(drawn('polyline', {points: own.map(mark => `${mark.x},${mark.y}`).join(' '),
      fill: 'none', stroke: `var(--p${at % 9})`, 'stroke-width': 1.6, 'stroke-opacity': 0.55}));
  });
  // Where planners agree, one that has few marks is drawn over one that has many.
  const order = names.map((name, at) => [ofPlanner(name), at]).sort(([a], [b]) => b.length - a.length);
  svg.append(...order.flatMap(([own, at]) => own.map(mark => plannerMark(mark,
    drawn('g', {fill: `var(--p${at % 9})`, stroke: 'var(--card)'}, kMarkers[at % kMarkers.length](mark.x, mark.y))))));
  for (const mark of marks.filter(({point}) => point.chosen)) {
    const text = settingText(mark.point);
    const obstacles = [...marks, ...(inSight ? [{x: x(budget)}] : [])].filter(other => other !== mark);
    const [left, base] = labelPlace(mark, textWidth(text), obstacles, size.left, size.width - size.right);
    svg.append(drawn('text', {class: 'strong', x: left, y: base, stroke: 'var(--card)', 'stroke-width': 4, 'paint-order': 'stroke'}, text),
      plannerMark(mark, drawn('g', {fill: 'var(--ink)'}, chosenMark(mark.x, mark.y, 10))));
  }
  return svg;
}

function chosenMark(x, y, radius) {
  return drawn('g', {}, drawn('circle', {cx: x, cy: y, r: radius, fill: 'none', stroke: 'var(--ink)', 'stroke-width': radius / 5 + 0.2}),
    drawn('circle', {cx: x, cy: y, r: radius / 3}));
}

function plannerMark({point, x, y}, mark) {
  mark.append(drawn('circle', {cx: x, cy: y, r: 12, class: 'hit', stroke: 'none'}));
  return telling(mark, () => [element('b', {}, settingText(point)), number(point.peak_bytes, bytesText), ', ',
    number(point.seconds, secondsText), ' a step']);
}

/** About, at the size of the charts' texts. */
function textWidth(text) {
  return 7.4 * text.length;
}

/** Left end and base line of a label beside a mark, where it covers the fewest others between `from` and `to`. An
    obstacle without y stands in all heights. */
function labelPlace(mark, width, obstacles, from, to) {
  const places = [-9, 17, -30, 38].flatMap(rise => [16, -16 - width].map(aside => [mark.x + aside, mark.y + rise]))
    .filter(([left]) => left >= from && left + width <= to);
  const covered = ([left, base]) => obstacles.filter(({x, y}) => x > left - 7 && x < left + width + 7 &&
    (y === undefined || (y > base - 18 && y < base + 10))).length;
  return places.reduce((best, place) => (covered(place) < covered(best) ? place : best), places[0] ?? [from, mark.y - 14]);
}

/** 1, 2, 5, 10, 20, … between two numbers. */
function doublings(from, to) {
  const values = [];
  for (let power = 10 ** Math.floor(Math.log10(from)); power <= to; power *= 10) {
    values.push(...[1, 2, 5].map(factor => factor * power).filter(value => value >= from && value <= to));
  }
  return values;
}

function padded(least, most) {
  const room = Math.max((most - least) * 0.07, most * 0.01, 1e-12);
  return [Math.max(0, least - room), most + room];
}

// ---- the stack

const kStackColumns = [
  ['peak_device_bytes', 'device, peak', bytesText], ['predicted_peak_bytes', 'device, predicted', bytesText],
  ['percent', 'of the first row', value => percentText(value / 100)], ['peak_host_bytes', 'host, peak', bytesText],
  ['peak_disk_bytes', 'disk, peak', bytesText], ['peak_rss_bytes', 'RSS, peak', bytesText], ['step_time_s', 'step', secondsText],
  ['tokens_per_s', 'tokens/s', countText], ['recompute_share', 'recomputed', percentText],
  ['loss_difference', 'loss, relative difference', tinyText], ['grad_norm_difference', 'gradient norm', tinyText],
];

function showStack(rows) {
  byId('stack').hidden = false;
  const least = rows.reduce((best, row) => (row.peak_device_bytes < best.peak_device_bytes ? row : best));
  byId('stack-lead').replaceChildren('Same model, data and seed. Down to ', element('b', {}, number(least.percent, value => percentText(value / 100))),
    ` of “${rows[0].name}” by “${least.name}”: `, number(least.peak_device_bytes, bytesText), ' instead of ',
    number(rows[0].peak_device_bytes, bytesText), ' tracked on the device of the rank that has most.');
  const widest = Math.max(...rows.map(row => Math.max(row.peak_device_bytes, row.predicted_peak_bytes)));
  const slowest = Math.max(...rows.map(row => row.step_time_s));
  byId('stack-bars').replaceChildren(...rows.map(row => stackRow(row, widest, slowest)), element('div', {class: 'legend'},
    element('span', {}, swatch('param'), 'peak on the device, measured'),
    element('span', {}, swatch('ink', 'upright'), 'predicted'), element('span', {}, swatch('tape'), 'step time')));
  tableOf(byId('stack-table'), ['row', ...kStackColumns.map(([, title]) => title)], rows.map(row => element('tr', {},
    element('th', {scope: 'row'}, row.name), kStackColumns.map(([key, , text]) => element('td', {'data-field': key}, number(row[key], text))))));
}

function stackRow(row, widest, slowest) {
  const share = value => `${(100 * value).toFixed(3)}%`;
  return telling(element('div', {class: 'bar-row'}, element('div', {class: 'name'}, row.name),
    element('div', {class: 'bars'},
      element('div', {class: 'bar', style: 'width: ' + share(row.peak_device_bytes / widest)}),
      element('div', {class: 'promise', style: 'left: ' + share(row.predicted_peak_bytes / widest)}),
      element('div', {class: 'pace', style: 'width: ' + share(row.step_time_s / slowest)})),
    element('div', {class: 'amount'}, element('b', {}, number(row.peak_device_bytes, bytesText)), ' ',
      element('span', {class: 'quiet'}, percentText(row.percent / 100), element('br'), number(row.step_time_s, secondsText), ' a step'))),
  () => [element('b', {}, row.name), `predicted ${bytesText(row.predicted_peak_bytes)}, RSS ${bytesText(row.peak_rss_bytes)}, `,
    `${countText(row.tokens_per_s)} tokens/s, ${percentText(row.recompute_share)} recomputed`]);
}
