// The page from top to bottom.

function showHead() {
  byId('title').textContent = report.title;
  byId('kind').textContent = {plan: 'plan of a step', train: 'a run as it went', stack: 'memory benchmark'}[report.kind] || report.kind;
  const facts = [...report.facts];
  if (report.device) {
    facts.splice(1, 0, ['device', report.device]);
  }
  byId('facts').replaceChildren(...facts.map(([name, text]) => element('div', {}, element('dt', {}, name), element('dd', {}, text))));
}

function figure(name, value, text, ...note) {
  return value === null ? null : element('div', {class: 'figure'}, element('div', {class: 'name'}, name),
    element('div', {class: 'number', 'data-figure': name}, number(value, text)), ...note.filter(part => part !== null));
}

function note(...content) {
  return element('div', {class: 'note'}, ...content);
}

/** The measured number with the predicted one below, or the predicted one alone. */
function promised(name, predicted, measured, text, alone) {
  if (measured === null) {
    return figure(name + ', predicted', predicted, text, alone);
  }
  if (predicted === null) {
    return figure(name + ', measured', measured, text);
  }
  const share = predicted === 0 ? 0 : measured / predicted - 1;
  const besides = Math.abs(share) < 5e-4 ? 'exactly' : `${percentText(Math.abs(share))} ${share > 0 ? 'more' : 'less'} than`;
  return figure(name + ', measured', measured, text, note(besides + ' the ',
    element('span', {'data-figure': name + ', predicted'}, number(predicted, text)), ' predicted'));
}

function budgetNote(budget, peak) {
  if (peak === null) {
    return [];
  }
  const gauge = element('div', {class: 'gauge'}, element('i', {style: `width: ${Math.min(100, 100 * peak / budget)}%`}));
  return [gauge, peak > budget ? note(element('span', {class: 'over'}, `over by ${bytesText(peak - budget)}`))
    : note(`${bytesText(budget - peak)} (${percentText(1 - peak / budget)}) left`)];
}

/** The last loss, and of the evaluations the last and the lowest. */
function lossFigure(course) {
  const {loss, best, step} = course.evaluations;
  const lowest = best.lastIndexOf(true);
  const named = (name, value) => element('span', {'data-figure': name}, number(value, lossText));
  return course.loss.length === 0 ? null : figure('training loss', course.loss[course.loss.length - 1], lossText,
    loss.length === 0 ? null : note('evaluation ', named('evaluation loss', loss[loss.length - 1]),
      lowest < 0 ? '' : element('span', {}, ', lowest ', named('lowest loss', loss[lowest]), ` (step${kSpace}${countText(step[lowest])})`)));
}

function showFigures() {
  const summary = report.summary;
  const peak = summary.measured_peak_bytes ?? summary.predicted_peak_bytes;
  const figures = [
    lossFigure(report.course),
    promised('peak', summary.predicted_peak_bytes, summary.measured_peak_bytes, bytesText, note('on the rank that has most')),
    figure('device budget', report.budget_bytes, bytesText, ...(report.budget_bytes === null ? [] : budgetNote(report.budget_bytes, peak))),
    promised('step', summary.predicted_step_s, summary.measured_step_s, secondsText, null),
    figure('tokens a second', summary.tokens_per_s, countText, note('over all ranks')),
    figure('recomputed', summary.recompute_share, percentText, note('of all FLOPs')),
    figure('RSS', summary.peak_rss_bytes, bytesText, note('the process at its most')),
  ].filter(each => each !== null);
  byId('figures').replaceChildren(...figures);
  byId('figures').hidden = figures.length === 0;
  inRows(byId('figures'), 150);
}

/** As few rows as the width allows, and about equally many children in each: none stands alone. */
function inRows(host, least) {
  const count = host.children.length;
  const fit = () => {
    const gap = parseFloat(getComputedStyle(host).columnGap);
    const most = Math.max(1, Math.floor((host.clientWidth + gap) / (least + gap)));
    const columns = Math.ceil(count / Math.ceil(count / most));
    host.style.setProperty('--columns', columns);
    host.lastChild.classList.toggle('row', columns > 1 && count % columns === 1);
  };
  if (count > 0) {
    new ResizeObserver(fit).observe(host);
    fit();
  }
}

function save() {
  const link = element('a', {href: URL.createObjectURL(new Blob([JSON.stringify(report)], {type: 'application/json'})),
    download: `${report.title.replace(/[^\w.-]+/g, '-')}.json`});
  link.click();
  URL.revokeObjectURL(link.href);
}

function start() {
  showHead();
  showFigures();
  if (report.stack.length > 0) {
    showStack(report.stack);
  }
  if (report.course.step.length > 0) {
    showCourse(report.course);
  }
  if (report.ops.text.length > 0) {
    const view = new StepView(stepOf(report.ops, report.lanes));
    const held = /^#op-(\d+)$/.exec(location.hash);
    if (held && Number(held[1]) < view.step.count) {
      view.hold(Number(held[1]));
    }
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => view.redraw());
    addEventListener('beforeprint', () => view.toPaper(true));
    addEventListener('afterprint', () => view.toPaper(false));
  }
  if (report.layers.length > 0) {
    showLayers(report.layers);
  }
  if (report.planners.length > 0) {
    showPlanners(report.planners, report.budget_bytes);
  }
  if (report.config) {
    byId('settings').hidden = false;
    byId('config').textContent = report.config;
  }
  byId('made').textContent = `Made by Palimpsest ${report.version}. The page holds its data and fetches nothing.`;
  byId('download').addEventListener('click', save);
}

start();
