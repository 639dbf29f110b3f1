# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The parameters of the module job_environment that the members do not decide."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import model
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.job_environment.files import PROGRAM_FILES
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers import tracking
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.layer import (
    SCHEDULER,
    Layer,
    Options,
    Ports,
    never_repeated,
)
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.programs import (
    ProgramSources,
    read_role_file,
    source_digests,
)

ROLE_OPTIONS = (
    "job_environment_port_range",
    "job_environment_dialects",
    "job_environment_variables",
    "job_environment_rdma",
    "job_environment_logins",
)

#: Isolated and without site-packages: it runs before each task, and nothing of the user's may change what it does.
_INTERPRETER_LINES = {"task_prolog.py": b"#!/usr/bin/python3 -IS\n"}
_LOGIN_SCRIPT = "gpumesh_job.sh"
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
#: Ports below this one are privileged.
_MIN_PORT = 1024


def given_parameters(record: model.Record, machine: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of the module job_environment on one machine that do not follow from the members.

    ``options``: those of ROLE_OPTIONS. Raises InputError.
    """
    first_port, last_port = _check_port_range(options["job_environment_port_range"])
    return {
        "machine": machine,
        "settings": {
            "port_range": [first_port, last_port],
            "dialects": list(options["job_environment_dialects"]),
            "tracking": tracking.job_variables(record),
            "variables": _check_variables(options["job_environment_variables"] or {}),
        },
        "digests": source_digests(
            {
                name: source
                for name, source in program_sources().items()
                if options["job_environment_logins"] or name != _LOGIN_SCRIPT
            }
        ),
        "rdma": options["job_environment_rdma"],
    }


@cache
def program_sources() -> ProgramSources:
    """The contents of the files that the module job_environment installs, by their names in the role."""
    return {name: _INTERPRETER_LINES.get(name, b"") + read_role_file("job_environment", name) for name in PROGRAM_FILES}


def _check_port_range(port_range: Sequence[int]) -> tuple[int, int]:
    if len(port_range) == 2 and _MIN_PORT <= port_range[0] < port_range[1] <= 65535:
        return port_range[0], port_range[1]
    raise InputError(
        f"job_environment_port_range {list(port_range)} is not a range of ports.",
        f"Give the first and the last port, from {_MIN_PORT} to 65535, such as [15000, 24999].",
    )


def _check_variables(variables: Mapping[str, Any]) -> dict[str, str]:
    checked_variables = {}
    for name, value in variables.items():
        variable_text = str(value)
        if not _VARIABLE_NAME.fullmatch(name):
            raise InputError(f"job_environment_variables: '{name}' is not a valid name of an environment variable.")
        if "\n" in variable_text:
            raise InputError(
                f"job_environment_variables: the value of {name} has several lines.",
                "Slurm sets values of one line only.",
            )
        checked_variables[name] = variable_text
    return checked_variables


def _job_ports(_record: model.Record, options: Options) -> Ports:
    first_port, last_port = _check_port_range(options["job_environment_port_range"])
    return Ports(tcp=[f"{first_port}-{last_port}"])


LAYER = Layer(
    "job_environment",
    SCHEDULER,
    options=ROLE_OPTIONS,
    given_parameters=given_parameters,
    connects=True,
    claim="job_environment",
    lists_members=True,
    ports=_job_ports,
    port_options=("job_environment_port_range",),
    repeats=never_repeated,
)
