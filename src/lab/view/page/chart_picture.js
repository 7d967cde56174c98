/** A line chart of the page as a picture. */
(() => {
  'use strict';

  const { lineChart } = xrun.picture_files;

  /**
   * Returns a line chart as it is shown, with a title and a legend; null before it is drawn.
   * @param {import('./chart.js').Chart} chart
   * @returns {?SVGElement}
   */
  function chartPicture(chart) {
    const u = chart.uplot;
    if (!u) return null;
    const at = (value, scale) => u.valToPos(value, scale);
    const pixels = (series) => series.x.map((x, i) => [at(x, 'x'), series.y[i] === null ? NaN : at(series.y[i], 'y')]);
    const ticks = (side) => {
      const { min, max } = u.scales[side === 0 ? 'x' : 'y'];
      const axis = chart.axis(...chart.axisOf(side));
      const found = axis.splits(u, side, min, max);
      const texts = axis.values(u, found);
      return found.map((tick, i) => ({ at: at(tick, side === 0 ? 'x' : 'y'), text: texts[i] }));
    };
    const drawn = chart.series.map((series, i) => ({ series, points: pixels(series), i }));
    const outline = (i) => [...drawn[i + 1].points, ...[...drawn[i + 2].points].reverse()];
    return lineChart({
      title: chart.unit ? `${chart.title} (${chart.unit})` : chart.title,
      xLabel: chart.axes.xLabel,
      width: u.width,
      height: u.height,
      box: {
        left: u.bbox.left / devicePixelRatio,
        top: u.bbox.top / devicePixelRatio,
        width: u.bbox.width / devicePixelRatio,
        height: u.bbox.height / devicePixelRatio,
      },
      xTicks: ticks(0),
      yTicks: ticks(1),
      lines: drawn.filter(({ series }) => !series.isBand),
      bands: drawn
        .filter(({ series }) => series.deviation)
        .map(({ series, i }) => ({
          slot: series.slot,
          outline: outline(i).filter((point) => point.every(Number.isFinite)),
        })),
    });
  }

  xrun.chart_picture = { chartPicture };
})();
