# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a node has to know of the others to set the environment of its jobs, derived from the record. Pure."""

from __future__ import annotations

from typing import Any, Dict, Mapping

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import membership


def derive_parameters(record: membership.Record, given_params: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the parameters of the module that follow from the record.

    ``given_params``: machine, and the settings that do not follow from it: port_range, dialects, tracking and
    variables. The result has the content of job_environment.json, which roles/job_environment/files/task_prolog.py
    reads. Raises InputError.

    The host adds its RDMA devices. They apply only between members of the same site with the same fabric. A network
    plugin for the fabric of a cloud applies between the members of the site that have none of the recorded fabrics.
    """
    given_settings = given_params["settings"]
    own_member = membership.find_member(record, given_params["machine"])
    return {
        "cluster": record["name"],
        "settings": {
            "cluster": record["name"],
            "members": membership.cluster_addresses(record),
            "interface": membership.cluster_interface(record, own_member),
            "port_range": given_settings["port_range"],
            "reserved_ports": [record["mesh"]["port"]],
            "dialects": given_settings["dialects"],
            "rdma": {
                "devices": [],
                "peers": [member["machine"] for member in record["members"] if _share_fabric(own_member, member)],
                "plugin_peers": [
                    member["machine"]
                    for member in record["members"]
                    if member["site"] == own_member["site"] and member["rdma"] in (None, "none")
                ],
            },
            "tracking": given_settings["tracking"],
            "variables": given_settings["variables"],
        },
    }


def _share_fabric(first_member: membership.Member, second_member: membership.Member) -> bool:
    """Whether RDMA connects two members: fabrics do not extend beyond a site.

    An unknown fabric is taken for the same.
    """
    fabrics = {first_member["rdma"], second_member["rdma"]} - {None}
    return first_member["site"] == second_member["site"] and len(fabrics) <= 1 and "none" not in fabrics
