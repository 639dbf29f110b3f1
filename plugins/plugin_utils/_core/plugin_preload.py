# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Loads the filters and lookups of this collection before Ansible's workers need them.

Ansible forks a worker for each task and host. A worker that encounters the first filter of a collection loads the files
of all of them, compiles each from its source, since the loader of collections keeps no byte code, and discards
everything when it ends; a lookup with all that it imports, too. If they are loaded once in the process that forks, all
workers have them (``tests/bench/bench_filters.py``).
"""

from __future__ import annotations

from pathlib import Path

from ansible.plugins.loader import filter_loader, lookup_loader

_FILTER_DIRECTORY = Path(__file__).resolve().parents[2] / "filter"


def load_plugins() -> None:
    """Load every filter of this collection, and the lookup of the layers, in this process."""
    # The loader processes the files in this order, up to the one that is requested.
    last_filter = max(path.stem for path in _FILTER_DIRECTORY.glob("*.py"))
    filter_loader.get(f"gpumesh.cluster.{last_filter}")
    lookup_loader.get("gpumesh.cluster.layers")
