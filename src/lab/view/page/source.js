/** Where documents come from: the server, or the page itself if it is a self-contained file. */
(() => {
  'use strict';

  /**
   * Returns an address below `api/`, with every part of the name escaped.
   * @param {string} name such as `run/quickstart/20261124T101112Z-0123abcd`
   * @param {[string, string|number|null][]} parameters null values are left out
   * @returns {string}
   */
  function address(name, parameters) {
    const path = name.split('/').map(encodeURIComponent).join('/');
    const given = parameters.filter(([, value]) => value !== null);
    const query = given.map(([key, value]) => `${key}=${encodeURIComponent(value)}`).join('&');
    return query ? `api/${path}?${query}` : `api/${path}`;
  }

  /** Documents of a server. */
  class ServedDocuments {
    constructor() {
      this.isEmbedded = false;
      this.about = null;
    }

    /**
     * @param {string} name
     * @param {[string, string|number|null][]} [parameters]
     * @returns {Promise<any>}
     */
    async get(name, parameters = []) {
      const response = await fetch(address(name, parameters), { cache: 'no-store', credentials: 'same-origin' });
      if (response.status === 403)
        throw new Error('The server does not know this browser: open the address that xrun view printed again.');
      const value = await response.json().catch(() => null);
      if (!response.ok || value === null)
        throw new Error(value?.error ?? `The server answered ${response.status} for ${name}.`);
      return value;
    }
  }

  /** Documents inside the page. They are complete; the page itself applies parameters. */
  class EmbeddedDocuments {
    /** @param {{documents: Object<string, any>, includes: string[], leaves_out: string[], made: string}} embedded */
    constructor(embedded) {
      this.isEmbedded = true;
      this.about = embedded;
    }

    /**
     * @param {string} name
     * @returns {Promise<any>}
     */
    async get(name) {
      if (Object.hasOwn(this.about.documents, name)) return this.about.documents[name];
      throw new Error('This file does not contain it.');
    }
  }

  /**
   * Returns the source of the page's documents.
   * @returns {ServedDocuments|EmbeddedDocuments}
   */
  function openSource() {
    const embedded = document.getElementById('documents');
    return embedded ? new EmbeddedDocuments(JSON.parse(embedded.textContent)) : new ServedDocuments();
  }

  xrun.source = { openSource };
})();
