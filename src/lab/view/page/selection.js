/** What is shown of the selected runs: curves of all, and details of one. */
(() => {
  'use strict';

  const { choice, element, fill, tickBox } = xrun.dom;
  const { counted, shortName, visible } = xrun.text;
  const { seriesMark } = xrun.theme;
  const { Curves } = xrun.curves;
  const { MemoryView } = xrun.memory;
  const { modelNode } = xrun.model;
  const { ProfileView } = xrun.profile;
  const { logTail, overview, recipeText } = xrun.run_details;
  const { samples } = xrun.samples;
  const { MAX_RUNS, alone, differencesNode, selectRuns } = xrun.differences;
  const { PLAN_DOCUMENTS } = xrun.run_documents;

  const TABS = [
    { value: 'curves', text: 'Curves' },
    { value: 'overview', text: 'Overview' },
    { value: 'recipe', text: 'Recipe' },
    { value: 'samples', text: 'Samples' },
    { value: 'log', text: 'Log' },
    { value: 'model', text: 'Model' },
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
      Object.assign(this, { state, documents, wanted: 0, runs: [], onSlots: () => {} });
      /** The labels of the runs whose ids are in `key`, by id. */
      this.labels = { key: '', byId: {} };
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

    /** @returns {Object[]} the selected runs, with the places that they have in the selection */
    present() {
      const byId = new Map(this.runs.map((run) => [run.id, run]));
      return this.state.view.runs.map((id, place) => ({ run: byId.get(id), place })).filter(({ run }) => run);
    }

    /**
     * Fetches the labels of the selected runs, which depend on each other.
     * @param {string} key
     * @param {string[]} ids
     */
    async fetchLabels(key, ids) {
      if (this.asked === key) return;
      this.asked = key;
      const { source } = this.documents;
      const parameters = source.isEmbedded ? [] : ids.map((id) => ['id', id]);
      const found = await source.get('labels', parameters).catch(() => ({ labels: {} }));
      if (this.asked !== key) return;
      this.labels = { key, byId: found.labels };
      this.render();
    }

    /**
     * Returns the selected runs with their labels. Runs of one group have one slot, which decides the color.
     * @returns {{run: Object, slot: number, label: string, group: ?string}[]}
     */
    selected() {
      const { by } = this.state.view;
      const entries = this.present().map(({ run, place }) => {
        const { text, group } = this.labels.byId[run.id] ?? { text: run.name, group: run.name };
        const arm = run.part_of.find(({ name }) => name === by)?.arm ?? null;
        return { run, slot: place, label: visible(text), arm, group: by ? visible(group) : null };
      });
      if (!by) return entries;
      // Two arms of one recipe, such as a comparison of two binaries, have only their arms as names.
      const arms = (group) => new Set(entries.filter((entry) => entry.group === group).map(({ arm }) => arm));
      const named = entries.map((entry) => ({
        ...entry,
        group: arms(entry.group).size > 1 && entry.arm ? `${entry.arm}: ${entry.group}` : entry.group,
      }));
      const groups = [...new Set(named.map(({ group }) => group))];
      return named.map((entry) => ({ ...entry, slot: groups.indexOf(entry.group) }));
    }

    render() {
      const ids = this.present().map(({ run }) => run.id);
      const key = JSON.stringify(ids);
      if (ids.length > 0 && this.labels.key !== key) {
        this.fetchLabels(key, ids);
        return;
      }
      const { tab } = this.state.view;
      const selected = this.selected();
      this.onSlots(new Map(selected.map(({ run, slot }) => [run.id, slot])));
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
      const shape = JSON.stringify(selected.map(({ run, slot, label, group }) => [run.id, slot, label, group, run.live]));
      if (shape === this.legendShape) return;
      this.legendShape = shape;
      const groups = Map.groupBy(
        selected.filter(({ group }) => group !== null),
        ({ group }) => group,
      );
      fill(
        this.legend,
        [...groups].map(([group, entries]) => this.groupEntry(group, entries)),
        selected.filter(({ group }) => group === null).map((entry) => this.runEntry(entry)),
        [...groups.values()].some((entries) => entries.length > 1) &&
          element('li', { class: 'muted' }, 'lines: means; bands: ± standard deviation'),
      );
    }

    groupEntry(group, entries) {
      const ids = entries.map(({ run }) => run.id);
      return element(
        'li',
        {},
        seriesMark(entries[0].slot),
        element('span', { class: 'legend-name', title: visible(ids.join('\n')) }, group),
        element('span', { class: 'muted' }, counted(entries.length, 'run')),
        entries.some(({ run }) => run.live) && element('span', { class: 'live', title: 'running' }, 'live'),
      );
    }

    runEntry({ run, slot, label }) {
      return element(
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
      const { all, by } = this.state.view;
      const shape = JSON.stringify([tab, all, by, focus?.run.id, selected.map(({ run, label }) => [run.id, label])]);
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
        tab === 'curves' && selected.length > 1 && this.groupChoice(selected),
        tab === 'recipe' &&
          selected.length > 1 &&
          tickBox('show equal values, too', all, (showsAll) => this.state.change({ all: showsAll })),
      );
    }

    /** Returns the choice between a line per run and a mean per group, if any runs belong together. */
    groupChoice(selected) {
      const { by } = this.state.view;
      const labels = selected.map(({ run }) => this.labels.byId[run.id]?.group ?? run.id);
      const comparisons = new Set(selected.flatMap(({ run }) => run.part_of.filter(({ arm }) => arm)).map(({ name }) => name));
      const isShared = (name) => selected.every(({ run }) => run.part_of.some((part) => part.name === name));
      const shared = [...comparisons].filter((name) => name === by || isShared(name));
      const options = [
        { value: '', text: 'each run' },
        (by === 'seeds' || new Set(labels).size < labels.length) && { value: 'seeds', text: 'mean over seeds' },
        ...shared.map((name) => ({ value: name, text: `arms of ${shortName(name)}` })),
      ].filter(Boolean);
      return options.length > 1 && choice('Lines', options, by, (value) => this.state.change({ by: value }));
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
      return JSON.stringify([tab, focus.run.id, PLAN_DOCUMENTS.includes(tab) ? null : focus.run.version]);
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
        case 'model':
          return modelNode(await get('model'));
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
      const compared = selected.slice(0, MAX_RUNS);
      const ids = compared.map(({ run }) => run.id);
      const found = await source.get('differences', source.isEmbedded ? [] : ids.map((id) => ['id', id]));
      const differences = selectRuns(found, ids);
      const node = differencesNode(
        differences,
        compared.filter(({ run }) => differences.runs.includes(run.id)),
        this.state.view.all,
      );
      return selected.length > MAX_RUNS
        ? element('div', {}, element('p', { class: 'muted' }, `The first ${MAX_RUNS} of the selected runs.`), node)
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

  xrun.selection = { Selection };
})();
