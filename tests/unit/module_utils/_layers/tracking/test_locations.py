# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Requests that MLflow's authorization function refuses. The scenario tracking sends them to MLflow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.tracking import locations, users
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train import gpumesh_track

CREATE, VERSION, TRACE = (
    "/api/2.0/mlflow/experiments/create",
    "/ajax-api/2.0/mlflow/model-versions/create",
    "/api/3.0/mlflow/traces",
)
FOREIGN = [
    "/etc",
    "etc",
    "file:///etc",
    "FILE:///etc",
    " file:///etc",
    "s3://bucket/x",
    "http://host/x",
    "mlflow-artifacts://host:80/x",
    "mlflow-artifacts:///x",
    "mlflow-artifacts:/../x",
    "mlflow-artifacts:/x/%2e%2e/y",
    "mlflow-artifacts:/x/%252e%252e/y",
    r"mlflow-artifacts:/x\..\y",
]


@pytest.mark.parametrize("location", FOREIGN)
def test_foreign_location_is_found(location: str) -> None:
    for path, given in (
        (CREATE, {"artifact_location": location}),
        (CREATE, {"artifactLocation": location}),
        (VERSION, {"source": location}),
        (TRACE, {"trace": {"trace_info": {"tags": {"mlflow.artifactLocation": location}}}}),
        (TRACE, {"key": "mlflow.artifactLocation", "value": location}),
        (TRACE, {"tags": [{"key": "other"}, {"value": location, "key": "mlflow.artifactLocation"}]}),
        (TRACE, {"tags": [{"key": "mlflow.trace.archiveLocation", "value": location}]}),
    ):
        assert locations.find_foreign_location(path, given) == location, given


@pytest.mark.parametrize("location", ["mlflow-artifacts:/1", "mlflow-artifacts:1/x", "mlflow-artifacts:/%31/x"])
def test_experiment_inside_another_is_refused(location: str) -> None:
    assert locations.find_foreign_location(CREATE, {"artifact_location": location}) == location
    assert locations.find_foreign_location(VERSION, {"source": location}) == ""


@pytest.mark.parametrize(
    ("path", "given"),
    [
        (CREATE, {"name": "x"}),
        (CREATE, {"name": "x", "artifact_location": ""}),
        (CREATE, {"name": "x", "artifact_location": None}),
        (CREATE, {"artifact_location": "mlflow-artifacts:/team"}),
        (VERSION, {"source": "mlflow-artifacts:/1/models/m-1/artifacts"}),
        (VERSION, {"source": "runs:/1/model"}),
        (VERSION, {"source": "models:/m-1"}),
        (VERSION, {"source": "dummy-source"}),
        # Where data of a run came from, which the server never opens.
        ("/api/2.0/mlflow/runs/log-inputs", {"datasets": [{"dataset": {"source": "/data/x"}}]}),
        (CREATE, None),
        (CREATE, [1]),
    ],
)
def test_own_locations_are_accepted(path: str, given: Any) -> None:
    assert locations.find_foreign_location(path, given) == ""


def test_claimed_names_and_owners_are_found() -> None:
    rename = "/api/2.0/mlflow/experiments/update"
    assert locations.list_claimed_names(CREATE, {"name": "bob"}) == ["bob"]
    assert locations.list_claimed_names(rename, {"experiment_id": "1", "new_name": "bob"}) == ["bob"]
    assert locations.list_claimed_names(rename, {"newName": "bob"}) == ["bob"]
    assert locations.list_claimed_names("/api/2.0/mlflow/registered-models/create", {"name": "bob"}) == []
    assert locations.list_claimed_names(CREATE, []) == []
    for given in ({"tags": [{"key": "gpumesh.owner", "value": "bob"}]}, {"key": "gpumesh.owner", "value": "bob"}):
        assert locations.list_claimed_owners(given) == ["bob"]
    assert locations.OWNER_TAG == users.OWNER_TAG == gpumesh_track._OWNER_TAG


class RefusedError(Exception):
    """Stands in for MLflow's."""


def test_repositories_outside_the_artifacts_are_refused(tmp_path: Path) -> None:
    root = tmp_path / "artifacts"
    root.mkdir()
    (root / "link").symlink_to(tmp_path)
    opened: list[str] = []
    schemes = ("", "file", "s3", "http", "runs", "models", "mlflow-artifacts")
    repositories: dict[str, Any] = {scheme: lambda uri, **_more: opened.append(uri) for scheme in schemes}
    locations.guard_repositories(repositories, str(root), RefusedError)
    allowed = [
        ("", str(root)),
        ("", f"{root}/1"),
        ("file", f"file://{root}/1"),
        ("mlflow-artifacts", "mlflow-artifacts:/1"),
    ]
    for scheme, uri in [*allowed, ("runs", "runs:/1/x"), ("models", "models:/m-1")]:
        repositories[scheme](uri, tracking_uri=None)
    assert len(opened) == 6
    for scheme, uri in (
        ("", str(tmp_path)),
        ("", f"{root}-2"),
        ("", f"{root}/.."),
        ("", f"{root}/link"),
        ("", "artifacts"),
        ("file", f"file://{root}/%2e%2e"),
        ("file", f"file://host{root}"),
        ("s3", "s3://bucket/x"),
        ("http", "http://host/x"),
        ("mlflow-artifacts", "mlflow-artifacts://host/x"),
        ("runs", "runs://host/x"),
    ):
        with pytest.raises(RefusedError, match="is not among the artifacts of this server"):
            repositories[scheme](uri)
    assert len(opened) == 6
