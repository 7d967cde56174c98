/** The profile of a step: a flame chart of phases, parts of the model and ops, and the ops by time. */
(() => {
  'use strict';

  const { element, fill, plainTable, scrolling } = xrun.dom;
  const { BLANK, decimal, duration, shortTime, visible } = xrun.text;
  const { RectangleChart, colorLegend } = xrun.rectangles;

  const PHASES = ['forward', 'backward', 'communication', 'optimizer'];

  /** Height of a row of the flame chart, in pixels. */
  const ROW = 28;

  /** @param {string} phase @returns {string} the name of its color */
  function phaseColor(phase) {
    const at = PHASES.indexOf(phase);
    return `series-${[2, 0, 1, 3][at] ?? 4}`;
  }

  /**
   * Returns the names of a span from the outermost inwards: its phase, the parts of its scope, its op.
   * @param {Object} span
   * @returns {string[]}
   */
  function pathOf(span) {
    const parts = span.scope ? span.scope.split('.') : [];
    // A number names a part only together with what precedes it: `blocks.0`.
    const scopes = parts.reduce((found, part) => {
      if (/^\d+$/.test(part) && found.length > 0) found[found.length - 1] += `.${part}`;
      else found.push(part);
      return found;
    }, []);
    return [span.phase, ...scopes, span.op];
  }

  /**
   * Returns the rectangles of a flame chart. Adjacent spans with the same name and parent are merged.
   * @param {Object[]} spans in order of their start
   * @returns {{rectangles: Object[], depth: number, end: number}}
   */
  function flame(spans) {
    const open = [];
    const rectangles = [];
    let [depth, end] = [1, 0];
    for (const span of spans) {
      const path = pathOf(span);
      const until = span.start_us + span.us;
      let isSame = true;
      path.forEach((name, level) => {
        const isOp = level === path.length - 1;
        isSame = isSame && !isOp && open[level]?.name === name && !open[level].isOp;
        if (isSame) open[level].to = until;
        else {
          open.length = level;
          open.push({ name, level, isOp, from: span.start_us, to: until, phase: span.phase, scope: span.scope });
          rectangles.push(open[level]);
        }
      });
      open.length = path.length;
      [depth, end] = [Math.max(depth, path.length), Math.max(end, until)];
    }
    return { rectangles, depth, end };
  }

  /**
   * @param {Object} part
   * @param {number} step_us
   * @returns {import('./rectangles.js').Rectangle}
   */
  function rectangleOf(part, step_us) {
    const time = part.to - part.from;
    return {
      x0: part.from,
      x1: part.to,
      y0: -part.level - 1,
      y1: -part.level,
      label: visible(part.name),
      colour: phaseColor(part.phase),
      details: [
        `${duration(time / 1e6)}, ${((100 * time) / step_us).toFixed(1)} % of the nodes' time`,
        `from ${duration(part.from / 1e6)}`,
        [part.phase, part.scope].filter(Boolean).map(visible).join(', '),
      ],
    };
  }

  /** @param {Object} profile @returns {HTMLElement} */
  function opTable(profile) {
    const total = profile.ops.reduce((sum, op) => sum + op.ms, 0);
    const hasBudget = profile.ops.some((op) => typeof op.budget_ms === 'number');
    const heads = [
      { text: 'op' },
      { text: 'phase' },
      { text: 'calls', number: true },
      { text: 'ms', number: true },
      { text: 'share', number: true },
      ...(hasBudget
        ? [
            { text: 'budget ms', number: true },
            { text: 'of it', number: true },
          ]
        : []),
    ];
    const rows = profile.ops.map((op) => [
      visible(op.op),
      visible(op.phase),
      String(op.calls),
      decimal(op.ms, 3),
      `${((100 * op.ms) / total).toFixed(1)} %`,
      ...(hasBudget
        ? [
            decimal(op.budget_ms, 3),
            typeof op.budget_ms === 'number' ? `${((100 * op.budget_ms) / op.ms).toFixed(0)} %` : BLANK,
          ]
        : []),
    ]);
    return scrolling('Ops', plainTable('Ops of a step, the longest first', heads, rows));
  }

  /** The profile of a run. */
  class ProfileView {
    constructor() {
      this.node = element('div', {});
    }

    /** @param {Object} profile the response of `api/profile` */
    show(profile) {
      this.chart?.destroy();
      const { rectangles, depth, end } = flame([...profile.spans].sort((a, b) => a.start_us - b.start_us));
      this.chart = new RectangleChart({
        title: 'Flame chart of a step',
        height: depth * ROW + 34,
        xRange: [0, end || 1],
        yRange: [-depth, 0],
        xFormat: (x) => duration(x / 1e6),
        yFormat: null,
        rectangles: rectangles.map((part) => rectangleOf(part, end)),
      });
      const phases = [...new Set(profile.spans.map(({ phase }) => phase))];
      fill(
        this.node,
        element(
          'p',
          {},
          `A step takes ${decimal(profile.step_ms, 2)} ms for ${(profile.tokens ?? 0).toLocaleString('en-US')} tokens; its nodes, measured one by one, take ${duration(end / 1e6)}.`,
          element(
            'span',
            { class: 'muted' },
            [profile.device && ` ${visible(profile.device)}`, profile.made && ` ${shortTime(profile.made)}`]
              .filter(Boolean)
              .join(','),
          ),
        ),
        element(
          'div',
          { class: 'bar controls' },
          colorLegend(phases.map((phase) => ({ colour: phaseColor(phase), text: visible(phase) }))),
        ),
        element('section', { class: 'panel' }, this.chart.node),
        element('h3', {}, 'Ops by time'),
        opTable(profile),
      );
    }

    redraw() {
      this.chart?.draw();
    }
  }

  xrun.profile = { ProfileView };
})();
