/** The text of a run's model: every line with what it takes in a step. */
(() => {
  'use strict';

  const { element, plainTable, scrolling } = xrun.dom;
  const { bytes, counted, decimal, prefixed, visible } = xrun.text;

  const NOTE =
    'FLOPs are those of products, and bytes moved go to and from memory: forward, backward and recomputation of a step. Bytes kept ' +
    'stay from the forward of a micro-step to its backward. An op that computes several lines counts in the last of them, and the op ' +
    'of the logits also computes the losses. The rest is the update, the sums of losses, what windows show, and reductions of gradients.';

  /**
   * @param {number} value
   * @param {(value: number) => string} format
   * @returns {string} nothing for 0
   */
  function unlessZero(value, format) {
    return value === 0 ? '' : format(value);
  }

  /**
   * Returns the cells of a row after its text.
   * @param {Object} costs
   * @returns {string[]}
   */
  function cells(costs) {
    return [
      unlessZero(costs.blocks ?? 0, String),
      unlessZero(costs.parameters, (count) => count.toLocaleString('en-US')),
      unlessZero(costs.product_flops, prefixed),
      unlessZero(costs.kept_bytes, bytes),
      unlessZero(costs.bytes, bytes),
      ...costs.seconds.map((seconds) => unlessZero(seconds, (s) => decimal(1e3 * s, 3))),
    ];
  }

  /**
   * Returns a line of the text, which is code.
   * @param {string} text
   * @returns {HTMLElement}
   */
  function code(text) {
    return element('code', { class: 'model-line', dir: 'ltr' }, visible(text));
  }

  /**
   * @param {Object} model the response of `api/model`
   * @returns {HTMLElement}
   */
  function modelNode(model) {
    const heads = [
      { text: 'line', number: true },
      { text: 'model' },
      ...['blocks', 'parameters', 'FLOPs', 'kept', 'moved', ...model.on.map((name) => `ms on ${visible(name)}`)].map(
        (text) => ({ text, number: true }),
      ),
    ];
    const blank = cells({ parameters: 0, product_flops: 0, kept_bytes: 0, bytes: 0, seconds: model.on.map(() => 0) });
    const rows = model.lines.flatMap((line, i) => {
      const row = [String(line.line), code(`  ${line.statement}`), ...cells(line)];
      const isFirst = model.lines[i - 1]?.part !== line.part;
      return isFirst ? [[String(line.line - 1), code(`${line.part}:`), ...blank], row] : [row];
    });
    rows.push(['', 'rest', ...cells(model.rest)], ['', 'all', ...cells(model.total)]);
    const missing = model.no_time.map((why) => `No time is predicted: ${visible(why)}.`);
    return element(
      'div',
      {},
      element(
        'p',
        {},
        `A step of ${counted(model.tokens_per_step, 'token')} in ${counted(model.micro_steps, 'micro-step')}, on one rank of ${model.ranks}`,
      ),
      scrolling('Lines of the model', plainTable('Lines of the model, and what each takes in a step', heads, rows)),
      element('p', { class: 'muted' }, NOTE),
      missing.length > 0 && element('p', { class: 'muted' }, missing.join(' ')),
    );
  }

  xrun.model = { modelNode };
})();
