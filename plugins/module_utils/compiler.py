# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Libraries that are compiled on the host, against its own headers."""

from __future__ import annotations

import os
import tempfile
from typing import Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import CommandError, HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils.files import read_bytes, write_atomic

#: The folder of our libraries.
FOLDER = "/usr/local/lib/gpumesh"
#: Seconds that the compiler may take on a busy host.
_COMPILES_FOR = 120.0


def compile_library(run: Runner, what: str, source: str, path: str, flags: Sequence[str], packages: str) -> None:
    """Compile C to a library, which appears at ``path`` only when it is complete. Raises HostStateError.

    ``what`` names it and ``packages`` the packages that it needs, both for error messages.
    """
    with tempfile.TemporaryDirectory(prefix="gpumesh-") as folder:
        part = os.path.join(folder, os.path.basename(path))
        argv = ["gcc", *flags, "-x", "c", "-", "-x", "none", "-o", part, "-ldl"]
        try:
            run(argv, stdin=source, timeout=_COMPILES_FOR)
        except CommandError as failure:
            raise HostStateError(f"{what} cannot be compiled: {failure.message}", f"Install {packages}.") from failure
        os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
        # Readable by all users, whatever the umask of this process.
        write_atomic(path, read_bytes(part) or b"", 0o644)
