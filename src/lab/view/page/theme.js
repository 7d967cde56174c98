/** Light and dark themes, and the colors of series. */
(() => {
  'use strict';

  const { element } = xrun.dom;

  const THEMES = ['system', 'light', 'dark'];
  const KEPT_AS = 'xrun-theme';

  /** Number of series colors in page.css. */
  const COLORS = 7;

  /** Dashes of a line, in pixels. The next pattern is used once all colors are taken. */
  const DASHES = [[], [8, 4], [2, 3], [10, 3, 2, 3]];

  /**
   * Returns the theme that the browser keeps. It may keep none, as for files opened from a disk.
   * @returns {string}
   */
  function keptTheme() {
    try {
      const kept = localStorage.getItem(KEPT_AS);
      return THEMES.includes(kept) ? kept : 'system';
    } catch {
      return 'system';
    }
  }

  /**
   * @param {string} theme
   */
  function keepTheme(theme) {
    try {
      localStorage.setItem(KEPT_AS, theme);
    } catch {
      /* the theme holds until the page is closed */
    }
  }

  /**
   * Returns the button that cycles through the themes, and applies the kept theme.
   * @param {() => void} onChange called after colors have changed
   * @returns {HTMLElement}
   */
  function themeButton(onChange) {
    let theme = keptTheme();
    const button = element('button', {
      type: 'button',
      class: 'quiet',
      onclick: () => {
        theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
        keepTheme(theme);
        apply();
        onChange();
      },
    });
    const apply = () => {
      if (theme === 'system') delete document.documentElement.dataset.theme;
      else document.documentElement.dataset.theme = theme;
      button.textContent = { system: '◐', light: '○', dark: '●' }[theme];
      button.setAttribute('aria-label', `Theme: ${theme}. Change`);
      button.title = `Theme: ${theme}`;
    };
    apply();
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', onChange);
    return button;
  }

  /**
   * Returns the current value of a color of page.css.
   * @param {string} name its name without the two dashes
   * @returns {string}
   */
  function colour(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  }

  /**
   * Returns the class of the color of a slot.
   * @param {number} slot
   * @returns {string}
   */
  function seriesClass(slot) {
    return `series-${slot % COLORS}`;
  }

  /**
   * Returns the color and dashes of a slot.
   * @param {number} slot
   * @returns {{stroke: string, dash: number[]}}
   */
  function seriesStyle(slot) {
    return { stroke: colour(seriesClass(slot)), dash: DASHES[Math.floor(slot / COLORS) % DASHES.length] };
  }

  /**
   * Returns a short line in the style of a series, to stand beside its name.
   * @param {number} slot
   * @returns {SVGElement}
   */
  function seriesMark(slot) {
    const { svgElement } = xrun.dom;
    const dash = DASHES[Math.floor(slot / COLORS) % DASHES.length].join(' ');
    return svgElement(
      'svg',
      { class: `series-mark ${seriesClass(slot)}`, viewBox: '0 0 22 10', 'aria-hidden': 'true' },
      svgElement('line', { x1: 1, x2: 21, y1: 5, y2: 5, 'stroke-dasharray': dash || null }),
    );
  }

  /** Most series that colors and dashes can tell apart. */
  const MOST_SERIES = COLORS * DASHES.length;

  xrun.theme = { MOST_SERIES, colour, seriesMark, seriesStyle, themeButton };
})();
