# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Examine a host that does not answer, in a separate process. This costs nothing while all hosts answer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.ssh.causes import SilentHostError

#: Seconds for all steps together; the parent process waits somewhat longer.
TIME_LIMIT = 10.0
_EXAMINE_PROGRAM = "ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.ssh.examine"


class Question(NamedTuple):
    """The host to examine.

    ``arguments``: those of ssh. ``key``: the key file in the inventory. ``password``: whether one is set.
    """

    host: str
    arguments: tuple[str, ...] = ()
    key: str = ""
    password: bool = False


def explain_unreachable_host(question: Question) -> dict[str, Any]:
    """Return the ``error`` of a result. Any failure here is an error with the cause ``not_checked``."""
    # The path is not resolved: through a link, ansible_collections is in the directory of the link.
    collections_root = str(Path(__file__).parents[7])
    try:
        completed = subprocess.run(
            [sys.executable, "-m", _EXAMINE_PROGRAM],
            input=json.dumps(question._asdict()),
            env={**os.environ, "PYTHONPATH": os.pathsep.join([collections_root, *filter(None, sys.path)])},
            capture_output=True,
            text=True,
            timeout=TIME_LIMIT + 5,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as failure:
        return _not_checked_error(question, str(failure))
    if completed.returncode != 0:
        return _not_checked_error(question, (completed.stderr.strip().splitlines() or ["no reason"])[-1])
    unreachable_error: dict[str, Any] = json.loads(completed.stdout)
    return unreachable_error


def _not_checked_error(question: Question, reason: str) -> dict[str, Any]:
    return SilentHostError(
        "not_checked",
        f"The cause could not be determined: {reason}.",
        f"Try 'ssh -v {question.host}' on the machine that runs Ansible.",
    ).to_result()


def format_error(error: Mapping[str, Any]) -> str:
    """Format an error as one text."""
    return f"{error['message']} {error['remedy']}".strip()
