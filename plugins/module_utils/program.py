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
        sys.stderr.write(f"{name}: {failure}\n")
        return 2
    except BrokenPipeError:
        # As with head. Otherwise, Python would complain again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1
    return status
