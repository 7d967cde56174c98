/** Filters and orders of the table of runs: words, and the comparisons of `xrun runs`. */
(() => {
  'use strict';

  /**
   * @typedef {Object} Column
   * @property {string} name
   * @property {string} heading
   * @property {string} meaning
   * @property {boolean} isNumber
   * @property {boolean} [isKey] a key of recipes
   * @property {(run: Object) => number|string|null} value
   * @property {(run: Object) => string} text
   */

  const COMPARISON = /^\s*([^\s<>=!]+)\s*(<=|>=|!=|=|<|>)\s*(.*?)\s*$/;

  /** What each sign asks of an order, which is below, at or above 0. */
  const HOLDS = {
    '=': (order) => order === 0,
    '!=': (order) => order !== 0,
    '<': (order) => order < 0,
    '<=': (order) => order <= 0,
    '>': (order) => order > 0,
    '>=': (order) => order >= 0,
  };

  const STATUSES = ['ok', 'running', 'interrupted', 'killed', 'unsaved', 'failed', 'oom', 'diverged'];

  /** Words whose beginning is enough. */
  const BEGINNINGS = ['commit', 'corpus', 'forked_from'];

  /** Thrown for a comparison that cannot be made; the message says why. */
  class NotCompared extends Error {}

  /**
   * Returns the words of a filter; quotes keep spaces.
   * @param {string} filter
   * @returns {string[]}
   */
  function filterWords(filter) {
    return (filter.match(/(?:[^\s"]+|"[^"]*"?)+/g) ?? []).map((word) => word.replaceAll('"', ''));
  }

  /**
   * Returns a number as recipes and command lines write it, such as 1_000 or 3e-4; null where a text is none.
   * @param {string} text
   * @returns {number|null}
   */
  function numberOf(text) {
    const plain = text.replaceAll('_', '');
    return !text.startsWith('_') && /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i.test(plain) ? Number(plain) : null;
  }

  /**
   * @param {string} sign
   * @param {string} what is compared, and is not ordered
   */
  function needEquality(sign, what) {
    if (sign !== '=' && sign !== '!=') throw new NotCompared(`${what}, which = and != compare.`);
  }

  /**
   * Returns the test of a figure, which no run fulfils that does not have it.
   * @param {Column} column
   * @param {string} sign
   * @param {string} value
   * @returns {(run: Object) => boolean}
   */
  function figureTest(column, sign, value) {
    const wanted = numberOf(value);
    if (wanted === null) throw new NotCompared(`${column.name} is a number, and ${value} is none.`);
    return (run) => {
      const found = column.value(run);
      return typeof found === 'number' && HOLDS[sign](found - wanted);
    };
  }

  /**
   * Returns the test of a key of recipes. `unset` is a key that the recipe leaves unset; a key that is not known
   * fulfils nothing, and one that is unset or no number is not equal to a number.
   * @param {Column} column
   * @param {string} sign
   * @param {string} value
   * @returns {(run: Object) => boolean}
   */
  function keyTest({ name }, sign, value) {
    const number = value === 'unset' ? null : numberOf(value);
    if (number === null) needEquality(sign, `${name} is compared with no number here`);
    const withoutSpaces = (text) => text.replace(/,\s+/g, ',');
    const isEqual = (stored) =>
      value === 'unset' ? stored === null : stored !== null && withoutSpaces(stored) === withoutSpaces(value);
    return (run) => {
      if (!Object.hasOwn(run.keys, name)) return false;
      const stored = run.keys[name];
      if (number === null) return isEqual(stored) === (sign === '=');
      const found = stored === null ? null : numberOf(stored);
      return found === null ? sign === '!=' : HOLDS[sign](found - number);
    };
  }

  /**
   * Returns the test of a time, of which a beginning is compared.
   * @param {Column} column
   * @param {string} sign
   * @param {string} value
   * @returns {(run: Object) => boolean}
   */
  function timeTest(column, sign, value) {
    const wanted = value.replaceAll('T', ' ');
    if (!/^[\d: -]+$/.test(wanted))
      throw new NotCompared(`${column.name} is a time in UTC such as 2026-11-20, and ${value} is none.`);
    return (run) => {
      const beginning = column.value(run).slice(0, wanted.length);
      return HOLDS[sign](beginning === wanted ? 0 : beginning < wanted ? -1 : 1);
    };
  }

  /**
   * Returns true for any of a run's names, or the beginning of its folder's name or of the hash in that.
   * @param {Object} run
   * @param {string} name
   * @returns {boolean}
   */
  function isCalled(run, name) {
    const folder = run.id.slice(run.id.indexOf('/') + 1);
    const hash = folder.split('-')[1] ?? '';
    return run.name === name || run.id === name || folder.startsWith(name) || hash.startsWith(name);
  }

  /**
   * Returns the test of a word about runs.
   * @param {Column} column
   * @param {string} sign
   * @param {string} value
   * @returns {(run: Object) => boolean}
   */
  function wordTest(column, sign, value) {
    const { name } = column;
    needEquality(sign, `${name} is a word`);
    const isWanted = sign === '=';
    if (name === 'run' || name === 'name') return (run) => isCalled(run, value) === isWanted;
    if (name === 'tags') return (run) => run.tags.includes(value) === isWanted;
    if (name === 'status' && !STATUSES.includes(value)) throw new NotCompared(`No status is ${value}.`);
    // The folder of a recipe has other characters replaced.
    const text = name === 'recipe' ? value.replace(/[^A-Za-z0-9._-]/gu, '-') : value;
    const isIt = BEGINNINGS.includes(name) ? (found) => found.startsWith(text) : (found) => found === text;
    return (run) => {
      const found = column.value(run);
      return Boolean(found) && isIt(found) === isWanted;
    };
  }

  /**
   * Returns the column that a comparison names: `tag` is one of the tags, and `val-loss` is `val_loss`.
   * @param {string} name
   * @param {Map<string, Column>} columns
   * @returns {Column}
   */
  function columnOf(name, columns) {
    const metric = columns.get(name.replace(/^[^/]*/, (part) => part.replaceAll('-', '_')));
    const found = columns.get(name === 'tag' ? 'tags' : name) ?? (metric?.isNumber ? metric : undefined);
    if (!found) throw new NotCompared(`Nothing is called ${name}: names are those under Columns.`);
    return found;
  }

  /**
   * Returns the test of a comparison, as `xrun runs` makes it.
   * @param {string} name
   * @param {string} sign
   * @param {string} value
   * @param {Map<string, Column>} columns
   * @returns {(run: Object) => boolean}
   */
  function comparisonTest(name, sign, value, columns) {
    const column = columnOf(name, columns);
    if (value === '' || /^[<=>]/.test(value)) throw new NotCompared(`${name}${sign} is without a value.`);
    if (column.isKey) return keyTest(column, sign, value);
    if (column.isNumber) return figureTest(column, sign, value);
    return (column.name === 'started' ? timeTest : wordTest)(column, sign, value);
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
   * Returns the test of a filter, and what of it cannot be compared, in sentences; this filters nothing.
   * @param {string} filter
   * @param {Map<string, Column>} columns
   * @returns {{accepts: (run: Object) => boolean, problems: string[]}}
   */
  function parseFilter(filter, columns) {
    const tests = [];
    const problems = [];
    for (const word of filterWords(filter)) {
      const parts = COMPARISON.exec(word);
      const wanted = word.toLowerCase();
      try {
        tests.push(
          parts ? comparisonTest(parts[1], parts[2], parts[3], columns) : (run) => searchedText(run).includes(wanted),
        );
      } catch (error) {
        if (!(error instanceof NotCompared)) throw error;
        problems.push(error.message);
      }
    }
    return { accepts: (run) => tests.every((test) => test(run)), problems };
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
