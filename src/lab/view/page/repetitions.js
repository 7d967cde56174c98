/** Runs that differ only in the seed, or that are one arm of a comparison, drawn as a mean with a band. */
(() => {
  'use strict';

  /**
   * Returns the value of a line at an x: between two points, on the straight line between them.
   * @param {{x: number[], y: (number|null)[]}} line
   * @returns {(x: number) => number|null} for ascending x
   */
  function follower({ x, y }) {
    let at = 0;
    return (wanted) => {
      while (at + 1 < x.length && x[at + 1] <= wanted) at++;
      if (x[at] === wanted) return y[at];
      const [before, after] = [y[at], y[at + 1]];
      if (typeof before !== 'number' || typeof after !== 'number') return null;
      return before + ((after - before) * (wanted - x[at])) / (x[at + 1] - x[at]);
    };
  }

  /**
   * Returns the mean of several lines, and the standard deviation around it, where all lines have a value.
   * @param {{x: number[], y: (number|null)[]}[]} lines at least two
   * @returns {{x: number[], mean: (number|null)[], deviation: (number|null)[]}}
   */
  function meanOf(lines) {
    const first = Math.max(...lines.map(({ x }) => x[0] ?? Infinity));
    const last = Math.min(...lines.map(({ x }) => x.at(-1) ?? -Infinity));
    const all = new Set(lines.flatMap(({ x }) => x.filter((at) => at >= first && at <= last)));
    const x = [...all].sort((a, b) => a - b);
    const followers = lines.map(follower);
    const found = { x, mean: [], deviation: [] };
    for (const at of x) {
      const values = followers.map((value) => value(at));
      const isKnown = values.every((value) => typeof value === 'number');
      const mean = isKnown ? values.reduce((sum, value) => sum + value, 0) / values.length : null;
      const squares = isKnown ? values.reduce((sum, value) => sum + (value - mean) ** 2, 0) : null;
      found.mean.push(mean);
      found.deviation.push(isKnown ? Math.sqrt(squares / (values.length - 1)) : null);
    }
    return found;
  }

  /**
   * Returns the series of a group of runs: each run pale, the mean, and the ends of a band of one standard
   * deviation. The series of a single run stay as they are.
   * @param {import('./chart.js').Series[][]} runs the series of each run, the line to average last
   * @param {{label: string, slot: number}} group
   * @returns {import('./chart.js').Series[]}
   */
  function seriesOfGroup(runs, { label, slot }) {
    if (runs.length < 2) return runs.flat();
    const lines = runs.map((series) => series.at(-1));
    const { x, mean, deviation } = meanOf(lines);
    const shifted = (sign) => mean.map((value, i) => (value === null ? null : value + sign * deviation[i]));
    return [
      ...lines.map((line) => ({ ...line, slot, isRaw: true, hasPoints: false })),
      { label, slot, x, y: mean, hasPoints: lines.every(({ hasPoints }) => hasPoints), deviation },
      { label, slot, x, y: shifted(1), isBand: true },
      { label, slot, x, y: shifted(-1), isBand: true },
    ];
  }

  xrun.repetitions = { meanOf, seriesOfGroup };
})();
