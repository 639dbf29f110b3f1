# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""docs/pictures: what it does to the text of the guides, and the pictures that it has made."""

from __future__ import annotations

import importlib.util
import re
import struct
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path
from types import ModuleType

import pytest
from lab_hosts import ROOT

IMAGES, GUIDES = ROOT / "docs" / "images", ROOT / "docs" / "guides"
DOCUMENTS = [ROOT / "README.md", ROOT / "docs" / "index.md", *sorted(GUIDES.glob("*.md"))]
#: The most that a picture adds to a page, and the least that is legible where pages are scaled to a column.
MAX_BYTES, MIN_WIDTH = 250_000, 1400
TEXT = """\
Type

```console
$ gpumesh-train --name gpt --nodes 3 -- \\
    python3 train.py --steps 280
gpt: queued
gpt: finished
$ gpumesh-train logs gpt
old line
another
$ gpumesh-trace slow
a step
$ gpumesh-trace slow even
```

And $ gpumesh-train logs gpt is not a command here.
"""


@pytest.fixture(name="pictures", scope="module")
def _pictures() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pictures", ROOT / "docs" / "pictures.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def picture_names(pictures: ModuleType) -> set[str]:
    """The files that docs/pictures makes."""
    pages = [f"{name}{suffix}.png" for name in pictures.PICTURES if name != "train" for suffix in ("", "-dark")]
    return {*pages, "train.svg"}


def svg_texts(path: Path) -> list[str]:
    root = ET.fromstring(path.read_text(encoding="utf-8"))
    return ["".join(element.itertext()) for element in root.iter() if element.tag.endswith("}text")]


def test_the_output_of_a_command_is_replaced(pictures: ModuleType) -> None:
    replaced = pictures.replace_output(TEXT, "gpumesh-train logs gpt", "new line\n")
    assert replaced == TEXT.replace("old line\nanother\n", "new line\n")
    replaced = pictures.replace_output(TEXT, "gpumesh-trace slow\n", "new step")
    assert replaced == TEXT.replace("a step\n", "new step\n")
    replaced = pictures.replace_output(TEXT, "gpumesh-train --name gpt", "a \\1\nb")
    assert replaced == TEXT.replace("gpt: queued\ngpt: finished\n", "a \\1\nb\n")


@pytest.mark.parametrize("start", ["gpumesh-train show", "gpumesh-train"])
def test_a_command_that_is_not_there_once_is_an_error(pictures: ModuleType, start: str) -> None:
    with pytest.raises(SystemExit, match=f"begin with '{start}'"):
        pictures.replace_output(TEXT, start, "")


def test_a_long_output_is_shortened_to_its_attempts(pictures: ModuleType) -> None:
    output = """\
gpt: queued · job 8 · pending
gpt: job 8 on gpu2, gpu1
gpt: job 8 on gpu2, gpu1
gpt: job 8 on gpu2, gpu1 · reports no steps, so a hang would not be noticed
gpt: job 8 on gpu2, gpu1 · step 4 of 9
gpt: job 8 on gpu2, gpu1 · step 5 of 9 · loss 2
gpt: job 8 on gpu2, gpu1 · attempt 1 has ended: crash
gpt: job 8 on gpu1 · attempt 2
gpt: job 8 on gpu1 · step 6 of 9 · attempt 2
gpt: job 8 on gpu1 · step 8 of 9 · attempt 2
gpt: finished · step 9 of 9
"""
    assert pictures.shorten_progress(output).splitlines() == [output.splitlines()[line] for line in (0, 1, 5, 9, 10)]


def test_each_picture_is_made_by_the_program_and_shown(pictures: ModuleType) -> None:
    assert {path.name for path in IMAGES.iterdir()} == {*picture_names(pictures), "architecture.svg"}
    shown = {
        name
        for document in DOCUMENTS
        for name in re.findall(r"images/([\w-]+\.(?:png|svg))", document.read_text(encoding="utf-8"))
    }
    assert shown == {path.name for path in IMAGES.iterdir()}


def test_pictures_are_small_and_wide_and_both_schemes_have_one_size(pictures: ModuleType) -> None:
    sizes = {}
    for name in picture_names(pictures):
        data = (IMAGES / name).read_bytes()
        assert len(data) < MAX_BYTES, name
        if name.endswith(".png"):
            assert data.startswith(b"\x89PNG\r\n\x1a\n"), name
            sizes[name] = struct.unpack(">II", data[16:24])
            assert sizes[name][0] >= MIN_WIDTH, name
    assert all(sizes[name] == sizes[name.replace("-dark", "")] for name in sizes)


def test_the_loss_curve_has_axis_titles_a_dark_mode_and_what_the_guide_says_of_the_run() -> None:
    path = IMAGES / "train.svg"
    texts = svg_texts(path)
    assert {"training step", "training loss"} <= set(texts)
    assert "prefers-color-scheme: dark" in path.read_text(encoding="utf-8")
    guide = (GUIDES / "train.md").read_text(encoding="utf-8")
    told = re.findall(r"^  (\d+): .* · (crash|hang|node): (?:rank (\d+) )?.*?(gpu\d)", guide, re.MULTILINE)
    assert [kind for _attempt, kind, _rank, _node in told] == ["crash", "hang", "node"]
    for attempt, kind, rank, node in told:
        place = f"{kind}, rank {rank} on {node}" if rank else f"{kind} {node} lost"
        assert f"attempt {attempt}: {place}" in texts


def test_the_program_explains_itself() -> None:
    help_run = subprocess.run([ROOT / "docs" / "pictures", "--help"], capture_output=True, text=True, check=True)
    assert "--keep" in help_run.stdout
