"""Draw the loss of a run, with what has ended its attempts.

python3 plot.py /mnt/shared/alice/runs/gpt loss.svg
"""

from __future__ import annotations

import json
import sys
from itertools import groupby
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 820, 400, 62, 82, 58
#: The colours of lines on a light background, and on a dark one.
COLOURS = ("#1f6feb", "#1a7f37", "#9a6700", "#8250df", "#0a7ea4", "#57606a")
DARK_COLOURS = ("#58a6ff", "#3fb950", "#d29922", "#bc8cff", "#39c5cf", "#9198a1")
STYLE = """\
text { fill: #1f2328; } .soft { fill: #59636e; } .paper { fill: #ffffff; } .grid { stroke: #d8dee4; }
.end { stroke: #cf222e; } text.end { fill: #cf222e; stroke: none; font-weight: 600; }
"""
DARK_STYLE = """\
text { fill: #f0f6fc; } .soft { fill: #9198a1; } .paper { fill: #0d1117; } .grid { stroke: #2f353d; }
.end { stroke: #ff7b72; } text.end { fill: #ff7b72; stroke: none; }
"""


def read(path: Path) -> list[dict[str, Any]]:
    """The lines of the log of losses; without one that was cut off when its rank was killed."""
    found = []
    for line in path.read_text(encoding="ascii").splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def style() -> str:
    """The colours, for a light and for a dark background."""

    def strokes(colours: tuple[str, ...]) -> str:
        return "\n".join(f".line{index} {{ stroke: {colour}; }}" for index, colour in enumerate(colours))

    dark = f"{DARK_STYLE}{strokes(DARK_COLOURS)}"
    return f"{STYLE}{strokes(COLOURS)}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}\n"


def spacing(steps: float) -> int:
    """A round number of steps between two ticks, of which there are up to seven."""
    scale = 10 ** (len(str(int(steps) // 6)) - 1)
    return next(scale * factor for factor in (1, 2, 5, 10) if scale * factor * 6 >= steps)


def draw(run: dict[str, Any], lines: list[dict[str, Any]]) -> str:
    """The picture."""
    steps = float(max(line["step"] for line in lines))
    highest = float(max(line["loss"] for line in lines))

    def x(step: float) -> float:
        return round(LEFT + step / steps * (WIDTH - LEFT - 20), 1)

    def y(loss: float) -> float:
        return round(TOP + (1 - loss / highest) * (HEIGHT - TOP - BOTTOM), 1)

    title = f"{escape(run['name'])}: the loss in each attempt, and what ended the attempts"
    middle = (TOP + HEIGHT - BOTTOM) // 2
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="13">',
        f"<style>\n{style()}</style>",
        f'<rect class="paper" width="{WIDTH}" height="{HEIGHT}"/>',
        f'<text x="16" y="26" font-size="15" font-weight="600">{title}</text>',
        f'<text class="soft" x="{(LEFT + WIDTH - 20) // 2}" y="{HEIGHT - 12}" text-anchor="middle">training step</text>',
        f'<text class="soft" transform="translate(24 {middle}) rotate(-90)" text-anchor="middle">training loss</text>',
    ]
    for loss in range(int(highest) + 1):
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - 20}" y1="{y(loss)}" y2="{y(loss)}"/>')
        parts.append(f'<text class="soft" x="{LEFT - 8}" y="{y(loss) + 4}" text-anchor="end">{loss}</text>')
    parts += [
        f'<text class="soft" x="{x(step)}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{step}</text>'
        for step in range(0, int(steps) + 1, spacing(steps))
    ]
    for index, (_attempt, group) in enumerate(groupby(lines, key=lambda line: line["attempt"])):
        points = " ".join(f"{x(line['step'])},{y(line['loss'])}" for line in group)
        parts.append(f'<polyline class="line{index % len(COLOURS)}" points="{points}" fill="none" stroke-width="1.5"/>')
    ended = [one for one in run["attempts"] if one["cause"] and one["cause"]["kind"] != "finished" and one["last"]]
    for index, attempt in enumerate(ended):
        cause, place = attempt["cause"], x(attempt["last"])
        words = f"attempt {attempt['number']}: {cause['kind']}"
        if cause["rank"] is not None:
            words += f", rank {cause['rank']}"
        if cause["node"]:
            words += f" {cause['node']} lost" if cause["kind"] == "node" else f" on {cause['node']}"
        height = TOP - 30 + 16 * (index % 3)
        # A word that would not fit on the right is on the left of its line.
        left = place > WIDTH * 0.7
        anchor, shift = ("end", -4) if left else ("start", 4)
        parts.append(
            f'<line class="end" x1="{place}" x2="{place}" y1="{height - 10}" y2="{HEIGHT - BOTTOM}" '
            'stroke-dasharray="4 3"/>'
        )
        parts.append(
            f'<text class="end" x="{place + shift}" y="{height}" text-anchor="{anchor}">{escape(words)}</text>'
        )
    return "\n".join([*parts, "</svg>", ""])


def main() -> None:
    """Read the directory of a run, and write the picture."""
    if len(sys.argv) != 3:
        sys.exit("usage: plot.py RUN_DIRECTORY OUTPUT")
    folder = Path(sys.argv[1])
    run = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    Path(sys.argv[2]).write_text(draw(run, read(folder / "loss.jsonl")), encoding="utf-8")


if __name__ == "__main__":
    main()
