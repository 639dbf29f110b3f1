# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The responses of hosts that announce the digests of their records, derived from those of hosts that send them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.plugin_utils._cluster.responses import collect_sent_records


def replace_records_with_digests(responses: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Replace the records in each response with their digests. Documents that are not records stay as they are."""
    return {
        machine: {**response, "clusters": [_announce(document) for document in response["clusters"]]}
        if isinstance(response.get("clusters"), list)
        else response
        for machine, response in responses.items()
    }


def _announce(document: Any) -> Any:
    for digest, record in collect_sent_records([{"clusters": [document]}], {}).items():
        return {"name": record["name"], "generation": record["generation"], "digest": digest}
    return document
