/** Sweeps: the list, and one sweep as a heat map over two of its keys, with its cells and configurations. */
(() => {
  'use strict';

  const { choice, choiceList, element, plainTable, scrolling } = xrun.dom;
  const { BLANK, counted, decimal, short, visible, words } = xrun.text;
  const { pictureButtons, tablePicture } = xrun.picture_files;

  /**
   * Colors of the heat map, from worst to best or from lowest to highest. Their lightness increases evenly,
   * so they work without color (Nuñez, Anderton and Renslow 2018, cividis).
   */
  const STOPS = [
    [0, 32, 81],
    [60, 77, 110],
    [127, 124, 117],
    [187, 175, 113],
    [253, 234, 69],
  ];

  /**
   * Returns the color of a share, and the color of text on it.
   * @param {number} share from 0, the worst, to 1, the best
   * @returns {{background: string, ink: string}}
   */
  function heat(share) {
    const at = Math.max(0, Math.min(1, share)) * (STOPS.length - 1);
    const below = Math.min(STOPS.length - 2, Math.floor(at));
    const mixed = STOPS[below].map((value, i) => Math.round(value + (STOPS[below + 1][i] - value) * (at - below)));
    const lightness = 0.299 * mixed[0] + 0.587 * mixed[1] + 0.114 * mixed[2];
    return { background: `rgb(${mixed.join(' ')})`, ink: lightness > 120 ? '#000' : '#fff' };
  }

  /**
   * Returns the range of colors. Values far worse than most get the color of the worst ordinary one. If
   * neither direction is better, the range goes from the lowest to the highest.
   * @param {number[]} values
   * @param {?string} better `low`, `high`, or null
   * @returns {{first: number, last: number, isCut: boolean}} first is the worst or lowest, last the best or highest
   */
  function colorRange(values, better) {
    const isLowBetter = better === 'low';
    const sorted = [...values].sort((a, b) => (isLowBetter ? a - b : b - a));
    if (!better) return { first: sorted.at(-1), last: sorted[0], isCut: false };
    const quartile = (share) => sorted[Math.round(share * (sorted.length - 1))];
    const limit = quartile(0.75) + 1.5 * (quartile(0.75) - quartile(0.25));
    const isWithin = (value) => sorted.length < 5 || (isLowBetter ? value <= limit : value >= limit);
    const worst = sorted.findLast(isWithin) ?? sorted.at(-1);
    return { first: worst, last: sorted[0], isCut: worst !== sorted.at(-1) };
  }

  /**
   * Returns the list of sweeps.
   * @param {Object[]} rows
   * @param {string} chosen
   * @param {(id: string) => void} onChoice
   * @returns {HTMLElement}
   */
  function sweepList(rows, chosen, onChoice) {
    return choiceList(rows, chosen, onChoice, (row) => [
      element('span', { class: 'list-name' }, visible(row.id)),
      element('span', { class: 'muted' }, `${row.done} of ${counted(row.cells, 'cell')} done`),
    ]);
  }

  /**
   * Returns the keys of rows and columns, and the values of the other keys. What was not chosen follows from
   * the sweep.
   * @param {Object} sweep
   * @param {string[]} chosen the keys in the address
   * @returns {{rowKey: string|null, columnKey: string|null, others: Map<string, string>}}
   */
  function chosenAxes(sweep, chosen) {
    const [first, second, ...rest] = chosen;
    const isKey = (key) => sweep.keys.includes(key);
    const rowKey = isKey(first) ? first : (sweep.keys[0] ?? null);
    const columnKey = isKey(second) && second !== rowKey ? second : (sweep.keys.find((key) => key !== rowKey) ?? null);
    const others = new Map(sweep.keys.filter((key) => key !== rowKey && key !== columnKey).map((key) => [key, '']));
    rest.forEach((text) => {
      const at = text.indexOf('=');
      const key = text.slice(0, at);
      if (others.has(key)) others.set(key, text.slice(at + 1));
    });
    return { rowKey, columnKey, others };
  }

  /**
   * Returns the cell to show at one place of the map: the best one there, or the first if neither direction
   * is better, or one without a value.
   * @param {Object[]} cells
   * @param {{name: string, better: ?string}} figure
   * @returns {Object|undefined}
   */
  function shownCell(cells, { name, better }) {
    const measured = cells.filter((cell) => typeof cell.figures[name] === 'number');
    const isBetter = (a, b) =>
      better === 'low' ? a.figures[name] < b.figures[name] : better === 'high' && a.figures[name] > b.figures[name];
    return measured.reduce((best, cell) => (best && !isBetter(cell, best) ? best : cell), undefined) ?? cells[0];
  }

  /**
   * Returns the keys that have several values, or all keys if none has.
   * @param {Object} sweep
   * @returns {string[]}
   */
  function varyingKeys(sweep) {
    const varying = sweep.keys.filter((key) => (sweep.values[key] ?? []).length > 1);
    return varying.length > 0 ? varying : sweep.keys;
  }

  /** Says at which edges of the grid the best configuration is, so that a better one may lie beyond. */
  function edgeRemark({ measure, at_edge: edges }) {
    const each = edges.map(({ key, value, end }) => `${visible(key)}=${visible(value)} is the ${words(end)} value`);
    return element(
      'p',
      { class: 'warning' },
      `The best by ${visible(measure)} is at the edge of the grid: ${each.join('; ')}.`,
    );
  }

  /** One sweep. */
  class SweepView {
    /**
     * @param {import('./address.js').ViewState} state
     * @param {(runs: string[]) => void} onOpen
     */
    constructor(state, onOpen) {
      Object.assign(this, { state, onOpen });
    }

    /**
     * @param {Object} sweep the response of `api/sweep`
     * @returns {HTMLElement}
     */
    node(served) {
      const sweep = { ...served, keys: varyingKeys(served) };
      const { figure: chosen, keys } = this.state.view;
      const measured = sweep.figures.filter(({ name }) =>
        sweep.cells.some((cell) => typeof cell.figures[name] === 'number'),
      );
      const figure =
        measured.find(({ name }) => name === chosen) ?? measured.find(({ name }) => name === 'val_loss') ?? measured[0];
      const axes = chosenAxes(sweep, keys);
      const done = sweep.cells.filter((cell) => cell.done).length;
      return element(
        'article',
        { class: 'document' },
        element('h2', {}, visible(sweep.id)),
        element('p', { class: 'muted' }, `${done} of ${counted(sweep.cells.length, 'cell')} done`),
        figure && axes.rowKey && this.map(sweep, figure, measured, axes),
        sweep.configurations?.at_edge?.length > 0 && edgeRemark(sweep.configurations),
        sweep.configurations && this.configurations(sweep.configurations),
        this.cells(sweep, measured),
      );
    }

    /** @param {string[]} keys */
    chooseKeys({ rowKey, columnKey, others }) {
      const fixed = [...others].filter(([, value]) => value !== '').map(([key, value]) => `${key}=${value}`);
      this.state.change({ keys: [rowKey, columnKey ?? '', ...fixed] });
    }

    map(sweep, figure, measured, axes) {
      const { rowKey, columnKey, others } = axes;
      const isHere = (cell) => [...others].every(([key, value]) => value === '' || cell.settings[key] === value);
      const here = sweep.cells.filter(isHere);
      const place = (row, column) =>
        shownCell(
          here.filter((cell) => cell.settings[rowKey] === row && (!columnKey || cell.settings[columnKey] === column)),
          figure,
        );
      const [rows, columns] = [sweep.values[rowKey] ?? [], columnKey ? (sweep.values[columnKey] ?? []) : ['']];
      const shown = rows
        .flatMap((row) => columns.map((column) => place(row, column)?.figures[figure.name]))
        .filter((value) => typeof value === 'number');
      const range = colorRange(shown, figure.better);
      const title = visible(figure.heading ?? figure.name);
      const table = element(
        'table',
        { class: 'heat' },
        element('caption', {}, title, ` by ${visible(rowKey)}`, columnKey && ` and ${visible(columnKey)}`),
        element(
          'thead',
          {},
          columnKey &&
            element(
              'tr',
              {},
              element('td', {}),
              element('th', { colspan: columns.length, scope: 'colgroup' }, visible(columnKey)),
            ),
          element(
            'tr',
            {},
            element('th', { scope: 'col', class: 'row-key' }, visible(rowKey)),
            columns.map((column) => element('th', { scope: 'col' }, columnKey ? visible(column) : title)),
          ),
        ),
        element(
          'tbody',
          {},
          rows.map((row) =>
            element(
              'tr',
              {},
              element('th', { scope: 'row' }, visible(row)),
              columns.map((column) => this.cell(place(row, column), figure, range)),
            ),
          ),
        ),
      );
      return element(
        'section',
        { class: 'panel', 'aria-label': `Heat map of ${title}` },
        this.controls(sweep, figure, measured, axes),
        scrolling(`Heat map of ${title}`, table),
        pictureButtons(`${title} of ${visible(sweep.id)}`, () => tablePicture(title, table)),
        shown.length > 0 && this.scale(range, figure),
      );
    }

    controls(sweep, figure, measured, axes) {
      const keys = (without) =>
        sweep.keys.filter((key) => key !== without).map((key) => ({ value: key, text: visible(key) }));
      const { rowKey, columnKey, others } = axes;
      const swap = (changes) => this.chooseKeys({ rowKey, columnKey, others, ...changes });
      return element(
        'div',
        { class: 'bar controls' },
        choice(
          'Figure',
          measured.map(({ name, heading }) => ({ value: name, text: visible(heading ?? name) })),
          figure.name,
          (name) => this.state.change({ figure: name }),
        ),
        sweep.keys.length > 1 &&
          choice('Rows', keys(null), rowKey, (key) =>
            swap({ rowKey: key, columnKey: key === columnKey ? rowKey : columnKey }),
          ),
        sweep.keys.length > 1 && choice('Columns', keys(rowKey), columnKey, (key) => swap({ columnKey: key })),
        [...others].map(([key, value]) =>
          choice(
            visible(key),
            [
              { value: '', text: figure.better ? 'best of all' : 'first of all' },
              ...(sweep.values[key] ?? []).map((v) => ({ value: v, text: visible(v) })),
            ],
            value,
            (next) => swap({ others: new Map(others).set(key, next) }),
          ),
        ),
      );
    }

    cell(cell, figure, range) {
      if (!cell) return element('td', { class: 'missing' }, '');
      const value = cell.figures[figure.name];
      if (typeof value !== 'number')
        return element(
          'td',
          { class: 'missing', title: cell.reason ? visible(cell.reason) : null },
          words(cell.status),
        );
      const span = range.last - range.first;
      const { background, ink } = heat(span === 0 ? 1 : (value - range.first) / span);
      const isBest = figure.better && value === range.last;
      const text = [decimal(value, figure.decimals ?? 3), cell.status !== 'ok' && ` ${words(cell.status)}`]
        .filter(Boolean)
        .join('');
      const settings = Object.entries(cell.settings)
        .map(([key, set]) => `${visible(key)}=${visible(set)}`)
        .join(' ');
      const content = cell.run
        ? element('button', { type: 'button', title: settings, onclick: () => this.onOpen([cell.run]) }, text)
        : text;
      const node = element(
        'td',
        { class: isBest ? 'best' : null },
        content,
        isBest && element('span', { class: 'for-readers' }, ' best'),
      );
      node.style.backgroundColor = background;
      node.style.color = ink;
      return node;
    }

    scale({ first, last, isCut }, figure) {
      const steps = Array.from({ length: 24 }, (_, i) => {
        const node = element('span', {});
        node.style.backgroundColor = heat(i / 23).background;
        return node;
      });
      const text = (value) => decimal(value, figure.decimals ?? 3);
      return element(
        'div',
        { class: 'heat-scale', 'aria-hidden': 'true' },
        element('span', {}, `${text(first)}${isCut ? ' and worse' : ''}`),
        element('span', { class: 'steps' }, steps),
        element('span', {}, `${text(last)} ${visible(figure.unit ?? '')}${figure.better ? ', the best' : ''}`),
      );
    }

    /** Lists the configurations over seeds, best first. */
    configurations(found) {
      const sign = found.direction === 'higher_is_better' ? -1 : 1;
      const rank = ({ mean }) => (typeof mean === 'number' ? sign * mean : Infinity);
      const sorted = [...found.configurations].sort((a, b) => rank(a) - rank(b));
      const interval = (estimate) => (estimate ? `${short(estimate.low)} to ${short(estimate.high)}` : BLANK);
      const remark = ({ others }) =>
        Object.entries(others ?? {})
          .map(([status, count]) => `${words(status)}: ${count}`)
          .join(', ');
      const heads = [
        ...found.keys.map((key) => ({ text: visible(key) })),
        { text: 'mean', number: true },
        { text: 'interval', number: true },
        { text: 'to the best of the others', number: true },
        { text: found.caveat ? 'may be the best of the finalists' : 'may be the best' },
        { text: 'remarks' },
      ];
      const rows = sorted.map((one) => [
        ...found.keys.map((key) => visible(one.settings[key] ?? BLANK)),
        Math.abs(one.mean) < 100 ? decimal(one.mean, 4) : short(one.mean, 6),
        interval(one.estimate?.mean),
        interval(one.estimate?.difference_to_best),
        one.estimate?.in_best_set ? '● yes' : one.estimate ? 'no' : BLANK,
        remark(one),
      ]);
      return element(
        'section',
        {},
        element('h3', {}, `Configurations by ${visible(found.measure)}`),
        element(
          'p',
          { class: 'muted' },
          found.not_compared
            ? visible(found.not_compared)
            : `Over ${counted(found.seeds.length, 'seed')}; with probability ${found.confidence}, the best one of those compared is among those with a yes.${found.caveat ? ` ${visible(found.caveat)}.` : ''}`,
        ),
        scrolling('Configurations', plainTable('Configurations, the best first', heads, rows)),
      );
    }

    cells(sweep, measured) {
      const heads = [
        ...sweep.keys.map((key) => ({ text: visible(key) })),
        { text: 'status' },
        ...measured.map(({ heading, name }) => ({ text: visible(heading ?? name), number: true })),
        { text: 'run' },
      ];
      const rows = sweep.cells.map((cell) => [
        ...sweep.keys.map((key) => visible(cell.settings[key] ?? BLANK)),
        cell.reason ? element('span', { title: visible(cell.reason) }, words(cell.status)) : words(cell.status),
        ...measured.map(({ name, decimals }) =>
          typeof cell.figures[name] === 'number' ? decimal(cell.figures[name], decimals ?? 3) : BLANK,
        ),
        cell.run
          ? element('button', { type: 'button', class: 'link', onclick: () => this.onOpen([cell.run]) }, 'curves')
          : BLANK,
      ]);
      const runs = sweep.cells.map(({ run }) => run).filter(Boolean);
      return element(
        'section',
        {},
        element(
          'h3',
          {},
          'Cells ',
          runs.length > 0 &&
            element('button', { type: 'button', class: 'link', onclick: () => this.onOpen(runs) }, 'curves of all'),
        ),
        scrolling('Cells', plainTable('Cells of the sweep', heads, rows)),
      );
    }
  }

  xrun.sweeps = { SweepView, sweepList };
})();
