# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The notice of a cloud provider that it will stop, move or interrupt this machine.

Only a machine whose DMI says that it belongs to such a cloud is asked, and each request ends within a second.

Source: AWS, EC2 User Guide, Scheduled events and Spot Instance interruption notices; Google Cloud, Monitor and plan for a
host maintenance event; Azure, Scheduled Events for Linux VMs.
"""

from __future__ import annotations

import http.client
from typing import Any, Callable, List, Mapping, NamedTuple, Optional

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health.models import (
    Judgement,
    failed,
    passed,
    skipped,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import parse_json

_METADATA_HOST = "169.254.169.254"
_REQUEST_TIMEOUT = 1.0
_MAX_RESPONSE_BYTES = 65536
_DMI = "sys/class/dmi/id"
AWS, GOOGLE, AZURE = "AWS", "Google Cloud", "Azure"
#: The tag that Azure gives to its machines; Hyper-V elsewhere has the same vendor.
_AZURE_TAG = "7783-7084-3265-9085-8269-3286-77"


class Response(NamedTuple):
    """A response of the metadata service."""

    status: int
    body: str


#: Sends a request: method, path, headers. None if there was no response in time.
Fetch = Callable[[str, str, Mapping[str, str]], Optional[Response]]


def identify_cloud(tree: Tree) -> Optional[str]:
    """The cloud of this machine, by what its firmware says."""
    vendor = tree.read(_DMI, "sys_vendor") or ""
    if vendor.startswith("Amazon EC2"):
        return AWS
    if vendor == "Google":
        return GOOGLE
    if tree.read(_DMI, "chassis_asset_tag") == _AZURE_TAG:
        return AZURE
    return None


def fetch_metadata(method: str, path: str, headers: Mapping[str, str]) -> Optional[Response]:
    """Send a request to the metadata service, whose address is the same in these clouds, and never through a proxy."""
    connection = http.client.HTTPConnection(_METADATA_HOST, timeout=_REQUEST_TIMEOUT)
    try:
        connection.request(method, path, headers=dict(headers))
        response = connection.getresponse()
        return Response(response.status, response.read(_MAX_RESPONSE_BYTES).decode("utf-8", "replace"))
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


#: The statuses of an answer. 404 says that there is nothing.
_ANSWERS = (200, 404)


def _parse_document(response: Optional[Response]) -> Any:
    """The JSON document of a response; None without one."""
    try:
        return parse_json(response.body) if response is not None and response.status == 200 else None
    except ValueError:
        return None


def _read_text(mapping: Mapping[str, Any], *names: str) -> str:
    return ", ".join(str(mapping[name]) for name in names if mapping.get(name))


def parse_aws_events(document: Any) -> List[str]:
    """The events that AWS has scheduled, without those that are over or were cancelled."""
    events = document if isinstance(document, list) else []
    return [
        _read_text(event, "Code", "NotBefore", "Description")
        for event in events
        if isinstance(event, dict) and event.get("State") not in ("completed", "canceled")
    ]


def parse_azure_events(document: Any, machine_name: str) -> List[str]:
    """The events of this machine. Those of all machines in its availability set are in the document."""
    events = document.get("Events") if isinstance(document, dict) else None
    return [
        _read_text(event, "EventType", "NotBefore", "Description")
        for event in (events if isinstance(events, list) else [])
        if isinstance(event, dict) and machine_name in (event.get("Resources") or [])
    ]


def _read_aws_notices(fetch: Fetch) -> Optional[List[str]]:
    token = fetch("PUT", "/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": "60"})
    if token is None:
        return None
    headers = {"X-aws-ec2-metadata-token": token.body} if token.status == 200 else {}
    events = fetch("GET", "/latest/meta-data/events/maintenance/scheduled", headers)
    if events is None or events.status not in _ANSWERS:
        return None
    notices = parse_aws_events(_parse_document(events))
    spot = _parse_document(fetch("GET", "/latest/meta-data/spot/instance-action", headers))
    return notices + ([f"spot: {_read_text(spot, 'action', 'time')}"] if isinstance(spot, dict) else [])


def _read_google_notices(fetch: Fetch) -> Optional[List[str]]:
    headers = {"Metadata-Flavor": "Google"}
    event = fetch("GET", "/computeMetadata/v1/instance/maintenance-event", headers)
    if event is None or event.status not in _ANSWERS:
        return None
    preempted = fetch("GET", "/computeMetadata/v1/instance/preempted", headers)
    notices = [event.body.strip()] if event.status == 200 and event.body.strip() not in ("", "NONE") else []
    is_preempted = preempted is not None and preempted.status == 200 and preempted.body.strip() == "TRUE"
    return [*notices, *(["preempted"] if is_preempted else [])]


def _read_azure_notices(fetch: Fetch) -> Optional[List[str]]:
    headers = {"Metadata": "true"}
    machine_name = fetch("GET", "/metadata/instance/compute/name?api-version=2021-02-01&format=text", headers)
    if machine_name is None or machine_name.status != 200:
        return None
    events = fetch("GET", "/metadata/scheduledevents?api-version=2020-07-01", headers)
    if events is None or events.status not in _ANSWERS:
        # The first request enables the service, which may take minutes.
        return None
    return parse_azure_events(_parse_document(events), machine_name.body.strip())


_READERS = {AWS: _read_aws_notices, GOOGLE: _read_google_notices, AZURE: _read_azure_notices}


def judge_maintenance(cloud: Optional[str], fetch: Fetch) -> Judgement:
    """Judge whether the provider has announced something."""
    if cloud is None:
        return skipped("This is not a machine of AWS, Google Cloud or Azure.")
    notices = _READERS[cloud](fetch)
    if notices is None:
        return skipped(f"The metadata service of {cloud} does not answer on this machine.")
    if not notices:
        return passed(0, 0, "notices")
    return failed(
        len(notices),
        0,
        f"{cloud} has announced: {'; '.join(notices)}.",
        "Drain the node before that time (scontrol update NodeName=NAME State=DRAIN Reason=maintenance), or move the machine.",
        "notices",
    )
