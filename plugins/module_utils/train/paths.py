# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The programs of this layer and where they are on all nodes, for those who do not run them."""

from __future__ import annotations

_ROOM = __name__.rpartition(".")[0]
#: The programs; their messages start with these names.
NAME, TRACE_NAME = "gpumesh-train", "gpumesh-trace"
PATH, TRACE_PATH = f"/usr/local/bin/{NAME}", f"/usr/local/bin/{TRACE_NAME}"
#: The first module of each.
ENTRY, TRACE_ENTRY = f"{_ROOM}.program", f"{_ROOM.rpartition('.')[0]}.trace.program"
#: Where programs that were not started by gpumesh-train find the modules that they can import.
LIBRARY = "/usr/local/lib/gpumesh/python"
MODULES = {
    name: f"{_ROOM}.{name}" for name in ("gpumesh_run", "gpumesh_profile", "gpumesh_track", "gpumesh_frameworks")
}
#: The default directory for copies of data on the nodes; {user} is the user of the run.
STAGE = "/var/tmp/gpumesh-{user}"
