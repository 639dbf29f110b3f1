# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Announcements of cloud providers. The documents are those of the providers' documentation."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health import maintenance
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree

AZURE_TAG = "7783-7084-3265-9085-8269-3286-77"


@pytest.mark.parametrize(
    ("files", "cloud"),
    [
        ({"sys_vendor": "Amazon EC2", "product_name": "p5.48xlarge"}, maintenance.AWS),
        ({"sys_vendor": "Google", "product_name": "Google Compute Engine"}, maintenance.GOOGLE),
        ({"sys_vendor": "Microsoft Corporation", "chassis_asset_tag": AZURE_TAG}, maintenance.AZURE),
        # Hyper-V, and other vendors.
        ({"sys_vendor": "Microsoft Corporation", "chassis_asset_tag": "4711"}, None),
        ({"sys_vendor": "QEMU"}, None),
        ({"sys_vendor": "Supermicro"}, None),
        ({}, None),
    ],
)
def test_cloud_is_identified_by_its_firmware(tmp_path: Path, files: dict[str, str], cloud: str | None) -> None:
    directory = tmp_path / "sys/class/dmi/id"
    directory.mkdir(parents=True)
    for name, text in files.items():
        (directory / name).write_text(f"{text}\n", encoding="utf-8")
    assert maintenance.identify_cloud(Tree(str(tmp_path))) == cloud


class MetadataService:
    """A metadata service with these documents, which counts what it is asked."""

    def __init__(self, documents: Mapping[str, str]) -> None:
        self.documents = documents
        self.requests: list[tuple[str, str, Mapping[str, str]]] = []

    def fetch(self, method: str, path: str, headers: Mapping[str, str]) -> maintenance.Response | None:
        self.requests.append((method, path, headers))
        document = next((text for part, text in self.documents.items() if part in path), None)
        return maintenance.Response(404, "not found") if document is None else maintenance.Response(200, document)


AWS_EVENT = {
    "NotBefore": "21 Jan 2019 09:00:43 GMT",
    "Code": "system-reboot",
    "Description": "scheduled reboot",
    "EventId": "instance-event-0d59937288b749b32",
    "NotAfter": "21 Jan 2019 09:17:23 GMT",
    "State": "active",
}
SPOT_ACTION = {"action": "terminate", "time": "2017-09-18T08:22:00Z"}
TOKEN = {"/api/token": "AQAEAK"}


@pytest.mark.parametrize(
    ("documents", "status", "part"),
    [
        (
            {**TOKEN, "maintenance/scheduled": json.dumps([AWS_EVENT])},
            "fail",
            "system-reboot, 21 Jan 2019 09:00:43 GMT",
        ),
        ({**TOKEN, "maintenance/scheduled": "[]"}, "pass", ""),
        ({**TOKEN, "maintenance/scheduled": json.dumps([{**AWS_EVENT, "State": "completed"}])}, "pass", ""),
        ({**TOKEN, "maintenance/scheduled": json.dumps([{**AWS_EVENT, "State": "canceled"}])}, "pass", ""),
        ({**TOKEN, "spot/instance-action": json.dumps(SPOT_ACTION)}, "fail", "spot: terminate, 2017-09-18T08:22:00Z"),
        ({**TOKEN, "maintenance/scheduled": "<html>"}, "pass", ""),
        (TOKEN, "pass", ""),
    ],
)
def test_events_of_aws(documents: dict[str, str], status: str, part: str) -> None:
    service = MetadataService(documents)
    judged = maintenance.judge_maintenance(maintenance.AWS, service.fetch)
    assert judged.status == status
    assert part in judged.reason
    assert service.requests[0][0] == "PUT"
    assert service.requests[1][2] == {"X-aws-ec2-metadata-token": "AQAEAK"}


@pytest.mark.parametrize(
    ("documents", "status"),
    [
        ({"maintenance-event": "NONE", "preempted": "FALSE"}, "pass"),
        ({"maintenance-event": "TERMINATE_ON_HOST_MAINTENANCE", "preempted": "FALSE"}, "fail"),
        ({"maintenance-event": "MIGRATE_ON_HOST_MAINTENANCE"}, "fail"),
        ({"maintenance-event": "NONE", "preempted": "TRUE"}, "fail"),
        ({}, "pass"),
    ],
)
def test_events_of_google_cloud(documents: dict[str, str], status: str) -> None:
    service = MetadataService(documents)
    assert maintenance.judge_maintenance(maintenance.GOOGLE, service.fetch).status == status
    assert {headers["Metadata-Flavor"] for _method, _path, headers in service.requests} == {"Google"}


def azure_events(*resources: str) -> str:
    event = {
        "EventId": "F3E6E2D2-E86A-47F0-AA8E-18918049A2B1",
        "EventStatus": "Scheduled",
        "EventType": "Reboot",
        "ResourceType": "VirtualMachine",
        "Resources": list(resources),
        "NotBefore": "Sun, 30 Jun 2019 16:22:03 GMT",
    }
    return json.dumps({"DocumentIncarnation": 1, "Events": [event] if resources else []})


@pytest.mark.parametrize(
    ("documents", "status"),
    [
        ({"compute/name": "gpu1", "scheduledevents": azure_events("gpu1")}, "fail"),
        # Of another machine in the same set.
        ({"compute/name": "gpu1", "scheduledevents": azure_events("gpu2")}, "pass"),
        ({"compute/name": "gpu1", "scheduledevents": azure_events()}, "pass"),
        ({"compute/name": "gpu1", "scheduledevents": "7"}, "pass"),
        ({"scheduledevents": azure_events("gpu1")}, "skipped"),
    ],
)
def test_events_of_azure(documents: dict[str, str], status: str) -> None:
    service = MetadataService(documents)
    assert maintenance.judge_maintenance(maintenance.AZURE, service.fetch).status == status
    assert {headers["Metadata"] for _method, _path, headers in service.requests} == {"true"}


@pytest.mark.parametrize("cloud", [maintenance.AWS, maintenance.GOOGLE, maintenance.AZURE])
def test_service_that_does_not_answer_is_asked_once(cloud: str) -> None:
    requests: list[str] = []

    def fetch(_method: str, path: str, _headers: Mapping[str, str]) -> None:
        requests.append(path)

    assert maintenance.judge_maintenance(cloud, fetch).status == "skipped"
    assert len(requests) == 1


@pytest.mark.parametrize("cloud", [maintenance.AWS, maintenance.GOOGLE, maintenance.AZURE])
def test_service_that_refuses_has_not_announced_nothing(cloud: str) -> None:
    def refuse(_method: str, path: str, _headers: Mapping[str, str]) -> maintenance.Response:
        return maintenance.Response(200 if "name" in path or "token" in path else 401, "refused")

    assert maintenance.judge_maintenance(cloud, refuse).status == "skipped"


def test_other_machines_are_not_asked() -> None:
    service = MetadataService({})
    assert maintenance.judge_maintenance(None, service.fetch).status == "skipped"
    assert service.requests == []
