# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The devices of a tailnet in the API of its control server: find one, tag it, delete it.

The key can delete any device of the tailnet, while a host reports its address itself. So a device is only used if its
name is also the one that the host was given.
"""

from __future__ import annotations

import json
import urllib.error
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from ansible.module_utils.urls import open_url

from ansible_collections.gpumesh.cluster.plugins.module_utils import limited
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import (
    GpumeshError,
    InputError,
    ParseError,
    reading,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils.mesh.tailscale import DEFAULT_LOGIN_SERVER
from ansible_collections.gpumesh.cluster.plugins.module_utils.text import from_json

_TAILSCALE = "https://api.tailscale.com/api/v2"
_TIMEOUT = 30.0

#: From the method, URL and JSON body to the JSON response.
Fetch = Callable[[str, str, Optional[Dict[str, Any]]], Dict[str, Any]]


class ApiError(GpumeshError):
    """The control server rejected a request, or could not be reached."""


class Api(NamedTuple):
    """Where requests are sent. Tailscale's and Headscale's APIs differ in their paths and field names."""

    base: str
    list_path: str
    list_key: str
    item_path: str


class Device(NamedTuple):
    """A device of the tailnet."""

    id: str
    name: str
    addresses: Tuple[str, ...]
    tags: Tuple[str, ...]


class Sought(NamedTuple):
    """The properties that identify a device. ``id``: '' if it is not known."""

    address: str
    name: str
    id: str = ""


class Result(NamedTuple):
    """What was done, or would be in check mode. ``device``: as it was found, None if there is none."""

    changed: bool
    device: Optional[Device]


def api_of(login_server: Optional[str]) -> Api:
    """The API of a control server."""
    if login_server is None or login_server.rstrip("/") == DEFAULT_LOGIN_SERVER:
        return Api(_TAILSCALE, "/tailnet/-/devices", "devices", "/device/{}")
    return Api(f"{login_server.rstrip('/')}/api/v1", "/node", "nodes", "/node/{}")


def parse_devices(api: Api, answer: Dict[str, Any]) -> List[Device]:
    """Read the list of devices. Raises ParseError."""
    with reading(f"GET {api.list_path}"):
        return [
            Device(
                str(one.get("nodeId") or one["id"]),
                str(one.get("givenName") or one["name"]).partition(".")[0],
                tuple(one.get("ipAddresses") or one.get("addresses") or ()),
                tuple(sorted(one.get("tags") or ())),
            )
            for one in answer[api.list_key]
        ]


def present(api: Api, fetch: Fetch, sought: Sought, tags: Sequence[str], check_mode: bool) -> Result:
    """Give the device these tags. Raises InputError if the tailnet has no such device."""
    device = _find(api, fetch, sought)
    if device is None:
        raise InputError(
            f"The tailnet has no device with the address {sought.address}.",
            "Log in on the host first.",
            address=sought.address,
        )
    if device.tags == tuple(sorted(set(tags))):
        return Result(False, device)
    if not check_mode:
        fetch("POST", f"{api.base}{api.item_path.format(device.id)}/tags", {"tags": sorted(set(tags))})
    return Result(True, device)


def absent(api: Api, fetch: Fetch, sought: Sought, check_mode: bool) -> Result:
    """Delete the device, if it exists. Raises InputError if another device has its address."""
    device = _find(api, fetch, sought)
    if device is not None and not check_mode:
        fetch("DELETE", f"{api.base}{api.item_path.format(device.id)}", None)
    return Result(device is not None, device)


def _find(api: Api, fetch: Fetch, sought: Sought) -> Optional[Device]:
    devices = parse_devices(api, fetch("GET", f"{api.base}{api.list_path}", None))
    device = next((device for device in devices if sought.address in device.addresses), None)
    if device is None:
        return None
    for what, has, wanted in (("name", device.name, sought.name), ("ID", device.id, sought.id)):
        if wanted and has != wanted:
            raise InputError(
                f"The device with the address {sought.address} has the {what} '{has}' in the tailnet, not '{wanted}', "
                "so it was not changed.",
                "Find the device of the host at the control server, and change or delete it there.",
                address=sought.address,
                device=device.name,
            )
    return device


def fetcher(api_key: str, ca_path: Optional[str]) -> Fetch:
    """A function for requests with this key. It raises ApiError, which never quotes the key."""

    def fetch(method: str, url: str, body: Optional[Dict[str, Any]]) -> Dict[str, Any]:
        headers = {"Authorization": f"Bearer {api_key}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body)
        try:
            answer = open_url(url, data=data, headers=headers, method=method, timeout=_TIMEOUT, ca_path=ca_path)
            content = limited.read(answer)
        except urllib.error.HTTPError as failure:
            raise ApiError(
                f"{method} {url} was answered with {failure.code} {failure.reason}.",
                "Check that the API key is valid and may change devices.",
                status=failure.code,
            ) from None
        except OSError as failure:
            raise ApiError(
                f"{method} {url} failed: {failure}.",
                "Check that the control server can be reached from here and that its certificate is trusted (ca_path).",
            ) from failure
        if content is None:
            raise ParseError(f"{method} {url}", "the answer is too long")
        try:
            return dict(from_json(content)) if content.strip() not in (b"", b"null") else {}
        except (ValueError, TypeError) as failure:
            raise ParseError(f"{method} {url}", str(failure)) from failure

    return fetch
