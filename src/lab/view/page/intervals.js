/** Small figures of estimates: differences of pairs with their interval, and how an interval narrowed. */
(() => {
  'use strict';

  const { svgElement } = xrun.dom;
  const { element } = xrun.dom;
  const { linearTicks } = xrun.chart_axes;
  const { pictureButtons, standalone } = xrun.picture_files;

  /** Width of a figure if there is room, in pixels. */
  const WIDTH = 720;

  const LEFT = 8;
  const RIGHT = 8;
  const TOP = 14;
  const FOOT = 24;

  /**
   * Returns the width of a figure. It is limited so that its text is as large as elsewhere, even on a phone.
   * @returns {number}
   */
  function pictureWidth() {
    return Math.max(260, Math.min(WIDTH, document.documentElement.clientWidth - 60));
  }

  /**
   * Returns a scale from values to pixels.
   * @param {number[]} values values that must be visible
   * @returns {{low: number, high: number, ticks: number[], toX: (value: number) => number}}
   */
  function scaleOf(values) {
    const finite = values.filter(Number.isFinite);
    let [low, high] = [Math.min(...finite), Math.max(...finite)];
    const room = (high - low) * 0.06 || Math.abs(high) * 0.06 || 1;
    [low, high] = [low - room, high + room];
    const width = pictureWidth();
    const ticks = linearTicks(low, high, Math.floor(width / 90));
    return { low, high, ticks, toX: (value) => LEFT + ((value - low) / (high - low)) * (width - LEFT - RIGHT) };
  }

  /** Draws the axis below, with its tick labels. */
  function axis({ ticks, toX }, height, format) {
    return ticks.map((tick) =>
      svgElement(
        'g',
        {},
        svgElement('line', { class: 'grid', x1: toX(tick), x2: toX(tick), y1: TOP - 6, y2: height - FOOT }),
        svgElement('text', { class: 'tick', x: toX(tick), y: height - 8, 'text-anchor': 'middle' }, format(tick)),
      ),
    );
  }

  /** Draws the zone of differences that do not matter, and the line of no difference. */
  function zone({ toX }, height, none, reach) {
    const line = svgElement('line', { class: 'none', x1: toX(none), x2: toX(none), y1: TOP - 6, y2: height - FOOT });
    if (!reach) return [line];
    const [from, to] = [toX(none - reach), toX(none + reach)];
    return [
      svgElement('rect', { class: 'zone', x: from, y: TOP - 6, width: to - from, height: height - FOOT - TOP + 6 }),
      line,
    ];
  }

  /** Draws an interval as a bar, with a diamond at the estimate. */
  function bar({ toX }, y, { estimate, low, high }, kind) {
    const [left, middle, right] = [low, estimate, high].map(toX);
    return svgElement(
      'g',
      { class: kind },
      svgElement('line', { class: 'interval', x1: left, x2: right, y1: y, y2: y }),
      svgElement('line', { class: 'interval', x1: left, x2: left, y1: y - 5, y2: y + 5 }),
      svgElement('line', { class: 'interval', x1: right, x2: right, y1: y - 5, y2: y + 5 }),
      svgElement('path', {
        class: 'estimate',
        d: `M${middle - 6},${y} L${middle},${y - 6} L${middle + 6},${y} L${middle},${y + 6} Z`,
      }),
    );
  }

  /**
   * @param {string} label
   * @param {number} height
   * @param {...any} children
   * @returns {HTMLElement} the picture with buttons that save it
   */
  function picture(label, height, ...children) {
    const figure = svgElement(
      'svg',
      { class: 'picture', viewBox: `0 0 ${pictureWidth()} ${height}`, role: 'img', 'aria-label': label },
      ...children,
    );
    const title = label.split(':')[0];
    return element('div', { class: 'chart-block' }, figure, pictureButtons(title, () => standalone(title, figure)));
  }

  /**
   * Returns rows of points above an interval.
   * @param {Object} options
   * @param {string} options.label description for screen readers
   * @param {{values: number[], text: string, kind: string}[]} options.rows
   * @param {?{estimate: number, low: number, high: number}} options.interval
   * @param {number} options.none the value of no difference
   * @param {number} options.reach differences up to this do not matter; 0 if every difference matters
   * @param {(value: number) => string} options.format
   * @returns {HTMLElement}
   */
  function pointsAndInterval({ label, rows, interval, none, reach, format }) {
    const rowHeight = 24;
    const height = TOP + rows.length * rowHeight + (interval ? 26 : 0) + FOOT;
    const ends = interval ? [interval.low, interval.high] : [];
    const scale = scaleOf([none - reach, none + reach, ...ends, ...rows.flatMap(({ values }) => values)]);
    const points = rows.map(({ values, text, kind }, i) => {
      const y = TOP + i * rowHeight + rowHeight / 2;
      return svgElement(
        'g',
        { class: kind },
        values.map((value) => svgElement('circle', { class: 'point', cx: scale.toX(value), cy: y, r: 4.5 })),
        text && svgElement('text', { class: 'tick', x: LEFT, y: y + 4 }, text),
      );
    });
    return picture(
      label,
      height,
      axis(scale, height, format),
      zone(scale, height, none, reach),
      points,
      interval && bar(scale, TOP + rows.length * rowHeight + 13, interval, 'result'),
    );
  }

  /**
   * Returns how an interval narrowed, with a bar for each number of pairs.
   * @param {Object} options
   * @param {string} options.label
   * @param {{pairs: number, estimate: number, low: number, high: number}[]} options.history
   * @param {number} options.none
   * @param {number} options.reach
   * @param {(value: number) => string} options.format
   * @returns {HTMLElement}
   */
  function closingInterval({ label, history, none, reach, format }) {
    const rowHeight = Math.max(12, Math.min(20, 400 / history.length));
    const height = TOP + history.length * rowHeight + FOOT;
    // The first intervals, of two or three pairs, are many times wider than the rest, so they are cut off.
    const narrow = history.slice(Math.floor(history.length / 3));
    const widest = Math.max(
      ...narrow.map(({ low, high }) => Math.max(Math.abs(low - none), Math.abs(high - none))),
      reach,
    );
    const scale = scaleOf([none - widest, none + widest]);
    const cut = (value) => Math.max(scale.low, Math.min(scale.high, value));
    const rows = history.map(({ pairs, estimate, low, high }, i) => {
      const y = TOP + i * rowHeight + rowHeight / 2;
      const isLast = i === history.length - 1;
      return svgElement(
        'g',
        { class: isLast ? 'result' : 'earlier' },
        svgElement('title', {}, `${pairs} pairs: ${format(estimate)} (${format(low)} to ${format(high)})`),
        svgElement('line', { class: 'interval', x1: scale.toX(cut(low)), x2: scale.toX(cut(high)), y1: y, y2: y }),
        svgElement('circle', { class: 'estimate', cx: scale.toX(cut(estimate)), cy: y, r: 3.5 }),
        svgElement('text', { class: 'tick', x: LEFT, y: y + 4 }, String(pairs)),
      );
    });
    return picture(label, height, axis(scale, height, format), zone(scale, height, none, reach), rows);
  }

  xrun.intervals = { closingInterval, pointsAndInterval };
})();
