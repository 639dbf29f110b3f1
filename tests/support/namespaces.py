# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Network namespaces that represent hosts."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager


def run_checked(*argv: str, stdin: str | None = None) -> str:
    """Run a command that must succeed. Returns its stdout; the error shows what it printed."""
    completed = subprocess.run(argv, input=stdin, capture_output=True, text=True, check=False, timeout=120)
    assert completed.returncode == 0, f"{' '.join(argv)}: {completed.stderr}{completed.stdout}"
    return completed.stdout


@contextmanager
def create_joined_namespaces(first: str, second: str) -> Iterator[None]:
    """Create two namespaces with these names, for the duration of the context. A cable joins their interfaces eth0,
    which are still down.
    """
    try:
        for namespace in (first, second):
            run_checked("ip", "netns", "add", namespace)
            run_checked("ip", "-n", namespace, "link", "set", "lo", "up")
        veth_options = ["type", "veth", "peer", "name", "eth0", "netns", second]
        run_checked("ip", "link", "add", "eth0", "netns", first, *veth_options)
        yield
    finally:
        for namespace in (first, second):
            subprocess.run(["ip", "netns", "delete", namespace], check=False, capture_output=True)
