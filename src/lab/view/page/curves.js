/** Curves of the selected runs: one panel per metric, over common steps, tokens or seconds. */
(() => {
  'use strict';

  const { choice, element, fill, segments, tickBox } = xrun.dom;
  const { duration, prefixed, visible } = xrun.text;
  const { Chart } = xrun.chart;
  const { seriesOf, stepsOf } = xrun.curve_data;
  const { seriesOfGroup } = xrun.repetitions;

  /** Default metrics; those that were measured get a panel, up to this many panels. */
  const USUAL = ['loss', 'val_loss', 'grad_norm', 'tok_s', 'lr', 'step_ms'];
  const USUAL_PANELS = 6;

  /** Names of the x axes. */
  const X_LABELS = { step: 'step', tokens: 'tokens', seconds: 'seconds' };

  const SMOOTHING = [
    { value: '0', text: 'none' },
    { value: '0.005', text: '0.5 % of the run' },
    { value: '0.02', text: '2 % of the run' },
    { value: '0.05', text: '5 % of the run' },
    { value: '0.2', text: '20 % of the run' },
  ];

  /** Smoothing of curves inside a file. */
  const EMBEDDED_SMOOTHING = '0.02';

  /** Number of requests at the same time. */
  const PARALLEL = 6;

  /**
   * Runs a task for each item, a few at a time, and returns the results in order.
   * @template T, R
   * @param {T[]} items
   * @param {(item: T) => Promise<R>} task
   * @returns {Promise<R[]>}
   */
  async function inParallel(items, task) {
    const results = new Array(items.length);
    let next = 0;
    const worker = async () => {
      while (next < items.length) {
        const at = next++;
        results[at] = await task(items[at]);
      }
    };
    await Promise.all(Array.from({ length: PARALLEL }, worker));
    return results;
  }

  /** The curves of the selected runs. */
  class Curves {
    /**
     * @param {import('./address.js').ViewState} state
     * @param {import('./run_documents.js').RunDocuments} documents
     */
    constructor(state, documents) {
      Object.assign(this, { state, documents, wanted: 0 });
      /** @type {Map<string, {node: HTMLElement, chart: Chart, head: HTMLElement}>} by metric */
      this.panels = new Map();
      this.controls = element('div', { class: 'bar controls' });
      this.grid = element('div', { class: 'panels' });
      this.notes = element('div', { class: 'notes', role: 'status' });
      this.node = element('div', {}, this.controls, this.notes, this.grid);
    }

    /**
     * Shows curves of runs.
     * @param {{run: Object, slot: number, label: string, group: ?string}[]} selected
     */
    async show(selected) {
      const wanted = ++this.wanted;
      const found = await Promise.allSettled(selected.map(({ run }) => this.documents.get('run', run)));
      const failures = found.filter(({ status }) => status === 'rejected').map(({ reason }) => reason.message);
      const present = selected
        .map((entry, i) => ({ ...entry, document: found[i].value }))
        .filter(({ document }) => document);
      const metrics = this.metricsOf(present.map(({ document }) => document));
      const shown = this.shownMetrics(metrics);
      const fetched = await inParallel(present, (entry) =>
        this.curvesOf(entry, shown).catch((error) => ({ error: error.message })),
      );
      if (wanted !== this.wanted) return;
      const entries = present.map((entry, i) => ({ ...entry, curves: fetched[i] }));
      failures.push(
        ...entries.filter(({ curves }) => curves.error).map(({ label, curves }) => `${label}: ${curves.error}`),
      );
      this.renderControls(metrics, shown);
      this.renderPanels(
        metrics,
        shown,
        entries.filter(({ curves }) => !curves.error),
      );
      fill(
        this.notes,
        failures.map((failure) => element('p', {}, visible(failure))),
      );
    }

    /**
     * Returns all metrics of these runs, by name.
     * @param {Object[]} documents
     * @returns {Map<string, Object>}
     */
    metricsOf(documents) {
      const metrics = new Map();
      documents
        .flatMap((document) => document.metrics)
        .forEach((metric) => {
          if (!metrics.has(metric.name)) metrics.set(metric.name, metric);
        });
      return metrics;
    }

    /**
     * @param {Map<string, Object>} metrics
     * @returns {string[]}
     */
    shownMetrics(metrics) {
      const chosen = this.state.view.metrics.filter((name) => metrics.has(name));
      return chosen.length > 0 ? chosen : USUAL.filter((name) => metrics.has(name)).slice(0, USUAL_PANELS);
    }

    /**
     * Fetches the curves of a run: the whole run, and the visible part again where points were left out.
     * @param {{run: Object}} entry
     * @param {string[]} shown
     * @returns {Promise<Object<string, Object>>}
     */
    async curvesOf({ run }, shown) {
      const { x, zoom } = this.state.view;
      if (shown.length === 0) return {};
      const whole = (await this.documents.get('curves', run, this.parameters(run, shown, []))).metrics;
      const reduced = shown.filter((name) => whole[name] && !whole[name].exact);
      if (zoom.length !== 2 || reduced.length === 0 || this.documents.source.isEmbedded) return whole;
      const steps = stepsOf(whole[reduced[0]], x, zoom);
      if (!steps) return whole;
      const part = (await this.documents.get('curves', run, this.parameters(run, reduced, steps))).metrics;
      return { ...whole, ...part };
    }

    /**
     * @param {Object} run
     * @param {string[]} metrics
     * @param {number[]} steps the first and last step; empty for all
     * @returns {[string, string|number|null][]}
     */
    parameters(run, metrics, steps) {
      if (this.documents.source.isEmbedded) return [];
      const { smooth, logX } = this.state.view;
      const rows = Math.round(Number(smooth) * run.steps);
      const points = 2 * Math.max(300, Math.min(1500, Math.round(this.grid.clientWidth || 800)));
      return [
        ['metrics', metrics.join(',')],
        ['points', points],
        ['from', steps[0] ?? null],
        ['to', steps[1] ?? null],
        ['scale', logX ? 'log' : 'linear'],
        ['smooth', rows > 1 ? rows : null],
      ];
    }

    /**
     * @param {Map<string, Object>} metrics
     * @param {string[]} shown
     */
    renderControls(metrics, shown) {
      const { x, logX, smooth, zoom } = this.state.view;
      const shape = JSON.stringify([[...metrics.keys()], shown, x, logX, smooth, zoom]);
      if (shape === this.controlShape) return;
      this.controlShape = shape;
      const wasOpen = this.controls.querySelector('details')?.open;
      const focused = [...this.controls.querySelectorAll('button, select, input, summary')].indexOf(
        document.activeElement,
      );
      const options = this.documents.source.isEmbedded
        ? SMOOTHING.filter(({ value }) => ['0', EMBEDDED_SMOOTHING].includes(value))
        : SMOOTHING;
      fill(
        this.controls,
        segments(
          'Horizontal axis',
          Object.keys(X_LABELS).map((value) => ({ value, text: X_LABELS[value] })),
          x,
          (value) => this.state.change({ x: value, zoom: [] }),
        ),
        tickBox('log', logX, (isLog) => this.state.change({ logX: isLog, zoom: [] })),
        choice('Smoothing', options, smooth, (value) => this.state.change({ smooth: value })),
        this.metricMenu(metrics, shown, wasOpen),
        zoom.length === 2 &&
          element('button', { type: 'button', onclick: () => this.state.change({ zoom: [] }) }, 'Show all'),
      );
      if (focused >= 0) this.controls.querySelectorAll('button, select, input, summary')[focused]?.focus();
    }

    metricMenu(metrics, shown, isOpen) {
      const set = (name, isShown) =>
        this.state.change({
          metrics: isShown ? [...shown, name] : shown.filter((other) => other !== name),
        });
      const group = (heading, file) => {
        const inFile = [...metrics.values()].filter((metric) => metric.file === file);
        return (
          inFile.length > 0 &&
          element(
            'fieldset',
            {},
            element('legend', {}, heading),
            inFile.map((metric) => {
              const box = tickBox(visible(metric.name), shown.includes(metric.name), (isShown) =>
                set(metric.name, isShown),
              );
              box.title = visible(metric.meaning ?? '');
              return box;
            }),
          )
        );
      };
      return element(
        'details',
        { class: 'menu', open: isOpen },
        element('summary', {}, 'Metrics'),
        element('div', { class: 'menu-body' }, group('Training', 'metrics'), group('Measurements', 'timing')),
      );
    }

    /**
     * @param {Map<string, Object>} metrics
     * @param {string[]} shown
     * @param {Object[]} entries
     */
    renderPanels(metrics, shown, entries) {
      for (const [name, panel] of this.panels) {
        if (shown.includes(name)) continue;
        panel.chart.destroy();
        panel.node.remove();
        this.panels.delete(name);
      }
      const extent = this.extent(shown, entries);
      shown.forEach((name, i) => {
        const panel = this.panels.get(name) ?? this.newPanel(name);
        if (this.grid.children[i] !== panel.node) this.grid.insertBefore(panel.node, this.grid.children[i] ?? null);
        this.renderPanel(name, panel, metrics.get(name), entries, extent);
      });
      this.grid.classList.toggle('single', shown.length === 1);
    }

    /**
     * Returns the lowest and the highest x of all panels.
     * @param {string[]} shown
     * @param {Object[]} entries
     * @returns {number[]|undefined}
     */
    extent(shown, entries) {
      const { x, logX } = this.state.view;
      const ends = shown.flatMap((name) =>
        entries.flatMap(({ curves }) => {
          const values = (curves[name]?.[x] ?? []).filter((at) => typeof at === 'number' && (!logX || at > 0));
          return values.length > 0 ? [values[0], values.at(-1)] : [];
        }),
      );
      const [low, high] = [Math.min(...ends), Math.max(...ends)];
      return low < high ? [low, high] : undefined;
    }

    newPanel(name) {
      const title = visible(name);
      const chart = new Chart({
        title,
        syncKey: 'curves',
        onZoom: (zoom) => this.state.change({ zoom: zoom.map((end) => Number(end.toPrecision(7))) }),
      });
      const head = element('div', { class: 'panel-head' });
      const node = element('section', { class: 'panel', 'aria-label': title }, head, chart.node);
      this.panels.set(name, { node, chart, head });
      return this.panels.get(name);
    }

    renderPanel(name, panel, metric, entries, extent) {
      const { x, logX, logY, zoom, smooth } = this.state.view;
      const isLog = logY.includes(name);
      const options = { x, zoom, isSmoothed: smooth !== '0' };
      const present = entries.filter(({ curves }) => curves[name]);
      const groups = Map.groupBy(present, ({ group, run }) => group ?? run.id);
      const series = [...groups.values()].flatMap((runs) => {
        const label = runs[0].group ?? runs[0].label;
        const own = runs.map(({ curves, run, slot }) =>
          seriesOf(curves[name], { label, slot, steps: run.steps ?? 0 }, options),
        );
        return seriesOfGroup(own, { label, slot: runs[0].slot });
      });
      const odd = [...new Set(series.flatMap((s) => (s.notFinite ?? []).map(({ value }) => value)))];
      this.renderPanelHead(name, panel.head, metric, isLog, odd);
      panel.chart.unit = visible(metric.unit ?? '');
      panel.chart.show([...series, ...this.floor(name, entries, extent)], {
        xLabel: X_LABELS[x],
        logX,
        logY: isLog,
        zoom,
        extent,
        xFormat: x === 'seconds' ? duration : prefixed,
        xExact: x === 'seconds' ? duration : (value) => value.toLocaleString('en-US'),
      });
    }

    /** Returns the lowest loss that any model can reach, if it is known and the same for all runs. */
    floor(name, entries, extent) {
      const floors = new Set(entries.map(({ document }) => document.floor));
      const [floor] = floors;
      if (!/^(ema_)?(val_)?loss$/.test(name) || floors.size !== 1 || typeof floor !== 'number' || !extent) return [];
      return [{ label: 'floor', slot: 0, isReference: true, x: extent, y: [floor, floor] }];
    }

    renderPanelHead(name, head, metric, isLog, odd) {
      const { logY } = this.state.view;
      const shape = JSON.stringify([isLog, odd, logY]);
      if (head.dataset.shape === shape) return;
      const hadFocus = head.contains(document.activeElement);
      head.dataset.shape = shape;
      const toggle = element(
        'button',
        {
          type: 'button',
          class: 'quiet',
          'aria-pressed': String(isLog),
          'aria-label': `Logarithmic axis of ${visible(name)}`,
          onclick: () => this.state.change({ logY: isLog ? logY.filter((other) => other !== name) : [...logY, name] }),
        },
        'log',
      );
      const unit = visible(metric.unit ?? '');
      const title = visible(name);
      fill(
        head,
        element(
          'h3',
          { title: visible(metric.meaning ?? '') },
          unit && title.endsWith(`(${unit})`) ? title.slice(0, -unit.length - 2) : title,
        ),
        element('span', { class: 'muted' }, unit),
        odd.length > 0 && element('span', { class: 'warning' }, `✕ ${odd.join(', ')}`),
        toggle,
      );
      if (hadFocus) toggle.focus();
    }

    /** Redraws all charts after colors have changed. */
    redraw() {
      this.panels.forEach(({ chart }) => chart.show(chart.series, chart.axes));
    }
  }

  xrun.curves = { Curves };
})();
