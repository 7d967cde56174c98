/** The page: its header, its parts, and what it asks the server for while runs go on. */
(() => {
  'use strict';

  const { element, fill } = xrun.dom;
  const { shortTime, visible } = xrun.text;
  const { openSource } = xrun.source;
  const { ViewState } = xrun.address;
  const { themeButton } = xrun.theme;
  const { RunsTable } = xrun.runs_table;
  const { RunDocuments } = xrun.run_documents;
  const { Selection } = xrun.selection;
  const { DocumentsPage } = xrun.documents_page;
  const { comparisonList, comparisonNode } = xrun.comparisons;
  const { SweepView, sweepList } = xrun.sweeps;
  const { CoordinatesView, coordinatesList } = xrun.coordinates;

  /** Time between two requests for changes, in milliseconds. */
  const INTERVAL = 2000;

  /** Most runs that are drawn together as groups, each with one color. */
  const MOST_GROUPED = 100;

  const PAGES = [
    { value: 'runs', text: 'Runs' },
    { value: 'comparisons', text: 'Comparisons' },
    { value: 'sweeps', text: 'Sweeps' },
    { value: 'coordinates', text: 'Coordinates' },
  ];

  /** The whole page. */
  class Page {
    constructor() {
      this.source = openSource();
      this.state = new ViewState();
      this.table = new RunsTable(this.state, this.source);
      this.selection = new Selection(this.state, new RunDocuments(this.source));
      this.selection.onSlots = (slots) => this.table.setSlots(slots);
      this.runsNode = element('div', { class: 'runs-page' }, this.table.node, this.selection.node);
      this.pages = this.documentPages();
      this.main = document.getElementById('main');
      this.status = element('p', { class: 'announced', role: 'status' });
      this.buildHeader();
      this.state.listen((_, changed) => this.viewChanged(changed));
    }

    documentPages() {
      const openRuns = (runs, by) => this.openRuns(runs, by);
      const sweep = new SweepView(this.state, openRuns);
      this.coordinates = new CoordinatesView(this.state);
      const page = (options) => new DocumentsPage({ state: this.state, source: this.source, ...options });
      return {
        comparisons: page({
          list: 'comparisons',
          one: 'comparison',
          none: 'There are no comparisons here. xrun compare makes one.',
          listNode: comparisonList,
          documentNode: (found) => comparisonNode(found, openRuns),
        }),
        sweeps: page({
          list: 'sweeps',
          one: 'sweep',
          none: 'There are no sweeps here. xrun sweep makes one.',
          listNode: sweepList,
          documentNode: (found) => sweep.node(found),
        }),
        coordinates: page({
          list: 'coordinates',
          one: 'coordinate',
          none: 'There are no coordinates here. xrun coordinates makes some.',
          listNode: coordinatesList,
          documentNode: (found) => this.coordinates.node(found),
          attached: () => this.coordinates.attached(),
        }),
      };
    }

    buildHeader() {
      this.links = PAGES.map(({ value, text }) =>
        element(
          'button',
          { type: 'button', onclick: () => this.state.change({ page: value, id: '', figure: '', keys: [] }) },
          text,
        ),
      );
      this.folder = element('span', { class: 'folder muted' });
      fill(
        document.getElementById('header'),
        element('span', { class: 'wordmark' }, 'xrun'),
        element('nav', { 'aria-label': 'Pages' }, this.links),
        this.folder,
        this.status,
        themeButton(() => this.redraw()),
      );
    }

    /**
     * Shows runs together.
     * @param {string[]} runs
     * @param {string} [by] how they are drawn together
     */
    openRuns(runs, by = '') {
      this.state.change({
        page: 'runs',
        tab: 'curves',
        runs: runs.slice(0, by ? MOST_GROUPED : xrun.theme.MOST_SERIES),
        by,
        focus: runs[0],
        zoom: [],
      });
    }

    async start() {
      this.showPage();
      this.table.count.textContent = 'Reading the runs …';
      await this.attempt(() => this.refreshRuns());
      await this.refreshPage();
      if (this.source.isEmbedded) this.describeFile();
      else this.poll();
    }

    /** Describes what a self-contained file includes and leaves out. */
    describeFile() {
      const { about } = this.source;
      const sentences = [
        ...about.includes,
        about.leaves_out.length > 0 && `Left out: ${about.leaves_out.join(', ')}.`,
      ].filter(Boolean);
      fill(
        this.folder,
        element(
          'details',
          { class: 'menu' },
          element('summary', {}, `made ${shortTime(about.made)} UTC by xrun ${visible(about.xrun)}`),
          element(
            'div',
            { class: 'menu-body' },
            sentences.map((sentence) => element('p', {}, visible(sentence))),
          ),
        ),
      );
    }

    async refreshRuns() {
      this.listed = await this.source.get('runs');
      this.revision = this.listed.revision;
      if (!this.source.isEmbedded) this.folder.textContent = visible(this.listed.results ?? '');
      document.title = `${visible(this.listed.results ?? 'results')} · xrun`;
      await this.selectFirst();
      this.showRuns();
    }

    /** Without a selection in the address, selects the newest run, or opens what a file was made to show. */
    async selectFirst() {
      const asked = new URLSearchParams(location.hash.slice(1));
      const isChosen = this.hasSelected || asked.has('runs');
      this.hasSelected = true;
      if (isChosen) return;
      if (this.source.isEmbedded) await this.openFile(asked.has('page'));
      else this.state.change({ runs: this.listed.runs.slice(0, 1).map(({ id }) => id) });
    }

    /**
     * Selects the runs of the first comparison of a file and opens its verdict. Without one, selects all runs,
     * and opens the first sweep if there are none.
     * @param {boolean} isOpen true if the address already says which page to show
     */
    async openFile(isOpen) {
      const first = async (list) => (await this.source.get(list))[list].find(({ damaged }) => !damaged)?.id;
      const [comparison, sweep] = [await first('comparisons'), await first('sweeps')];
      const ids = this.listed.runs.map(({ id }) => id);
      const by = comparison ? `comparisons/${comparison}` : '';
      const isPart = (run) => run.part_of.some(({ name }) => name === by);
      const compared = this.listed.runs.filter(isPart).map(({ id }) => id);
      const page = comparison ? { page: 'comparisons', id: comparison } : { page: 'sweeps', id: sweep };
      const hasPage = comparison || (sweep && ids.length === 0);
      const runs = comparison ? compared.slice(0, MOST_GROUPED) : ids.slice(0, xrun.theme.MOST_SERIES);
      this.state.change({ ...(hasPage && !isOpen ? page : {}), runs, by });
    }

    showRuns() {
      this.table.update(this.listed);
      if (this.state.view.page === 'runs') this.selection.update(this.listed.runs);
    }

    async refreshPage() {
      await this.pages[this.state.view.page]?.refresh();
    }

    /** Asks for changes repeatedly while the page is visible. */
    poll() {
      const again = () =>
        setTimeout(async () => {
          if (!document.hidden) await this.askForChanges();
          again();
        }, INTERVAL);
      document.addEventListener('visibilitychange', () => document.hidden || this.askForChanges());
      again();
    }

    async askForChanges() {
      if (this.isAsking) return;
      this.isAsking = true;
      await this.attempt(async () => {
        const changes = this.listed ? await this.source.get('changes', [['since', this.revision]]) : { all: true };
        if (changes.all) await this.refreshRuns();
        else this.take(changes);
        if (changes.all || changes[this.state.view.page]) await this.refreshPage();
      });
      this.isAsking = false;
    }

    /**
     * Runs a task. Reports why it failed, or clears the earlier report.
     * @param {() => Promise<void>} task
     */
    async attempt(task) {
      try {
        await task();
        this.say('');
      } catch (error) {
        this.say(
          error instanceof TypeError
            ? 'The server does not answer: xrun view has ended, or the connection is lost.'
            : error.message,
        );
      }
    }

    /** @param {Object} changes the response of `api/changes` */
    take(changes) {
      this.revision = changes.revision;
      if (changes.runs.length === 0 && changes.gone.length === 0) return;
      const changed = new Map(changes.runs.map((run) => [run.id, run]));
      const gone = new Set(changes.gone);
      const known = new Set(this.listed.runs.map(({ id }) => id));
      const fresh = changes.runs.filter(({ id }) => !known.has(id));
      const kept = this.listed.runs.filter(({ id }) => !gone.has(id)).map((run) => changed.get(run.id) ?? run);
      this.listed = { ...this.listed, runs: [...fresh, ...kept] };
      this.showRuns();
    }

    /** @param {string[]} changed */
    viewChanged(changed) {
      if (changed.includes('page')) this.showPage();
      const { page } = this.state.view;
      if (page === 'runs') {
        if (changed.some((key) => !['filter', 'sort', 'columns'].includes(key)))
          this.selection.update(this.listed?.runs ?? []);
      } else if (changed.includes('page') || changed.includes('id')) this.refreshPage();
      else if (changed.includes('figure') || changed.includes('keys')) this.pages[page].showDocument();
    }

    showPage() {
      const { page } = this.state.view;
      const shown = PAGES.some(({ value }) => value === page) ? page : 'runs';
      this.links.forEach((link, i) => {
        if (PAGES[i].value === shown) link.setAttribute('aria-current', 'page');
        else link.removeAttribute('aria-current');
      });
      this.main.replaceChildren(shown === 'runs' ? this.runsNode : this.pages[shown].node);
    }

    /** @param {string} text */
    say(text) {
      if (this.status.textContent !== text) this.status.textContent = visible(text);
    }

    /** Redraws the page after colors have changed. */
    redraw() {
      this.selection.redraw();
      if (this.state.view.page === 'coordinates') this.coordinates.redraw();
    }
  }

  /** Closes menus on Escape, or on a press outside them. */
  function closeMenus() {
    const close = (menu) => {
      const hadFocus = menu.contains(document.activeElement);
      menu.open = false;
      if (hadFocus) menu.querySelector('summary').focus();
    };
    const open = () => [...document.querySelectorAll('details.menu[open]')];
    document.addEventListener('keydown', (event) => event.key === 'Escape' && open().forEach(close));
    document.addEventListener('pointerdown', (event) =>
      open()
        .filter((menu) => !menu.contains(event.target))
        .forEach((menu) => {
          menu.open = false;
        }),
    );
  }

  closeMenus();
  new Page().start();
})();
