/**
 * Charts of rectangles over a common axis: memory over nodes, and spans of time. Zoom and readout work as in
 * line charts.
 */
(() => {
  'use strict';

  const { element, fill, svgElement } = xrun.dom;
  const { colour } = xrun.theme;
  const { linearTicks } = xrun.chart_axes;
  const { label, path, pictureButtons, sheet, titleNode, TITLE } = xrun.picture_files;

  /**
   * @typedef {Object} Rectangle
   * @property {number} x0
   * @property {number} x1
   * @property {number} y0 the lower end on the y axis
   * @property {number} y1
   * @property {string} label
   * @property {string} colour the name of a color in page.css
   * @property {string[]} details lines of the readout
   */

  const FONT = '11px system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif';

  /** Room for the labels of the axes, in pixels. */
  const LEFT = 64;
  const BOTTOM = 24;
  const TOP = 6;
  const RIGHT = 8;

  /** The narrowest rectangle that contains its label, in pixels. */
  const MIN_LABELED_WIDTH = 34;

  /** A chart of rectangles. */
  class RectangleChart {
    /**
     * @param {Object} options
     * @param {string} options.title
     * @param {number} options.height
     * @param {number[]} options.xRange
     * @param {number[]} options.yRange from the bottom to the top
     * @param {(x: number) => string} options.xFormat
     * @param {?(y: number) => string} options.yFormat null for no axis
     * @param {number} [options.yUnit] y ticks are round multiples of this
     * @param {Rectangle[]} options.rectangles
     * @param {{x: number[], y: number[]}} [options.outline] a line of steps over the rectangles
     */
    constructor(options) {
      Object.assign(this, options);
      this.left = this.yFormat ? LEFT : 8;
      this.view = [...this.xRange];
      this.at = null;
      this.canvas = element('canvas', {
        onmousedown: (event) => this.press(event),
        onmousemove: (event) => this.hover(event),
        onmouseleave: () => this.pick(null),
        ondblclick: () => this.zoom(this.xRange),
      });
      this.readout = element('div', { class: 'readout', hidden: true });
      this.spoken = element('div', { class: 'for-readers', 'aria-live': 'polite' });
      this.frame = element(
        'div',
        {
          class: 'chart',
          tabindex: 0,
          role: 'group',
          'aria-roledescription': 'chart of rectangles',
          onkeydown: (event) => this.key(event),
          'aria-label': `${this.title}: ${this.rectangles.length} rectangles. Arrows go from one to the next, plus and minus zoom, 0 shows all. A data table follows.`,
        },
        this.canvas,
        this.readout,
        this.spoken,
      );
      this.node = element(
        'div',
        { class: 'chart-block' },
        this.frame,
        pictureButtons(this.title, () => this.picture()),
      );
      this.observer = new ResizeObserver(() => this.draw());
      this.observer.observe(this.frame);
    }

    /** @param {number} x @returns {number} pixels from the left */
    toX(x) {
      return this.left + ((x - this.view[0]) / (this.view[1] - this.view[0])) * (this.width - this.left - RIGHT);
    }

    /** @param {number} pixels @returns {number} */
    fromX(pixels) {
      return this.view[0] + ((pixels - this.left) / (this.width - this.left - RIGHT)) * (this.view[1] - this.view[0]);
    }

    /** @param {number} y @returns {number} pixels from the top */
    toY(y) {
      const [low, high] = this.yRange;
      return this.height - BOTTOM - ((y - low) / (high - low)) * (this.height - BOTTOM - TOP);
    }

    draw() {
      this.width = this.frame.clientWidth;
      if (this.width < 50) return;
      const ratio = devicePixelRatio || 1;
      this.canvas.width = Math.round(this.width * ratio);
      this.canvas.height = Math.round(this.height * ratio);
      this.canvas.style.height = `${this.height}px`;
      const context = this.canvas.getContext('2d');
      context.scale(ratio, ratio);
      context.font = FONT;
      this.drawAxes(context);
      context.save();
      context.beginPath();
      context.rect(this.left, 0, this.width - this.left - RIGHT, this.height - BOTTOM + 1);
      context.clip();
      const colours = new Map([...new Set(this.rectangles.map((r) => r.colour))].map((name) => [name, colour(name)]));
      const palette = { ink: colour('ink'), page: colour('page') };
      this.rectangles.forEach((r) => this.drawRectangle(context, r, colours.get(r.colour), palette));
      if (this.outline) this.drawOutline(context, palette.ink);
      if (this.dragged) this.drawDragged(context);
      context.restore();
    }

    drawAxes(context) {
      context.lineWidth = 1;
      context.textBaseline = 'middle';
      context.fillStyle = colour('muted');
      context.strokeStyle = colour('grid');
      context.textAlign = 'center';
      for (const x of linearTicks(this.view[0], this.view[1], (this.width - this.left) / 90)) {
        const left = Math.round(this.toX(x)) + 0.5;
        this.strokeLine(context, left, TOP, left, this.height - BOTTOM);
        context.fillText(this.xFormat(x), Math.max(20, Math.min(left, this.width - 24)), this.height - BOTTOM + 13);
      }
      if (!this.yFormat) return;
      context.textAlign = 'right';
      const unit = this.yUnit ?? 1;
      for (const y of linearTicks(this.yRange[0] / unit, this.yRange[1] / unit, this.height / 50).map(
        (tick) => tick * unit,
      )) {
        const top = Math.round(this.toY(y)) + 0.5;
        this.strokeLine(context, this.left, top, this.width - RIGHT, top);
        context.fillText(this.yFormat(y), this.left - 6, top);
      }
    }

    strokeLine(context, x0, y0, x1, y1) {
      context.beginPath();
      context.moveTo(x0, y0);
      context.lineTo(x1, y1);
      context.stroke();
    }

    /** @returns {number[]} left, top, width, height in pixels */
    box(r) {
      const [left, right, top, bottom] = [this.toX(r.x0), this.toX(r.x1), this.toY(r.y1), this.toY(r.y0)];
      return [left, top, Math.max(right - left, 0.5), Math.max(bottom - top, 0.5)];
    }

    drawRectangle(context, r, fillColour, { ink, page }) {
      const [left, top, width, height] = this.box(r);
      if (left + width < this.left || left > this.width) return;
      const isAt = r === this.at;
      context.globalAlpha = isAt ? 0.9 : 0.55;
      context.fillStyle = fillColour;
      context.fillRect(left, top, width, height);
      context.globalAlpha = 1;
      if (width > 2 && height > 2) {
        context.strokeStyle = isAt ? ink : page;
        context.lineWidth = isAt ? 2 : 1;
        context.strokeRect(left + 0.5, top + 0.5, width - 1, height - 1);
      }
      const [from, to] = [Math.max(left, this.left), Math.min(left + width, this.width - RIGHT)];
      if (to - from > MIN_LABELED_WIDTH && height > 12)
        this.drawLabel(context, r.label, from + 4, top + height / 2, to - from - 8, ink);
    }

    drawLabel(context, label, left, middle, room, ink) {
      let text = label;
      if (context.measureText(text).width > room) {
        const each = context.measureText(text).width / text.length;
        text = `${text.slice(0, Math.max(0, Math.floor(room / each) - 1))}…`;
      }
      if (text.length < 3) return;
      context.fillStyle = ink;
      context.textAlign = 'left';
      context.fillText(text, left, middle);
    }

    drawOutline(context, ink) {
      const { x, y } = this.outline;
      context.strokeStyle = ink;
      context.lineWidth = 1.5;
      context.beginPath();
      x.forEach((at, i) => {
        context.lineTo(this.toX(at), this.toY(y[i]));
        context.lineTo(this.toX(at + 1), this.toY(y[i]));
      });
      context.stroke();
    }

    drawDragged(context) {
      const [from, to] = this.dragged;
      context.globalAlpha = 0.15;
      context.fillStyle = colour('ink');
      context.fillRect(Math.min(from, to), TOP, Math.abs(to - from), this.height - BOTTOM - TOP);
      context.globalAlpha = 1;
    }

    /** @returns {SVGElement} the chart as it is shown, with its title */
    picture() {
      const { width, height } = this;
      const unit = this.yUnit ?? 1;
      const yTicks = this.yFormat
        ? linearTicks(this.yRange[0] / unit, this.yRange[1] / unit, height / 50).map((tick) => tick * unit)
        : [];
      const boxes = this.rectangles.map((r) => ({ r, box: this.box(r) }));
      const shown = boxes.filter(({ box: [left, , wide] }) => left + wide >= this.left && left <= width);
      const outline = this.outline?.x.flatMap((at, i) =>
        [at, at + 1].map((x) => [this.toX(x), this.toY(this.outline.y[i])]),
      );
      return sheet(
        width,
        height + TITLE,
        titleNode(this.title),
        svgElement(
          'g',
          { transform: `translate(0 ${TITLE})` },
          linearTicks(this.view[0], this.view[1], (width - this.left) / 90).map((x) =>
            label(this.xFormat(x), { x: this.toX(x), y: height - BOTTOM + 16, 'text-anchor': 'middle' }),
          ),
          yTicks.map((y) => [
            label(this.yFormat(y), { x: this.left - 6, y: this.toY(y) + 4, 'text-anchor': 'end' }),
            svgElement('line', {
              x1: this.left,
              x2: width - RIGHT,
              y1: this.toY(y),
              y2: this.toY(y),
              stroke: colour('grid'),
            }),
          ]),
          svgElement(
            'clipPath',
            { id: 'plot' },
            svgElement('rect', { x: this.left, width: width - this.left - RIGHT, height: height - BOTTOM + 1 }),
          ),
          svgElement(
            'g',
            { 'clip-path': 'url(#plot)' },
            shown.map(({ r, box: [x, y, wide, high] }) => [
              svgElement('rect', {
                x,
                y,
                width: wide,
                height: high,
                fill: colour(r.colour),
                'fill-opacity': 0.55,
                stroke: wide > 2 && high > 2 ? colour('page') : null,
              }),
              wide > MIN_LABELED_WIDTH &&
                high > 12 &&
                wide - 8 > r.label.length * 6.4 &&
                label(r.label, { x: Math.max(x, this.left) + 4, y: y + high / 2 + 4, fill: colour('ink') }),
            ]),
            outline && svgElement('path', { d: path(outline), fill: 'none', stroke: colour('ink'), 'stroke-width': 1.5 }),
          ),
        ),
      );
    }

    /** @param {MouseEvent} event @returns {number[]} */
    point(event) {
      const frame = this.canvas.getBoundingClientRect();
      return [event.clientX - frame.left, event.clientY - frame.top];
    }

    /** @param {MouseEvent} event */
    press(event) {
      const [from] = this.point(event);
      const move = (moved) => {
        this.dragged = [from, this.point(moved)[0]];
        this.draw();
      };
      const release = () => {
        window.removeEventListener('mousemove', move);
        const [left, right] = (this.dragged ?? [from, from]).sort((a, b) => a - b);
        this.dragged = null;
        if (right - left > 4) this.zoom([this.fromX(left), this.fromX(right)]);
        else this.draw();
      };
      window.addEventListener('mousemove', move);
      window.addEventListener('mouseup', release, { once: true });
    }

    /** @param {MouseEvent} event */
    hover(event) {
      if (this.dragged) return;
      const [left, top] = this.point(event);
      const isIn = (r) => {
        const [x, y, width, height] = this.box(r);
        return left >= x && left <= x + Math.max(width, 1.5) && top >= y && top <= y + height;
      };
      this.pick(this.rectangles.findLast(isIn) ?? null, [left, top]);
    }

    /**
     * @param {Rectangle|null} rectangle
     * @param {number[]} [point]
     */
    pick(rectangle, point) {
      const isNew = rectangle !== this.at;
      this.at = rectangle;
      this.readout.hidden = !rectangle;
      if (rectangle) this.showReadout(rectangle, point ?? this.box(rectangle));
      if (isNew) this.draw();
    }

    showReadout(rectangle, [left, top]) {
      fill(
        this.readout,
        element('div', { class: 'readout-head' }, rectangle.label),
        rectangle.details.map((line) => element('div', {}, line)),
      );
      const isRight = left > this.width / 2;
      this.readout.style.left = isRight ? '' : `${Math.max(left, this.left) + 14}px`;
      this.readout.style.right = isRight ? `${Math.max(this.width - left + 14, 0)}px` : '';
      this.readout.style.top = `${Math.max(4, Math.min(top, this.height - 110))}px`;
    }

    /** @param {number[]} range */
    zoom([from, to]) {
      const [low, high] = this.xRange;
      const least = (high - low) * 1e-5;
      this.view = [Math.max(low, from), Math.min(high, Math.max(to, from + least))];
      if (this.view[0] >= this.view[1]) this.view = [low, high];
      this.readout.hidden = true;
      this.draw();
    }

    /** @param {KeyboardEvent} event */
    key(event) {
      if (event.ctrlKey || event.metaKey || event.altKey || this.rectangles.length === 0) return;
      const at = this.at ? this.rectangles.indexOf(this.at) : -1;
      const last = this.rectangles.length - 1;
      const to = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: last }[
        event.key
      ];
      const middle = this.at ? (this.at.x0 + this.at.x1) / 2 : (this.view[0] + this.view[1]) / 2;
      const scaled = (factor) => this.view.map((end) => middle + (end - middle) * factor);
      if (to !== undefined) this.step(this.rectangles[Math.max(0, Math.min(last, to))]);
      else if (event.key === '+' || event.key === '=') this.zoom(scaled(0.5));
      else if (event.key === '-') this.zoom(scaled(2));
      else if (event.key === '0' || event.key === 'Escape') this.zoom(this.xRange);
      else return;
      event.preventDefault();
    }

    /** @param {Rectangle} rectangle */
    step(rectangle) {
      const [from, to] = this.view;
      if (rectangle.x1 < from || rectangle.x0 > to) {
        const middle = (rectangle.x0 + rectangle.x1) / 2;
        this.zoom([middle - (to - from) / 2, middle + (to - from) / 2]);
      }
      this.pick(rectangle);
      this.spoken.textContent = [rectangle.label, ...rectangle.details].join('; ');
    }

    destroy() {
      this.observer.disconnect();
    }
  }

  /**
   * Returns a legend of colors.
   * @param {{colour: string, text: string}[]} entries
   * @returns {HTMLElement}
   */
  function colorLegend(entries) {
    return element(
      'ul',
      { class: 'colours' },
      entries.map(({ colour: name, text }) => element('li', {}, element('span', { class: `swatch ${name}` }), text)),
    );
  }

  xrun.rectangles = { RectangleChart, colorLegend };
})();
