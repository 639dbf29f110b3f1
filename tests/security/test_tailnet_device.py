# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The API's key can delete any device of a tailnet, and a member's root says which addresses and ID its host has."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.mesh import tailnet_api

API_RESPONSE = {
    "nodes": [
        {"id": "1", "givenName": "laptop-of-the-admin", "ipAddresses": ["100.64.0.1"], "tags": ["tag:admin"]},
        {"id": "2", "givenName": "gpu3", "ipAddresses": ["100.64.0.3"], "tags": []},
    ]
}


@pytest.mark.parametrize(
    "identity",
    [
        tailnet_api.DeviceIdentity("100.64.0.1", "gpu3", "1"),
        tailnet_api.DeviceIdentity("100.64.0.1", "gpu3", "2"),
        tailnet_api.DeviceIdentity("100.64.0.1", "gpu3"),
        tailnet_api.DeviceIdentity("100.64.0.3", "gpu3", "1"),
    ],
)
def test_member_claiming_another_address_cannot_change_that_device(
    identity: tailnet_api.DeviceIdentity,
) -> None:
    requests = []

    def fetch(method: str, url: str, body: Any) -> dict[str, Any]:
        requests.append(method)
        return API_RESPONSE

    api = tailnet_api.find_api("https://headscale.example.org")
    with pytest.raises(InputError, match="so it was not changed"):
        tailnet_api.delete_device(api, fetch, identity, check_mode=False)
    with pytest.raises(InputError, match="so it was not changed"):
        tailnet_api.ensure_tags(api, fetch, identity, ["tag:gpu"], check_mode=False)
    assert requests == ["GET", "GET"]
