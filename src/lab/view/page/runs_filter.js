/**
 * Which runs the table shows, and their order. The server decides; inside a file, the page searches for
 * words.
 */
(() => {
  'use strict';

  /**
   * @typedef {Object} Column
   * @property {string} name the name that `xrun runs` uses too
   * @property {string} heading
   * @property {string} meaning
   * @property {boolean} isNumber
   * @property {(run: Object) => number|string|null} value
   * @property {(run: Object) => string} text
   */

  /**
   * Returns the text of a run that filter words are searched in.
   * @param {Object} run
   * @returns {string}
   */
  function searchedText(run) {
    return [run.id, run.name, run.status, run.note ?? '', run.device ?? '', ...run.tags, ...run.changed, ...run.remarks]
      .join('\n')
      .toLowerCase();
  }

  /**
   * Returns the runs that have all words of a filter. Only the server evaluates comparisons.
   * @param {Object[]} runs
   * @param {string} filter
   * @returns {{runs: Object[], problems: string[]}}
   */
  function searched(runs, filter) {
    const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
    const problems = words.some((word) => /[<>=]/.test(word))
      ? ['This file can only search for words: xrun view and xrun runs make comparisons.']
      : [];
    return { runs: runs.filter((run) => words.every((word) => searchedText(run).includes(word))), problems };
  }

  /**
   * Returns runs in the order of a column. Unknown values come last in both directions.
   * @param {Object[]} runs
   * @param {Column|undefined} column
   * @param {boolean} isDescending
   * @returns {Object[]}
   */
  function sorted(runs, column, isDescending) {
    if (!column) return runs;
    const rank = (value) => (typeof value === 'number' ? 0 : value === null ? 2 : 1);
    const order = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
    return runs
      .map((run) => ({ run, value: column.value(run) ?? null }))
      .sort((a, b) => rank(a.value) - rank(b.value) || (isDescending ? -1 : 1) * order(a.value, b.value))
      .map(({ run }) => run);
  }

  /**
   * Returns the runs that a filter keeps, in the order of a column, and sentences on what was not understood.
   * @param {{get: Function, isEmbedded: boolean}} source
   * @param {Object[]} runs
   * @param {{filter: string, sort: string}} view
   * @param {Map<string, Column>} columns
   * @returns {Promise<{runs: Object[], problems: string[]}>}
   */
  async function matching(source, runs, { filter, sort }, columns) {
    if (filter.trim() === '' && sort === '') return { runs, problems: [] };
    if (source.isEmbedded) {
      const found = searched(runs, filter);
      return { ...found, runs: sorted(found.runs, columns.get(sort.replace(/^-/, '')), sort.startsWith('-')) };
    }
    const found = await source.get('matches', [
      ['filter', filter],
      ['sort', sort],
    ]);
    const byId = new Map(runs.map((run) => [run.id, run]));
    return { runs: found.runs.map((id) => byId.get(id)).filter(Boolean), problems: found.problems };
  }

  xrun.runs_filter = { matching };
})();
