#!/usr/bin/env python3
"""Compares the steps of one sitting in bf16 and fp8 by the model's width, as a table and as a picture.

    python3 scripts/fp8_widths.py results/measured/fp8-2026-11-30/widths --out docs/pictures/fp8-widths.svg

Reads `timing.csv` of runs, named t-SHAPE-PRODUCTS-NUMBER.csv, where PRODUCTS is `bf16`, or says which products read
8-bit floats. A run's time is the mean of its steps from the third to the last but two, because the last two are reported
when they have long been computed. Runs of the same name are averaged.
"""

import argparse
import csv
import math
import statistics
from collections import defaultdict
from pathlib import Path

# Width and description of each shape.
SHAPES = {
    "d256": (256, "256"),
    "d384": (384, "384"),
    "d512": (512, "512"),
    "d640": (640, "640"),
    "base": (768, "base-160m"),
    "q05": (896, "Qwen2.5-0.5B's"),
    "q06": (1024, "Qwen3-0.6B's"),
    "q15": (1536, "Qwen2.5-1.5B's"),
    "d20": (2048, "2,048, 20 blocks"),
    "q3": (2048, "Qwen2.5-3B's"),
}
SERIES = {"all": "all products", "blocks": "the products of the blocks", "feed_forward": "feed-forward layers"}
LEFT, TOP, WIDTH, HEIGHT = 56, 32, 560, 280
BOTTOM_MARGIN = 84
STYLE = """
text { font: 12px sans-serif; fill: #333 } .grid { stroke: #ddd } .even { stroke: #888; stroke-width: 1.5 }
.all { color: #0b6e99 } .blocks { color: #c2571a } .feed_forward { color: #5b8a3c }
polyline { fill: none; stroke: currentColor; stroke-width: 2 } circle { fill: currentColor }
@media (prefers-color-scheme: dark) {
 text { fill: #ccc } .grid { stroke: #444 } .all { color: #5cb8e6 } .blocks { color: #f0965a } .feed_forward { color: #9acb78 }
}"""


def step_ms(path: Path) -> float:
    """Returns the mean time of a run's steps."""
    with path.open(newline="") as file:
        times = [float(row["step_ms"]) for row in csv.DictReader(file) if row["phase"] in ("warmup", "train")]
    steps = times[2:-2]
    if not steps:
        raise SystemExit(f"{path}: {len(times)} steps, but the mean takes at least five")
    return statistics.mean(steps)


def measured(folder: Path) -> dict[str, dict[str, float]]:
    """Returns the time of a step by shape and products."""
    runs: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for path in sorted(folder.glob("t-*.csv")):
        _, shape, products, _ = path.stem.split("-")
        runs[shape][products].append(step_ms(path))
    shapes = sorted(runs, key=lambda shape: SHAPES[shape][0])
    return {shape: {name: statistics.mean(times) for name, times in runs[shape].items()} for shape in shapes}


def table(times: dict[str, dict[str, float]], tokens: int) -> str:
    """Formats the times as a table in Markdown."""
    lines = ["| shape | bf16, tok/s | " + " | ".join(f"{name}, ratio" for name in SERIES.values()) + " |"]
    lines.append("|---|" + "--:|" * (1 + len(SERIES)))
    for shape, by_products in times.items():
        bf16 = by_products["bf16"]
        ratios = [f"{bf16 / by_products[name]:.3f}" if name in by_products else "" for name in SERIES]
        rate = round(tokens / bf16 * 1e3, -2)
        lines.append(f"| {SHAPES[shape][1]} | {rate:,.0f} | " + " | ".join(ratios) + " |")
    return "\n".join(lines)


def picture(times: dict[str, dict[str, float]]) -> str:
    """Draws the ratios over the width, on a logarithmic axis."""
    ratios = {
        name: [(SHAPES[s][0], by["bf16"] / by[name]) for s, by in times.items() if name in by] for name in SERIES
    }
    widths = sorted({SHAPES[shape][0] for shape in times})
    low = math.floor(min(ratio for points in ratios.values() for _, ratio in points) * 10) / 10
    high = math.ceil(max(ratio for points in ratios.values() for _, ratio in points) * 10) / 10
    span = math.log(widths[-1] / widths[0])

    def x(width: float) -> float:
        return LEFT + WIDTH * math.log(width / widths[0]) / span

    def y(ratio: float) -> float:
        return TOP + HEIGHT * (high - ratio) / (high - low)

    parts = []
    for tenth in range(round(low * 10), round(high * 10) + 1):
        at = y(tenth / 10)
        kind = "even" if tenth == 10 else "grid"
        parts.append(f'<line class="{kind}" x1="{LEFT}" x2="{LEFT + WIDTH}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{tenth / 10:.1f}</text>')
    for width in widths:
        parts.append(f'<text x="{x(width):.1f}" y="{TOP + HEIGHT + 18}" text-anchor="middle">{width:,}</text>')
    parts.append(f'<text x="{LEFT}" y="14">tokens per second in fp8 over those in bf16</text>')
    middle = LEFT + WIDTH / 2
    parts.append(f'<text x="{middle}" y="{TOP + HEIGHT + 36}" text-anchor="middle">width of the model</text>')
    for k, (name, says) in enumerate(SERIES.items()):
        points = " ".join(f"{x(width):.1f},{y(ratio):.1f}" for width, ratio in ratios[name])
        circles = "".join(f'<circle cx="{x(w):.1f}" cy="{y(r):.1f}" r="3.5"/>' for w, r in ratios[name])
        at, line = LEFT + 190 * k, TOP + HEIGHT + 62
        key = f'<circle cx="{at}" cy="{line - 4}" r="3.5"/><text x="{at + 10}" y="{line}">{says}</text>'
        parts.append(f'<g class="{name}"><polyline points="{points}"/>{circles}{key}</g>')
    size = f'viewBox="0 0 {LEFT + WIDTH + 24} {TOP + HEIGHT + BOTTOM_MARGIN}"'
    title = "<title>Tokens per second in fp8 over those in bf16</title>"
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" {size}>', title, f"<style>{STYLE}</style>", *parts, "</svg>", ""])


def main() -> None:
    """Prints the table and writes the picture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder of timings")
    parser.add_argument("--tokens", type=int, default=131_072, help="tokens per step")
    parser.add_argument("--out", type=Path, help="file for the picture")
    args = parser.parse_args()
    times = measured(args.folder)
    print(table(times, args.tokens))
    if args.out:
        args.out.write_text(picture(times))


main()
