# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find where a program is, by the stack that it has printed."""

from __future__ import annotations

import re

from ansible_collections.gpumesh.cluster.plugins.module_utils.text import printable

#: Where ranks wait for each other, in PyTorch, JAX and mpi4py, and in common wrappers around them.
_COLLECTIVE = re.compile(
    r"all_?reduce|all_?gather|reduce_scatter|all_?to_?all|broadcast|barrier|gather|scatter|backward|synchronize|recv|wait"
)
_FRAME = re.compile(r'^\s*File "([^"]+)", line (\d+) in (\S+)$', re.MULTILINE)
#: Python's own library, in which a program waits for anything.
_LIBRARY = re.compile(r"/lib(?:64)?/python\d[\d.]*/(?!site-packages/|dist-packages/)|^<frozen ")
#: Functions of packages in which a program waits for anything as well.
_PACKAGE = re.compile(r"/(?:site|dist)-packages/")
_WAITING = re.compile(r"^_?(?:wait\w*|get|poll|recv\w*|read\w*|select|acquire|join|result|sleep|wrapper|inner|gather)$")
#: Packages whose waiting functions are collectives.
_PEERS = re.compile(r"/(?:torch/distributed|torch/autograd|jax\w*|mpi4py|horovod|deepspeed|accelerate|cupy\w*)/")


def place(tail: str) -> str:
    """Where a program is, by the last stack that faulthandler has printed; empty if there is none.

    It is the collective in which it waits, or its innermost function that says something: a function of Python's own
    library, such as one that waits for a queue, does not.
    """
    _before, found, stack = tail.rpartition("(most recent call first):")
    frames = _FRAME.findall(stack.split("\n\n", 1)[0]) if found else []
    if not frames:
        return ""
    telling = [frame for frame in frames if not _LIBRARY.search(frame[0]) and not _only_waits(frame[0], frame[2])]
    waiting = [frame for frame in telling if _COLLECTIVE.search(frame[2])]
    path, line, function = (waiting or telling or frames)[0]
    return printable(f"{function} ({path.rpartition('/')[2]}:{line})")


def collective(where: str) -> bool:
    """Whether a result of ``place`` is a collective."""
    return bool(_COLLECTIVE.search(where.partition(" ")[0]))


def _only_waits(path: str, function: str) -> bool:
    return bool(_PACKAGE.search(path) and _WAITING.match(function) and not _PEERS.search(path))
