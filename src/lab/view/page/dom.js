/**
 * Creates elements. Everything on the page is built here from text nodes and attributes; no string is ever
 * parsed as HTML.
 *
 * Every script of the page is a function that runs at once, in the order of index.html. It takes what it
 * needs from `xrun` and adds what it offers. There is no build step.
 */

/** What the scripts of the page offer each other. */
const xrun = {};

(() => {
  'use strict';

  const SVG = 'http://www.w3.org/2000/svg';

  /**
   * @typedef {Node|string|number|null|undefined|false} Child
   */

  /**
   * Sets attributes. `onclick` and the like add listeners, `true` sets an attribute without a value, and
   * false, null and undefined set nothing.
   * @param {Element} node
   * @param {Object<string, any>} attributes
   */
  function setAttributes(node, attributes) {
    for (const [name, value] of Object.entries(attributes)) {
      if (value === null || value === undefined || value === false) continue;
      if (typeof value === 'function') node.addEventListener(name.slice(2), value);
      else node.setAttribute(name, value === true ? '' : String(value));
    }
  }

  /**
   * @param {Node} node
   * @param {Child[]} children
   */
  function appendChildren(node, children) {
    for (const child of children.flat(Infinity)) {
      if (child === null || child === undefined || child === false) continue;
      node.appendChild(child instanceof Node ? child : document.createTextNode(String(child)));
    }
  }

  /**
   * Creates an HTML element.
   * @param {string} tag
   * @param {Object<string, any>} [attributes]
   * @param {...(Child|Child[])} children
   * @returns {HTMLElement}
   */
  function element(tag, attributes = {}, ...children) {
    const node = document.createElement(tag);
    setAttributes(node, attributes);
    appendChildren(node, children);
    return node;
  }

  /**
   * Creates an SVG element.
   * @param {string} tag
   * @param {Object<string, any>} [attributes]
   * @param {...(Child|Child[])} children
   * @returns {SVGElement}
   */
  function svgElement(tag, attributes = {}, ...children) {
    const node = document.createElementNS(SVG, tag);
    setAttributes(node, attributes);
    appendChildren(node, children);
    return node;
  }

  /**
   * Replaces the content of a node.
   * @param {Element} node
   * @param {...(Child|Child[])} children
   */
  function fill(node, ...children) {
    node.replaceChildren();
    appendChildren(node, children);
  }

  /**
   * Returns a labeled choice of one value.
   * @param {string} label
   * @param {{value: string, text: string}[]} options
   * @param {string} chosen
   * @param {(value: string) => void} onChoice
   * @returns {HTMLElement}
   */
  function choice(label, options, chosen, onChoice) {
    const select = element('select', { onchange: (event) => onChoice(event.target.value) });
    for (const { value, text } of options) {
      select.append(element('option', { value, selected: value === chosen }, text));
    }
    return element('label', { class: 'field' }, element('span', {}, label), select);
  }

  /**
   * Returns a labeled checkbox.
   * @param {string} label
   * @param {boolean} ticked
   * @param {(ticked: boolean) => void} onChange
   * @returns {HTMLElement}
   */
  function tickBox(label, ticked, onChange) {
    const box = element('input', {
      type: 'checkbox',
      checked: ticked,
      onchange: (event) => onChange(event.target.checked),
    });
    return element('label', { class: 'tick' }, box, element('span', {}, label));
  }

  /**
   * Returns a row of buttons, one of them pressed.
   * @param {string} label
   * @param {{value: string, text: string}[]} options
   * @param {string} chosen
   * @param {(value: string) => void} onChoice
   * @returns {HTMLElement}
   */
  function segments(label, options, chosen, onChoice) {
    const buttons = options.map(({ value, text }) =>
      element(
        'button',
        { type: 'button', 'aria-pressed': String(value === chosen), onclick: () => onChoice(value) },
        text,
      ),
    );
    return element('div', { class: 'segments', role: 'group', 'aria-label': label }, buttons);
  }

  /**
   * Returns a table with a caption for screen readers.
   * @param {string} caption
   * @param {{text: Child, number?: boolean}[]} heads
   * @param {Child[][]} rows
   * @returns {HTMLElement}
   */
  function plainTable(caption, heads, rows) {
    const cell = (tag, column, child) =>
      element(
        tag,
        {
          class: heads[column].number ? 'number' : null,
          scope: tag === 'th' ? 'col' : null,
        },
        child,
      );
    return element(
      'table',
      { class: 'plain' },
      element('caption', { class: 'for-readers' }, caption),
      element(
        'thead',
        {},
        element(
          'tr',
          {},
          heads.map((head, i) => cell('th', i, head.text)),
        ),
      ),
      element(
        'tbody',
        {},
        rows.map((row) =>
          element(
            'tr',
            {},
            row.map((child, i) => cell('td', i, child)),
          ),
        ),
      ),
    );
  }

  /**
   * Returns a region that scrolls sideways and can be reached by keyboard.
   * @param {string} label
   * @param {...Child} children
   * @returns {HTMLElement}
   */
  function scrolling(label, ...children) {
    return element('div', { class: 'scrolling', role: 'region', 'aria-label': label, tabindex: 0 }, children);
  }

  /**
   * Returns a list of documents, one of them chosen.
   * @param {Object[]} rows each with an `id`
   * @param {string} chosen
   * @param {(id: string) => void} onChoice
   * @param {(row: Object) => Child[]} content content of a row's button
   * @returns {HTMLElement}
   */
  function choiceList(rows, chosen, onChoice, content) {
    const button = (row) =>
      element(
        'button',
        { type: 'button', 'aria-current': row.id === chosen ? 'true' : null, onclick: () => onChoice(row.id) },
        content(row),
      );
    return element(
      'ul',
      { class: 'list' },
      rows.map((row) => element('li', {}, button(row))),
    );
  }

  xrun.dom = { element, svgElement, fill, choice, choiceList, tickBox, segments, plainTable, scrolling };
})();
