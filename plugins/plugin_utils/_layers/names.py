# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The parameters of the module names that do not follow from the record."""

from __future__ import annotations

from functools import cache
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import model
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers import names
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.layer import BASE, Layer, Options, never_repeated
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.programs import (
    ProgramSources,
    bundle_program,
    source_digests,
)


@cache
def boot_program_sources() -> ProgramSources:
    """The sources of the program that restores the names when a container starts, without its settings."""
    return {names.PROGRAM_NAME: bundle_program(names.__name__)}


def given_parameters(_record: model.Record, machine: str, _options: Options) -> dict[str, Any]:
    """Return the parameters of the module names on one machine that do not follow from the record."""
    return {"machine": machine, "digests": source_digests(boot_program_sources())}


LAYER = Layer("names", BASE, given_parameters=given_parameters, lists_members=True, repeats=never_repeated)
