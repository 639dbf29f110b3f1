# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The one place where our errors are handled in programs that run without Ansible, as module.py does for modules."""

from __future__ import annotations

import io
import os
import sys
from typing import Callable

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import GpumeshError, refused_writes
from ansible_collections.gpumesh.cluster.plugins.module_utils.text import printable


def write(text: str, control: str = "") -> None:
    """Print text, whoever it is from: no character of it controls the terminal, unlike ``control``, which is ours.

    Programs write all text with this function or the next two.
    """
    sys.stdout.write(f"{control}{printable(text)}")


def say(text: str) -> None:
    """Print text and a line end."""
    write(f"{text}\n")


def complain(text: str) -> None:
    """The same on standard error."""
    sys.stderr.write(f"{printable(text)}\n")
    sys.stderr.flush()


def exit_status(name: str, work: Callable[[], int]) -> int:
    """The result of ``work``; 2 for an error, with its reason on stderr, and 1 if the output is no longer read.

    ``name``: the program's name, with which the reason starts.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Text from elsewhere may contain characters that the user's locale lacks.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        with refused_writes():
            status = work()
            sys.stdout.flush()
    except GpumeshError as failure:
        complain(f"{name}: {failure}")
        return 2
    except BrokenPipeError:
        # As with head. Otherwise, Python would complain again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1
    return status
