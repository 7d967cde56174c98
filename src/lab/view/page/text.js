/** Text as people read it: foreign text with nothing hidden in it, and numbers, sizes, times. */
(() => {
  'use strict';

  /** Stands for a value that was not measured. */
  const BLANK = '—';

  /**
   * Characters that control a terminal or screen reader, or hide text: the table of src/engine/format/escape.rs. Run
   * UPDATE_DOCS=1 cargo test --lib view::assets to write it here.
   */
  const ESCAPED = /[\u{0}-\u{8}\u{b}-\u{1f}\u{7f}-\u{9f}\u{ad}\u{34f}\u{61c}\u{115f}-\u{1160}\u{17b4}-\u{17b5}\u{180b}-\u{180f}\u{200b}-\u{200f}\u{2028}-\u{202e}\u{2060}-\u{206f}\u{3164}\u{feff}\u{ffa0}\u{fff0}-\u{fffb}\u{1bca0}-\u{1bca3}\u{1d173}-\u{1d17a}\u{e0000}-\u{e0fff}]/gu;

  /**
   * Returns the picture of a control character, or the name of another character, such as `⟨U+202E⟩`.
   * @param {string} character
   * @returns {string}
   */
  function escaped(character) {
    const code = character.codePointAt(0);
    if (code === 0x7f) return '␡';
    return code < 0x20
      ? String.fromCharCode(0x2400 + code)
      : `⟨U+${code.toString(16).toUpperCase().padStart(4, '0')}⟩`;
  }

  /**
   * Returns foreign text with control and formatting characters made visible. Line breaks and tabs stay.
   * @param {unknown} text
   * @returns {string}
   */
  function visibleLines(text) {
    return String(text)
      .replace(ESCAPED, escaped)
      .replace(/[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g, '\ufffd');
  }

  /**
   * Returns foreign text on one line.
   * @param {unknown} text
   * @returns {string}
   */
  function visible(text) {
    return visibleLines(text).replace(/[\n\t]/g, escaped);
  }

  /**
   * Formats a number with decimals and thousands separators.
   * @param {number|null|undefined} value
   * @param {number} [decimals]
   * @returns {string}
   */
  function decimal(value, decimals = 3) {
    if (value === null || value === undefined) return BLANK;
    return Number(value).toLocaleString('en-US', { minimumFractionDigits: decimals, maximumFractionDigits: decimals });
  }

  /**
   * Formats a number with only as many digits as are useful, such as 0.0003, 4.38, 45,227, 1.2e-9.
   * @param {number} [digits]
   * @returns {string}
   */
  function short(value, digits = 4) {
    if (value === null || value === undefined) return BLANK;
    const size = Math.abs(value);
    if (size === 0) return '0';
    if (size < 1e-4 || size >= 1e9)
      return Number(value)
        .toExponential(Math.min(digits - 1, 2))
        .replace('e+', 'e');
    if (size >= 10 ** (digits - 1)) return Number(value).toLocaleString('en-US', { maximumFractionDigits: 0 });
    return Number(value).toLocaleString('en-US', { maximumSignificantDigits: digits });
  }

  /**
   * Formats a difference with its sign.
   * @param {number|null|undefined} value
   * @param {(value: number) => string} [format]
   * @returns {string}
   */
  function signed(value, format = short) {
    if (value === null || value === undefined) return BLANK;
    return `${value > 0 ? '+' : value < 0 ? '−' : ''}${format(Math.abs(value))}`;
  }

  /**
   * Formats a share as a percentage with its sign.
   * @param {number|null|undefined} share
   * @returns {string}
   */
  function signedPercent(share) {
    return share === null || share === undefined ? BLANK : `${signed(share * 100, (v) => short(v, 3))} %`;
  }

  /**
   * Formats a large number with a metric prefix, such as 1.64M.
   * @param {number} value
   * @returns {string}
   */
  function prefixed(value) {
    const size = Math.abs(value);
    for (const [unit, letter] of [
      [1e12, 'T'],
      [1e9, 'G'],
      [1e6, 'M'],
      [1e3, 'k'],
    ]) {
      if (size >= unit) return `${Number((value / unit).toPrecision(3))}${letter}`;
    }
    return String(Number(value.toPrecision(4)));
  }

  /**
   * Formats a size in bytes with a binary prefix.
   * @param {number|null|undefined} value
   * @returns {string}
   */
  function bytes(value) {
    if (value === null || value === undefined) return BLANK;
    const { unit, name } = byteUnit(value);
    if (unit === 1) return value === 0 ? '0' : `${value} B`;
    const decimals = value % unit === 0 || value >= 100 * unit ? 0 : value >= 10 * unit ? 1 : 2;
    return `${(value / unit).toFixed(decimals)} ${name}`;
  }

  /**
   * Returns the largest binary unit that fits into a size.
   * @param {number} value
   * @returns {{unit: number, name: string}}
   */
  function byteUnit(value) {
    const units = [
      ['TiB', 40],
      ['GiB', 30],
      ['MiB', 20],
      ['KiB', 10],
    ].map(([name, power]) => ({ unit: 2 ** power, name }));
    return units.find(({ unit }) => value >= unit) ?? { unit: 1, name: 'B' };
  }

  /**
   * Formats a duration, such as 3.2 s, 4 min 10 s, 2 h 5 min.
   * @param {number|null|undefined} seconds
   * @returns {string}
   */
  function duration(seconds) {
    if (seconds === null || seconds === undefined) return BLANK;
    if (seconds === 0) return '0 s';
    if (seconds < 1e-3) return `${short(seconds * 1e6, 3)} µs`;
    if (seconds < 1) return `${short(seconds * 1e3, 3)} ms`;
    if (seconds < 60) return `${seconds.toFixed(1)} s`;
    const whole = Math.round(seconds);
    if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
    const minutes = Math.round(seconds / 60);
    if (minutes < 48 * 60) return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
    return `${Math.floor(minutes / 1440)} d ${Math.floor((minutes % 1440) / 60)} h`;
  }

  /**
   * Formats a time in UTC, such as 2026-11-24 17:00.
   * @param {string|null|undefined} time
   * @returns {string}
   */
  function shortTime(time) {
    return time
      ? visible(time)
          .replace('T', ' ')
          .replace(/:\d\d(\.\d+)?Z$/, '')
      : BLANK;
  }

  /**
   * Returns a short name of a sweep or a comparison, `comparisons/NAME/TIME-HASH`: without its kind and time.
   * @param {string} name
   * @returns {string}
   */
  function shortName(name) {
    return visible(name.split('/').slice(1).join(' ').replace(/\d{8}T\d{6}Z-/, ''));
  }

  /**
   * Returns a word from a file as people read it: `no_difference` as `no difference`.
   * @param {string|null|undefined} word
   * @returns {string}
   */
  function words(word) {
    return word ? visible(word).replaceAll('_', ' ') : BLANK;
  }

  /**
   * Returns a count with its noun.
   * @param {number} count
   * @param {string} noun
   * @returns {string}
   */
  function counted(count, noun) {
    return `${count.toLocaleString('en-US')} ${noun}${count === 1 ? '' : 's'}`;
  }

  xrun.text = {
    BLANK,
    visibleLines,
    visible,
    decimal,
    short,
    signed,
    signedPercent,
    prefixed,
    bytes,
    byteUnit,
    duration,
    shortName,
    shortTime,
    words,
    counted,
  };
})();
