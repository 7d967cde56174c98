/** The planned memory over a step: where each tensor lies, and from which node to which. */
(() => {
  'use strict';

  const { choice, element, fill, plainTable, scrolling } = xrun.dom;
  const { byteUnit, bytes, counted, visible } = xrun.text;
  const { RectangleChart, colorLegend } = xrun.rectangles;

  /** Tensors in the data table. */
  const LISTED = 100;

  const KINDS = {
    kept: { colour: 'series-0', text: 'kept from forward to backward' },
    forward: { colour: 'series-2', text: 'within the forward' },
    backward: { colour: 'series-1', text: 'within the backward' },
    other: { colour: 'series-3', text: 'elsewhere' },
  };

  /**
   * Returns what a block is alive for, judging by the phases of its first and last nodes.
   * @param {Object} block
   * @param {{phase: string}[]} nodes
   * @returns {string}
   */
  function kindOf(block, nodes) {
    const [birth, death] = [nodes[block.birth]?.phase, nodes[block.death]?.phase];
    if (birth === 'forward') return death === 'forward' ? 'forward' : 'kept';
    return birth === 'backward' && death === 'backward' ? 'backward' : 'other';
  }

  /**
   * @param {number} index
   * @param {Object[]} nodes
   * @returns {string}
   */
  function nodeText(index, nodes) {
    const node = nodes[index];
    return node ? `${index} ${visible(node.op)} (${visible(node.scope)}, ${visible(node.phase)})` : String(index);
  }

  /**
   * @param {Object} block
   * @param {Object} section
   * @returns {import('./rectangles.js').Rectangle}
   */
  function rectangleOf(block, section) {
    const also = block.also ?? [];
    return {
      x0: block.birth,
      x1: block.death + 1,
      y0: block.offset,
      y1: block.offset + block.bytes,
      label: visible(block.tensor),
      colour: KINDS[kindOf(block, section.nodes)].colour,
      details: [
        `${bytes(block.bytes)}, ${visible(block.spec ?? '')}`,
        `from node ${nodeText(block.birth, section.nodes)}`,
        `to node ${nodeText(block.death, section.nodes)}`,
        also.length > 0 && `later in its place: ${also.map(visible).join(', ')}`,
      ].filter(Boolean),
    };
  }

  /**
   * Returns the chart of a section.
   * @param {Object} section
   * @returns {RectangleChart}
   */
  function sectionChart(section) {
    const rectangles = section.blocks
      .map((block) => rectangleOf(block, section))
      .sort((a, b) => a.x0 - b.x0 || a.y0 - b.y0);
    const alive = section.alive ?? [];
    const highest = Math.max(section.arena_bytes, section.peak_bytes, 1);
    return new RectangleChart({
      title: `Memory of ${visible(section.name)}`,
      height: 380,
      xRange: [0, Math.max(1, section.nodes.length)],
      yRange: [0, highest],
      yUnit: byteUnit(highest).unit,
      xFormat: (x) => String(x),
      yFormat: bytes,
      rectangles,
      outline: alive.length > 0 ? { x: alive.map((_, i) => i), y: alive } : undefined,
    });
  }

  /**
   * @param {Object} section
   * @returns {HTMLElement}
   */
  function sectionTable(section) {
    const largest = [...section.blocks].sort((a, b) => b.bytes - a.bytes).slice(0, LISTED);
    const heads = [
      { text: 'tensor' },
      { text: 'format and shape' },
      { text: 'size', number: true },
      { text: 'offset', number: true },
      { text: 'from node' },
      { text: 'to node' },
    ];
    const rows = largest.map((block) => [
      visible(block.tensor),
      visible(block.spec ?? ''),
      bytes(block.bytes),
      bytes(block.offset),
      nodeText(block.birth, section.nodes),
      nodeText(block.death, section.nodes),
    ]);
    return element(
      'details',
      { class: 'data-table' },
      element(
        'summary',
        {},
        `Data table: ${largest.length === section.blocks.length ? 'all' : 'the largest'} ${counted(largest.length, 'tensor')}`,
      ),
      scrolling('Tensors', plainTable(`Tensors of ${visible(section.name)}, the largest first`, heads, rows)),
    );
  }

  /**
   * Returns the sizes of the buffers that outlive a step.
   * @param {Object} memory
   * @returns {HTMLElement}
   */
  function stateTable(memory) {
    const rows = memory.state.map((buffer) => [visible(buffer.name), bytes(buffer.bytes)]);
    rows.push(
      ['state together', bytes(memory.state_bytes)],
      [`transient, ${visible(memory.placement)}`, bytes(memory.peak_bytes - memory.state_bytes)],
      ['peak', bytes(memory.peak_bytes)],
    );
    return plainTable('Planned memory of a rank', [{ text: 'buffer' }, { text: 'size', number: true }], rows);
  }

  /** The planned memory of a run. */
  class MemoryView {
    constructor() {
      this.node = element('div', {});
      this.section = '';
    }

    /** @param {Object} memory the response of `api/memory` */
    show(memory) {
      this.memory = memory;
      this.chart?.destroy();
      const names = memory.sections.map(({ name }) => name);
      const section = memory.sections.find(({ name }) => name === this.section) ?? memory.sections[0];
      if (!section) {
        fill(this.node, element('p', {}, visible(memory.note ?? 'The plan has no transient tensors.')));
        return;
      }
      this.chart = sectionChart(section);
      const peak =
        `The peak is at node ${nodeText(section.peak_node, section.nodes)}: ${bytes(section.peak_bytes)} alive in an arena of ${bytes(section.arena_bytes)}. ` +
        'The line shows how much is alive.';
      fill(
        this.node,
        element(
          'div',
          { class: 'bar controls' },
          choice(
            'Program',
            names.map((name) => ({ value: name, text: visible(name) })),
            section.name,
            (name) => {
              this.section = name;
              this.show(memory);
            },
          ),
          colorLegend(Object.values(KINDS)),
        ),
        memory.note && element('p', { class: 'muted' }, visible(memory.note)),
        element(
          'p',
          { class: 'muted' },
          peak,
          section.left_out ? ` ${counted(section.left_out, 'small tensor')} left out.` : '',
        ),
        element(
          'section',
          { class: 'panel' },
          this.chart.node,
          element(
            'p',
            { class: 'axis-note muted' },
            'nodes of the program, in order; height is the offset in the arena',
          ),
          sectionTable(section),
        ),
        element('h3', {}, 'What a rank holds'),
        stateTable(memory),
      );
    }

    redraw() {
      this.chart?.draw();
    }
  }

  xrun.memory = { MemoryView };
})();
