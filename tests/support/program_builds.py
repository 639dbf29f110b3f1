# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Build the programs of the collection as a host does, and the options with which a module gets them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.program_archive import (
    assemble_zipapp,
    unpack_sources,
    zipapp_change,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.push import encode_content
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.programs import (
    ProgramSources,
    bundle_program,
    source_digests,
)


def build_zipapp(interpreter: str, entry_module: str, settings: Mapping[str, Any]) -> bytes:
    """Build the zipapp of a program from the sources of this collection."""
    return assemble_zipapp(interpreter, entry_module, settings, unpack_sources(bundle_program(entry_module)))


def install_program(path: str, entry_module: str, settings: Mapping[str, Any]) -> None:
    """Write the program to this path, for this Python."""
    zipapp_change(path, build_zipapp(sys.executable, entry_module, settings)).apply()


def push_options(sources: ProgramSources) -> dict[str, Any]:
    """The options of a module to which the action has sent all sources."""
    return {
        "digests": source_digests(sources),
        "contents": {name: encode_content(source) for name, source in sources.items()},
    }
