// The step's section: the plot under pointer and keys, the inspector beside it, the search.

/** The operation's own words; nothing is hovered: the one at the peak. */
class StepView {
  constructor(step) {
    this.step = step;
    this.plot = new StepPlot(byId('plot'), step, report.budget_bytes);
    this.held = null;
    byId('step').hidden = false;
    this.buildInspector();
    this.buildKinds();
    this.listen();
    this.setMode(this.plot.mode);
    this.point(undefined);
  }

  // ---- what is pointed at
  /** Shows an operation; undefined: the held one, or the peak. */
  point(op) {
    const shown = op ?? this.held ?? this.step.peak;
    this.plot.cursor = op ?? this.held ?? undefined;
    this.plot.drawOverlay();
    this.inspect(shown);
  }

  hold(op) {
    this.held = op;
    history.replaceState(null, '', op === null ? location.pathname + location.search : '#op-' + op);
    this.point(undefined);
  }

  /** Holds an operation and brings it into sight. */
  goTo(op) {
    const {begin, end} = this.plot.axis;
    if (begin[op] < this.plot.from || end[op] > this.plot.to) {
      const half = (this.plot.to - this.plot.from) / 2;
      this.show(begin[op] - half, begin[op] + half);
    }
    this.hold(op);
  }

  show(from, to) {
    this.plot.show(from, to);
    this.redraw();
  }

  setMode(mode) {
    this.plot.setMode(mode);
    for (const button of document.querySelectorAll('[data-axis]')) {
      button.setAttribute('aria-pressed', String(button.dataset.axis === mode));
      button.hidden = !(button.dataset.axis in this.step.axes);
    }
    this.redraw();
  }

  redraw() {
    const {from, to, axis, mode} = this.plot;
    const unit = mode === 'order' ? countText : secondsText;
    const whole = to - from >= axis.length * (1 - 1e-9);
    byId('range').textContent = whole ? '' : `${unit(from)} – ${unit(to)}`;
    byId('reset').hidden = whole;
    this.plot.draw();
  }

  /** For paper: dark ink on white whatever the screen is, and the canvas as a picture, since not all
      printers take canvases. */
  toPaper(paper) {
    document.documentElement.classList.toggle('on-paper', paper);
    this.redraw();
    const host = byId('plot');
    host.querySelectorAll('img').forEach(picture => picture.remove());
    if (paper) {
      host.append(element('img', {src: this.plot.base.toDataURL(), alt: ''}));
    }
  }

  // ---- the inspector, which is the legend too
  buildInspector() {
    this.parts = {
      which: element('span'), count: element('span'), op: element('p', {class: 'op'}), subject: element('p', {class: 'subject'}),
    };
    this.rows = {};
    const row = (name, head, attributes = {}) => {
      this.rows[name] = {line: element('tr', attributes, head, element('td'), element('td', {class: 'share'}))};
      [, this.rows[name].value, this.rows[name].share] = this.rows[name].line.children;
      return this.rows[name].line;
    };
    const title = (text, mark = null) => element('th', {scope: 'row'}, mark, text);
    const lines = [row('total', title('predicted'), {class: 'totals'})];
    if (this.step.measured) {
      lines.push(row('measured', title('measured', swatch('ink', 'stroke')), {class: 'totals'}));
    }
    for (const name of [...this.step.categories].reverse()) {
      const button = element('button', {type: 'button', title: 'Show or hide', 'aria-pressed': 'true',
        onclick: () => this.toggle(name, button)}, swatch(name), kCategoryNames[name]);
      lines.push(row(name, element('th', {scope: 'row'}, button)));
    }
    lines.push(row('time', title('time')));
    if (this.step.measured) {
      lines.push(row('measured_time', title('time, measured')));
    }
    byId('inspector').replaceChildren(
      element('p', {class: 'which'}, this.parts.which, this.parts.count), this.parts.op, this.parts.subject,
      element('table', {}, element('tbody', {}, lines)));
  }

  toggle(name, button) {
    const {hidden} = this.plot;
    if (!hidden.delete(name) && hidden.size + 1 < this.step.categories.length) {
      hidden.add(name);
    }
    button.setAttribute('aria-pressed', String(!hidden.has(name)));
    this.rows[name].line.classList.toggle('off', hidden.has(name));
    this.plot.draw();
  }

  inspect(op) {
    const {ops, total, measured} = this.step;
    this.parts.which.replaceChildren(`Operation ${op + 1} of ${this.step.count}`);
    this.parts.count.replaceChildren(op === this.step.peak ? element('em', {}, 'the peak') : this.held === op ? 'held' : '');
    this.parts.op.textContent = ops.text[op];
    this.parts.subject.textContent = ops.subjects[ops.subject[op]] || '\u00a0';
    const set = (name, value, text, share) => {
      this.rows[name].value.replaceChildren(number(value, text));
      this.rows[name].share.textContent = share === undefined ? '' : percentText(share);
    };
    set('total', total[op], bytesText);
    for (const name of this.step.categories) {
      set(name, ops.bytes[name][op], bytesText, ops.bytes[name][op] / total[op]);
    }
    set('time', ops.end_s[op] - ops.begin_s[op], secondsText);
    if (measured) {
      set('measured', measured.bytes[op], bytesText, measured.bytes[op] / total[op]);
      set('measured_time', measured.end_s[op] - measured.begin_s[op], secondsText);
    }
    byId('inspector').dataset.op = op;
  }

  /** What the colours of the lanes mean, with counts and seconds. */
  buildKinds() {
    const kinds = new Map();
    const times = this.step.measured || this.step.ops;
    this.step.ops.kind.forEach((kind, op) => {
      if (kind in kKindColors && this.step.ops.lane[op] >= 0) {
        const sum = kinds.get(kind) || {count: 0, seconds: 0};
        sum.count += 1;
        sum.seconds += times.end_s[op] - times.begin_s[op];
        kinds.set(kind, sum);
      }
    });
    byId('kinds').replaceChildren(...[...kinds].map(([kind, sum]) => element('span', {},
      swatch(kKindColors[kind], kind === 'recompute' ? 'hatched' : ''), element('b', {}, kind),
      ` ${countText(sum.count)}` + (sum.seconds > 0 ? ` × ${secondsText(sum.seconds / sum.count)}` : ''))));
  }

  // ---- pointer and keys
  listen() {
    const host = byId('plot');
    const at = event => {
      const box = host.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    host.addEventListener('pointerdown', event => {
      const [x] = at(event);
      this.plot.drag = {from: x, to: x};
    });
    host.addEventListener('pointermove', event => this.move(event, ...at(event)));
    host.addEventListener('pointerup', event => this.release(...at(event)));
    host.addEventListener('pointerleave', () => {
      this.plot.drag = null;
      tip.hide();
      this.point(undefined);
    });
    host.addEventListener('dblclick', () => this.show(0, this.plot.axis.length));
    host.addEventListener('wheel', event => this.wheel(event, ...at(event)), {passive: false});
    host.addEventListener('keydown', event => this.key(event));
    byId('reset').addEventListener('click', () => this.show(0, this.plot.axis.length));
    for (const button of document.querySelectorAll('[data-axis]')) {
      button.addEventListener('click', () => this.setMode(button.dataset.axis));
    }
    byId('find').addEventListener('input', event => this.find(event.target.value));
    new ResizeObserver(() => {
      if (host.clientWidth !== this.plot.width && !onPaper()) { // paper takes the drawing as it is
        this.redraw();
      }
    }).observe(host);
  }

  move(event, x, y) {
    const op = this.plot.opAt(x, y);
    if (this.plot.drag && event.buttons === 1) {
      this.plot.drag.to = x;
    } else {
      this.plot.drag = null;
    }
    this.point(op);
    if (op === undefined) {
      tip.hide();
      return;
    }
    const {ops, total, measured} = this.step;
    const subject = ops.subjects[ops.subject[op]];
    tip.show(event.clientX, event.clientY, element('b', {}, ops.text[op]), subject ? subject + ' · ' : '',
      bytesText(total[op]), measured ? ` predicted, ${bytesText(measured.bytes[op])} measured` : '');
  }

  release(x, y) {
    const drag = this.plot.drag;
    this.plot.drag = null;
    if (drag && Math.abs(drag.to - drag.from) > 5) {
      this.plot.drag = drag;
      const [left, right] = this.plot.dragRange();
      this.plot.drag = null;
      this.show(this.plot.valueAt(left), this.plot.valueAt(right));
      return;
    }
    const op = this.plot.opAt(x, y);
    if (op !== undefined) {
      this.hold(this.held === op ? null : op);
    }
  }

  wheel(event, x) {
    if (!event.ctrlKey && !event.metaKey && !event.shiftKey) {
      return; // the page scrolls
    }
    event.preventDefault();
    const {from, to} = this.plot;
    const moved = event.deltaY || event.deltaX;
    if (event.shiftKey) {
      const shift = (to - from) * moved / 600;
      this.show(from + shift, to + shift);
      return;
    }
    const factor = Math.exp(moved / 300);
    const centre = this.plot.valueAt(x);
    this.show(centre - (centre - from) * factor, centre + (to - centre) * factor);
  }

  key(event) {
    const step = {ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10}[event.key];
    if (step) {
      const from = this.held ?? this.step.peak;
      this.goTo(Math.min(this.step.count - 1, Math.max(0, from + step)));
    } else if (event.key === 'Escape') {
      this.hold(null);
      this.show(0, this.plot.axis.length);
    } else if (event.key === 'Home' || event.key === 'End') {
      this.goTo(event.key === 'Home' ? 0 : this.step.count - 1);
    } else {
      return;
    }
    event.preventDefault();
  }

  // ---- the search
  find(words) {
    const {ops} = this.step;
    const parts = words.toLowerCase().split(/\s+/).filter(part => part !== '');
    const matches = parts.length === 0 ? [] : ops.text.flatMap((text, op) => {
      const all = `${text} ${ops.subjects[ops.subject[op]]}`.toLowerCase();
      return parts.every(part => all.includes(part)) ? [op] : [];
    });
    byId('found-count').textContent = parts.length === 0 ? ''
      : matches.length === 1 ? '1 operation' : `${countText(matches.length)} operations`;
    byId('found').replaceChildren(...matches.slice(0, 18).map(op => element('li', {},
      element('button', {type: 'button', title: ops.text[op], onclick: () => this.goTo(op)},
        element('i', {}, String(op + 1)), ops.text[op]))));
    this.plot.matches = matches;
    this.plot.drawOverlay();
  }
}
