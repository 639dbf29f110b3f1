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

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 820, 400, 50, 70, 40
COLOURS = ("#1f6feb", "#2da44e", "#bf8700", "#8250df", "#0a7ea4", "#57606a")


def read(path: Path) -> list[dict[str, Any]]:
    """The lines of the log of losses; without one that was cut off when its rank was killed."""
    found = []
    for line in path.read_text(encoding="ascii").splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def draw(run: dict[str, Any], lines: list[dict[str, Any]]) -> str:
    """The picture."""
    steps = float(max(line["step"] for line in lines))
    highest = float(max(line["loss"] for line in lines))

    def x(step: float) -> float:
        return round(LEFT + step / steps * (WIDTH - LEFT - 20), 1)

    def y(loss: float) -> float:
        return round(TOP + (1 - loss / highest) * (HEIGHT - TOP - BOTTOM), 1)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="11">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="16" font-size="13">{escape(run["name"])}: loss by step, and what has ended attempts</text>',
    ]
    for loss in range(int(highest) + 1):
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - 20}" y1="{y(loss)}" y2="{y(loss)}" stroke="#d8dee4"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y(loss) + 4}" text-anchor="end">{loss}</text>')
    for part in range(6):
        step = int(steps * part // 5)
        parts.append(f'<text x="{x(step)}" y="{HEIGHT - 18}" text-anchor="middle">{step}</text>')
    for index, (_attempt, group) in enumerate(groupby(lines, key=lambda line: line["attempt"])):
        points = " ".join(f"{x(line['step'])},{y(line['loss'])}" for line in group)
        colour = COLOURS[index % len(COLOURS)]
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.3"/>')
    ended = [one for one in run["attempts"] if one["cause"] and one["cause"]["kind"] != "finished" and one["last"]]
    for index, attempt in enumerate(ended):
        cause, place = attempt["cause"], x(attempt["last"])
        words = f"{attempt['number']}: {cause['kind']}"
        if cause["rank"] is not None:
            words += f", rank {cause['rank']}"
        if cause["node"]:
            words += f" {cause['node']}" if cause["kind"] == "node" else f" on {cause['node']}"
        height = TOP - 32 + 13 * (index % 3)
        # A word that would not fit on the right is on the left of its line.
        left = place > WIDTH * 0.7
        anchor, shift = ("end", -4) if left else ("start", 4)
        parts.append(
            f'<line x1="{place}" x2="{place}" y1="{height - 8}" y2="{HEIGHT - BOTTOM}" stroke="#cf222e" '
            'stroke-dasharray="4 3"/>'
        )
        parts.append(
            f'<text x="{place + shift}" y="{height}" text-anchor="{anchor}" fill="#cf222e">{escape(words)}</text>'
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
