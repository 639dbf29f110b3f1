# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host has to know of the cluster to run training programs, from the record. Pure."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils.record import model


def volumes(record: model.Record) -> list[str]:
    """Where the shared volumes that can be written to are mounted, on all members."""
    return [volume["mount_point"] for volume in record["storage"]["volumes"] if not volume.get("read_only")]


def desired(record: model.Record, run_dir: str, state: str = "present") -> dict[str, Any]:
    """The parameters of the module train."""
    return {"state": state, "volumes": volumes(record), "run_dir": run_dir}
