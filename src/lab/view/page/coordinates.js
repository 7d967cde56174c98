/** Coordinates: how activations and their changes scale with the width of a model. */
(() => {
  'use strict';

  const { choiceList, element, plainTable, scrolling, segments } = xrun.dom;
  const { BLANK, counted, signed, visible, words } = xrun.text;
  const { Chart } = xrun.chart;
  const { seriesMark } = xrun.theme;

  /** Most steps with a line in a chart. Of more steps, evenly chosen ones are drawn. */
  const MAX_STEP_LINES = 6;

  /** @param {any[]} values @returns {any[]} the distinct values, in order of first occurrence */
  const distinct = (values) => [...new Set(values)];

  /**
   * Returns the list.
   * @param {Object[]} rows
   * @param {string} chosen
   * @param {(id: string) => void} onChoice
   * @returns {HTMLElement}
   */
  function coordinatesList(rows, chosen, onChoice) {
    return choiceList(rows, chosen, onChoice, (row) => [
      element('span', { class: 'list-name' }, visible(row.recipe)),
      element('span', { class: 'muted' }, visible(row.id.split('/').at(-1)), !row.finished && ', not finished'),
    ]);
  }

  /**
   * Returns the geometric mean of a size over seeds, at one width.
   * @param {Object[]} rows
   * @param {string} field
   * @returns {number|null}
   */
  function typical(rows, field) {
    const sizes = rows.map((row) => row[field]).filter((size) => typeof size === 'number' && size > 0);
    return sizes.length > 0 ? Math.exp(sizes.reduce((sum, size) => sum + Math.log(size), 0) / sizes.length) : null;
  }

  /**
   * Returns some of the steps, always including the first and the last.
   * @param {number[]} steps
   * @returns {number[]}
   */
  function someSteps(steps) {
    if (steps.length <= MAX_STEP_LINES) return steps;
    return distinct(Array.from({ length: MAX_STEP_LINES }, (_, i) => steps[Math.round((i * (steps.length - 1)) / (MAX_STEP_LINES - 1))]));
  }

  /** The coordinates of a recipe. */
  class CoordinatesView {
    /** @param {import('./address.js').ViewState} state */
    constructor(state) {
      this.state = state;
      this.charts = [];
    }

    /**
     * @param {Object} found the response of `api/coordinate`
     * @returns {HTMLElement}
     */
    node(found) {
      this.charts.forEach((chart) => chart.destroy());
      const field = this.state.view.figure === 'change' ? 'change_rms' : 'rms';
      const { coordinates, rows } = found;
      const parametrizations = distinct(rows.map((row) => row.parametrization));
      const quantities = distinct(rows.map((row) => row.quantity));
      const steps = someSteps(distinct(rows.map(({ step }) => step)).filter((step) => field === 'rms' || step > 0));
      Object.assign(this, { charts: [], shows: [] });
      const groups = parametrizations.map((parametrization) => {
        const grid = element('div', { class: 'panels' });
        quantities.forEach((quantity) => {
          const here = rows.filter((row) => row.parametrization === parametrization && row.quantity === quantity);
          this.shows.push(this.panel(grid, visible(quantity), here, steps, field));
        });
        return element('section', {}, element('h3', {}, visible(parametrization)), grid);
      });
      const body = element(
        'article',
        { class: 'document wide' },
        element('h2', {}, visible(found.id)),
        element(
          'p',
          { class: 'muted' },
          `${visible(coordinates.optimizer)}, widths ${coordinates.widths.join(', ')}, ${counted(coordinates.steps, 'step')}, ${counted(coordinates.seeds.length, 'seed')}${coordinates.finished ? '' : '; not finished'}`,
        ),
        element(
          'div',
          { class: 'bar controls' },
          segments(
            'What is drawn',
            [
              { value: 'size', text: 'size' },
              { value: 'change', text: 'change since step 0' },
            ],
            field === 'rms' ? 'size' : 'change',
            (figure) => this.state.change({ figure }),
          ),
          element(
            'ul',
            { class: 'colours' },
            steps.map((step, slot) => element('li', {}, seriesMark(slot), ` step ${step}`)),
          ),
        ),
        groups,
        this.slopes(coordinates, field),
      );
      return body;
    }

    /** Draws the charts once they are in the page, because they need its width. */
    attached() {
      this.shows.forEach((show) => show());
    }

    panel(grid, title, rows, steps, field) {
      const widths = distinct(rows.map(({ width }) => width)).sort((a, b) => a - b);
      const series = steps.map((step, slot) => ({
        label: `step ${step}`,
        slot,
        hasPoints: true,
        x: widths,
        y: widths.map((width) =>
          typical(
            rows.filter((row) => row.width === width && row.step === step),
            field,
          ),
        ),
      }));
      const chart = new Chart({ title, height: 200, onZoom: () => {} });
      this.charts.push(chart);
      grid.append(
        element(
          'section',
          { class: 'panel', 'aria-label': title },
          element('div', { class: 'panel-head' }, element('h3', {}, title)),
          chart.node,
        ),
      );
      const axes = {
        xLabel: 'width',
        logX: true,
        logY: true,
        zoom: [],
        xTicks: widths,
        xFormat: String,
      };
      return () => chart.show(series, axes);
    }

    slopes(coordinates, field) {
      const last = Math.max(...coordinates.slopes.map(({ step }) => step), 0);
      const rows = coordinates.slopes
        .filter(({ step }) => step === last)
        .map((slope) => {
          const value = slope[field];
          const isFlat = typeof value === 'number' && Math.abs(value) <= coordinates.flat;
          return [
            words(slope.parametrization),
            visible(slope.quantity),
            typeof value === 'number' ? signed(value, (v) => v.toFixed(3)) : BLANK,
            typeof value === 'number' ? (isFlat ? '= flat' : value > 0 ? '↗ grows' : '↘ shrinks') : BLANK,
          ];
        });
      const heads = [{ text: 'parametrization' }, { text: 'quantity' }, { text: 'slope', number: true }, { text: '' }];
      return element(
        'section',
        {},
        element('h3', {}, `Slopes of log RMS over log width after step ${last}`),
        scrolling('Slopes', plainTable('Slopes', heads, rows)),
      );
    }

    redraw() {
      this.attached();
    }
  }

  xrun.coordinates = { CoordinatesView, coordinatesList };
})();
