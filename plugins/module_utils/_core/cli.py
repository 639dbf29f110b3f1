# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Handle our errors in programs that run without Ansible, as module.py does for modules."""

from __future__ import annotations

import io
import os
import sys
from typing import Callable

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import GpumeshError, translate_write_errors
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import printable


def write_text(text: str, terminal_control: str = "") -> None:
    """Print text from any source: no character of it controls the terminal, unlike ``terminal_control``, which is ours.

    Programs write all text with this function, ``print_line`` or ``print_error``.
    """
    sys.stdout.write(f"{terminal_control}{printable(text)}")


def print_line(text: str) -> None:
    """Print text and a line end."""
    write_text(f"{text}\n")


def print_error(text: str) -> None:
    """Print text and a line end on standard error."""
    sys.stderr.write(f"{printable(text)}\n")
    sys.stderr.flush()


def exit_status(program_name: str, work: Callable[[], int]) -> int:
    """Return the result of ``work``; 2 for an error, with its reason on stderr, and 1 if the output is no longer read.

    ``program_name``: the name with which the reason starts.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Text from other sources may contain characters that the locale of the user lacks.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        with translate_write_errors():
            status = work()
            sys.stdout.flush()
    except GpumeshError as failure:
        print_error(f"{program_name}: {failure}")
        return 2
    except BrokenPipeError:
        # The reader of the pipe, such as head, has ended. With the closed pipe, Python would complain again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1
    return status
