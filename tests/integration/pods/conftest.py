# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A pod with its library, and the stand-in for tailscaled."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from pod_library import FakeProxyDaemon, PodProgramRunner, build_library


@pytest.fixture(name="folder")
def _folder() -> Iterator[Path]:
    """Create a directory that other accounts may enter, unlike pytest's own."""
    with tempfile.TemporaryDirectory(prefix="gpumesh-pod-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture(name="pod")
def _pod(folder: Path) -> Iterator[PodProgramRunner]:
    daemon = FakeProxyDaemon(folder)
    yield PodProgramRunner(build_library(folder, daemon.port), daemon)
    daemon.close()
