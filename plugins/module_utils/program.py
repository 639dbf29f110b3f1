# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The one place where our errors meet the programs that run without Ansible, as module.py is for modules."""

from __future__ import annotations

import io
import os
import sys
from typing import Callable

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import GpumeshError


def exit_status(name: str, work: Callable[[], int]) -> int:
    """What ``work`` returns; 2 for what is refused, with the reason on the standard error, and 1 if nobody reads on.

    ``name``: of the program, with which the reason begins.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        # What others have said may have letters that the user's locale has not.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        status = work()
        sys.stdout.flush()
    except GpumeshError as failure:
        sys.stderr.write(f"{name}: {failure}\n")
        return 2
    except BrokenPipeError:
        # As with head. Python would complain once more when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1
    return status
