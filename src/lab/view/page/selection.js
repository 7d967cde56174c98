/** What is shown of the selected runs: curves of all, and details of one. */
(() => {
  'use strict';

  const { choice, element, fill, tickBox } = xrun.dom;
  const { visible } = xrun.text;
  const { seriesMark } = xrun.theme;
  const { Curves } = xrun.curves;
  const { MemoryView } = xrun.memory;
  const { ProfileView } = xrun.profile;
  const { logTail, overview, recipeText, samples } = xrun.run_details;
  const { MOST, alone, differencesNode, ofRuns } = xrun.differences;
  const { OF_PLAN } = xrun.run_documents;

  const TABS = [
    { value: 'curves', text: 'Curves' },
    { value: 'overview', text: 'Overview' },
    { value: 'recipe', text: 'Recipe' },
    { value: 'samples', text: 'Samples' },
    { value: 'log', text: 'Log' },
    { value: 'memory', text: 'Memory' },
    { value: 'profile', text: 'Profile' },
  ];

  const NO_PROFILE =
    'The run has no profile. xrun profile RUN --keep measures where the time of a step goes, and keeps it.';

  /** Tabs that show all selected runs; the others show one. */
  const MULTI_RUN_TABS = ['curves', 'recipe'];

  /** The pane of the selected runs. */
  class Selection {
    /**
     * @param {import('./address.js').ViewState} state
     * @param {import('./run_documents.js').RunDocuments} documents
     */
    constructor(state, documents) {
      Object.assign(this, { state, documents, wanted: 0, runs: [] });
      this.curves = new Curves(state, documents);
      this.memory = new MemoryView();
      this.profile = new ProfileView();
      this.legend = element('ul', { class: 'legend', 'aria-label': 'Selected runs' });
      this.tabs = TABS.map(({ value, text }) =>
        element(
          'button',
          {
            type: 'button',
            role: 'tab',
            id: `tab-${value}`,
            'aria-controls': 'tab-body',
            onclick: () => state.change({ tab: value }),
          },
          text,
        ),
      );
      this.options = element('div', { class: 'bar controls' });
      this.body = element('div', {});
      this.panel = element('div', { role: 'tabpanel', id: 'tab-body', class: 'tab-body' }, this.options, this.body);
      this.node = element(
        'section',
        { class: 'selection', 'aria-label': 'Selected runs' },
        this.legend,
        element(
          'div',
          { class: 'tabs', role: 'tablist', 'aria-label': 'What is shown', onkeydown: (event) => this.key(event) },
          this.tabs,
        ),
        this.panel,
      );
    }

    /**
     * @param {Object[]} runs all runs of the table
     */
    update(runs) {
      this.runs = runs;
      this.render();
    }

    /** @returns {{run: Object, slot: number, label: string}[]} */
    selected() {
      const byId = new Map(this.runs.map((run) => [run.id, run]));
      const found = this.state.view.runs.map((id, slot) => ({ run: byId.get(id), slot })).filter(({ run }) => run);
      const rows = found.map(({ run }) => run);
      return found.map(({ run, slot }) => ({ run, slot, label: visible(labelOf(run, rows)) }));
    }

    render() {
      const { tab } = this.state.view;
      const selected = this.selected();
      this.renderTabs(tab);
      this.renderLegend(selected);
      const focus = selected.find(({ run }) => run.id === this.state.view.focus) ?? selected[0];
      this.renderOptions(tab, selected, focus);
      this.showBody(tab, selected, focus);
    }

    renderTabs(tab) {
      this.tabs.forEach((button, i) => {
        const isChosen = TABS[i].value === tab;
        button.setAttribute('aria-selected', String(isChosen));
        button.tabIndex = isChosen ? 0 : -1;
      });
      this.panel.setAttribute('aria-labelledby', `tab-${tab}`);
      const chosen = this.tabs.find((button) => button.tabIndex === 0);
      const list = chosen?.parentElement;
      if (list)
        list.scrollLeft = Math.max(
          0,
          chosen.offsetLeft - list.offsetLeft - (list.clientWidth - chosen.offsetWidth) / 2,
        );
    }

    renderLegend(selected) {
      const shape = JSON.stringify(selected.map(({ run, slot, label }) => [run.id, slot, label, run.status]));
      if (shape === this.legendShape) return;
      this.legendShape = shape;
      fill(
        this.legend,
        selected.map(({ run, slot, label }) =>
          element(
            'li',
            {},
            seriesMark(slot),
            element('span', { class: 'legend-name', title: visible(run.id) }, label),
            run.live && element('span', { class: 'live', title: 'running' }, 'live'),
            element(
              'button',
              {
                type: 'button',
                class: 'quiet',
                'aria-label': `Remove ${label} from the selection`,
                onclick: () => this.remove(run.id),
              },
              '×',
            ),
          ),
        ),
      );
    }

    /** @param {string} id */
    remove(id) {
      const runs = this.state.view.runs.map((slot) => (slot === id ? '' : slot));
      while (runs.at(-1) === '') runs.pop();
      this.state.change({ runs });
      (this.legend.querySelector('button') ?? this.tabs.find((tab) => tab.tabIndex === 0))?.focus();
    }

    renderOptions(tab, selected, focus) {
      const { all } = this.state.view;
      const shape = JSON.stringify([tab, all, focus?.run.id, selected.map(({ run, label }) => [run.id, label])]);
      if (shape === this.optionShape) return;
      this.optionShape = shape;
      const needsRunChoice = !MULTI_RUN_TABS.includes(tab) && selected.length > 1;
      fill(
        this.options,
        needsRunChoice &&
          choice(
            'Run',
            selected.map(({ run, label }) => ({ value: run.id, text: label })),
            focus.run.id,
            (id) => this.state.change({ focus: id }),
          ),
        tab === 'recipe' &&
          selected.length > 1 &&
          tickBox('show equal values, too', all, (showsAll) => this.state.change({ all: showsAll })),
      );
    }

    async showBody(tab, selected, focus) {
      const wanted = ++this.wanted;
      if (selected.length === 0) {
        this.put(
          'none',
          element(
            'p',
            { class: 'empty muted' },
            'Select runs to see their curves: click a row to select one run, or its first cell to add or remove it.',
          ),
        );
        return;
      }
      if (tab === 'curves') {
        if (this.body.firstChild !== this.curves.node) fill(this.body, this.curves.node);
        this.shape = 'curves';
        await this.curves.show(selected);
        return;
      }
      const shape = this.shapeOf(tab, selected, focus);
      // After a failure, the tab is tried again with the run's next version.
      const failed = JSON.stringify([shape, focus.run.version]);
      if ([shape, failed].includes(this.shape)) return;
      try {
        const node = await this.content(tab, selected, focus);
        if (wanted === this.wanted) this.put(shape, node);
      } catch (error) {
        if (wanted === this.wanted)
          this.put(failed, element('p', { class: 'empty muted', role: 'status' }, visible(error.message)));
      }
    }

    /** @returns {string} everything that a tab's content depends on; the content stays while this does */
    shapeOf(tab, selected, focus) {
      const { all } = this.state.view;
      if (tab === 'recipe') return JSON.stringify([tab, all, selected.map(({ run, slot }) => [run.id, slot])]);
      return JSON.stringify([tab, focus.run.id, OF_PLAN.includes(tab) ? null : focus.run.version]);
    }

    /**
     * @param {string} shape
     * @param {Node} node
     */
    put(shape, node) {
      const scrolled = this.body.querySelector('pre.log')?.scrollTop;
      fill(this.body, node);
      this.shape = shape;
      const log = this.body.querySelector('pre.log');
      if (log && scrolled !== undefined) log.scrollTop = scrolled;
    }

    /** @returns {Promise<Node>} the content of a tab */
    async content(tab, selected, focus) {
      const get = (kind, parameters) => this.documents.get(kind, focus.run, parameters);
      switch (tab) {
        case 'overview':
          return overview(await get('run'));
        case 'samples':
          return samples(await get('run'));
        case 'log':
          return logTail(await get('log'));
        case 'memory':
          this.memory.show(await get('memory'));
          return this.memory.node;
        case 'profile':
          if (!(await get('run')).has.profile) throw new Error(NO_PROFILE);
          this.profile.show(await get('profile'));
          return this.profile.node;
        default:
          return this.recipe(selected);
      }
    }

    async recipe(selected) {
      const { source } = this.documents;
      if (selected.length === 1) {
        const run = await this.documents.get('run', selected[0].run);
        return element(
          'div',
          {},
          recipeText('The recipe as it was written', run.recipe),
          differencesNode(alone(run), selected, true),
        );
      }
      const compared = selected.slice(0, MOST);
      const ids = compared.map(({ run }) => run.id);
      const found = await source.get('differences', source.isEmbedded ? [] : ids.map((id) => ['id', id]));
      const differences = ofRuns(found, ids);
      const node = differencesNode(
        differences,
        compared.filter(({ run }) => differences.runs.includes(run.id)),
        this.state.view.all,
      );
      return selected.length > MOST
        ? element('div', {}, element('p', { class: 'muted' }, `The first ${MOST} of the selected runs.`), node)
        : node;
    }

    /** @param {KeyboardEvent} event */
    key(event) {
      const at = this.tabs.indexOf(event.target);
      const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: TABS.length - 1 }[event.key];
      if (at < 0 || to === undefined) return;
      const next = (to + TABS.length) % TABS.length;
      this.state.change({ tab: TABS[next].value });
      this.tabs[next].focus();
      event.preventDefault();
    }

    redraw() {
      this.curves.redraw();
      this.memory.redraw();
      this.profile.redraw();
    }
  }

  /** Most keys in a label. */
  const LABEL_KEYS = 2;

  /**
   * Returns a run's name with what sets it apart from the other selected runs: its recipe, and some of the
   * keys that differ.
   * @param {Object} run
   * @param {Object[]} rows all selected runs
   * @returns {string}
   */
  function labelOf(run, rows) {
    const differs = (value) => new Set(rows.map(value)).size > 1;
    const keys = Object.keys(run.keys).filter((key) => differs((row) => row.keys[key] ?? null));
    const settings = keys.slice(0, LABEL_KEYS).map((key) => `${key.split('.').at(-1)}=${run.keys[key] ?? 'unset'}`);
    return [differs((row) => row.recipe) && run.recipe, run.name, ...settings].filter(Boolean).join(' ');
  }

  xrun.selection = { Selection };
})();
