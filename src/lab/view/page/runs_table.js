/** The table of runs: filter, order, columns, and the selection. */
(() => {
  'use strict';

  const { element, fill, tickBox } = xrun.dom;
  const { counted, visible } = xrun.text;
  const { MOST_SERIES, seriesMark } = xrun.theme;
  const { matching } = xrun.runs_filter;
  const { allColumns, usualColumns } = xrun.runs_columns;

  /**
   * Returns the selection with a run added in the first free slot, or removed. Other runs keep their slots.
   * @param {string[]} slots
   * @param {string} id
   * @returns {string[]}
   */
  function toggled(slots, id) {
    const next = slots.map((slot) => (slot === id ? '' : slot));
    if (!slots.includes(id)) {
      const free = next.indexOf('');
      if (free >= 0) next[free] = id;
      else if (next.length < MOST_SERIES) next.push(id);
    }
    while (next.at(-1) === '') next.pop();
    return next;
  }

  /** Rows that are created at once; more follow. */
  const FIRST = 100;

  /** The table of runs. */
  class RunsTable {
    /**
     * @param {import('./address.js').ViewState} state
     * @param {{get: Function, isEmbedded: boolean}} source
     */
    constructor(state, source) {
      Object.assign(this, { state, source, wanted: 0, shown: [], problems: [] });
      this.listed = { columns: [], keys: [], runs: [] };
      /** @type {Map<string, {node: HTMLElement, texts: string[], run: Object}>} rows by run, kept while columns stay */
      this.rows = new Map();
      this.build();
      state.listen((_, changed) => this.viewChanged(changed));
    }

    build() {
      this.filter = element('input', {
        type: 'search',
        id: 'filter',
        placeholder: this.source.isEmbedded ? 'words' : 'quickstart  val_loss<1.2  model.dim>=384',
        autocomplete: 'off',
        spellcheck: 'false',
        maxlength: '300',
        'aria-label': this.source.isEmbedded
          ? 'Filter runs: words'
          : 'Filter runs: words, or comparisons such as val_loss<1.2',
        value: this.state.view.filter,
        oninput: () => this.state.change({ filter: this.filter.value }),
      });
      this.count = element('span', { class: 'muted count', role: 'status' });
      this.chooser = element(
        'details',
        { class: 'menu', ontoggle: () => this.chooser.open && this.fillChooser() },
        element('summary', {}, 'Columns'),
        element('div', { class: 'menu-body' }),
      );
      this.head = element('tr', {});
      this.body = element('tbody', { onclick: (event) => this.clicked(event), onkeydown: (event) => this.key(event) });
      const table = element(
        'table',
        { class: 'runs', role: 'grid', 'aria-multiselectable': 'true' },
        element('caption', { class: 'for-readers' }, 'Runs. Space selects, Enter selects one alone.'),
        element('thead', {}, this.head),
        this.body,
      );
      this.notes = element('div', { class: 'notes' });
      const all = element('button', { type: 'button', onclick: () => this.selectShown() }, 'Select shown');
      const none = element(
        'button',
        { type: 'button', onclick: () => this.state.change({ runs: [], focus: '', by: '' }) },
        'Clear',
      );
      this.node = element(
        'section',
        { class: 'runs-pane', 'aria-label': 'Runs' },
        element('div', { class: 'bar' }, this.filter, this.chooser),
        element('div', { class: 'bar' }, this.count, all, none),
        this.notes,
        element('div', { class: 'runs-scroll' }, table),
      );
    }

    /**
     * @param {Object} listed the response of `api/runs`
     */
    update(listed) {
      this.listed = listed;
      const { groups, byName } = allColumns(listed);
      Object.assign(this, { groups, byName });
      this.find();
    }

    /**
     * Sets the slots of the selected runs, which decide their colors.
     * @param {Map<string, number>} slots
     */
    setSlots(slots) {
      this.slots = slots;
      if (this.shape !== undefined) this.renderRows(this.shownColumns());
    }

    /** Finds the runs to show. If several searches are in flight, only the last one counts. */
    async find() {
      const wanted = ++this.wanted;
      const { runs } = this.listed;
      const found = await matching(this.source, runs, this.state.view, this.byName).catch((error) => ({
        runs: this.shown,
        problems: [error.message],
      }));
      if (wanted !== this.wanted) return;
      Object.assign(this, { shown: found.runs, problems: found.problems });
      this.render();
    }

    /** @param {string[]} changed */
    viewChanged(changed) {
      if (changed.includes('filter') && this.filter.value !== this.state.view.filter)
        this.filter.value = this.state.view.filter;
      if (!this.byName) return;
      if (changed.includes('filter') || changed.includes('sort')) this.find();
      else if (changed.includes('columns') || changed.includes('runs')) this.render();
    }

    /** @returns {Object[]} columns in table order */
    shownColumns() {
      const chosen = this.state.view.columns.filter((name) => this.byName.has(name));
      return (chosen.length > 0 ? chosen : usualColumns(this.listed, this.byName)).map((name) => this.byName.get(name));
    }

    render() {
      const columns = this.shownColumns();
      const shape = columns.map(({ name }) => name).join('\n');
      if (shape !== this.shape) this.rows.clear();
      this.shape = shape;
      this.renderHead(columns);
      this.renderRows(columns);
      this.renderNotes();
    }

    /** @param {Object[]} columns */
    renderHead(columns) {
      const { sort } = this.state.view;
      fill(
        this.head,
        element('th', { class: 'mark', scope: 'col' }, element('span', { class: 'for-readers' }, 'Selected')),
        columns.map((column) => {
          const direction = sort === column.name ? 'ascending' : sort === `-${column.name}` ? 'descending' : null;
          const next = direction === null ? column.name : direction === 'ascending' ? `-${column.name}` : '';
          return element(
            'th',
            { scope: 'col', class: column.isNumber ? 'number' : null, 'aria-sort': direction, title: column.meaning },
            element(
              'button',
              { type: 'button', 'data-sort': column.name, onclick: () => this.sortBy(next, column.name) },
              column.heading,
              element(
                'span',
                { class: 'sort', 'aria-hidden': 'true' },
                { ascending: ' ↑', descending: ' ↓' }[direction] ?? '',
              ),
            ),
          );
        }),
      );
    }

    /**
     * @param {string} sort
     * @param {string} name the column whose button keeps the focus
     */
    sortBy(sort, name) {
      this.state.change({ sort });
      this.head.querySelector(`[data-sort="${CSS.escape(name)}"]`)?.focus();
    }

    /** @param {Object[]} columns */
    renderRows(columns) {
      clearTimeout(this.later);
      const focused = document.activeElement?.closest('tr')?.dataset.run;
      const made = this.shown.findIndex((run, i) => i >= FIRST && !this.rows.has(run.id));
      const now = made < 0 ? this.shown : this.shown.slice(0, made);
      const nodes = now.map((run) => this.row(run, columns));
      const isSame =
        nodes.length === this.body.children.length && nodes.every((node, i) => node === this.body.children[i]);
      if (!isSame) this.body.replaceChildren(...nodes);
      if (!isSame && focused) this.rows.get(focused)?.node.focus({ preventScroll: true });
      if (nodes.length > 0 && !nodes.some((node) => node.tabIndex === 0)) nodes[0].tabIndex = 0;
      this.renderLater(columns, now.length);
    }

    /**
     * Adds the other rows, some at a time, so that the visible rows appear without waiting.
     * @param {Object[]} columns
     * @param {number} from
     */
    renderLater(columns, from) {
      if (from >= this.shown.length) return;
      this.later = setTimeout(() => {
        this.body.append(...this.shown.slice(from, from + FIRST).map((run) => this.row(run, columns)));
        this.renderLater(columns, from + FIRST);
      });
    }

    /**
     * Returns the row of a run. An existing row is reused, with the changed cells updated.
     * @param {Object} run
     * @param {Object[]} columns
     * @returns {HTMLElement}
     */
    row(run, columns) {
      const kept = this.rows.get(run.id) ?? this.newRow(run, columns);
      if (kept.run !== run || kept.texts.length === 0) this.setTexts(kept, run, columns);
      const isSelected = this.state.view.runs.includes(run.id);
      const slot = isSelected ? (this.slots?.get(run.id) ?? this.state.view.runs.indexOf(run.id)) : -1;
      if (kept.slot !== slot) this.setSlot(kept, run, slot);
      return kept.node;
    }

    newRow(run, columns) {
      const mark = element('td', { class: 'mark' });
      const cells = columns.map((column) => element('td', { class: column.isNumber ? 'number' : column.name }));
      const node = element('tr', { tabindex: -1, 'data-run': run.id }, mark, cells);
      const row = { node, mark, cells, texts: [], run: null, slot: null };
      this.rows.set(run.id, row);
      return row;
    }

    setTexts(row, run, columns) {
      columns.forEach((column, i) => {
        const text = column.text(run);
        if (row.texts[i] === text) return;
        row.texts[i] = text;
        row.cells[i].textContent = text;
        if (text.length > 24) row.cells[i].title = text;
        if (column.name === 'status') row.cells[i].dataset.status = run.status;
      });
      row.run = run;
    }

    setSlot(row, run, slot) {
      row.slot = slot;
      row.node.setAttribute('aria-selected', String(slot >= 0));
      fill(
        row.mark,
        slot >= 0 ? seriesMark(slot) : element('span', { class: 'unmarked', 'aria-hidden': 'true' }),
        element('span', { class: 'for-readers' }, slot >= 0 ? 'selected' : ''),
      );
    }

    renderNotes() {
      const [shown, all] = [this.shown.length, this.listed.runs.length];
      const selected = this.state.view.runs.filter(Boolean).length;
      this.count.textContent = `${shown === all ? counted(all, 'run') : `${shown.toLocaleString('en-US')} of ${counted(all, 'run')}`}, ${selected} selected`;
      const notes = this.problems.map(visible);
      if (shown === 0 && all > 0) notes.push('No run matches.');
      if (all === 0) notes.push('There are no runs here yet. xrun quickstart makes the first.');
      const corpora = new Set(
        this.listed.runs.filter((run) => this.state.view.runs.includes(run.id)).map((run) => run.corpus),
      );
      if (corpora.size > 1) notes.push('The selected runs have different corpora: their losses cannot be compared.');
      notes.push(...(this.listed.damaged ?? []).map(visible));
      fill(
        this.notes,
        notes.map((note) => element('p', {}, note)),
      );
    }

    fillChooser() {
      const shown = new Set(this.shownColumns().map(({ name }) => name));
      const set = (name, isShown) => {
        isShown ? shown.add(name) : shown.delete(name);
        this.state.change({ columns: [...this.byName.keys()].filter((key) => shown.has(key)) });
      };
      fill(
        this.chooser.lastChild,
        element(
          'button',
          {
            type: 'button',
            onclick: () => {
              this.state.change({ columns: [] });
              this.fillChooser();
            },
          },
          'Usual columns',
        ),
        this.groups.map(({ heading, columns }) =>
          element(
            'fieldset',
            {},
            element('legend', {}, heading),
            columns.map((column) =>
              tickBox(column.heading, shown.has(column.name), (isShown) => set(column.name, isShown)),
            ),
          ),
        ),
      );
    }

    selectShown() {
      this.state.change({ runs: this.shown.slice(0, MOST_SERIES).map(({ id }) => id), by: '' });
    }

    /** @param {MouseEvent} event */
    clicked(event) {
      const row = event.target.closest('tr');
      if (!row || String(getSelection())) return;
      this.moveFocus(row);
      this.select(row.dataset.run, event.target.closest('.mark') !== null || event.ctrlKey || event.metaKey);
    }

    /**
     * @param {string} id
     * @param {boolean} isBeside true to keep the other runs selected
     */
    select(id, isBeside) {
      const runs = toggled(this.state.view.runs, id);
      this.state.change(isBeside ? { runs } : { runs: [id], focus: id, by: '' });
    }

    /** @param {KeyboardEvent} event */
    key(event) {
      const row = event.target.closest('tr');
      if (!row || event.ctrlKey || event.metaKey || event.altKey) return;
      const rows = this.body.children;
      const at = [...rows].indexOf(row);
      const to = {
        ArrowDown: at + 1,
        ArrowUp: at - 1,
        PageDown: at + 15,
        PageUp: at - 15,
        Home: 0,
        End: rows.length - 1,
      }[event.key];
      if (to !== undefined) this.moveFocus(rows[Math.max(0, Math.min(rows.length - 1, to))]);
      else if (event.key === ' ' || event.key === 'Enter') this.select(row.dataset.run, event.key === ' ');
      else return;
      event.preventDefault();
    }

    /** @param {HTMLElement} row */
    moveFocus(row) {
      this.body.querySelectorAll('tr[tabindex="0"]').forEach((other) => {
        other.tabIndex = -1;
      });
      row.tabIndex = 0;
      row.focus({ preventScroll: false });
    }
  }

  xrun.runs_table = { RunsTable };
})();
