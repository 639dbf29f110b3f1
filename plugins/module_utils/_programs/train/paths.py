# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The programs of this layer and where they are on all nodes, for those who do not run them."""

from __future__ import annotations

_PACKAGE = __name__.rpartition(".")[0]
#: The programs; their messages start with these names.
PROGRAM_NAME, TRACE_NAME = "gpumesh-train", "gpumesh-trace"
PROGRAM_PATH, TRACE_PATH = f"/usr/local/bin/{PROGRAM_NAME}", f"/usr/local/bin/{TRACE_NAME}"
#: The first module of each.
ENTRY_MODULE, TRACE_ENTRY_MODULE = f"{_PACKAGE}.program", f"{_PACKAGE.rpartition('.')[0]}.trace.program"
#: The directory with the modules that programs can import that gpumesh-train has not started.
LIBRARY_DIR = "/usr/local/lib/gpumesh/python"
IMPORTABLE_MODULES = {
    name: f"{_PACKAGE}.{name}" for name in ("gpumesh_run", "gpumesh_profile", "gpumesh_track", "gpumesh_frameworks")
}
#: The range of MASTER_PORT: a different port for each attempt, since the previous one may still be in use. Below the
#: ephemeral ports.
MASTER_PORTS = range(25000, 29000)
#: The default directory for copies of data on the nodes; {user} is the user of the run.
STAGE_DIR = "/var/tmp/gpumesh-{user}"
