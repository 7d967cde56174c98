/** Converts curves of runs to series of a chart: the axis, the range, the smoothed line over the raw one. */
(() => {
  'use strict';

  /** Values that JSON cannot hold as numbers. */
  const NOT_FINITE = ['NaN', 'inf', '-inf'];

  /**
   * Only curves with at least this share of a run's steps are smoothed. Sparser ones are evaluations, each of
   * which matters.
   */
  const MIN_DENSE_SHARE = 0.5;

  /**
   * @typedef {Object} Curve a metric in the response of `api/curves`
   * @property {number} rows number of rows of the whole run with a value
   * @property {boolean} exact
   * @property {number[]} step
   * @property {number[]} tokens
   * @property {(number|null)[]} seconds
   * @property {(number|string)[]} value
   * @property {?{step: number[], tokens: number[], seconds: number[], value: (number|string)[]}} smooth
   */

  /**
   * Returns the points of a line over x, without those whose x is unknown.
   * @param {Object} curve
   * @param {string} x
   * @returns {{x: number[], y: (number|null)[], notFinite: {x: number, value: string}[]}}
   */
  function line(curve, x) {
    const found = { x: [], y: [], notFinite: [] };
    curve.value.forEach((value, i) => {
      const at = curve[x]?.[i];
      if (typeof at !== 'number') return;
      const isOdd = NOT_FINITE.includes(value);
      if (isOdd) found.notFinite.push({ x: at, value });
      found.x.push(at);
      found.y.push(isOdd ? null : value);
    });
    return found;
  }

  /**
   * Returns the part of a line within a range, plus one value on each side.
   * @param {{x: number[], y: (number|null)[]}} whole
   * @param {number[]} zoom
   * @returns {{x: number[], y: (number|null)[]}}
   */
  function within(whole, zoom) {
    if (zoom.length !== 2) return whole;
    const first = whole.x.findIndex((x) => x >= zoom[0]);
    const last = whole.x.findLastIndex((x) => x <= zoom[1]);
    if (first < 0 || last < 0) return { ...whole, x: [], y: [], notFinite: [] };
    const cut = (list) => list.slice(Math.max(0, first - 1), last + 2);
    return {
      x: cut(whole.x),
      y: cut(whole.y),
      notFinite: whole.notFinite.filter(({ x }) => x >= zoom[0] && x <= zoom[1]),
    };
  }

  /**
   * Returns the steps that a range of an axis covers, with one more on each side.
   * @param {Curve} whole a curve of the whole run
   * @param {string} x
   * @param {number[]} zoom
   * @returns {number[]|null} null if the run has no values there
   */
  function stepsOf(whole, x, zoom) {
    if (x === 'step') return [Math.max(0, Math.floor(zoom[0]) - 1), Math.ceil(zoom[1]) + 1];
    const values = whole[x] ?? [];
    const first = values.findIndex((value) => value !== null && value >= zoom[0]);
    const last = values.findLastIndex((value) => value !== null && value <= zoom[1]);
    if (first < 0 || last < 0) return null;
    return [whole.step[Math.max(0, first - 1)], whole.step[Math.min(whole.step.length - 1, last + 1)]];
  }

  /**
   * Returns the series of a metric of a run: its line, and the smoothed line if requested.
   * @param {Curve} curve
   * @param {{label: string, slot: number, steps: number}} run
   * @param {{x: string, zoom: number[], isSmoothed: boolean}} options
   * @returns {import('./chart.js').Series[]}
   */
  function seriesOf(curve, { label, slot, steps }, { x, zoom, isSmoothed }) {
    const isDense = curve.rows >= MIN_DENSE_SHARE * steps && curve.rows > 20;
    const raw = { label, slot, ...within(line(curve, x), zoom), hasPoints: !isDense && curve.value.length <= 60 };
    if (!isSmoothed || !curve.smooth || !isDense) return [raw];
    return [
      { ...raw, isRaw: true, hasPoints: false },
      { label, slot, ...within(line(curve.smooth, x), zoom), notFinite: [] },
    ];
  }

  xrun.curve_data = { seriesOf, stepsOf };
})();
