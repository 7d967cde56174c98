/** What a model wrote: before and after training side by side, and all of it, newest first. */
(() => {
  'use strict';

  const { choice, element, fill } = xrun.dom;
  const { BLANK, visibleLines } = xrun.text;

  /**
   * @typedef {{step: number, prompt: string, text: string}} Sample
   */

  /** @param {number} step @returns {string} */
  function when(step) {
    return step === 0 ? 'before training' : `after step ${step}`;
  }

  /**
   * Returns the prompt and what the model wrote.
   * @param {Sample} sample
   * @returns {HTMLElement}
   */
  function written({ prompt, text }) {
    const begun = element('span', { class: 'prompt' }, visibleLines(prompt));
    return element('pre', { class: 'text', dir: 'ltr' }, begun, visibleLines(text));
  }

  /**
   * Pairs the samples of two steps: the first text of a prompt with the first of the same prompt, and so on.
   * @param {Sample[]} samples
   * @param {number} before
   * @param {number} after
   * @returns {[?Sample, ?Sample][]}
   */
  function pairs(samples, before, after) {
    const rows = new Map();
    [before, after].forEach((step, side) => {
      const seen = new Map();
      for (const sample of samples.filter((one) => one.step === step)) {
        const count = seen.get(sample.prompt) ?? 0;
        seen.set(sample.prompt, count + 1);
        const key = JSON.stringify([sample.prompt, count]);
        if (!rows.has(key)) rows.set(key, [null, null]);
        rows.get(key)[side] = sample;
      }
    });
    return [...rows.values()];
  }

  /**
   * Returns a table of what the model wrote on each prompt after two steps.
   * @param {Sample[]} samples
   * @param {number} before
   * @param {number} after
   * @returns {HTMLElement}
   */
  function sideBySide(samples, before, after) {
    const cell = (sample) => element('td', {}, sample ? written(sample) : BLANK);
    const heads = [before, after].map((step) => element('th', { scope: 'col' }, when(step)));
    const rows = pairs(samples, before, after).map((pair) => element('tr', {}, pair.map(cell)));
    return element(
      'table',
      { class: 'before-after' },
      element('thead', {}, element('tr', {}, heads)),
      element('tbody', {}, rows),
    );
  }

  /**
   * Returns the table with a choice of the later step; null if there are samples of one step only.
   * @param {Sample[]} samples
   * @returns {HTMLElement|null}
   */
  function beforeAndAfter(samples) {
    const steps = [...new Set(samples.map((sample) => sample.step))].sort((a, b) => a - b);
    if (steps.length < 2) return null;
    const [first, ...later] = steps;
    const table = element('div', {});
    const show = (step) => fill(table, sideBySide(samples, first, step));
    const last = later[later.length - 1];
    show(last);
    const options = later.map((step) => ({ value: String(step), text: when(step) }));
    return element(
      'section',
      { 'aria-label': 'Before and after' },
      options.length > 1 && choice('Compare with', options, String(last), (value) => show(Number(value))),
      table,
    );
  }

  /**
   * Returns the samples of a run.
   * @param {Object} run the response of `api/run`
   * @returns {HTMLElement}
   */
  function samples(run) {
    if (run.samples.length === 0)
      return element(
        'p',
        { class: 'muted' },
        'The run has no samples. generation.interval sets how often it writes some.',
      );
    const figures = [...run.samples]
      .reverse()
      .map((sample) =>
        element(
          'figure',
          { class: 'sample' },
          element('figcaption', { class: 'muted' }, when(sample.step)),
          written(sample),
        ),
      );
    return element('div', {}, beforeAndAfter(run.samples), figures);
  }

  xrun.samples = { samples };
})();
