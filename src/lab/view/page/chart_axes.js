/** Ticks and ranges of axes. */
(() => {
  'use strict';

  /**
   * Returns ticks of a linear axis at 1, 2 or 5 times a power of ten.
   * @param {number} from
   * @param {number} to
   * @param {number} most
   * @returns {number[]}
   */
  function linearTicks(from, to, most) {
    const raw = (to - from) / Math.max(1, most);
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw * (1 - 1e-9));
    const ticks = [];
    for (let k = Math.ceil(from / step - 1e-9); k * step <= to * (1 + 1e-12) + 1e-300 && ticks.length < 100; k++) {
      ticks.push(Number((k * step).toPrecision(12)));
    }
    return ticks;
  }

  /**
   * Returns ticks of a logarithmic axis. Below a factor of five they are evenly spaced. Returns none if the
   * range has no logarithm.
   * @param {number} from
   * @param {number} to
   * @param {number} most
   * @returns {number[]}
   */
  function logTicks(from, to, most) {
    if (!(from > 0) || !Number.isFinite(to)) return [];
    if (to / from < 5) return linearTicks(from, to, most).filter((tick) => tick > 0);
    const decades = Math.log10(to / from);
    const parts = decades * 3 <= most ? [1, 2, 5] : decades * 2 <= most ? [1, 3] : [1];
    const stride = Math.max(1, Math.ceil(decades / Math.max(1, most)));
    const ticks = [];
    for (let power = Math.floor(Math.log10(from)); power <= Math.ceil(Math.log10(to)); power++) {
      if (power % stride === 0) ticks.push(...parts.map((part) => Number((part * 10 ** power).toPrecision(12))));
    }
    return ticks.filter((tick) => tick >= from * (1 - 1e-9) && tick <= to * (1 + 1e-9));
  }

  /**
   * Returns the range of an axis around values, with some room.
   * @param {number|null} low
   * @param {number|null} high
   * @param {boolean} isLog
   * @returns {number[]}
   */
  function padded(low, high, isLog) {
    if (low === null || high === null || !Number.isFinite(low) || !Number.isFinite(high))
      return isLog ? [0.1, 1] : [0, 1];
    if (isLog) {
      const room = low === high ? 1.1 : (high / low) ** 0.04;
      return [low / room, high * room];
    }
    const room = low === high ? Math.abs(low) * 0.05 || 1 : (high - low) * 0.05;
    const isAboveZero = low >= 0 && low - room < 0;
    return [isAboveZero ? 0 : low - room, high + room];
  }

  xrun.chart_axes = { linearTicks, logTicks, padded };
})();
