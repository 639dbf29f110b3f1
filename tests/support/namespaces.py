# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Network namespaces that represent hosts."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager


def call(*argv: str, stdin: str | None = None) -> str:
    """Run a command that must succeed. Returns its stdout; the error shows what it printed."""
    done = subprocess.run(argv, input=stdin, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, f"{' '.join(argv)}: {done.stderr}{done.stdout}"
    return done.stdout


@contextmanager
def joined(one: str, other: str) -> Iterator[None]:
    """Create two namespaces with these names, for the duration of the context. A cable joins their interfaces eth0,
    which are still down.
    """
    try:
        for namespace in (one, other):
            call("ip", "netns", "add", namespace)
            call("ip", "-n", namespace, "link", "set", "lo", "up")
        cable = ["type", "veth", "peer", "name", "eth0", "netns", other]
        call("ip", "link", "add", "eth0", "netns", one, *cable)
        yield
    finally:
        for namespace in (one, other):
            subprocess.run(["ip", "netns", "delete", namespace], check=False, capture_output=True)
