# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compile libraries on the host, against its own headers."""

from __future__ import annotations

import os
import tempfile
from typing import Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import CommandError, HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.files import read_bytes, write_atomic

#: The directory of our libraries.
LIBRARY_DIRECTORY = "/usr/local/lib/gpumesh"
#: The compiler may take this many seconds, since the host may be busy.
_COMPILE_TIMEOUT = 120.0


def compile_library(
    run: Runner,
    library_name: str,
    source_code: str,
    library_path: str,
    compiler_flags: Sequence[str],
    required_packages: str,
) -> None:
    """Compile C to a library, which appears at ``library_path`` only when it is complete. Raises HostStateError.

    ``library_name`` and ``required_packages`` are for error messages.
    """
    with tempfile.TemporaryDirectory(prefix="gpumesh-") as build_directory:
        built_library = os.path.join(build_directory, os.path.basename(library_path))
        gcc_command = ["gcc", *compiler_flags, "-x", "c", "-", "-x", "none", "-o", built_library, "-ldl"]
        try:
            run(gcc_command, stdin=source_code, timeout=_COMPILE_TIMEOUT)
        except CommandError as failure:
            raise HostStateError(
                f"{library_name} cannot be compiled: {failure.message}", f"Install {required_packages}."
            ) from failure
        os.makedirs(os.path.dirname(library_path), mode=0o755, exist_ok=True)
        # All users must be able to read the library, whatever the umask of this process is.
        write_atomic(library_path, read_bytes(built_library) or b"", 0o644)
