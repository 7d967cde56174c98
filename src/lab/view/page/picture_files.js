/** Charts as picture files: SVG, and PNG drawn from it. */
(() => {
  'use strict';

  const { element, svgElement } = xrun.dom;
  const { colour, seriesStyle } = xrun.theme;

  const FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif';

  /** Pixels of a PNG per pixel of its SVG. */
  const PNG_SCALE = 2;

  /** Room above and beside a chart, and the height of its title and of a row of the legend, in pixels. */
  const EDGE = 12;
  const TITLE = 26;
  const LEGEND_ROW = 20;

  /** Width of a character of the legend, about. */
  const CHARACTER = 6.4;

  /** Attributes that style sheets set and that a file needs. */
  const STYLED = ['fill', 'fill-opacity', 'stroke', 'stroke-width', 'stroke-dasharray', 'stroke-linecap', 'opacity'];

  /** @param {string} text @param {Object} attributes @returns {SVGElement} */
  function label(text, attributes) {
    return svgElement('text', { 'font-family': FONT, 'font-size': 11, fill: colour('muted'), ...attributes }, text);
  }

  /** @param {string} text @returns {SVGElement} */
  function titleNode(text) {
    return label(text, { x: EDGE, y: EDGE + 12, 'font-size': 13, 'font-weight': 600, fill: colour('ink') });
  }

  /**
   * Returns a picture with a background, in its own size.
   * @param {number} width
   * @param {number} height
   * @param {...any} children
   * @returns {SVGElement}
   */
  function sheet(width, height, ...children) {
    return svgElement(
      'svg',
      { xmlns: 'http://www.w3.org/2000/svg', width, height, viewBox: `0 0 ${width} ${height}` },
      svgElement('rect', { width, height, fill: colour('page') }),
      ...children,
    );
  }

  /**
   * Returns the path of a line, with gaps where values are missing.
   * @param {number[][]} points
   * @returns {string}
   */
  function path(points) {
    let isDown = false;
    const parts = points.map(([x, y]) => {
      if (!Number.isFinite(x) || !Number.isFinite(y)) {
        isDown = false;
        return '';
      }
      const command = `${isDown ? 'L' : 'M'}${x.toFixed(2)},${y.toFixed(2)}`;
      isDown = true;
      return command;
    });
    return parts.join('');
  }

  /**
   * Places the entries of a legend in rows.
   * @param {{label: string}[]} entries
   * @param {number} width
   * @returns {{entry: Object, x: number, row: number}[]}
   */
  function placed(entries, width) {
    let [x, row] = [EDGE, 0];
    return entries.map((entry) => {
      const needed = 44 + entry.label.length * CHARACTER;
      if (x > EDGE && x + needed > width - EDGE) [x, row] = [EDGE, row + 1];
      const place = { entry, x, row };
      x += needed;
      return place;
    });
  }

  /**
   * Returns a line chart as a picture, with its title and its legend.
   * @param {Object} chart
   * @param {string} chart.title
   * @param {string} chart.xLabel
   * @param {number} chart.width
   * @param {number} chart.height
   * @param {{left: number, top: number, width: number, height: number}} chart.box the plot's area
   * @param {{at: number, text: string}[]} chart.xTicks
   * @param {{at: number, text: string}[]} chart.yTicks
   * @param {{series: Object, points: number[][]}[]} chart.lines in pixels of the plot's area
   * @param {{slot: number, outline: number[][]}[]} chart.bands
   * @returns {SVGElement}
   */
  function lineChart({ title, xLabel, width, height, box, xTicks, yTicks, lines, bands }) {
    const named = lines.map(({ series }) => series).filter(({ isRaw }) => !isRaw);
    const bare = lines.filter(({ series }) => series.isRaw && !named.some(({ slot }) => slot === series.slot));
    const legend = placed([...named, ...bare.map(({ series }) => series)], width);
    const top = TITLE + (Math.max(0, ...legend.map(({ row }) => row + 1)) + 0.4) * LEGEND_ROW;
    const styleOf = (series) =>
      series.isReference ? { stroke: colour('muted'), dash: [4, 4] } : seriesStyle(series.slot);
    const stroke = (series) => ({
      fill: 'none',
      stroke: styleOf(series).stroke,
      'stroke-width': series.isRaw || series.isReference ? 1 : 1.75,
      'stroke-opacity': series.isRaw ? 0.35 : 1,
      'stroke-dasharray': series.isRaw ? null : styleOf(series).dash.join(' ') || null,
    });
    const plot = svgElement(
      'g',
      { transform: `translate(${box.left} ${top + box.top})` },
      svgElement('clipPath', { id: 'plot' }, svgElement('rect', { width: box.width, height: box.height })),
      xTicks.map(({ at, text }) => [
        svgElement('line', { x1: at, x2: at, y1: 0, y2: box.height, stroke: colour('grid') }),
        label(text, { x: at, y: box.height + 16, 'text-anchor': 'middle' }),
      ]),
      yTicks.map(({ at, text }) => [
        svgElement('line', { x1: 0, x2: box.width, y1: at, y2: at, stroke: colour('grid') }),
        label(text, { x: -6, y: at + 4, 'text-anchor': 'end' }),
      ]),
      svgElement('line', { x1: 0, x2: box.width, y1: box.height, y2: box.height, stroke: colour('axis') }),
      svgElement(
        'g',
        { 'clip-path': 'url(#plot)' },
        bands.map(({ slot, outline }) =>
          svgElement('path', { d: `${path(outline)}Z`, fill: seriesStyle(slot).stroke, 'fill-opacity': 0.18 }),
        ),
        lines.map(({ series, points }) => [
          svgElement('path', { d: path(points), ...stroke(series) }),
          series.hasPoints &&
            points
              .filter((point) => point.every(Number.isFinite))
              .map(([cx, cy]) => svgElement('circle', { cx, cy, r: 2.5, fill: styleOf(series).stroke })),
        ]),
      ),
      bands.length > 0 && label('bands: ± standard deviation', { x: 0, y: box.height + 30 }),
      label(xLabel, { x: box.width, y: box.height + 30, 'text-anchor': 'end' }),
    );
    return sheet(
      width,
      top + height + 14,
      titleNode(title),
      legend.map(({ entry, x, row }) => {
        const y = TITLE + (row + 0.5) * LEGEND_ROW;
        return [
          svgElement('line', { x1: x, x2: x + 20, y1: y, y2: y, ...stroke({ ...entry, isRaw: false }) }),
          label(entry.label, { x: x + 25, y: y + 4, fill: colour('ink') }),
        ];
      }),
      plot,
    );
  }

  /**
   * Returns a copy of an SVG figure of the page that looks the same without its style sheet.
   * @param {string} title
   * @param {SVGElement} figure
   * @returns {SVGElement}
   */
  function standalone(title, figure) {
    const { width, height } = figure.viewBox.baseVal;
    const copy = figure.cloneNode(true);
    const originals = [...figure.querySelectorAll('*')];
    copy.querySelectorAll('*').forEach((node, i) => {
      const style = getComputedStyle(originals[i]);
      node.removeAttribute('class');
      STYLED.forEach((name) => node.setAttribute(name, style.getPropertyValue(name)));
      if (node.tagName === 'text') {
        node.setAttribute('font-family', FONT);
        node.setAttribute('font-size', style.fontSize);
      }
    });
    const children = svgElement('g', { transform: `translate(0 ${TITLE})` }, ...copy.childNodes);
    return sheet(width, height + TITLE, titleNode(title), children);
  }

  /**
   * Returns a table of the page, such as a heat map, as a picture.
   * @param {string} title
   * @param {HTMLTableElement} table
   * @returns {SVGElement}
   */
  function tablePicture(title, table) {
    const frame = table.getBoundingClientRect();
    const cell = (node) => {
      const { left, top, width, height } = node.getBoundingClientRect();
      const style = getComputedStyle(node);
      const [x, y] = [left - frame.left, top - frame.top];
      const isColored = !style.backgroundColor.endsWith(', 0)');
      const text = [...node.childNodes].filter((child) => !child.classList?.contains('for-readers'));
      return [
        isColored && svgElement('rect', { x, y, width, height, fill: style.backgroundColor, stroke: colour('page') }),
        label(text.map((child) => child.textContent).join(''), {
          x: x + width / 2,
          y: y + height / 2 + 4,
          'text-anchor': 'middle',
          'font-weight': node.tagName === 'TH' || node.classList.contains('best') ? 600 : 400,
          fill: style.color,
        }),
      ];
    };
    return sheet(
      frame.width + 2 * EDGE,
      frame.height + TITLE + EDGE,
      titleNode(title),
      svgElement('g', { transform: `translate(${EDGE} ${TITLE})` }, [...table.querySelectorAll('th, td')].map(cell)),
    );
  }

  /** @param {SVGElement} picture @returns {string} */
  function source(picture) {
    return new XMLSerializer().serializeToString(picture);
  }

  /**
   * Draws a picture as PNG.
   * @param {SVGElement} picture
   * @returns {Promise<Blob>}
   */
  async function pngOf(picture) {
    const image = new Image();
    image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(source(picture))}`;
    await image.decode();
    const canvas = element('canvas');
    canvas.width = Number(picture.getAttribute('width')) * PNG_SCALE;
    canvas.height = Number(picture.getAttribute('height')) * PNG_SCALE;
    canvas.getContext('2d').drawImage(image, 0, 0, canvas.width, canvas.height);
    return new Promise((resolve, reject) => {
      canvas.toBlob((blob) => (blob ? resolve(blob) : reject(new Error('The browser draws no PNG.'))), 'image/png');
    });
  }

  /**
   * Offers a file for download.
   * @param {Blob} blob
   * @param {string} name
   */
  function save(blob, name) {
    const address = URL.createObjectURL(blob);
    const link = element('a', { href: address, download: name });
    document.body.append(link);
    link.click();
    link.remove();
    setTimeout(() => URL.revokeObjectURL(address), 10_000);
  }

  /**
   * Returns buttons that save a chart as it is shown.
   * @param {string} title
   * @param {() => ?SVGElement} draw
   * @returns {HTMLElement}
   */
  function pictureButtons(title, draw) {
    const name = title.replace(/[^\p{L}\p{N}]+/gu, '-').replace(/^-|-$/g, '') || 'chart';
    const saved = async (kind) => {
      const picture = draw();
      if (!picture) return;
      const blob = kind === 'svg' ? new Blob([source(picture)], { type: 'image/svg+xml' }) : await pngOf(picture);
      save(blob, `${name}.${kind}`);
    };
    const button = (kind) =>
      element(
        'button',
        {
          type: 'button',
          class: 'quiet',
          'aria-label': `Save ${title} as ${kind.toUpperCase()}`,
          onclick: () => saved(kind),
        },
        kind.toUpperCase(),
      );
    return element('div', { class: 'save-picture' }, button('svg'), button('png'));
  }

  xrun.picture_files = { lineChart, path, pictureButtons, sheet, standalone, tablePicture, titleNode, label, TITLE };
})();
