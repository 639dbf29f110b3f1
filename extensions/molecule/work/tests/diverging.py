# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run a program that trains a GPT2LMHeadModel, whose loss is not a number from its 8th pass on.

diverging.py PROGRAM [ARGUMENT...]
"""

from __future__ import annotations

import functools
import itertools
import runpy
import sys
from typing import Any

from transformers import GPT2LMHeadModel

forward, passes = GPT2LMHeadModel.forward, itertools.count(1)


# Trainer reads the names of its parameters.
@functools.wraps(forward)
def diverge(*given: Any, **named: Any) -> Any:
    """Take the place of GPT2LMHeadModel.forward."""
    outputs = forward(*given, **named)
    if next(passes) >= 8:
        outputs.loss = outputs.loss * float("nan")
    return outputs


if __name__ == "__main__":
    del sys.argv[0]
    GPT2LMHeadModel.forward = diverge
    runpy.run_path(sys.argv[0], run_name="__main__")
