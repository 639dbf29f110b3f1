# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The parameters of the module names, derived from the record. Pure.

Not in names.py, which is also a program that restores the names without a record.
"""

from __future__ import annotations

from typing import Any, Dict, Mapping

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import membership


def derive_parameters(record: membership.Record, given_params: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the parameters that follow from the record. ``given_params``: machine. Raises InputError."""
    own_member = membership.find_member(record, given_params["machine"])
    return {
        "cluster": record["name"],
        "members": [
            {"address": named_member.addresses[0], "names": list(named_member.host_names)}
            for named_member in membership.named_members(record)
        ],
        "address": membership.cluster_address(record, own_member),
    }
