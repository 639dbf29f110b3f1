# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The run of the check: it ends and is deleted whatever happens, and so may its experiment have been."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils.tracking import probe


class Server:
    """Stands in for MLflow. ``failing``: requests that it cannot answer. ``stage``: of the experiment, if there is one."""

    def __init__(self, stage: str = "active", *failing: str) -> None:
        self.stage, self.failing = stage, failing
        self.asked: list[str] = []
        self.status, self.run = "RUNNING", "none"

    def answer(self, path: str, body: Mapping[str, Any] | None) -> bytes:
        name = path.removeprefix("api/2.0/mlflow/").partition("?")[0]
        self.asked.append(name)
        if name in self.failing:
            raise HostStateError(f"{name} answers 500", status=500)
        return json.dumps(getattr(self, name.replace("/", "_").replace("-", "_"))(body)).encode()

    def experiments_get_by_name(self, _body: object) -> dict[str, Any]:
        if not self.stage:
            raise HostStateError("none", status=404)
        return {"experiment": {"experiment_id": "7", "lifecycle_stage": self.stage}}

    def experiments_restore(self, _body: object) -> dict[str, Any]:
        if self.stage != "deleted":
            raise HostStateError("none", status=404)
        self.stage = "active"
        return {}

    def experiments_create(self, _body: object) -> dict[str, Any]:
        self.stage = "active"
        return {"experiment_id": "7"}

    def runs_create(self, _body: object) -> dict[str, Any]:
        if self.stage != "active":
            raise HostStateError("must be in the 'active' state", status=400)
        self.run = "active"
        return {"run": {"info": {"run_id": "r"}}}

    def runs_log_batch(self, _body: object) -> dict[str, Any]:
        return {}

    def runs_get(self, _body: object) -> dict[str, Any]:
        return {"run": {"data": {"metrics": [{"value": 0.25}]}}}

    def runs_update(self, body: Mapping[str, Any]) -> dict[str, Any]:
        self.status = body["status"]
        return {}

    def runs_delete(self, _body: object) -> dict[str, Any]:
        self.run = "deleted"
        return {}


def check(monkeypatch: pytest.MonkeyPatch, server: Server) -> None:
    monkeypatch.setattr(probe.Client, "_request", server.answer)
    probe.Client("http://10.0.0.1:5000", "", 1, "a-password").write_and_read()


@pytest.mark.parametrize(
    ("stage", "also"),
    [("active", None), ("", "experiments/create"), ("deleted", "experiments/restore")],
)
def test_the_run_is_ended_and_deleted(monkeypatch: pytest.MonkeyPatch, stage: str, also: str | None) -> None:
    server = Server(stage)
    check(monkeypatch, server)
    assert (server.status, server.run) == ("FINISHED", "deleted")
    more = {"experiments/create", "experiments/restore"} & set(server.asked)
    assert more == ({also} if also else set())


def test_another_check_may_restore_the_experiment_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server("deleted")
    plain = server.experiments_restore

    def restore(body: object) -> dict[str, Any]:
        server.stage = "active"
        return plain(body)

    monkeypatch.setattr(server, "experiments_restore", restore)
    check(monkeypatch, server)
    assert server.run == "deleted"


@pytest.mark.parametrize("failing", ["runs/log-batch", "runs/get", "runs/update"])
def test_a_run_that_fails_is_deleted_as_well(monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    server = Server("active", failing)
    with pytest.raises(HostStateError, match=f"{failing} answers 500"):
        check(monkeypatch, server)
    assert server.run == "deleted"
    assert server.status == ("RUNNING" if failing == "runs/update" else "FAILED")


def test_the_first_error_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(HostStateError, match="log-batch answers 500"):
        check(monkeypatch, Server("active", "runs/log-batch", "runs/update", "runs/delete"))


@pytest.mark.parametrize("failing", ["experiments/get-by-name", "experiments/restore"])
def test_other_errors_of_the_experiment_are_shown(monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    with pytest.raises(HostStateError, match=f"{failing} answers 500"):
        check(monkeypatch, Server("deleted", failing))
