/**
 * Documents of runs, fetched once per version of a run; documents that follow from its plan are fetched once.
 */
(() => {
  'use strict';

  /** Most documents to keep. */
  const KEPT = 200;

  /** Documents that follow from a run's plan, so they stay the same while it trains. */
  const PLAN_DOCUMENTS = ['memory', 'model'];

  /** Documents by name, parameters and version. */
  class RunDocuments {
    /** @param {{get: Function, isEmbedded: boolean}} source */
    constructor(source) {
      this.source = source;
      /** @type {Map<string, Promise<any>>} */
      this.kept = new Map();
    }

    /**
     * Returns a document of a run, such as `log` of `quickstart/2026…`.
     * @param {string} kind
     * @param {{id: string, version: string}} run
     * @param {[string, string|number|null][]} [parameters]
     * @returns {Promise<any>}
     */
    get(kind, run, parameters = []) {
      const version = PLAN_DOCUMENTS.includes(kind) ? null : run.version;
      const key = JSON.stringify([kind, run.id, version, parameters]);
      const found = this.kept.get(key) ?? this.source.get(`${kind}/${run.id}`, parameters);
      this.kept.delete(key);
      this.kept.set(key, found);
      found.catch(() => this.kept.delete(key));
      if (this.kept.size > KEPT) this.kept.delete(this.kept.keys().next().value);
      return found;
    }
  }

  xrun.run_documents = { PLAN_DOCUMENTS, RunDocuments };
})();
