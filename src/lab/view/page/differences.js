/** Recipe, environment and figures of the selected runs side by side, with differences marked. */
(() => {
  'use strict';

  const { element, scrolling } = xrun.dom;
  const { BLANK, decimal, visible } = xrun.text;
  const { seriesMark } = xrun.theme;

  /** Most runs that the server compares. */
  const MAX_RUNS = 16;

  /**
   * Returns the leaves of nested values by their path.
   * @param {any} value
   * @param {string} path
   * @returns {[string, string][]}
   */
  function leaves(value, path = '') {
    if (Array.isArray(value)) return [[path, value.map(String).join(' ')]];
    if (value === null || typeof value !== 'object') return [[path, value === null ? null : String(value)]];
    return Object.entries(value).flatMap(([key, inner]) => leaves(inner, path ? `${path}.${key}` : key));
  }

  /**
   * Returns a single run in the form of a comparison.
   * @param {Object} run the response of `api/run`
   * @returns {Object}
   */
  function alone(run) {
    const environment = run.environments[0]?.value ?? {};
    return {
      runs: [run.id],
      figures: [],
      keys: run.settings.map(([key, value]) => ({ key, class: null, values: [value ?? 'unset'], differs: false })),
      environment: leaves(environment).map(([name, value]) => ({ name, values: [value], differs: false })),
    };
  }

  /**
   * Returns the part of a comparison that concerns some of its runs.
   * @param {Object} differences
   * @param {string[]} ids
   * @returns {Object}
   */
  function selectRuns(differences, ids) {
    const at = ids.map((id) => differences.runs.indexOf(id)).filter((index) => index >= 0);
    const pick = (row) => {
      const values = at.map((index) => row.values[index] ?? null);
      return { ...row, values, differs: new Set(values.map(String)).size > 1 };
    };
    return {
      runs: at.map((index) => differences.runs[index]),
      keys: differences.keys.map(pick),
      environment: differences.environment.map(pick),
      figures: (differences.figures ?? []).map(pick),
    };
  }

  /**
   * @param {string} title
   * @param {{label: string, slot: number}[]} entries
   * @param {{name: string, note?: string, values: (string|null)[], differs: boolean}[]} rows
   * @param {boolean} isNumber
   * @returns {HTMLElement|null}
   */
  function comparisonTable(title, entries, rows, isNumber = false) {
    if (rows.length === 0) return null;
    const cell = (row, value) => {
      const isOther = row.differs && String(value) !== String(row.values[0]);
      return element(
        'td',
        {
          class: [isNumber && 'number', row.differs && 'differs', isOther && 'other'].filter(Boolean).join(' ') || null,
        },
        visible(value ?? BLANK),
      );
    };
    const body = rows.map((row) =>
      element(
        'tr',
        {},
        element(
          'th',
          { scope: 'row', title: row.note ?? null },
          visible(row.name),
          row.differs && element('span', { class: 'differs-mark', title: 'differs' }, ' ≠'),
          row.differs && element('span', { class: 'for-readers' }, ' differs'),
        ),
        row.values.map((value) => cell(row, value)),
      ),
    );
    return element(
      'section',
      {},
      element('h3', {}, title),
      scrolling(
        title,
        element(
          'table',
          { class: 'plain differences' },
          element('caption', { class: 'for-readers' }, title),
          element(
            'thead',
            {},
            element(
              'tr',
              {},
              element('th', { scope: 'col' }, 'key'),
              entries.map(({ label, slot }) =>
                element('th', { scope: 'col', class: isNumber ? 'number' : null }, seriesMark(slot), ' ', label),
              ),
            ),
          ),
          element('tbody', {}, body),
        ),
      ),
    );
  }

  /**
   * Returns the comparison of runs.
   * @param {Object} differences the comparison of these runs, or a single run in that form
   * @param {{label: string, slot: number}[]} entries one per run, in the same order
   * @param {boolean} showsAll true to also show what does not differ
   * @returns {HTMLElement}
   */
  function differencesNode(differences, entries, showsAll) {
    const isShown = (row) => showsAll || entries.length === 1 || row.differs;
    const keys = differences.keys
      .map((row) => ({ name: row.key, note: row.class, values: row.values, differs: row.differs }))
      .filter(isShown);
    const environment = differences.environment.filter(isShown);
    const figures = differences.figures
      .map(({ name, unit, decimals, values, differs }) => ({
        name: unit ? `${name} (${unit})` : name,
        differs,
        values: values.map((value) => (typeof value === 'number' ? decimal(value, decimals ?? 3) : value)),
      }))
      .filter((row) => row.values.some((value) => value !== null));
    const nothing =
      keys.length === 0 &&
      environment.length === 0 &&
      element('p', { class: 'muted' }, 'The recipes and environments do not differ.');
    return element(
      'div',
      {},
      nothing,
      comparisonTable('Recipe', entries, keys),
      comparisonTable('Environment', entries, environment),
      comparisonTable(
        'Figures',
        entries,
        figures.map((row) => ({ ...row, differs: false })),
        true,
      ),
    );
  }

  xrun.differences = { MAX_RUNS, alone, differencesNode, selectRuns };
})();
