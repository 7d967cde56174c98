/** Filters and orders of the table of runs, with the signs of `xrun runs`. */
(() => {
  'use strict';

  /**
   * @typedef {Object} Column
   * @property {string} name
   * @property {string} heading
   * @property {string} meaning
   * @property {boolean} isNumber
   * @property {(run: Object) => number|string|null} value
   * @property {(run: Object) => string} text
   */

  const COMPARISON = /^([^\s<>=!]+)(<=|>=|!=|=|<|>)(.*)$/;

  /**
   * Returns the words of a filter; quotes keep spaces.
   * @param {string} filter
   * @returns {string[]}
   */
  function filterWords(filter) {
    return (filter.match(/(?:[^\s"]+|"[^"]*"?)+/g) ?? []).map((word) => word.replaceAll('"', ''));
  }

  /**
   * Returns true if two values compare so: numbers as numbers, other texts for equality.
   * @param {number|string|null} value
   * @param {string} sign
   * @param {string} wanted
   * @returns {boolean}
   */
  function compares(value, sign, wanted) {
    if (value === null || value === undefined) return sign === '=' && wanted === 'unset';
    const [left, right] = [Number(value), Number(wanted)];
    const areNumbers = value !== '' && wanted !== '' && Number.isFinite(left) && Number.isFinite(right);
    const order = areNumbers ? left - right : String(value) === wanted ? 0 : String(value) < wanted ? -1 : 1;
    return { '<': order < 0, '<=': order <= 0, '>': order > 0, '>=': order >= 0, '=': order === 0, '!=': order !== 0 }[
      sign
    ];
  }

  /**
   * Returns all words of a run that a word of the filter is looked for in.
   * @param {Object} run
   * @returns {string}
   */
  function searchedText(run) {
    return [run.id, run.name, run.status, run.note ?? '', run.device ?? '', ...run.tags, ...run.changed, ...run.remarks]
      .join('\n')
      .toLowerCase();
  }

  /**
   * Returns the test of a filter, and the names in it that nothing is called.
   * @param {string} filter
   * @param {Map<string, Column>} columns
   * @returns {{accepts: (run: Object) => boolean, unknown: string[]}}
   */
  function parseFilter(filter, columns) {
    const tests = [];
    const unknown = [];
    for (const word of filterWords(filter)) {
      const parts = COMPARISON.exec(word);
      if (!parts) {
        const wanted = word.toLowerCase();
        tests.push((run) => searchedText(run).includes(wanted));
      } else if (parts[1] === 'tag') {
        tests.push((run) => run.tags.includes(parts[3]) === (parts[2] === '='));
      } else if (columns.has(parts[1])) {
        tests.push((run) => compares(columns.get(parts[1]).value(run), parts[2], parts[3]));
      } else {
        unknown.push(parts[1]);
      }
    }
    return { accepts: (run) => tests.every((test) => test(run)), unknown };
  }

  /**
   * Returns runs in the order of a column; what is unknown comes last, whatever the direction.
   * @param {Object[]} runs
   * @param {Column|undefined} column
   * @param {boolean} isDescending
   * @returns {Object[]}
   */
  function sorted(runs, column, isDescending) {
    if (!column) return runs;
    const rank = (value) => (value === null || value === undefined || Number.isNaN(value) ? 1 : 0);
    const order = (a, b) =>
      typeof a === 'number' && typeof b === 'number'
        ? a - b
        : String(a).localeCompare(String(b), 'en', { numeric: true });
    return runs
      .map((run) => ({ run, value: column.value(run) }))
      .sort((a, b) => rank(a.value) - rank(b.value) || (isDescending ? -1 : 1) * order(a.value, b.value))
      .map(({ run }) => run);
  }

  xrun.runs_filter = { parseFilter, sorted };
})();
