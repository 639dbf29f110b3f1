# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The settings with which the programs are installed. `gpumesh-trace` has no other part of `gpumesh-train`."""

from __future__ import annotations

import getpass
import os
from typing import Any, List, Mapping

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError, InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.private_dir import expand_user_path
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.paths import STAGE_DIR

#: Slurm's layer, of which this program is a part, installs it with the mount points of the volumes.
VOLUME_REMEDY = (
    "Ask an administrator to define storage_volumes in the inventory and run the playbooks gpumesh.cluster.storage and "
    "gpumesh.cluster.slurm"
)


class TrainSettings:
    """The settings with which the program was installed. ``volumes``: mount points that all nodes see."""

    def __init__(self, installed_settings: Mapping[str, Any]) -> None:
        self.volumes: List[str] = list(installed_settings["volumes"])
        self.run_dir: str = str(installed_settings["run_dir"])
        self.stage_dir: str = str(installed_settings.get("stage_dir") or STAGE_DIR)

    def runs_dir(self, requested_dir: str, create: bool = False) -> str:
        """Return the directory with the runs of this user. Raises GpumeshError if there is none.

        ``create``: a run is to be created there.
        """
        if requested_dir:
            return os.path.abspath(requested_dir)
        if self.run_dir or self.volumes:
            dir_pattern = self.run_dir or f"{self.volumes[0]}/{{user}}/runs"
            try:
                return expand_user_path(dir_pattern, getpass.getuser(), 0o755 if create else None)
            except OSError as lookup_failure:
                raise HostStateError(
                    f"{lookup_failure.filename or dir_pattern} cannot be used: {lookup_failure.strerror}.",
                    "Set --run-dir to a directory on a shared volume that you can write to.",
                ) from lookup_failure
        raise InputError(
            "The cluster has no shared volume.",
            f"{VOLUME_REMEDY}, or set --run-dir to a directory that all nodes share.",
        )

    def staging_dir(self, requested_dir: str) -> str:
        """Return the directory of this user's data copies on the nodes."""
        return os.path.normpath(os.path.join("/", requested_dir or self.stage_dir.replace("{user}", getpass.getuser())))
