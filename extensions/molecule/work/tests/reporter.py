# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Programs of one rank that report little, or nothing.

reporter.py unsaid       reports the same step again and again, but neither how many there are nor a checkpoint; exits
                         with 0 on SIGTERM
reporter.py mortal       fails in each attempt in another way, and only in the first ones after a new checkpoint
reporter.py silent       prints in its first attempt for some seconds, and then nothing more
reporter.py print FILE   prints, and notes the number of its lines in a file, until that ends with ".end"
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import gpumesh_run

ATTEMPT = int(os.environ["GPUMESH_ATTEMPT"])
#: More than a tenth of what a pipe holds.
LINE = "x" * 8192


def leave(number: int, _frame: object) -> None:
    print(f"exits for {signal.Signals(number).name}", flush=True)
    sys.exit(0)


def unsaid() -> None:
    signal.signal(signal.SIGTERM, leave)
    while True:
        gpumesh_run.progress(1)
        time.sleep(0.2)


def mortal() -> None:
    saved = 10 * min(ATTEMPT, 3)
    gpumesh_run.progress(saved + ATTEMPT, checkpoint=saved)
    raise (KeyError, ValueError, ZeroDivisionError, AttributeError, OSError, EOFError)[ATTEMPT - 1]("no more")


def silent() -> None:
    for number in range(150 if ATTEMPT == 1 else 1):
        print(f"line {number}", flush=True)
        time.sleep(0.2)
    if ATTEMPT == 1:
        time.sleep(3600)


def print_on(path: Path) -> None:
    number = 0
    while not path.with_suffix(".end").exists():
        number += 1
        print(number, LINE, flush=True)
        draft = path.with_suffix(".new")
        draft.write_text(str(number), encoding="ascii")
        draft.replace(path)
        time.sleep(0.05)
    print(f"printed {number} lines")


if __name__ == "__main__":
    if sys.argv[1] == "print":
        print_on(Path(sys.argv[2]))
    else:
        {"unsaid": unsaid, "mortal": mortal, "silent": silent}[sys.argv[1]]()
