# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""`gpumesh-trace` carries only what it runs: Python reads the whole archive whenever a rank starts under it."""

from __future__ import annotations

from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.trace import digest
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train import gpumesh_profile, paths
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.programs import bundle_program, collect_sources

#: The parts of gpumesh-train that gpumesh-trace needs: the settings of both, their names, and what a rank is given.
SHARED_WITH_TRAIN = {"settings", "paths", "profile"}
MAX_MODULES, MAX_BYTES = 30, 250_000


def test_only_what_it_runs() -> None:
    names = collect_sources(paths.TRACE_ENTRY_MODULE)
    of_train = {name.rpartition(".")[2] for name in names if "._programs.train." in name}
    assert of_train == SHARED_WITH_TRAIN
    assert not [name for name in names if "._checks." in name or "._cluster." in name]
    assert len(names) <= MAX_MODULES
    assert len(bundle_program(paths.TRACE_ENTRY_MODULE)) <= MAX_BYTES


def test_name_of_the_clock_event_is_that_of_the_profiler() -> None:
    assert digest.CLOCK_EVENT_PREFIX == gpumesh_profile.CLOCK_EVENT_PREFIX
