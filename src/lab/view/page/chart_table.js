/** The numbers of a chart as a table, for screen readers and for exact values. */
(() => {
  'use strict';

  const { element, fill, plainTable, scrolling } = xrun.dom;
  const { BLANK, short } = xrun.text;

  /** Most rows of a table. */
  const ROWS = 50;

  /**
   * Returns the x values of the rows: all if they are few, otherwise evenly chosen ones.
   * @param {{x: number[]}[]} series
   * @param {number[]} zoom
   * @returns {number[]}
   */
  function rowEnds(series, zoom) {
    const isShown = (x) => zoom.length !== 2 || (x >= zoom[0] && x <= zoom[1]);
    const all = [...new Set(series.flatMap((s) => s.x.filter(isShown)))].sort((a, b) => a - b);
    if (all.length <= ROWS) return all;
    return Array.from({ length: ROWS }, (_, i) => all[Math.round(((i + 1) * all.length) / ROWS) - 1]);
  }

  /**
   * Formats the values of a series in (from, to]: the single value, or the last with the lowest and the
   * highest.
   * @param {{x: number[], y: (number|null)[], notFinite?: {x: number, value: string}[]}} series
   * @param {number} from
   * @param {number} to
   * @returns {string}
   */
  function cellText(series, from, to) {
    const odd = (series.notFinite ?? []).find(({ x }) => x > from && x <= to);
    if (odd) return odd.value;
    const values = [];
    for (let i = upperBound(series.x, from); i < series.x.length && series.x[i] <= to; i++) {
      if (series.y[i] !== null) values.push(series.y[i]);
    }
    if (values.length === 0) return BLANK;
    const [low, high] = [Math.min(...values), Math.max(...values)];
    const last = short(values.at(-1), 6);
    return low === high ? last : `${last} (${short(low)} to ${short(high)})`;
  }

  /**
   * Returns the first index whose value is above a bound.
   * @param {number[]} sorted
   * @param {number} bound
   * @returns {number}
   */
  function upperBound(sorted, bound) {
    let [low, high] = [0, sorted.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (sorted[middle] > bound) high = middle;
      else low = middle + 1;
    }
    return low;
  }

  /**
   * Returns the table of a chart, which is built when it is opened.
   * @param {string} title
   * @param {import('./chart.js').Series[]} series
   * @param {import('./chart.js').Axes} axes
   * @param {boolean} isOpen
   * @returns {HTMLElement}
   */
  function dataTable(title, series, axes, isOpen) {
    const hasRaw = (slot) => series.some((s) => s.slot === slot && s.isRaw);
    const measured = series.filter((s) => !s.isReference && !s.isBand && (s.isRaw || !hasRaw(s.slot) || s.deviation));
    const body = element('div', {});
    const make = () => {
      const ends = rowEnds(measured, axes.zoom);
      const heads = [{ text: axes.xLabel, number: true }, ...measured.map((s) => ({ text: s.label, number: true }))];
      const rows = ends.map((end, i) => [
        (axes.xExact ?? axes.xFormat ?? short)(end),
        ...measured.map((s) => cellText(s, i === 0 ? -Infinity : ends[i - 1], end)),
      ]);
      fill(body, scrolling(`Values of ${title}`, plainTable(`${title} by ${axes.xLabel}`, heads, rows)));
    };
    if (isOpen) make();
    return element(
      'details',
      { class: 'data-table', open: isOpen, ontoggle: (event) => event.target.open && !body.firstChild && make() },
      element('summary', {}, 'Data table'),
      body,
    );
  }

  xrun.chart_table = { dataTable };
})();
