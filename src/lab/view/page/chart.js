/** Line charts: uPlot with axes, a readout, zoom by mouse and keyboard, and a data table. */
(() => {
  'use strict';

  const { element, fill } = xrun.dom;
  const { short, prefixed } = xrun.text;
  const { colour, seriesMark, seriesStyle } = xrun.theme;
  const { linearTicks, logTicks, padded } = xrun.chart_axes;
  const { dataTable } = xrun.chart_table;
  const { chartPicture } = xrun.chart_picture;
  const { pictureButtons } = xrun.picture_files;

  /**
   * @typedef {Object} Series
   * @property {string} label
   * @property {number} slot decides color and dashes
   * @property {number[]} x in ascending order
   * @property {(number|null)[]} y null for a gap
   * @property {boolean} [isRaw] drawn thin and pale, under a smoothed line
   * @property {boolean} [isReference] a known value to compare with, drawn as a pale dashed line
   * @property {(number|null)[]} [deviation] the standard deviation around y; the two ends of its band follow
   * @property {boolean} [isBand] an end of the band around the series before it, the upper end first
   * @property {boolean} [hasPoints] draws a mark at every value
   * @property {{x: number, value: string}[]} [notFinite] where a value was NaN or infinite
   *
   * @typedef {Object} Axes
   * @property {string} xLabel
   * @property {boolean} logX
   * @property {boolean} logY
   * @property {number[]} zoom the range of x; empty for all
   * @property {number[]} [extent] the common range of x, if neighboring charts cover more than this one
   * @property {number[]} [xTicks] fixed x ticks, instead of computed ones
   * @property {(value: number) => string} [xFormat] formats ticks
   * @property {(value: number) => string} [xExact] formats x in the readout and the table
   */

  const FONT = '11px system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif';

  /** Most lines of the readout; the nearest to the cursor are shown. */
  const READ = 12;

  /** Pixels between the ticks of an axis. */
  const X_SPACE = 72;
  const Y_SPACE = 34;

  /**
   * Returns values for an axis. Values without a logarithm become gaps on a logarithmic axis.
   * @param {(number|null)[]} values
   * @param {boolean} isLog
   * @returns {(number|null)[]}
   */
  function drawable(values, isLog) {
    return isLog ? values.map((value) => (value !== null && value > 0 ? value : null)) : values;
  }

  /**
   * Returns the data of all series over their common x.
   * @param {Series[]} series
   * @param {Axes} axes
   * @returns {any[][]}
   */
  function joined(series, axes) {
    if (series.length === 0) return [[]];
    const tables = series.map(({ x, y }) => {
      const first = axes.logX ? x.findIndex((value) => value > 0) : 0;
      return first < 0 ? [[], []] : [x.slice(first), drawable(y.slice(first), axes.logY)];
    });
    return uPlot.join(tables);
  }

  class Chart {
    /**
     * @param {Object} options
     * @param {string} options.title
     * @param {number} [options.height]
     * @param {string} [options.syncKey] charts with the same key share a cursor
     * @param {(zoom: number[]) => void} options.onZoom gets an empty array for all of x
     */
    constructor({ title, height = 208, syncKey = '', onZoom }) {
      Object.assign(this, { title, height, syncKey, onZoom });
      this.series = [];
      this.plot = element('div', { class: 'plot' });
      this.readout = element('div', { class: 'readout', hidden: true });
      this.spoken = element('div', { class: 'for-readers', 'aria-live': 'polite' });
      this.frame = element(
        'div',
        {
          class: 'chart',
          tabindex: 0,
          role: 'group',
          'aria-roledescription': 'line chart',
          onkeydown: (event) => this.key(event),
          onfocus: () => {
            this.isActive = true;
          },
          onblur: () => this.leave(),
          onmouseenter: () => {
            this.isActive = true;
          },
          onmouseleave: () => this.leave(),
        },
        this.plot,
        this.readout,
        this.spoken,
      );
      this.table = element('div', {});
      const buttons = pictureButtons(title, () => chartPicture(this));
      this.node = element('div', { class: 'chart-block' }, this.frame, buttons, this.table);
      this.observer = new ResizeObserver(() => this.resize());
      this.observer.observe(this.plot);
    }

    /**
     * Shows series. If only values changed, the plot stays, with its cursor.
     * @param {Series[]} series
     * @param {Axes} axes
     */
    show(series, axes) {
      const shape = JSON.stringify([
        series.map((s) => [s.label, s.slot, s.isRaw, s.isBand, s.hasPoints]),
        // Live runs grow: changing only the extent must not recreate the plot.
        { ...axes, extent: null },
        this.height,
        colour('ink'),
        colour('series-0'),
      ]);
      Object.assign(this, { series, axes });
      const data = joined(series, axes);
      if (this.uplot && shape === this.shape) this.uplot.setData(data);
      else this.draw(data);
      this.shape = shape;
      this.describe();
    }

    /** Describes the chart for screen readers, and rebuilds the table. */
    describe() {
      const lines = this.series.filter((s) => !s.isRaw && !s.isReference && !s.isBand);
      const names = lines
        .slice(0, 8)
        .map((s) => s.label)
        .join(', ');
      this.frame.setAttribute(
        'aria-label',
        `${this.title} over ${this.axes.xLabel}: ${lines.length} lines. ${names}. ` +
          'Arrows read values, plus and minus zoom, 0 shows all. A data table follows.',
      );
      const isOpen = this.table.querySelector('details')?.open ?? false;
      fill(this.table, dataTable(this.title, this.series, this.axes, isOpen));
    }

    /** @param {any[][]} data */
    draw(data) {
      this.uplot?.destroy();
      this.uplot = new uPlot(this.options(), data, this.plot);
    }

    resize() {
      const width = this.plot.clientWidth;
      if (this.uplot && width > 0 && width !== this.uplot.width) this.uplot.setSize({ width, height: this.height });
    }

    /** @returns {Object} the options of uPlot */
    options() {
      const { axes } = this;
      return {
        width: Math.max(200, this.plot.clientWidth || 400),
        height: this.height,
        padding: [8, 18, 0, 0],
        legend: { show: false },
        scales: {
          x: { time: false, distr: axes.logX ? 3 : 1, range: (_, low, high) => this.xRange(low, high) },
          y: { distr: axes.logY ? 3 : 1, range: (_, low, high) => padded(low, high, axes.logY) },
        },
        axes: [
          this.axis(...this.axisOf(0)),
          this.axis(...this.axisOf(1)),
        ],
        series: [{}, ...this.series.map((s) => this.line(s))],
        bands: this.bands(),
        cursor: this.cursor(),
        focus: { alpha: 1 },
        hooks: {
          setCursor: [() => this.read()],
          setSelect: [(u) => this.selected(u)],
          draw: [(u) => this.markNotFinite(u)],
        },
      };
    }

    /**
     * @param {number} low
     * @param {number} high
     * @returns {number[]}
     */
    xRange(low, high) {
      if (this.axes.zoom.length === 2) return this.axes.zoom;
      if (this.axes.extent) return this.axes.extent;
      if (low === null || high === null) return this.axes.logX ? [1, 10] : [0, 1];
      return low === high ? padded(low, high, this.axes.logX) : [low, high];
    }

    axis(isLog, space, side, format) {
      return {
        stroke: colour('muted'),
        font: FONT,
        size: side ? 52 : 26,
        gap: 4,
        grid: { stroke: colour('grid'), width: 1 },
        ticks: { show: false },
        border: { show: !side, stroke: colour('axis'), width: 1 },
        splits: (u, _, low, high) => {
          if (!side && this.axes.xTicks) return this.axes.xTicks;
          const room = (side ? u.bbox.height : u.bbox.width) / devicePixelRatio;
          return (isLog ? logTicks : linearTicks)(low, high, Math.floor(room / space));
        },
        filter: (_, splits) => splits,
        values: (_, splits) => splits.map(format),
      };
    }

    /** @returns {Object[]} the areas between the ends of bands */
    bands() {
      return this.series.flatMap((s, i) =>
        s.deviation
          ? [{ series: [i + 2, i + 3], fill: `color-mix(in srgb, ${seriesStyle(s.slot).stroke} 18%, transparent)` }]
          : [],
      );
    }

    /** @param {Series} series */
    line(series) {
      if (series.isBand) return { label: series.label, stroke: 'transparent', scale: 'y', points: { show: false } };
      if (series.isReference) {
        return {
          label: series.label,
          stroke: colour('muted'),
          scale: 'y',
          width: 1,
          dash: [4, 4],
          points: { show: false },
        };
      }
      const { stroke, dash } = seriesStyle(series.slot);
      return {
        label: series.label,
        stroke,
        scale: 'y',
        spanGaps: false,
        width: series.isRaw ? 1 : 1.75,
        alpha: series.isRaw ? 0.35 : 1,
        dash: series.isRaw ? [] : dash,
        points: series.hasPoints ? { show: true, size: 5, fill: stroke, stroke } : { show: false },
      };
    }

    cursor() {
      return {
        x: true,
        y: false,
        drag: { x: true, y: false, setScale: false },
        focus: { prox: 1e6 },
        points: { size: 6, width: 0, fill: (u, i) => u.series[i].stroke(u, i) },
        dataIdx: (u, i, hovered) =>
          this.series[i - 1]?.isReference || this.series[i - 1]?.isBand ? null : nearestIndex(u.data[i], u.data[0], hovered),
        sync: this.syncKey
          ? {
              key: this.syncKey,
              scales: ['x', null],
              filters: { pub: (type) => type.startsWith('mousemove') || type === 'mouseleave' },
            }
          : {},
        bind: {
          dblclick: () => () => {
            this.onZoom([]);
            return null;
          },
        },
      };
    }

    /** Handles the end of a drag over a range. */
    selected(u) {
      if (u.select.width < 4) return;
      const ends = [u.select.left, u.select.left + u.select.width].map((left) => u.posToVal(left, 'x'));
      u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
      this.onZoom(ends);
    }

    /** Draws a cross at the top wherever a value was NaN or infinite. */
    markNotFinite(u) {
      for (const { slot, notFinite = [] } of this.series) {
        u.ctx.strokeStyle = seriesStyle(slot).stroke;
        u.ctx.lineWidth = 2 * devicePixelRatio;
        for (const { x } of notFinite) this.cross(u, u.valToPos(x, 'x', true), u.bbox.top + 7 * devicePixelRatio);
      }
    }

    cross(u, left, top) {
      if (left < u.bbox.left || left > u.bbox.left + u.bbox.width) return;
      const reach = 4 * devicePixelRatio;
      u.ctx.beginPath();
      for (const way of [1, -1]) {
        u.ctx.moveTo(left - reach, top - way * reach);
        u.ctx.lineTo(left + reach, top + way * reach);
      }
      u.ctx.stroke();
    }

    leave() {
      this.isActive = false;
      this.readout.hidden = true;
    }

    /** Shows the values at the cursor. */
    read() {
      const { left, idx } = this.uplot.cursor;
      if (!this.isActive || idx === null || idx === undefined || left < 0) {
        this.readout.hidden = true;
        return;
      }
      const all = this.valuesAtCursor();
      const found = all.slice(0, READ).sort((a, b) => b.value - a.value);
      const head = `${this.axes.xLabel} ${(this.axes.xExact ?? this.axes.xFormat ?? short)(this.uplot.data[0][idx])}`;
      fill(
        this.readout,
        element('div', { class: 'readout-head' }, head),
        found.map((entry) =>
          element(
            'div',
            { class: entry.isNear ? 'readout-line near' : 'readout-line' },
            seriesMark(entry.series.slot),
            element('span', { class: 'readout-name' }, entry.series.label),
            element('span', { class: 'number' }, valueText(entry)),
          ),
        ),
        this.series
          .filter(({ isReference }) => isReference)
          .map(({ label, y }) => element('div', { class: 'muted' }, `${label} ${short(y[0])}`)),
        all.length > READ && element('div', { class: 'muted' }, `and ${all.length - READ} more`),
      );
      this.readout.hidden = found.length === 0;
      this.placeReadout(left);
      const spoken = found.map((entry) => `${entry.series.label} ${valueText(entry)}`);
      this.lastRead = [head, ...spoken].join('; ');
    }

    /**
     * Places the readout beside the cursor, inside the chart's width and the visible part of the page.
     * @param {number} left the cursor, in pixels of the plot's area
     */
    placeReadout(left) {
      const [frame, over] = [this.frame.getBoundingClientRect(), this.uplot.over.getBoundingClientRect()];
      const { offsetWidth: width, offsetHeight: height } = this.readout;
      const cursor = over.left - frame.left + left;
      const beside = cursor + 14 + width <= frame.width ? cursor + 14 : cursor - 14 - width;
      this.readout.style.left = `${Math.max(0, Math.min(beside, frame.width - width))}px`;
      const pane = this.frame.closest('.selection, .document-body')?.getBoundingClientRect();
      const bottom = Math.min(pane?.bottom ?? Infinity, document.documentElement.clientHeight) - 4 - frame.top;
      const top = Math.max(pane?.top ?? 0, 0) + 4 - frame.top;
      this.readout.style.top = `${Math.max(top, Math.min(10, bottom - height))}px`;
    }

    /** @param {number} side 0 for x, 1 for y @returns {any[]} arguments of {@link axis} */
    axisOf(side) {
      const { axes } = this;
      return side === 0
        ? [axes.logX, X_SPACE, 0, axes.xFormat ?? prefixed]
        : [axes.logY, Y_SPACE, 1, (v) => short(v)];
    }

    /**
     * Returns the values at the cursor, the nearest to it first.
     * @returns {{series: Series, value: number, deviation: ?number, isNear: boolean}[]}
     */
    valuesAtCursor() {
      const u = this.uplot;
      const found = [];
      this.series.forEach((series, i) => {
        const hasSmooth = series.isRaw && this.series.some((s) => !s.isRaw && s.slot === series.slot);
        const at = u.cursor.idxs?.[i + 1];
        const value = at === null || at === undefined ? null : u.data[i + 1][at];
        if (hasSmooth || series.isBand || value === null || value === undefined) return;
        // The upper end of the band is the next series.
        const deviation = series.deviation ? u.data[i + 2][at] - value : null;
        found.push({ series, value, deviation, isNear: false });
      });
      const apart = (entry) => Math.abs(u.valToPos(entry.value, 'y') - u.cursor.top);
      found.sort((a, b) => apart(a) - apart(b));
      if (found.length > 1) found[0].isNear = true;
      return found;
    }

    /** @param {KeyboardEvent} event */
    key(event) {
      const u = this.uplot;
      const xs = u?.data[0] ?? [];
      if (event.target !== this.frame || event.ctrlKey || event.metaKey || event.altKey || xs.length === 0) return;
      const { min, max } = u.scales.x;
      const first = Math.max(
        0,
        xs.findIndex((x) => x >= min),
      );
      const last = Math.max(
        first,
        xs.findLastIndex((x) => x <= max),
      );
      const at = Math.min(last, Math.max(first, u.cursor.idx ?? first));
      const stride = Math.max(1, Math.round((last - first) / (event.shiftKey ? 10 : 100)));
      const to = { ArrowLeft: at - stride, ArrowRight: at + stride, Home: first, End: last }[event.key];
      if (to !== undefined) this.moveTo(Math.min(last, Math.max(first, to)));
      else if (['+', '=', '-'].includes(event.key)) this.zoomAround(xs[at], event.key === '-' ? 2 : 0.5);
      else if (event.key === '0' || event.key === 'Escape') this.onZoom([]);
      else return;
      event.preventDefault();
    }

    /** @param {number} index */
    moveTo(index) {
      this.isActive = true;
      const u = this.uplot;
      u.setCursor({ left: u.valToPos(u.data[0][index], 'x'), top: u.over.clientHeight / 2 });
      this.spoken.textContent = this.lastRead ?? '';
    }

    /**
     * @param {number} centre
     * @param {number} factor
     */
    zoomAround(centre, factor) {
      const { min, max } = this.uplot.scales.x;
      const [into, out] = this.axes.logX ? [Math.log, Math.exp] : [(v) => v, (v) => v];
      const ends = [min, max].map((end) => out(into(centre) + (into(end) - into(centre)) * factor));
      const extent = this.series.flatMap((s) => (s.x.length ? [s.x[0], s.x.at(-1)] : []));
      const isAll = factor > 1 && ends[0] <= Math.min(...extent) && ends[1] >= Math.max(...extent);
      this.onZoom(isAll ? [] : ends);
    }

    destroy() {
      this.observer.disconnect();
      this.uplot?.destroy();
      this.uplot = null;
    }
  }

  /** @returns {string} the value at the cursor; a mean has its standard deviation */
  function valueText({ value, deviation }) {
    const text = short(value, 5);
    return typeof deviation === 'number' && Number.isFinite(deviation) ? `${text} ± ${short(deviation, 2)}` : text;
  }

  /**
   * Returns the index of the value of a series that is nearest to an index of the common x.
   * @param {(number|null|undefined)[]} values
   * @param {number[]} xs
   * @param {number} index
   * @returns {number|null}
   */
  function nearestIndex(values, xs, index) {
    if (typeof values[index] === 'number') return index;
    let below = index - 1;
    let above = index + 1;
    while (below >= 0 && typeof values[below] !== 'number') below--;
    while (above < values.length && typeof values[above] !== 'number') above++;
    if (below < 0 || above >= values.length) return null;
    return xs[index] - xs[below] <= xs[above] - xs[index] ? below : above;
  }

  xrun.chart = { Chart };
})();
