// The step as arrays, and the canvas that draws memory and lanes over one axis. Whatever the number
// of operations, a drawing costs one look at each that is in sight and one shape a pixel column.

/** Bottom to top: what stays through the step first. */
const kCategories = ['optimizer_state', 'param_shard', 'param', 'grad_shard', 'grad_buffer', 'value', 'grad', 'tape',
  'weight_jobs', 'workspace'];
const kCategoryNames = {
  optimizer_state: 'optimizer states',
  param_shard: 'parameter shards',
  param: 'parameters',
  grad_shard: 'gradient shards',
  grad_buffer: 'gradients',
  value: 'values',
  grad: 'value gradients',
  tape: 'tapes',
  weight_jobs: 'weight jobs',
  workspace: 'workspace',
};
const kKindColors = {
  forward: 'forward', recompute: 'recompute', backward: 'backward', update: 'update', gather: 'gather', reduce: 'reduce',
  publish: 'publish', agree: 'agree', send: 'transfer', recv: 'transfer', stash: 'transfer', fetch: 'transfer',
};

/** The operations, with what drawing needs: totals, and where each lies on every axis. */
function stepOf(ops, lanes) {
  const count = ops.text.length;
  const categories = kCategories.filter(name => name in ops.bytes);
  const total = new Float64Array(count);
  for (const name of categories) {
    ops.bytes[name].forEach((bytes, op) => { total[op] += bytes; });
  }
  const peak = total.reduce((best, bytes, op) => (bytes > total[best] ? op : best), 0);
  return {ops, count, categories, total, axes: axesOf(ops, lanes, count), peak, measured: ops.measured || null};
}

function axesOf(ops, lanes, count) {
  const axes = {};
  const add = (name, begin, end, rows) => {
    const all = rows.reduce((most, row) => row.members.reduce((last, op) => Math.max(last, row.end[op]), most), end[count - 1]);
    if (all > 0) { // where the prediction is far off, it ends out of sight
      axes[name] = {begin, end, rows, length: Math.min(all, 1.25 * end[count - 1])};
    }
  };
  const order = Float64Array.from({length: count + 1}, (_, op) => op);
  const predicted = clockOf(ops, count);
  if (ops.measured) {
    const thread = {name: "the rank's thread, measured", begin: ops.measured.begin_s, end: ops.measured.end_s,
      members: ops.text.flatMap((_, op) => (ops.kind[op] in kKindColors ? [op] : []))};
    add('measured', ops.measured.begin_s, ops.measured.end_s, [thread, ...rowsOf(ops, lanes, ops.begin_s, ops.end_s)]);
  }
  add('predicted', predicted.begin, predicted.end, rowsOf(ops, lanes, ops.begin_s, ops.end_s));
  add('order', order, order.subarray(1), rowsOf(ops, lanes, order, order.subarray(1)));
  return axes;
}

/** Bytes follow the order of the plan: an operation that takes no time of the computing lane is
    issued when the one before it has ended. */
function clockOf(ops, count) {
  const begin = new Float64Array(count);
  const end = new Float64Array(count);
  let clock = 0;
  for (let op = 0; op < count; ++op) {
    const computes = ops.lane[op] === 0;
    begin[op] = computes ? Math.max(clock, ops.begin_s[op]) : clock;
    end[op] = computes ? Math.max(begin[op], ops.end_s[op]) : clock;
    clock = end[op];
  }
  return {begin, end};
}

/** One row for each lane that is used. */
function rowsOf(ops, lanes, begin, end) {
  return lanes.map((name, lane) => ({
    name: ops.measured ? name + ', predicted' : name,
    begin,
    end,
    members: ops.lane.flatMap((its, op) => (its === lane && end[op] > begin[op] ? [op] : [])),
  })).filter(row => row.members.length > 0);
}

/** The last index whose value is at most x; -1 where there is none. */
function lastAtMost(values, x, count = values.length) {
  let low = -1;
  let high = count;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (values[middle] <= x) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

const kPlot = {left: 68, right: 12, top: 18, memory: 292, axis: 34, rowLabel: 17, row: 20, rowGap: 7};

class StepPlot {
  constructor(host, step, budget) {
    this.host = host;
    this.step = step;
    this.budget = budget;
    [this.base, this.overlay] = host.querySelectorAll('canvas');
    this.hidden = new Set();
    this.matches = [];
    [this.mode] = Object.keys(step.axes);
    this.show(0, this.axis.length);
  }

  get axis() {
    return this.step.axes[this.mode];
  }

  setMode(mode) {
    const whole = this.from === 0 && this.to === this.axis.length;
    const first = lastAtMost(this.axis.begin, this.from, this.step.count);
    const last = lastAtMost(this.axis.begin, this.to, this.step.count);
    this.mode = mode;
    this.show(whole ? 0 : this.axis.begin[Math.max(first, 0)], whole ? this.axis.length : this.axis.end[Math.max(last, 0)]);
  }

  /** Between two points of the axis; swapped, outside or too near ones are put right. */
  show(from, to) {
    const length = this.axis.length;
    const least = Math.min(length, length / this.step.count / 2);
    const width = Math.min(length, Math.max(to - from, least));
    this.from = Math.max(0, Math.min(from, length - width));
    this.to = this.from + width;
  }

  // ---- geometry, in CSS pixels
  resize() {
    this.width = this.host.clientWidth;
    const rows = this.axis.rows.length;
    this.height = kPlot.top + kPlot.memory + kPlot.axis + rows * (kPlot.rowLabel + kPlot.row + kPlot.rowGap);
    const scale = devicePixelRatio || 1;
    for (const canvas of [this.base, this.overlay]) {
      canvas.width = Math.round(this.width * scale);
      canvas.height = Math.round(this.height * scale);
      canvas.style.height = this.height + 'px';
      canvas.getContext('2d').setTransform(scale, 0, 0, scale, 0, 0);
    }
  }
  get inner() {
    return Math.max(1, this.width - kPlot.left - kPlot.right);
  }
  x(value) {
    return kPlot.left + (value - this.from) / (this.to - this.from) * this.inner;
  }
  valueAt(x) {
    return this.from + (x - kPlot.left) / this.inner * (this.to - this.from);
  }
  y(bytes) {
    return kPlot.top + kPlot.memory * (1 - bytes / this.most);
  }
  rowTop(row) {
    return kPlot.top + kPlot.memory + kPlot.axis + row * (kPlot.rowLabel + kPlot.row + kPlot.rowGap) + kPlot.rowLabel;
  }

  // ---- drawing
  draw() {
    this.resize();
    const context = this.base.getContext('2d');
    context.clearRect(0, 0, this.width, this.height);
    context.font = '12px ' + getComputedStyle(document.body).fontFamily;
    this.colors = Object.fromEntries([...kCategories, ...Object.values(kKindColors), 'ink', 'quiet', 'line', 'grid', 'budget',
      'card', 'accent', 'sheen'].map(name => [name, color(name)]));
    const visible = this.step.categories.filter(name => !this.hidden.has(name));
    const bytes = visible.map(name => this.step.ops.bytes[name]);
    const sum = this.hidden.size === 0 ? this.step.total
      : Float64Array.from(this.step.total, (_, op) => bytes.reduce((all, column) => all + column[op], 0));
    const measured = this.hidden.size === 0 && this.step.measured;
    const highest = sum.reduce((a, b) => Math.max(a, b), 1);
    this.most = measured ? measured.bytes.reduce((a, b) => Math.max(a, b), highest) : highest;
    this.budgetInSight = this.budget !== null && this.hidden.size === 0 && this.budget <= 1.6 * this.most;
    this.most = 1.06 * (this.budgetInSight ? Math.max(this.budget, this.most) : this.most);
    this.drawGrid(context);
    context.save();
    context.beginPath();
    context.rect(kPlot.left, 0, this.inner, this.height);
    context.clip();
    this.drawStack(context, visible, bytes, this.runs(sum));
    if (measured) {
      this.drawMeasured(context);
    }
    this.drawRows(context);
    context.restore();
    this.drawBudget(context);
    if (this.hidden.size === 0) {
      this.drawPeak(context);
    }
    this.drawOverlay();
  }

  drawGrid(context) {
    context.textBaseline = 'middle';
    context.textAlign = 'right';
    for (const value of ticks(0, this.most, 7, true)) {
      const y = Math.round(this.y(value)) + 0.5;
      this.line(context, kPlot.left, y, kPlot.left + this.inner, y, value === 0 ? this.colors.line : this.colors.grid);
      context.fillStyle = this.colors.quiet;
      context.fillText(value === 0 ? '0' : bytesText(value), kPlot.left - 9, y);
    }
    context.textBaseline = 'top';
    const unit = this.mode === 'order' ? countText : secondsText;
    const bottom = kPlot.top + kPlot.memory;
    for (const value of ticks(this.from, this.to, Math.max(2, Math.floor(this.inner / 110)))) {
      const x = Math.round(this.x(value)) + 0.5;
      this.line(context, x, bottom, x, bottom + 4, this.colors.line);
      context.textAlign = x > this.width - 40 ? 'right' : 'center';
      context.fillText(unit(value), Math.min(x, this.width), bottom + 8);
    }
  }

  line(context, x0, y0, x1, y1, style, width = 1) {
    context.beginPath();
    context.moveTo(x0, y0);
    context.lineTo(x1, y1);
    context.strokeStyle = style;
    context.lineWidth = width;
    context.stroke();
  }

  /** Runs of pixel columns, each with the operation that holds most in it; between operations the
      one before stays. */
  runs(sum) {
    const {begin, end} = this.axis;
    const scale = devicePixelRatio || 1;
    const columns = Math.ceil(this.inner * scale);
    const best = new Int32Array(columns).fill(-1);
    const perUnit = columns / (this.to - this.from);
    const columnOf = value => Math.min(columns - 1, Math.max(0, Math.floor((value - this.from) * perUnit)));
    let before = Math.max(0, lastAtMost(begin, this.from, this.step.count));
    for (let op = before; op < this.step.count && begin[op] <= this.to; ++op) {
      const last = Math.max(columnOf(begin[op]), Math.ceil((end[op] - this.from) * perUnit) - 1);
      for (let column = columnOf(begin[op]); column <= Math.min(last, columns - 1); ++column) {
        if (best[column] < 0 || sum[op] > sum[best[column]]) {
          best[column] = op;
        }
      }
    }
    const runs = [];
    const stop = Math.min(columns, Math.ceil((end[this.step.count - 1] - this.from) * perUnit));
    for (let column = 0; column < stop; ++column) {
      before = best[column] < 0 ? before : best[column];
      const last = runs[runs.length - 1];
      if (last && last.op === before) {
        last.right = column + 1;
      } else {
        runs.push({op: before, left: column, right: column + 1});
      }
    }
    return runs.map(run => ({op: run.op, left: kPlot.left + run.left / scale, right: kPlot.left + run.right / scale}));
  }

  drawStack(context, visible, bytes, runs) {
    const below = new Float64Array(runs.length);
    visible.forEach((name, category) => {
      const top = runs.map((run, at) => below[at] + bytes[category][run.op]);
      context.beginPath();
      runs.forEach((run, at) => {
        context.lineTo(run.left, this.y(top[at]));
        context.lineTo(run.right, this.y(top[at]));
      });
      for (let at = runs.length - 1; at >= 0; --at) {
        context.lineTo(runs[at].right, this.y(below[at]));
        context.lineTo(runs[at].left, this.y(below[at]));
      }
      context.closePath();
      context.fillStyle = this.colors[name];
      context.fill();
      context.beginPath(); // a seam, so that neighbours differ without their colours too
      runs.forEach((run, at) => {
        context.lineTo(run.left, this.y(top[at]));
        context.lineTo(run.right, this.y(top[at]));
      });
      context.strokeStyle = this.colors.sheen;
      context.lineWidth = 1;
      context.stroke();
      below.set(top);
    });
  }

  drawMeasured(context) {
    const runs = this.runs(this.step.measured.bytes);
    context.beginPath();
    runs.forEach(run => {
      context.lineTo(run.left, this.y(this.step.measured.bytes[run.op]));
      context.lineTo(run.right, this.y(this.step.measured.bytes[run.op]));
    });
    context.lineJoin = 'round';
    context.strokeStyle = this.colors.sheen;
    context.lineWidth = 3;
    context.stroke();
    context.strokeStyle = this.colors.ink;
    context.lineWidth = 1.4;
    context.stroke();
  }

  drawBudget(context) {
    if (this.budget === null) {
      return;
    }
    const text = 'budget ' + bytesText(this.budget);
    context.font = '600 12px ' + getComputedStyle(document.body).fontFamily;
    context.fillStyle = this.colors.budget;
    const [from, to] = this.peakLabel(context).span;
    const own = context.measureText(text).width + 10;
    const right = to < kPlot.left + this.inner - own; // whether the peak's label leaves it the right end
    const x = right ? kPlot.left + this.inner : kPlot.left;
    context.textAlign = right ? 'right' : 'left';
    context.textBaseline = 'bottom';
    if (!this.budgetInSight) {
      context.fillText('↑ ' + text, x, kPlot.top - 4);
      return;
    }
    const y = Math.round(this.y(this.budget)) + 0.5;
    context.setLineDash([6, 4]);
    this.line(context, kPlot.left, y, kPlot.left + this.inner, y, this.colors.budget, 1.5);
    context.setLineDash([]);
    context.fillText(text, x, right || from > kPlot.left + own ? y - 3 : kPlot.top - 4);
  }

  /** Where the predicted peak is, and between which points its text stands in the context's font. */
  peakLabel(context) {
    const op = this.step.peak;
    const x = this.x((this.axis.begin[op] + this.axis.end[op]) / 2);
    const text = 'predicted peak ' + bytesText(this.step.total[op]);
    const width = context.measureText(text).width;
    const left = Math.max(kPlot.left + 4, Math.min(x - width / 2, kPlot.left + this.inner - width));
    return {x, text, span: [left, left + width]};
  }

  /** The highest point, where it is in sight. */
  drawPeak(context) {
    context.font = '600 12px ' + getComputedStyle(document.body).fontFamily;
    const {x, text, span} = this.peakLabel(context);
    if (x < kPlot.left || x > kPlot.left + this.inner) {
      return;
    }
    const y = this.y(this.step.total[this.step.peak]);
    context.beginPath();
    context.arc(x, y, 3.5, 0, 7);
    context.fillStyle = this.colors.card;
    context.fill();
    context.strokeStyle = this.colors.ink;
    context.lineWidth = 1.6;
    context.stroke();
    context.fillStyle = this.colors.ink;
    context.textAlign = 'left';
    context.textBaseline = 'bottom';
    context.fillText(text, span[0], y - 7);
  }

  drawRows(context) {
    this.axis.rows.forEach((row, number) => {
      const top = this.rowTop(number);
      context.font = '12px ' + getComputedStyle(document.body).fontFamily;
      context.textAlign = 'left';
      context.textBaseline = 'alphabetic';
      context.fillStyle = this.colors.quiet;
      context.fillText(row.name, kPlot.left, top - 5);
      context.fillStyle = this.colors.grid;
      context.fillRect(kPlot.left, top, this.inner, kPlot.row);
      let drawnTo = -1; // boxes under a pixel share it
      for (const op of row.members) {
        if (row.end[op] < this.from || row.begin[op] > this.to) {
          continue;
        }
        const left = Math.max(kPlot.left - 1, this.x(row.begin[op]));
        const right = Math.min(kPlot.left + this.inner + 1, this.x(row.end[op]));
        if (right <= drawnTo) {
          continue;
        }
        this.drawBox(context, op, Math.max(left, drawnTo), right, top);
        drawnTo = Math.max(right, left + 0.5);
      }
    });
  }

  drawBox(context, op, left, right, top) {
    const kind = this.step.ops.kind[op];
    const width = Math.max(right - left - (right - left > 4 ? 1 : 0), 0.5);
    context.fillStyle = this.colors[kKindColors[kind] || 'agree'];
    context.fillRect(left, top, width, kPlot.row);
    if (kind === 'recompute' && width > 3) {
      this.hatch(context, left, top, width, kPlot.row);
    }
    const inside = right - Math.max(left, kPlot.left) - 10;
    if (inside > 20) {
      context.font = '11px ' + getComputedStyle(document.body).fontFamily;
      const name = shortName(this.step.ops.subjects[this.step.ops.subject[op]]) || kind;
      const label = [name, name.split('.').pop()].find(text => context.measureText(text).width <= inside);
      context.fillStyle = '#161412';
      context.textAlign = 'left';
      context.textBaseline = 'middle';
      context.fillText(label || '', Math.max(left, kPlot.left) + 5, top + kPlot.row / 2 + 0.5);
    }
  }

  hatch(context, left, top, width, height) {
    context.save();
    context.beginPath();
    context.rect(left, top, width, height);
    context.clip();
    context.beginPath();
    for (let x = left - height; x < left + width; x += 6) {
      context.moveTo(x, top + height);
      context.lineTo(x + height, top);
    }
    context.strokeStyle = this.colors.sheen;
    context.lineWidth = 1.4;
    context.stroke();
    context.restore();
  }

  /** The cursor, what was found, and the range being dragged. */
  drawOverlay() {
    const context = this.overlay.getContext('2d');
    context.clearRect(0, 0, this.width, this.height);
    const bottom = this.height;
    context.fillStyle = this.colors.accent;
    for (const op of this.matches) {
      const x = this.x((this.axis.begin[op] + this.axis.end[op]) / 2);
      if (x >= kPlot.left && x <= kPlot.left + this.inner) {
        context.fillRect(x - 1, kPlot.top + kPlot.memory - 1, 2, 7);
      }
    }
    if (this.drag) {
      const [left, right] = this.dragRange();
      context.fillStyle = this.colors.ink;
      context.globalAlpha = 0.12;
      context.fillRect(left, kPlot.top, right - left, bottom - kPlot.top);
      context.globalAlpha = 1;
    }
    if (this.cursor === undefined) {
      return;
    }
    const op = this.cursor;
    const left = this.x(this.axis.begin[op]);
    const right = this.x(this.axis.end[op]);
    context.save();
    context.beginPath();
    context.rect(kPlot.left - 1, 0, this.inner + 2, bottom);
    context.clip();
    context.fillStyle = this.colors.ink;
    context.globalAlpha = 0.1;
    context.fillRect(left, kPlot.top, Math.max(right - left, 1), kPlot.memory);
    context.globalAlpha = 1;
    const middle = Math.round((left + right) / 2) + 0.5;
    this.line(context, middle, kPlot.top, middle, kPlot.top + kPlot.memory, this.colors.ink);
    this.axis.rows.forEach((row, number) => {
      if (row.members.includes(op)) {
        const begin = this.x(row.begin[op]);
        context.strokeStyle = this.colors.ink;
        context.lineWidth = 2;
        context.strokeRect(begin, this.rowTop(number) - 1, Math.max(this.x(row.end[op]) - begin - 1, 2), kPlot.row + 2);
      }
    });
    context.restore();
  }

  dragRange() {
    const clamp = x => Math.min(Math.max(x, kPlot.left), kPlot.left + this.inner);
    return [Math.min(clamp(this.drag.from), clamp(this.drag.to)), Math.max(clamp(this.drag.from), clamp(this.drag.to))];
  }

  /** The operation under a point of the canvas; undefined outside the plot. */
  opAt(x, y) {
    if (x < kPlot.left || x > kPlot.left + this.inner || y < 0 || y > this.height) {
      return undefined;
    }
    const value = this.valueAt(x);
    for (let number = 0; number < this.axis.rows.length; ++number) {
      const row = this.axis.rows[number];
      const top = this.rowTop(number);
      if (y >= top && y <= top + kPlot.row) {
        const begins = row.members.map(op => row.begin[op]);
        return row.members[Math.max(0, lastAtMost(begins, value))];
      }
    }
    let op = Math.max(0, lastAtMost(this.axis.begin, value, this.step.count));
    while (op > 0 && this.axis.end[op] < value && this.axis.begin[op] === this.axis.end[op] &&
           this.axis.end[op - 1] >= this.axis.begin[op]) {
      --op; // back over what takes no time, to what was holding it
    }
    return op;
  }
}

/** "model.layers.3.mlp" where there is room for "layers.3.mlp" only. */
function shortName(name) {
  return name.replace(/^model\./, '');
}
