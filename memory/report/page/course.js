// The run's course: losses, learning rate, gradient norm and speed over its steps.

/** Everything that is drawn over the steps, in the order of the tip. */
const kCurves = [
  {key: 'loss', name: 'training loss', color: 'forward', text: lossText},
  {key: 'grad_norm', name: 'gradient norm', color: 'backward', text: lossText},
  {key: 'learning_rate', name: 'learning rate', color: 'update', text: rateText},
  {key: 'tokens_per_s', name: 'tokens a second', color: 'gather', text: countText},
];

function lossText(value) {
  return Math.abs(value) < 1e-3 && value !== 0 ? rateText(value) : value.toFixed(value < 100 ? 4 : 1);
}

/** 2e-5, 1.25e-4, 0. */
function rateText(value) {
  return value === 0 ? '0' : String(Number(value.toPrecision(4))).replace('e-', 'e\u2212');
}

/** A mean that forgets, over about so many points; what is missing leaves a gap and counts for nothing. */
function smoothed(values, over) {
  const keep = 1 - 1 / over;
  let sum = 0;
  let weight = 0;
  return values.map(value => {
    if (value === null) {
      return null;
    }
    sum = keep * sum + (1 - keep) * value;
    weight = keep * weight + (1 - keep);
    return sum / weight;
  });
}

function showCourse(course) {
  byId('course').hidden = false;
  const told = course.every > 1 ? `Every ${countText(course.every)}th step. ` : '';
  const skipped = course.skipped.filter(each => each).length;
  byId('course-lead').replaceChildren(told + `Steps ${countText(course.step[0])} to ${countText(course.step[course.step.length - 1])}`,
    skipped > 0 ? `, ${countText(skipped)} of them skipped` : '', '. Pointing at a step shows its numbers.');
  const over = Math.round(course.step.length / 60);
  const places = kCurves.map(curve => element('div', {class: 'curve', 'data-curve': curve.key},
    element('h3', {}, curve.key === 'loss' ? 'loss' : curve.name), element('div')));
  byId('course-plots').replaceChildren(...places);
  kCurves.forEach((curve, at) => fitted(places[at].lastChild, width => courseCurve(course, curve, over, width)));
  const held = course.evaluations.step.length > 0;
  byId('course-legend').replaceChildren(
    element('span', {}, swatch('forward', 'stroke'), element('b', {}, 'training'), over > 1 ? `, faint: each step; bold: a mean over about ${countText(over * course.every)}` : ''),
    ...(held ? [element('span', {}, swatch('tape', 'stroke'), element('b', {}, 'evaluation'), ' on held-out samples; a ring marks the lowest')] : []),
    ...(skipped > 0 ? [element('span', {}, swatch('budget', 'upright'), 'skipped: nothing was updated')] : []));
}

/** The lines of a plot: each step, their mean, and the evaluations. */
function courseLines(course, curve, over) {
  const own = course[curve.key];
  const lines = over > 1 && curve.key !== 'learning_rate'
    ? [{steps: course.step, values: own, color: curve.color, width: 1, opacity: 0.35}, {steps: course.step, values: smoothed(own, over), color: curve.color, width: 1.8}]
    : [{steps: course.step, values: own, color: curve.color, width: 1.8}];
  if (curve.key === 'loss' && course.evaluations.step.length > 0) {
    lines.push({steps: course.evaluations.step, values: course.evaluations.loss, color: 'tape', width: 1.8});
  }
  return lines;
}

/** From the first known value to the last; nothing is drawn over a gap. */
function pathOf(line, x, y) {
  let path = '';
  let pen = 'M';
  line.values.forEach((value, at) => {
    if (value === null) {
      pen = 'M';
      return;
    }
    path += `${pen}${x(line.steps[at]).toFixed(1)} ${y(value).toFixed(1)}`;
    pen = 'L';
  });
  return path;
}

function courseCurve(course, curve, over, width) {
  const size = {left: 62, right: 14, top: 8, height: curve.key === 'loss' ? 260 : 150, bottom: 24};
  const ground = size.top + size.height;
  const lines = courseLines(course, curve, over);
  const known = lines.flatMap(line => line.values.filter(value => value !== null));
  const svg = drawn('svg', {viewBox: `0 0 ${width} ${ground + size.bottom}`, height: ground + size.bottom, role: 'img', 'aria-label': curve.name + ' over the steps'});
  const first = course.step[0];
  const last = Math.max(course.step[course.step.length - 1], first + 1);
  const x = step => size.left + (step - first) / (last - first) * (width - size.left - size.right);
  const least = known.reduce((a, b) => Math.min(a, b), Infinity);
  const most = known.reduce((a, b) => Math.max(a, b), -Infinity);
  const wide = curve.key === 'grad_norm' && least > 0 && most > 12 * least;
  const [low, high] = known.length === 0 ? [0, 1] : wide ? [least / 1.2, most * 1.2]
    : padded(curve.key === 'loss' || curve.key === 'grad_norm' ? least : 0, most);
  const scale = wide ? Math.log : value => value;
  const y = value => size.top + (1 - (scale(value) - scale(low)) / (scale(high) - scale(low))) * size.height;
  const marks = wide ? doublings(low, high) : ticks(low, high, curve.key === 'loss' ? 6 : 4);
  const texts = tickTexts(marks, curve);
  marks.forEach((value, at) => svg.append(
    drawn('line', {class: 'grid', x1: size.left, x2: width - size.right, y1: y(value), y2: y(value)}),
    drawn('text', {x: size.left - 9, y: y(value) + 4, 'text-anchor': 'end'}, texts[at])));
  for (const value of ticks(first, last, Math.max(3, width / 110)).filter(Number.isInteger)) {
    svg.append(drawn('text', {x: x(value), y: ground + 17, 'text-anchor': 'middle'}, countText(value)));
  }
  for (const line of lines) {
    svg.append(drawn('path', {d: pathOf(line, x, y), fill: 'none', stroke: `var(--${line.color})`, 'stroke-width': line.width, 'stroke-opacity': line.opacity || 1, 'stroke-linejoin': 'round'}));
  }
  course.step.filter((_, at) => course.skipped[at]).forEach(step => svg.append(
    drawn('line', {x1: x(step), x2: x(step), y1: ground - 7, y2: ground, stroke: 'var(--budget)', 'stroke-width': 1.5})));
  if (curve.key === 'loss') {
    svg.append(...evaluationMarks(course.evaluations, x, y));
  }
  svg.append(courseCursor(course, svg, {x, top: size.top, ground, left: size.left, right: width - size.right, width}));
  return svg;
}

/** An axis wants fewer digits than a step's own number, and equally many at each mark. */
function tickTexts(values, curve) {
  if (curve.key === 'tokens_per_s') {
    return values.map(value => countText(value || 0));
  }
  const texts = values.map(rateText);
  const decimals = Math.max(0, ...texts.map(text => (text.split('.')[1] || '').length));
  return curve.key === 'loss' && texts.every(text => !text.includes('e')) ? values.map(value => value.toFixed(decimals)) : texts;
}

function evaluationMarks(evaluations, x, y) {
  const lowest = evaluations.best.lastIndexOf(true);
  return evaluations.step.flatMap((step, at) => evaluations.loss[at] === null ? [] : [
    drawn('circle', {cx: x(step), cy: y(evaluations.loss[at]), r: evaluations.step.length > 80 ? 1.6 : 3, fill: 'var(--tape)'}),
    ...(at === lowest ? [drawn('circle', {cx: x(step), cy: y(evaluations.loss[at]), r: 7, fill: 'none', stroke: 'var(--ink)', 'stroke-width': 1.8})] : []),
  ]);
}

/** What the run was at a step: the point's own numbers, and the evaluation after it. */
function courseTip(course, at) {
  const rows = kCurves.map(curve => element('tr', {'data-field': curve.key}, element('th', {}, curve.name),
    element('td', {}, number(course[curve.key][at], curve.text))));
  const held = course.evaluations.step.indexOf(course.step[at]);
  if (held >= 0) {
    rows.push(element('tr', {'data-field': 'eval_loss'}, element('th', {}, 'evaluation'), element('td', {}, number(course.evaluations.loss[held], lossText))));
    if (course.evaluations.perplexity[held] !== null) {
      rows.push(element('tr', {'data-field': 'eval_perplexity'}, element('th', {}, 'perplexity'),
        element('td', {}, number(course.evaluations.perplexity[held], lossText))));
    }
  }
  return [element('b', {}, `step ${countText(course.step[at])}`, course.skipped[at] ? ', skipped' : ''), element('table', {}, element('tbody', {}, rows))];
}

/** Follows the pointer to the nearest step, and the arrow keys. */
function courseCursor(course, svg, area) {
  const line = drawn('line', {class: 'cursor', y1: area.top, y2: area.ground, visibility: 'hidden'});
  const hit = drawn('rect', {class: 'hit', x: area.left, y: area.top, width: Math.max(0, area.right - area.left), height: area.ground - area.top, tabindex: '0',
    'aria-label': 'Steps: the arrow keys move'});
  const places = course.step.map(area.x);
  let at = course.step.length - 1;
  const show = (number, clientX, clientY) => {
    at = Math.max(0, Math.min(course.step.length - 1, number));
    const x = places[at];
    for (const name of ['x1', 'x2']) {
      line.setAttribute(name, x);
    }
    line.setAttribute('visibility', 'visible');
    const box = svg.getBoundingClientRect();
    tip.show(clientX ?? box.left + x * box.width / area.width, clientY ?? box.top + area.top, ...courseTip(course, at));
  };
  const hide = () => {
    line.setAttribute('visibility', 'hidden');
    tip.hide();
  };
  hit.addEventListener('pointermove', event => {
    const box = svg.getBoundingClientRect();
    const wanted = (event.clientX - box.left) * area.width / box.width;
    const before = Math.max(0, lastAtMost(places, wanted));
    const nearer = before + 1 < places.length && places[before + 1] - wanted < wanted - places[before];
    show(nearer ? before + 1 : before, event.clientX, event.clientY);
  });
  hit.addEventListener('focus', () => show(at));
  hit.addEventListener('keydown', event => {
    const step = {ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10}[event.key];
    if (step) {
      event.preventDefault();
      show(at + step);
    }
  });
  hit.addEventListener('pointerleave', hide);
  hit.addEventListener('blur', hide);
  return drawn('g', {}, line, hit);
}
