/** A page with a list and the document chosen in it: comparisons, sweeps, coordinates. */
(() => {
  'use strict';

  const { element, fill } = xrun.dom;
  const { visible } = xrun.text;

  /** A list and a document. */
  class DocumentsPage {
    /**
     * @param {Object} options
     * @param {import('./address.js').ViewState} options.state
     * @param {{get: Function}} options.source
     * @param {string} options.list the list's document, such as `sweeps`
     * @param {string} options.one the document of one entry, such as `sweep`
     * @param {string} options.none text for an empty list
     * @param {(rows: Object[], chosen: string, onChoice: (id: string) => void) => HTMLElement} options.listNode
     * @param {(found: Object) => HTMLElement} options.documentNode
     * @param {() => void} [options.attached] called once the document is in the page
     */
    constructor(options) {
      Object.assign(this, { attached: () => {}, wanted: 0 }, options);
      this.side = element('nav', { class: 'side', 'aria-label': this.list });
      this.body = element('div', { class: 'document-body' });
      this.node = element('div', { class: 'with-side' }, this.side, this.body);
    }

    /** Fetches the list and the chosen document again, and shows them. */
    async refresh() {
      const wanted = ++this.wanted;
      try {
        const rows = (await this.source.get(this.list))[this.list];
        const chosen =
          rows.find(({ id }) => id === this.state.view.id) ?? rows.find(({ damaged }) => !damaged) ?? rows[0];
        const found = chosen && !chosen.damaged ? await this.source.get(`${this.one}/${chosen.id}`) : null;
        if (wanted === this.wanted) this.show(rows, chosen, found);
      } catch (error) {
        if (wanted === this.wanted) this.say(error.message);
      }
    }

    show(rows, chosen, found) {
      Object.assign(this, { rows, chosen, found });
      const focused = [...this.side.querySelectorAll('button')].indexOf(document.activeElement);
      const choose = (id) => this.state.change({ id, figure: '', keys: [] });
      const damaged = rows.filter((row) => row.damaged);
      fill(
        this.side,
        this.listNode(
          rows.filter((row) => !row.damaged),
          chosen?.id ?? '',
          choose,
        ),
        damaged.map((row) => element('p', { class: 'muted damaged' }, `${visible(row.id)}: ${visible(row.damaged)}`)),
      );
      if (focused >= 0) this.side.querySelectorAll('button')[focused]?.focus();
      if (!found) this.say(chosen?.damaged ?? this.none);
      else this.showDocument();
    }

    /** Shows the document again after its view has changed. */
    showDocument() {
      if (!this.found) return;
      const fields = () => [...this.body.querySelectorAll('button, select, input')];
      const focused = fields().indexOf(document.activeElement);
      const open = [...this.body.querySelectorAll('details')].map((details) => details.open);
      const isSame = this.shownId === this.found.id;
      fill(this.body, this.documentNode(this.found));
      if (isSame)
        this.body.querySelectorAll('details').forEach((details, i) => {
          details.open = open[i] ?? details.open;
        });
      if (isSame && focused >= 0) fields()[focused]?.focus();
      this.shownId = this.found.id;
      this.attached();
    }

    /** @param {string} text */
    say(text) {
      this.shownId = null;
      fill(this.body, element('p', { class: 'empty muted', role: 'status' }, visible(text)));
    }
  }

  xrun.documents_page = { DocumentsPage };
})();
