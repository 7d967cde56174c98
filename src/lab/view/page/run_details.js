/** One run in words: figures, remarks, the end of its log. */
(() => {
  'use strict';

  const { element } = xrun.dom;
  const { BLANK, bytes, decimal, duration, short, shortTime, visible, visibleLines } = xrun.text;

  /**
   * Returns a list of terms with their values, without blank ones.
   * @param {[string, any][]} entries
   * @returns {HTMLElement}
   */
  function terms(entries) {
    const known = entries.filter(
      ([, value]) => value !== null && value !== undefined && value !== '' && value !== BLANK,
    );
    return element(
      'dl',
      { class: 'terms' },
      known.map(([term, value]) => element('div', {}, element('dt', {}, term), element('dd', {}, value))),
    );
  }

  /** @param {Object} row @returns {string} */
  function progressText(row) {
    const [steps, planned] = [row.steps ?? 0, row.steps_planned ?? 0].map((count) => count.toLocaleString('en-US'));
    return row.steps_planned && row.steps !== row.steps_planned ? `${steps} of ${planned}` : steps;
  }

  /** @param {?{final: ?{step: number, loss: number}, best: ?{step: number, loss: number}}} losses @returns {string} */
  function lossText(losses) {
    if (!losses?.final) return BLANK;
    const best =
      losses.best && losses.best.step !== losses.final.step
        ? `, best ${decimal(losses.best.loss, 4)} at step ${losses.best.step}`
        : '';
    return `${decimal(losses.final.loss, 4)} at step ${losses.final.step}${best}`;
  }

  /**
   * Returns a figure with its unit, or null if it is unknown.
   * @param {?number} value
   * @param {number} decimals
   * @param {string} unit
   * @returns {?string}
   */
  function measured(value, decimals, unit) {
    return typeof value === 'number' ? `${decimal(value, decimals)} ${unit}` : null;
  }

  /** @param {?number} loss in nats per token @returns {?string} the perplexity that the loss stands for */
  function perplexity(loss) {
    return typeof loss === 'number' ? `${short(Math.exp(loss))} per token, of the validation loss` : null;
  }

  /** How far a run has come, and what it reached. */
  function resultTerms({ row, summary, floor, uniform_loss, left_s }) {
    return [
      ['status', [visible(row.status), summary.reason && `: ${visible(summary.reason)}`]],
      ['steps', progressText(row)],
      ['time left', left_s ? duration(left_s) : null],
      ['training loss', measured(row.figures.train_loss, 4, 'nats/token, as in the table of runs')],
      ['loss of the last batch', lossText(summary.train_loss)],
      ['validation loss', lossText(summary.val_loss)],
      ['perplexity', perplexity(summary.val_loss?.final?.loss)],
      ['floor', measured(floor, 4, 'nats/token')],
      ['uniform guess', measured(uniform_loss, 3, 'nats/token')],
    ];
  }

  /** Time, speed and memory of a run. */
  function measuredTerms({ summary }) {
    const { memory } = summary;
    return [
      ['tokens', summary.tokens_seen?.toLocaleString('en-US')],
      ['speed', measured(summary.tok_s, 0, 'tokens/s')],
      ['step', measured(summary.steady_state?.step_ms?.median, 2, 'ms, median of the steady state')],
      ['utilization', measured(summary.mfu_pct, 1, '% of peak (model FLOPs)')],
      ['wall time', duration(summary.wall_s)],
      ['parameters', summary.parameters?.toLocaleString('en-US')],
      ['planned memory', bytes(memory?.planned_bytes)],
      ['resident peak', bytes(memory?.peak_rss_bytes)],
    ];
  }

  /** Where a run comes from. */
  function originTerms({ row }) {
    const fork = row.forked_from;
    return [
      ['device', visible(row.device ?? '')],
      ['started', row.started ? `${shortTime(row.started)} UTC` : null],
      ['commit', visible((row.commit ?? '').slice(0, 12))],
      ['forked from', fork ? `${visible(fork.run)} at step ${fork.step}` : null],
      ['changed', row.changed?.length ? element('code', {}, row.changed.map(visible).join(' ')) : null],
      ['tags', row.tags?.map(visible).join(', ')],
    ];
  }

  /**
   * Returns the overview of a run.
   * @param {Object} run the response of `api/run`
   * @returns {HTMLElement}
   */
  function overview(run) {
    const { row, summary } = run;
    const planned = row.steps_planned ?? 0;
    const remarks = [...(row.remarks ?? []), ...(summary.notes ?? [])];
    return element(
      'div',
      {},
      element('h2', { class: 'run-title' }, visible(run.id)),
      row.note && element('p', { class: 'note' }, visible(row.note)),
      row.live &&
        planned > 0 &&
        element('progress', { max: planned, value: row.steps ?? 0, 'aria-label': 'Steps done' }),
      terms([...resultTerms(run), ...measuredTerms(run), ...originTerms(run)]),
      remarks.length > 0 &&
        element(
          'ul',
          { class: 'remarks' },
          remarks.map((remark) => element('li', {}, visible(remark))),
        ),
    );
  }

  /**
   * Returns the end of a log.
   * @param {{lines: string[], more: boolean}} log
   * @returns {HTMLElement}
   */
  function logTail(log) {
    if (log.lines.length === 0) return element('p', { class: 'muted' }, 'The log is empty.');
    return element(
      'div',
      {},
      log.more && element('p', { class: 'muted' }, `The last ${log.lines.length} lines.`),
      element(
        'pre',
        { class: 'log', tabindex: 0, role: 'region', 'aria-label': 'Log', dir: 'ltr' },
        log.lines.map(visibleLines).join('\n'),
      ),
    );
  }

  /**
   * Returns a recipe as it is stored.
   * @param {string} title
   * @param {?string} text
   * @returns {HTMLElement|null}
   */
  function recipeText(title, text) {
    return text
      ? element(
          'details',
          { class: 'data-table' },
          element('summary', {}, title),
          element('pre', { class: 'log', tabindex: 0, dir: 'ltr' }, visibleLines(text)),
        )
      : null;
  }

  xrun.run_details = { logTail, overview, recipeText };
})();
