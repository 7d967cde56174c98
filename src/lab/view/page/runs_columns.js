/** The columns of the table of runs. */
(() => {
  'use strict';

  const { BLANK, decimal, shortName, shortTime, visible } = xrun.text;

  /** The sign before each status, because color must not be the only cue. */
  const SIGNS = {
    ok: '✓',
    running: '▸',
    interrupted: '‖',
    killed: '✕',
    unsaved: '!',
    failed: '✕',
    oom: '✕',
    diverged: '∞',
  };

  /**
   * @param {string} name
   * @param {string} heading
   * @param {string} meaning
   * @param {(run: Object) => string|null} value
   * @param {(run: Object) => string} [text]
   * @returns {import('./runs_filter.js').Column}
   */
  function wordColumn(name, heading, meaning, value, text) {
    return {
      name,
      heading,
      meaning,
      isNumber: false,
      value,
      text: text ?? ((run) => (value(run) ? visible(value(run)) : BLANK)),
    };
  }

  /** @param {Object} run @returns {string} the status; for a live run, with the share of its steps */
  function statusText(run) {
    const share = run.live && run.steps_planned ? ` ${Math.floor((100 * (run.steps ?? 0)) / run.steps_planned)} %` : '';
    return `${SIGNS[run.status] ?? '·'} ${visible(run.status)}${share}`;
  }

  /** @param {Object} run @returns {string} */
  function stepsText(run) {
    if (run.steps === null || run.steps === undefined) return BLANK;
    const [steps, planned] = [run.steps, run.steps_planned].map((count) => (count ?? 0).toLocaleString('en-US'));
    return run.steps === run.steps_planned || !run.steps_planned ? steps : `${steps} of ${planned}`;
  }

  /** @param {string|null} forked @returns {string} */
  function forkText(forked) {
    return forked ? `${visible(forked.run)} at ${forked.step}` : BLANK;
  }

  /**
   * Returns a short name of a sweep or a comparison, with the run's arm.
   * @param {{name: string, arm: ?string}} part
   * @returns {string}
   */
  function partText({ name, arm }) {
    return [shortName(name), arm && visible(arm)].filter(Boolean).join(' ');
  }

  const WORDS = [
    wordColumn('run', 'run', 'the shortest name by which every command finds the run', (run) => run.name),
    wordColumn('recipe', 'recipe', 'the recipe that was run', (run) => run.recipe),
    wordColumn('status', 'status', 'how the run ended, or that it is running', (run) => run.status, statusText),
    {
      name: 'steps',
      heading: 'steps',
      meaning: 'steps done, of those planned',
      isNumber: true,
      value: (run) => run.steps,
      text: stepsText,
    },
    wordColumn(
      'part_of',
      'part of',
      'the sweeps and comparisons that the run belongs to',
      (run) => run.part_of.map(({ name, arm }) => (arm ? `${name} (${arm})` : name)).join(', ') || null,
      (run) => run.part_of.map(partText).join(', ') || BLANK,
    ),
    wordColumn('changed', 'changed', 'keys that the command line set', (run) => run.changed.join(' ') || null),
    wordColumn('tag', 'tags', 'tags', (run) => run.tags.join(' ') || null),
    wordColumn('note', 'note', 'the note on the run', (run) => run.note),
    wordColumn(
      'remarks',
      'remarks',
      'what a reader of its figures should know',
      (run) => run.remarks.join(', ') || null,
    ),
    wordColumn(
      'started',
      'started',
      'time at which the run began, UTC',
      (run) => run.started,
      (run) => shortTime(run.started),
    ),
    wordColumn('device', 'device', 'the device class', (run) => run.device),
    wordColumn(
      'commit',
      'commit',
      'the commit of xrun',
      (run) => run.commit,
      (run) => visible((run.commit ?? BLANK).slice(0, 12)),
    ),
    wordColumn(
      'corpus',
      'corpus',
      'hash of the training corpus: losses on different corpora cannot be compared',
      (run) => run.corpus,
      (run) => visible((run.corpus ?? BLANK).slice(0, 8)),
    ),
    wordColumn('reason', 'reason', 'why it ended this way', (run) => run.reason),
    wordColumn(
      'forked_from',
      'forked from',
      'the run and step that it was forked from',
      (run) => run.forked_from?.run ?? null,
      (run) => forkText(run.forked_from),
    ),
    wordColumn('path', 'folder', 'the folder of the run', (run) => run.id),
  ];

  /** Word columns that are always shown, before the figures. */
  const USUAL_FIRST = ['run', 'recipe', 'status'];

  /** The one between them and the figures, if a run has a value in it. */
  const USUAL_GROUP = 'part_of';

  /** Word columns that are shown after the figures if a run has a value in them. */
  const USUAL_LAST = ['changed', 'tag', 'note', 'remarks'];

  /**
   * Returns a heading without the unit in parentheses, which the meaning states.
   * @param {{heading: string, unit: string}} column
   * @returns {string}
   */
  function shortHeading({ heading, unit }) {
    const ending = ` (${unit})`;
    return visible(unit && heading.endsWith(ending) ? heading.slice(0, -ending.length) : heading);
  }

  /**
   * @param {Object} column a column of `api/runs`
   * @returns {import('./runs_filter.js').Column}
   */
  function figureColumn(column) {
    const value = (run) => run.figures[column.name] ?? null;
    const text = (run) => {
      const found = value(run);
      return typeof found === 'number' ? decimal(found, column.decimals ?? 3) : found === null ? BLANK : String(found);
    };
    return {
      name: column.name,
      heading: shortHeading(column),
      meaning: [column.meaning, column.unit].filter(Boolean).map(visible).join(', in '),
      isNumber: true,
      value,
      text,
    };
  }

  /**
   * @param {string} key a recipe key
   * @returns {import('./runs_filter.js').Column}
   */
  function keyColumn(key) {
    const value = (run) => {
      const text = run.keys[key] ?? null;
      return text !== null && text !== '' && Number.isFinite(Number(text)) ? Number(text) : text;
    };
    const text = (run) => (key in run.keys ? visible(run.keys[key] ?? 'unset') : BLANK);
    const meaning = `the recipe's ${visible(key)}`;
    return { name: key, heading: visible(key), meaning, isNumber: true, value, text };
  }

  /**
   * Returns all columns, by name and in groups.
   * @param {{columns: Object[], keys: string[]}} listed
   * @returns {{groups: {heading: string, columns: Object[]}[], byName: Map<string, Object>}}
   */
  function allColumns(listed) {
    const groups = [
      { heading: 'Runs', columns: WORDS },
      {
        heading: 'Figures',
        columns: listed.columns.filter(({ name }) => !WORDS.some((word) => word.name === name)).map(figureColumn),
      },
      { heading: 'Keys that differ', columns: listed.keys.map(keyColumn) },
    ].filter(({ columns }) => columns.length > 0);
    return { groups, byName: new Map(groups.flatMap(({ columns }) => columns).map((column) => [column.name, column])) };
  }

  /**
   * Returns the names of the columns that are shown if none were chosen.
   * @param {{columns: Object[], runs: Object[]}} listed
   * @param {Map<string, Object>} byName
   * @returns {string[]}
   */
  function usualColumns(listed, byName) {
    const figures = listed.columns.filter(({ usual }) => usual).map(({ name }) => name);
    const hasValue = (name) => listed.runs.some((run) => byName.get(name).value(run) !== null);
    // What a sweep or a comparison changes is on its page, and its name says more in less space.
    const isSaid = (name) => name === 'changed' && listed.runs.every((run) => !run.changed.length || run.part_of.length);
    const last = USUAL_LAST.filter((name) => hasValue(name) && !isSaid(name));
    return [...USUAL_FIRST, ...[USUAL_GROUP].filter(hasValue), ...figures, ...last];
  }

  xrun.runs_columns = { allColumns, usualColumns };
})();
