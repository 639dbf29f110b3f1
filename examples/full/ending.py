# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""End a process that has done its work before Python takes itself apart.

A thread of gloo that lets go of its last tensor at that moment aborts the process ("terminate called without an active
exception"), also after destroy_process_group: the run would be started again for nothing.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading

_COMPLETE = threading.Event()


def prepare() -> None:
    """Call it first: what is registered later, by libraries too, is still called at the end."""
    atexit.register(_leave)


def complete() -> None:
    """Say that all is made and written. A process that ends otherwise ends as usual, with its error."""
    _COMPLETE.set()


def _leave() -> None:
    if _COMPLETE.is_set():
        sys.stdout.flush()
        os._exit(0)
