/** Comparisons: the list, and one comparison with its question, verdict, pairs or trials. */
(() => {
  'use strict';

  const { choiceList, element, plainTable, scrolling } = xrun.dom;
  const { BLANK, counted, decimal, short, shortTime, signed, signedPercent, visible, words } = xrun.text;
  const { closingInterval, pointsAndInterval } = xrun.intervals;

  /** Signs before a verdict, because color must not be the only cue. */
  const SIGNS = {
    better: '▲',
    worse: '▼',
    no_difference: '=',
    same_bits: '≡',
    different: '≠',
    inconclusive: '?',
  };

  /**
   * @param {?string} verdict
   * @param {?string} inWords
   * @param {boolean} isFinished
   * @returns {HTMLElement}
   */
  function verdictNode(verdict, inWords, isFinished) {
    // What must be read with a verdict follows its word, and is not part of its color.
    const [, word, more] = /^(.*?)((?:, | \().*)?$/s.exec(inWords ?? words(verdict));
    return element(
      'span',
      { class: 'verdict', 'data-verdict': verdict },
      `${SIGNS[verdict] ?? '·'} ${visible(word)}`,
      more && element('span', { class: 'qualifiers' }, visible(more)),
      !isFinished && element('span', { class: 'muted' }, ' so far'),
    );
  }

  /**
   * Returns the list of comparisons.
   * @param {Object[]} rows the response of `api/comparisons`
   * @param {string} chosen
   * @param {(id: string) => void} onChoice
   * @returns {HTMLElement}
   */
  function comparisonList(rows, chosen, onChoice) {
    return choiceList(rows, chosen, onChoice, (row) => {
      const facts = [
        words(row.kind),
        row.pairs && counted(row.pairs, 'pair'),
        row.trials && counted(row.trials, 'trial'),
        row.began && shortTime(row.began),
      ];
      return [
        element('span', { class: 'list-name' }, visible(row.name)),
        verdictNode(row.verdict, row.verdict_words, row.finished),
        element('span', { class: 'muted' }, facts.filter(Boolean).join(', ')),
      ];
    });
  }

  /**
   * Returns a button that opens runs, each in its color of the selection.
   * @param {(string|null)[]} runs
   * @param {string} text
   * @param {(runs: string[]) => void} onOpen
   * @returns {HTMLElement|null}
   */
  function runsButton(runs, text, onOpen) {
    const known = [...new Set(runs.filter(Boolean))];
    return known.length > 0
      ? element('button', { type: 'button', class: 'link', onclick: () => onOpen(known) }, text)
      : null;
  }

  /** Returns the label of an arm and the command behind it. */
  function armNode(arm) {
    const [label, command] = [visible(arm?.label ?? BLANK), visible(arm?.command ?? BLANK)];
    return [element('strong', {}, label), label !== command && [' ', element('code', { class: 'muted' }, command)]];
  }

  /** Shows what was asked: the change, the hypothesis, the prediction. */
  function question(comparison) {
    const { prediction, arms } = comparison;
    const { standing } = comparison;
    const held = { true: 'it held', false: 'it did not hold' }[prediction?.held] ?? 'not judged';
    const entries = [
      ['baseline', armNode(arms[0])],
      ['candidate', armNode(arms[1])],
      [
        'changed',
        comparison.changes.length > 0
          ? comparison.changes.map((change) => element('div', {}, element('code', {}, visible(change))))
          : null,
      ],
      ['hypothesis', comparison.hypothesis ? visible(comparison.hypothesis) : null],
      ['prediction', prediction ? `${visible(prediction.text)}: ${held}` : null],
      ['standing', standing ? visible([standing.kind, ...(standing.reasons ?? [])].join('; ')) : 'not recorded'],
      ['shared', comparison.shared_randomness ? visible(comparison.shared_randomness) : null],
      ['confirms', comparison.confirms ? visible(comparison.confirms) : null],
    ].filter(([, value]) => value);
    return element(
      'dl',
      { class: 'terms wide' },
      entries.map(([term, value]) => element('div', {}, element('dt', {}, term), element('dd', {}, value))),
    );
  }

  /** Shows remarks, and the decision rule at the end. */
  function remarks(comparison) {
    const notes = [...(comparison.contended ?? []), ...(comparison.notes ?? [])];
    return element(
      'div',
      {},
      notes.length > 0 &&
        element(
          'ul',
          { class: 'remarks' },
          notes.map((note) => element('li', {}, visible(note))),
        ),
      element('p', { class: 'muted rule' }, visible(comparison.rule ?? '')),
    );
  }

  /**
   * Returns how many decimals give the values of pairs six digits.
   * @param {{baseline: any}[]} pairs
   * @returns {number}
   */
  function valueDecimals(pairs) {
    const largest = Math.max(...pairs.map(({ baseline }) => (typeof baseline === 'number' ? Math.abs(baseline) : 0)));
    return largest > 0 ? Math.max(0, Math.min(8, 5 - Math.floor(Math.log10(largest)))) : 3;
  }

  /** States an interval in words. */
  function intervalText(measure, format) {
    const { interval } = measure;
    if (!interval) return 'There is no interval yet.';
    return `${format(interval.estimate)} (${format(interval.low)} to ${format(interval.high)})`;
  }

  /**
   * Returns the verdict on a measure, with its pairs.
   * @param {Object} measure
   * @param {boolean} isFinished
   * @param {(runs: string[]) => void} onOpen
   * @returns {HTMLElement}
   */
  function measureNode(measure, isFinished, onOpen) {
    const name = visible(measure.name);
    const isRatio = measure.scale === 'ratio';
    const format = (value) => (isRatio ? signedPercent(value) : signed(value));
    const differences = measure.pairs.map(({ difference }) => difference).filter((value) => typeof value === 'number');
    const reach = measure.min_effect ?? 0;
    const options = { none: 0, reach, format };
    const heads = [
      { text: 'seed' },
      { text: `baseline (${visible(measure.unit)})`, number: true },
      { text: 'candidate', number: true },
      { text: isRatio ? 'candidate / baseline − 1' : 'candidate − baseline', number: true },
      { text: 'runs' },
    ];
    const value = (number) =>
      typeof number === 'number' ? decimal(number, valueDecimals(measure.pairs)) : number ? visible(number) : BLANK;
    const rows = measure.pairs.map((pair) => [
      visible(pair.seed),
      value(pair.baseline),
      value(pair.candidate),
      typeof pair.difference === 'number' ? format(pair.difference) : BLANK,
      runsButton(pair.runs ?? [], 'curves', onOpen),
    ]);
    return element(
      'section',
      { class: 'panel', 'aria-label': name },
      element(
        'div',
        { class: 'panel-head' },
        element('h3', {}, name),
        verdictNode(measure.verdict, measure.verdict_words, isFinished),
      ),
      element(
        'p',
        {},
        intervalText(measure, format),
        ' ',
        element(
          'span',
          { class: 'muted' },
          `${visible(measure.unit)}, candidate against baseline, ${counted(differences.length, 'pair')}${reach ? `; differences up to ${format(reach).replace('+', '')} do not matter` : ''}`,
        ),
      ),
      measure.because && element('p', { class: 'muted' }, visible(measure.because)),
      differences.length > 0 &&
        pointsAndInterval({
          ...options,
          label: `Differences of ${counted(differences.length, 'pair')} in ${name}: ${intervalText(measure, format)}`,
          rows: [{ values: differences, text: '', kind: 'pairs' }],
          interval: measure.interval,
        }),
      (measure.history?.length ?? 0) > 1 &&
        element(
          'details',
          { class: 'data-table' },
          element('summary', {}, 'How the interval narrowed, pair by pair'),
          closingInterval({ ...options, label: `Interval of ${name} after every pair`, history: measure.history }),
        ),
      element(
        'details',
        { class: 'data-table', open: measure.pairs.length <= 12 },
        element('summary', {}, 'Pairs'),
        scrolling('Pairs', plainTable(`Pairs of ${name}`, heads, rows)),
      ),
    );
  }

  /**
   * Returns a comparison of quality.
   * @param {Object} found the response of `api/comparison`
   * @param {(runs: string[]) => void} onOpen
   * @returns {HTMLElement}
   */
  function qualityNode(found, onOpen) {
    const { comparison } = found;
    const { joint, diverged } = comparison;
    return element(
      'div',
      {},
      question(comparison),
      joint && element('p', {}, verdictNode(joint.verdict, found.verdict_words, comparison.finished), ' ', visible(joint.found)),
      diverged &&
        element(
          'p',
          {},
          `Diverged: ${diverged.baseline} of the baseline and ${diverged.candidate} of the candidate in ${counted(diverged.pairs, 'pair')}, p = ${short(diverged.p, 2)}.`,
        ),
      found.measures.map((measure) => measureNode(measure, comparison.finished, onOpen)),
      remarks(comparison),
    );
  }

  /**
   * Returns the median, which for an even count is the mean of the middle two, or undefined if there are no
   * values.
   * @param {number[]} values
   * @returns {number|undefined}
   */
  function median(values) {
    if (values.length === 0) return undefined;
    const sorted = [...values].sort((a, b) => a - b);
    const half = sorted.length / 2;
    return (sorted[Math.ceil(half) - 1] + sorted[Math.floor(half)]) / 2;
  }

  /**
   * Returns a comparison of speed.
   * @param {Object} found the response of `api/comparison`
   * @param {(runs: string[]) => void} onOpen
   * @returns {HTMLElement}
   */
  function speedNode(found, onOpen) {
    const { comparison, interval, trials } = found;
    const format = (value) => signedPercent(value);
    const middle = median(trials.filter(({ arm }) => arm === 'baseline').flatMap(({ blocks }) => blocks));
    const rows = trials
      .filter(({ blocks }) => blocks.length > 0)
      .map((trial) => ({
        values: middle ? trial.blocks.map((speed) => speed / middle - 1) : [],
        text: '',
        kind: trial.arm === 'candidate' ? 'candidate' : 'baseline',
      }));
    const heads = [
      { text: 'trial' },
      { text: 'arm' },
      { text: 'status' },
      { text: 'tokens/s', number: true },
      { text: 'blocks', number: true },
      { text: 'run' },
    ];
    const table = trials.map((trial, i) => [
      String(i + 1),
      trial.arm,
      visible(trial.status),
      trial.median ? decimal(trial.median, 0) : BLANK,
      String(trial.blocks.length),
      runsButton([trial.run], 'curves', onOpen) ?? BLANK,
    ]);
    const sentence = interval
      ? `${format(interval.estimate)} tokens per second (${format(interval.low)} to ${format(interval.high)})`
      : 'There is no interval.';
    return element(
      'div',
      {},
      question(comparison),
      element(
        'section',
        { class: 'panel', 'aria-label': 'Speed' },
        element(
          'p',
          {},
          sentence,
          element(
            'span',
            { class: 'muted' },
            `, candidate against baseline; differences up to ${signedPercent(found.min_effect).replace('+', '')} do not matter`,
          ),
        ),
        rows.length > 0 &&
          middle &&
          pointsAndInterval({
            label: `Speed of blocks of steps in ${counted(trials.length, 'trial')}: ${sentence}`,
            rows,
            interval,
            none: 0,
            reach: found.min_effect ?? 0,
            format,
          }),
        element(
          'p',
          { class: 'legend-line muted' },
          element('span', { class: 'dot baseline' }),
          ' baseline ',
          element('span', { class: 'dot candidate' }),
          ' candidate: one row per trial in the order of execution, one point per block of steps, relative to the baseline’s median',
        ),
        element(
          'details',
          { class: 'data-table', open: true },
          element('summary', {}, 'Trials'),
          scrolling('Trials', plainTable('Trials', heads, table)),
        ),
      ),
      element('p', {}, `Loss curves: ${visible(found.curves ?? BLANK)}.`),
      remarks(comparison),
    );
  }

  /**
   * Returns a comparison.
   * @param {Object} found the response of `api/comparison`
   * @param {(runs: string[]) => void} onOpen shows the curves of runs
   * @returns {HTMLElement}
   */
  function comparisonNode(found, onOpen) {
    const runs =
      found.kind === 'quality'
        ? found.measures.flatMap(({ pairs }) => pairs.flatMap((pair) => pair.runs ?? []))
        : found.trials.map(({ run }) => run);
    return element(
      'article',
      { class: 'document' },
      element('h2', {}, visible(found.comparison.name ?? found.id)),
      element(
        'p',
        { class: 'verdict-line' },
        verdictNode(found.verdict, found.verdict_words, found.comparison.finished),
        ' ',
        runsButton(runs, 'curves of both arms', (ids) => onOpen(ids, `comparisons/${found.id}`)),
      ),
      found.kind === 'quality' ? qualityNode(found, onOpen) : speedNode(found, onOpen),
    );
  }

  xrun.comparisons = { comparisonList, comparisonNode };
})();
