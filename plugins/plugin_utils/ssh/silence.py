# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Examine a host that does not answer in a separate process. Costs nothing while all hosts answer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ansible_collections.gpumesh.cluster.plugins.plugin_utils.ssh.causes import SilentHostError

#: Seconds for all steps together; the parent process waits somewhat longer.
LIMIT = 10.0
_PROGRAM = "ansible_collections.gpumesh.cluster.plugins.plugin_utils.ssh.examine"


class Question(NamedTuple):
    """One host.

    ``arguments``: those of ssh. ``key``: the file that the inventory names. ``password``: whether there is one.
    """

    host: str
    arguments: tuple[str, ...] = ()
    key: str = ""
    password: bool = False


def why_silent(question: Question) -> dict[str, Any]:
    """The ``error`` of a result. Any failure here is an error with the cause ``not_checked``."""
    # Not resolved: with a link, the folder that contains ansible_collections is that of the link.
    root = str(Path(__file__).parents[6])
    try:
        done = subprocess.run(
            [sys.executable, "-m", _PROGRAM],
            input=json.dumps(question._asdict()),
            env={**os.environ, "PYTHONPATH": os.pathsep.join([root, *filter(None, sys.path)])},
            capture_output=True,
            text=True,
            timeout=LIMIT + 5,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as failure:
        return _not_checked(question, str(failure))
    if done.returncode != 0:
        return _not_checked(question, (done.stderr.strip().splitlines() or ["no reason"])[-1])
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _not_checked(question: Question, why: str) -> dict[str, Any]:
    return SilentHostError(
        "not_checked",
        f"The reason could not be determined: {why}.",
        f"Try 'ssh -v {question.host}' on the machine that runs Ansible.",
    ).as_result()


def worded(error: Mapping[str, Any]) -> str:
    """An error as one text."""
    return f"{error['message']} {error['remedy']}".strip()
