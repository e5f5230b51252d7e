'use strict';
// What every chart needs: the report, numbers as people read them, elements, colours, the tip.

const report = JSON.parse(document.getElementById('report').textContent);

function byId(id) {
  return document.getElementById(id);
}

// ---- numbers

const kSpace = '\u00a0'; // no line ends between a number and its unit

function digits(value) {
  return Math.abs(value) < 10 ? 2 : Math.abs(value) < 100 ? 1 : 0;
}

/** 812 B, 3.42 MiB: as the program prints them. */
function bytesText(bytes) {
  const names = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let value = bytes;
  let unit = 0;
  while (Math.abs(value) >= 1000 && unit + 1 < names.length) {
    value /= 1024;
    ++unit;
  }
  return (unit === 0 ? String(bytes) : value.toFixed(digits(value))) + kSpace + names[unit];
}

function secondsText(seconds) {
  if (seconds === 0) {
    return '0' + kSpace + 's';
  }
  const [scale, name] = Math.abs(seconds) >= 1 ? [1, 's'] : Math.abs(seconds) >= 1e-3 ? [1e3, 'ms'] : [1e6, 'µs'];
  const value = seconds * scale;
  return value.toFixed(digits(value)) + kSpace + name;
}

function percentText(share) {
  const value = 100 * share;
  return (Math.abs(value) < 10 ? value.toFixed(1) : value.toFixed(0)) + kSpace + '%';
}

function countText(value) {
  return Math.round(value).toLocaleString('en').replaceAll(',', '\u2009');
}

/** Differences of losses: 3.1e-7, or 0. */
function tinyText(value) {
  return value === 0 ? '0' : value.toExponential(1).replace('-', '\u2212');
}

/** The number itself stays in the element, whatever its text rounds. */
function number(value, text) {
  return element('data', {value: String(value)}, value === null ? '–' : text(value));
}

/** Round steps that cut [0, most] into about `parts`: powers of two for bytes, 1, 2, 5 for others. */
function niceStep(most, parts, binary) {
  const rough = most / parts;
  if (binary) {
    return 2 ** Math.round(Math.log2(rough));
  }
  const power = 10 ** Math.floor(Math.log10(rough));
  return power * [1, 2, 5, 10].find(factor => factor * power >= rough * 0.999);
}

function ticks(from, to, parts, binary = false) {
  const step = niceStep(Math.max(to - from, 1e-12), parts, binary);
  const values = [];
  for (let at = Math.ceil(from / step - 1e-9); at * step <= to * (1 + 1e-12); ++at) {
    values.push(at * step);
  }
  return values;
}

// ---- elements

function build(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith('on')) {
      node.addEventListener(name.slice(2), value);
    } else if (value !== null && value !== undefined && value !== false) {
      node.setAttribute(name, value === true ? '' : value);
    }
  }
  node.append(...children.flat().filter(child => child !== null && child !== undefined));
  return node;
}

function element(name, attributes = {}, ...children) {
  return build(document.createElement(name), attributes, children);
}

function drawn(name, attributes = {}, ...children) {
  return build(document.createElementNS('http://www.w3.org/2000/svg', name), attributes, children);
}

function swatch(color, shape = '') {
  return element('span', {class: `swatch ${shape}`, style: `--c: var(--${color})`});
}

function tableOf(table, titles, rows) {
  table.replaceChildren(
    element('thead', {}, element('tr', {}, titles.map(title => element('th', {scope: 'col'}, title)))),
    element('tbody', {}, rows));
}

/** A colour of the style sheet, as it is now: light, dark or on paper. */
function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue('--' + name).trim();
}

function onPaper() {
  return document.documentElement.classList.contains('on-paper');
}

// ---- the tip beside the pointer

const tip = {
  show(x, y, ...content) {
    const node = byId('tip');
    node.replaceChildren(...content);
    node.hidden = false;
    const left = x + 16 + node.offsetWidth > innerWidth ? x - 14 - node.offsetWidth : x + 16;
    node.style.left = Math.max(4, left) + 'px';
    node.style.top = Math.max(4, Math.min(y + 14, innerHeight - node.offsetHeight - 4)) + 'px';
  },
  hide() {
    byId('tip').hidden = true;
  },
};

/** Lets a shape tell its own story where the pointer or the keyboard's focus is. */
function telling(shape, tell) {
  const at = event => {
    const box = shape.getBoundingClientRect();
    const pointed = event.type.startsWith('pointer');
    tip.show(pointed ? event.clientX : box.right, pointed ? event.clientY : box.top, ...tell());
  };
  shape.setAttribute('tabindex', '0');
  for (const name of ['pointerenter', 'pointermove', 'focus']) {
    shape.addEventListener(name, at);
  }
  for (const name of ['pointerleave', 'blur']) {
    shape.addEventListener(name, tip.hide);
  }
  return shape;
}
