/**
 * The state of the view, kept in the address: a link to what is shown survives a reload and opens in another
 * window.
 */
(() => {
  'use strict';

  /**
   * @typedef {Object} View
   * @property {string} page `runs`, `comparisons`, `sweeps` or `coordinates`
   * @property {string} id the comparison, sweep or coordinates
   * @property {string[]} runs ids of the selected runs by slot; the slot decides the color, and '' is an empty slot
   * @property {string} by how runs are drawn together: '' for each alone, `seeds` for those that differ only in the
   *   seed, or the name of a comparison, for its arms
   * @property {string} tab the tab of the selected runs
   * @property {string} focus the run whose model, memory, profile, samples and log are shown
   * @property {string[]} metrics metrics with a panel
   * @property {string} x `step`, `tokens` or `seconds`
   * @property {boolean} logX
   * @property {string[]} logY metrics with a logarithmic axis
   * @property {string} smooth smoothing window as a share of the rows: '0', '0.01', …
   * @property {number[]} zoom the range of x; empty for all
   * @property {string} filter the filter of the table
   * @property {string} sort the column that sorts the table, after `-` in descending order
   * @property {string[]} columns columns of the table; empty for the default ones
   * @property {boolean} all true to also show settings that do not differ
   * @property {string} figure the figure of a sweep's heat map, or `size` or `change` for coordinates
   * @property {string[]} keys keys of a sweep's heat map: for rows, for columns, then `key=value` for the others
   */

  const PAGES = ['runs', 'comparisons', 'sweeps', 'coordinates'];

  const EMPTY = {
    page: 'runs',
    id: '',
    runs: [],
    by: '',
    tab: 'curves',
    focus: '',
    metrics: [],
    x: 'step',
    logX: false,
    logY: [],
    smooth: '0.02',
    zoom: [],
    filter: '',
    sort: '',
    columns: [],
    all: false,
    figure: '',
    keys: [],
  };

  /**
   * Returns the text of a value in the address. List elements are escaped twice, so that commas separate
   * them.
   * @param {any} value
   * @returns {string}
   */
  function encode(value) {
    if (Array.isArray(value)) return value.map((part) => encodeURIComponent(part)).join(',');
    return value === true ? '1' : value === false ? '0' : String(value);
  }

  /**
   * @param {string} text
   * @param {any} like a value of the wanted type
   * @returns {any}
   */
  function decode(text, like) {
    if (Array.isArray(like)) return text === '' ? [] : text.split(',').map(decodeURIComponent);
    return typeof like === 'boolean' ? text === '1' : text;
  }

  /**
   * Returns true if an axis can span these two numbers.
   * @param {number[]} zoom
   * @param {boolean} isLog
   * @returns {boolean}
   */
  function isRange(zoom, isLog) {
    const [from, to] = zoom;
    return zoom.length === 2 && zoom.every(Number.isFinite) && from < to && (!isLog || from > 0);
  }

  /**
   * Reads the state from the part of an address after `#`. Values that cannot be read get their defaults.
   * @param {string} hash
   * @returns {View}
   */
  function parseView(hash) {
    const view = structuredClone(EMPTY);
    for (const [key, text] of new URLSearchParams(hash.replace(/^#/, ''))) {
      if (!Object.hasOwn(EMPTY, key)) continue;
      try {
        view[key] = decode(text, EMPTY[key]);
      } catch {
        /* a broken escape: the default stays */
      }
    }
    if (!PAGES.includes(view.page)) view.page = EMPTY.page;
    view.zoom = view.zoom.map(Number);
    if (!isRange(view.zoom, view.logX)) view.zoom = [];
    return view;
  }

  /**
   * Returns the part of the address that encodes a state.
   * @param {View} view
   * @returns {string}
   */
  function viewHash(view) {
    const query = new URLSearchParams();
    for (const [key, usual] of Object.entries(EMPTY)) {
      const text = encode(view[key]);
      if (text !== encode(usual)) query.set(key, text);
    }
    return `#${query}`;
  }

  /** The state, and the listeners that are told when it changes. */
  class ViewState {
    constructor() {
      this.view = parseView(location.hash);
      /** @type {((view: View, changed: string[]) => void)[]} */
      this.listeners = [];
      window.addEventListener('hashchange', () => this.take(parseView(location.hash)));
    }

    /**
     * @param {(view: View, changed: string[]) => void} listener
     */
    listen(listener) {
      this.listeners.push(listener);
    }

    /**
     * Changes part of the state. Changing the page, document or tab adds a history entry; other changes
     * replace the entry.
     * @param {Partial<View>} changes
     */
    change(changes) {
      // The address may have changed already, with its event still to come.
      const next = { ...parseView(location.hash), ...changes };
      const isPage = ['page', 'id', 'tab'].some((key) => key in changes && changes[key] !== this.view[key]);
      history[isPage ? 'pushState' : 'replaceState'](null, '', viewHash(next));
      this.take(next);
    }

    /**
     * @param {View} next
     */
    take(next) {
      const changed = Object.keys(EMPTY).filter((key) => encode(next[key]) !== encode(this.view[key]));
      this.view = next;
      if (changed.length > 0) this.listeners.forEach((listener) => listener(next, changed));
    }
  }

  xrun.address = { ViewState };
})();
