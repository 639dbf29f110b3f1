# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A program that is started and not waited for."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import run, start_detached
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import CommandError

_STARTS = f"""
import sys
from {run.__module__} import start_detached
start_detached(["sh", "-c", 'sleep 0.3; pwd > "$1.part"; mv "$1.part" "$1"', "x", sys.argv[1]])
"""


def test_a_detached_program_goes_on_after_the_one_that_started_it(tmp_path: Path) -> None:
    told = tmp_path / "told"
    done = run([sys.executable, "-W", "error", "-c", _STARTS, str(told)])
    assert (done.stdout, done.stderr) == ("", "") and not told.exists()
    end = time.monotonic() + 120
    while not told.exists():
        assert time.monotonic() < end
        time.sleep(0.05)
    assert told.read_text() == "/\n"


def test_one_that_is_not_installed_is_named() -> None:
    with pytest.raises(CommandError, match="Install gpumesh-nothing"):
        start_detached(["gpumesh-nothing"])
