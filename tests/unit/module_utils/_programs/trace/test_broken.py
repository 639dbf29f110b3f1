# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whatever a trace, or its description, contains: it is read, or refused with a message."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from traces import TraceScenario

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import GpumeshError
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.trace import messages, page, timeline
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.trace.analyse import analyse
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.trace.load import find_sources, load_traces
from ansible_collections.gpumesh.cluster.tests.support.broken_input import assert_endures

SCENE = TraceScenario(ranks=2, steps=2, link_rates={0: 9400.0, 1: 92.0}, clock_offsets={1: 3.0})


@pytest.fixture(name="folder", params=[False, True], ids=["cpu", "gpu"])
def _folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return TraceScenario(**{**vars(SCENE), "on_gpu": request.param}).write(tmp_path, compress=False)


def report(folder: Path) -> None:
    """Everything that the program does with it."""
    traces = load_traces(find_sources(folder), processes=1).traces
    run = analyse("x", traces)
    timeline.write_timeline(str(folder / "timeline.json.gz"), traces, run)
    page.render_page([run, run], "now", ["a", "b"], "c").encode("utf-8")
    messages.format_summary(run).encode("utf-8")
    json.dumps(messages.build_figures(run), allow_nan=False)


@pytest.mark.parametrize("name", ["rank-1.json", "rank-1.trace.json"])
def test_invalid_metadata(folder: Path, name: str) -> None:
    path = folder / name

    def take(document: Any) -> None:
        path.write_text(json.dumps(document), encoding="utf-8")
        report(folder)

    assert_endures(take, (json.loads(path.read_text(encoding="utf-8")),), (GpumeshError,), try_divisor=4)


@pytest.mark.parametrize("name", ["rank-1.json", "rank-1.trace.json"])
def test_invalid_text(folder: Path, name: str) -> None:
    path = folder / name

    def take(text: str) -> None:
        path.write_text(text, encoding="utf-8", errors="surrogatepass")
        report(folder)

    assert_endures(take, (path.read_text(encoding="utf-8"),), (GpumeshError,), try_divisor=4)
