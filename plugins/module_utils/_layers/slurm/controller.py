# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host has of a controller: its queue, its certificates and its nodes. Read-only."""

from __future__ import annotations

import os
from typing import Any, Dict, Optional

from ansible_collections.gpumesh.cluster.plugins.module_utils._core import server_certificate
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import GpumeshError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.files import read_text
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm import (
    configure,
    nodes,
    release,
    rest,
    show,
    spank,
    term,
)


def read_controller(run: Runner, state_directory: str) -> Dict[str, Any]:
    """Return the values of the module slurm_state_info. Raises HostStateError if the marker cannot be read."""
    controller_state = term.read_controller_state(state_directory)
    slurm_version = release.installed_version(run, "slurmctld")
    return {
        "in_use": controller_state.in_use,
        "marker": controller_state.marker._asdict() if controller_state.marker else None,
        "pending_accounting": controller_state.pending_accounting,
        "is_node": os.path.exists(nodes.HOST_SETTINGS_PATH),
        "slurm_version": release.format_version(slurm_version) if slurm_version else None,
        "plugins_included": configure.includes_plugins(
            read_text(f"{configure.CONFIG_DIRECTORY}/plugstack.conf"), configure.CONFIG_DIRECTORY
        ),
        "job_plugin": spank.read_built(),
        "rest_certificates": server_certificate.read_trusted(rest.PROXY_DIRECTORY),
    }


def read_readiness(run: Runner) -> Optional[Dict[str, bool]]:
    """Return whether each node that the controller knows accepts jobs, by name. None if it does not respond."""
    try:
        return show.readiness(show.list_nodes(run, show.client_version(run)))
    except GpumeshError:
        return None
