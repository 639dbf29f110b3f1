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

from ansible_collections.gpumesh.cluster.plugins.module_utils._core import bounded_read
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import (
    GpumeshError,
    InputError,
    ParseError,
    translate_parse_errors,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import parse_json
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.mesh.tailscale import DEFAULT_LOGIN_SERVER

_TAILSCALE_API = "https://api.tailscale.com/api/v2"
_REQUEST_TIMEOUT = 30.0

#: A function from the method, URL and JSON body of a request to the JSON response.
FetchJson = Callable[[str, str, Optional[Dict[str, Any]]], Dict[str, Any]]


class ApiError(GpumeshError):
    """The control server rejected a request, or could not be reached."""


class ControlApi(NamedTuple):
    """The target of requests. Tailscale's and Headscale's APIs differ in their paths and field names."""

    base_url: str
    devices_path: str
    devices_key: str
    device_path: str


class TailnetDevice(NamedTuple):
    """A device of the tailnet."""

    id: str
    name: str
    addresses: Tuple[str, ...]
    tags: Tuple[str, ...]


class DeviceIdentity(NamedTuple):
    """The properties that identify a device. ``device_id``: '' if it is not known."""

    device_address: str
    device_name: str
    device_id: str = ""


class DeviceResult(NamedTuple):
    """The change made, or to be made in check mode. ``device``: its state before, None if there is none."""

    changed: bool
    device: Optional[TailnetDevice]


def find_api(login_server: Optional[str]) -> ControlApi:
    """The API of a control server."""
    if login_server is None or login_server.rstrip("/") == DEFAULT_LOGIN_SERVER:
        return ControlApi(_TAILSCALE_API, "/tailnet/-/devices", "devices", "/device/{}")
    return ControlApi(f"{login_server.rstrip('/')}/api/v1", "/node", "nodes", "/node/{}")


def parse_devices(api: ControlApi, devices_response: Dict[str, Any]) -> List[TailnetDevice]:
    """Read the list of devices. Raises ParseError."""
    with translate_parse_errors(f"GET {api.devices_path}"):
        return [
            TailnetDevice(
                str(device_fields.get("nodeId") or device_fields["id"]),
                str(device_fields.get("givenName") or device_fields["name"]).partition(".")[0],
                tuple(device_fields.get("ipAddresses") or device_fields.get("addresses") or ()),
                tuple(sorted(device_fields.get("tags") or ())),
            )
            for device_fields in devices_response[api.devices_key]
        ]


def ensure_tags(
    api: ControlApi, fetch: FetchJson, device_identity: DeviceIdentity, desired_tags: Sequence[str], check_mode: bool
) -> DeviceResult:
    """Give the device these tags. Raises InputError if the tailnet has no such device."""
    tailnet_device = _find_device(api, fetch, device_identity)
    if tailnet_device is None:
        raise InputError(
            f"The tailnet has no device with the address {device_identity.device_address}.",
            "Log in on the host first.",
            address=device_identity.device_address,
        )
    if tailnet_device.tags == tuple(sorted(set(desired_tags))):
        return DeviceResult(False, tailnet_device)
    if not check_mode:
        fetch(
            "POST",
            f"{api.base_url}{api.device_path.format(tailnet_device.id)}/tags",
            {"tags": sorted(set(desired_tags))},
        )
    return DeviceResult(True, tailnet_device)


def delete_device(api: ControlApi, fetch: FetchJson, device_identity: DeviceIdentity, check_mode: bool) -> DeviceResult:
    """Delete the device, if it exists. Raises InputError if another device has its address."""
    device = _find_device(api, fetch, device_identity)
    if device is not None and not check_mode:
        fetch("DELETE", f"{api.base_url}{api.device_path.format(device.id)}", None)
    return DeviceResult(device is not None, device)


def _find_device(api: ControlApi, fetch: FetchJson, device_identity: DeviceIdentity) -> Optional[TailnetDevice]:
    devices = parse_devices(api, fetch("GET", f"{api.base_url}{api.devices_path}", None))
    matching_device = next(
        (matching_device for matching_device in devices if device_identity.device_address in matching_device.addresses),
        None,
    )
    if matching_device is None:
        return None
    for property_name, actual_text, expected_text in (
        ("name", matching_device.name, device_identity.device_name),
        ("ID", matching_device.id, device_identity.device_id),
    ):
        if expected_text and actual_text != expected_text:
            raise InputError(
                f"The device with the address {device_identity.device_address} has the {property_name} '{actual_text}' in the tailnet, not '{expected_text}', "
                "so it was not changed.",
                "Find the device of the host at the control server, and change or delete it there.",
                address=device_identity.device_address,
                device=matching_device.name,
            )
    return matching_device


def make_fetcher(api_key: str, ca_path: Optional[str]) -> FetchJson:
    """A function for requests with this key. It raises ApiError, which never quotes the key."""

    def fetch(http_method: str, request_url: str, body: Optional[Dict[str, Any]]) -> Dict[str, Any]:
        headers = {"Authorization": f"Bearer {api_key}", "Content-Type": "application/json"}
        encoded_body = None if body is None else json.dumps(body)
        try:
            http_response = open_url(
                request_url,
                data=encoded_body,
                headers=headers,
                method=http_method,
                timeout=_REQUEST_TIMEOUT,
                ca_path=ca_path,
            )
            response_body = bounded_read.read(http_response)
        except urllib.error.HTTPError as failure:
            raise ApiError(
                f"{http_method} {request_url} was answered with {failure.code} {failure.reason}.",
                "Check that the API key is valid and may change devices.",
                status=failure.code,
            ) from None
        except OSError as failure:
            raise ApiError(
                f"{http_method} {request_url} failed: {failure}.",
                "Check that the control server can be reached from here and that its certificate is trusted (ca_path).",
            ) from failure
        if response_body is None:
            raise ParseError(f"{http_method} {request_url}", "the answer is too long")
        try:
            return dict(parse_json(response_body)) if response_body.strip() not in (b"", b"null") else {}
        except (ValueError, TypeError) as failure:
            raise ParseError(f"{http_method} {request_url}", str(failure)) from failure

    return fetch
