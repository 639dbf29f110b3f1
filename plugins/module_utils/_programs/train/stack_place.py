# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find where a program is, by the stack that it has printed."""

from __future__ import annotations

import re

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import printable

#: Functions in which ranks wait for each other, in PyTorch, JAX and mpi4py, and in common wrappers around them.
_COLLECTIVE_NAMES = re.compile(
    r"all_?reduce|all_?gather|reduce_scatter|all_?to_?all|broadcast|barrier|gather|scatter|backward|synchronize|recv|wait"
)
_FRAME_PATTERN = re.compile(r'^\s*File "([^"]+)", line (\d+) in (\S+)$', re.MULTILINE)
#: Python's own library, in which a program waits for anything.
_STDLIB_PATH = re.compile(r"/lib(?:64)?/python\d[\d.]*/(?!site-packages/|dist-packages/)|^<frozen ")
#: Functions of packages in which a program waits for anything as well.
_SITE_PACKAGES_PATH = re.compile(r"/(?:site|dist)-packages/")
_WAITING_FUNCTIONS = re.compile(
    r"^_?(?:wait\w*|get|poll|recv\w*|read\w*|select|acquire|join|result|sleep|wrapper|inner|gather)$"
)
#: Packages whose waiting functions are collectives.
_COLLECTIVE_PACKAGES = re.compile(
    r"/(?:torch/distributed|torch/autograd|jax\w*|mpi4py|horovod|deepspeed|accelerate|cupy\w*)/"
)


def find_location(tail: str) -> str:
    """Return the location of a program from the last stack that faulthandler has printed; empty if there is none.

    The location is the collective in which it waits, or the innermost informative function: a function of Python's own
    library, such as one that waits for a queue, is not.
    """
    _before, marker, stack = tail.rpartition("(most recent call first):")
    frames = _FRAME_PATTERN.findall(stack.split("\n\n", 1)[0]) if marker else []
    if not frames:
        return ""
    telling_frames = [
        frame for frame in frames if not _STDLIB_PATH.search(frame[0]) and not _only_waits(frame[0], frame[2])
    ]
    collective_frames = [frame for frame in telling_frames if _COLLECTIVE_NAMES.search(frame[2])]
    path, line, function = (collective_frames or telling_frames or frames)[0]
    return printable(f"{function} ({path.rpartition('/')[2]}:{line})")


def is_collective(location: str) -> bool:
    """Whether a result of ``find_location`` is a collective."""
    return bool(_COLLECTIVE_NAMES.search(location.partition(" ")[0]))


def _only_waits(path: str, function: str) -> bool:
    return bool(
        _SITE_PACKAGES_PATH.search(path)
        and _WAITING_FUNCTIONS.match(function)
        and not _COLLECTIVE_PACKAGES.search(path)
    )
