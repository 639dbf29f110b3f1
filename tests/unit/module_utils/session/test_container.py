# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What podman is told of a container, and what keeps a node from running it."""

from __future__ import annotations

import os
import pwd
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Completed
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils.session import container, job, node, sessions, spec
from ansible_collections.gpumesh.cluster.plugins.module_utils.session.shapes import Container, Settings

OWN = Container("main1", "main", 1, 0, "n1", 0, "10.192.0.1", 257)
PLACE = container.Place("/run/x/7/0", "/var/x/7/0", "/scratch/alice/images")
ME = pwd.getpwuid(os.geteuid()).pw_name


def parsed(**role: Any) -> spec.Spec:
    return spec.parse({"name": "demo", "roles": [{"name": "main", "image": "docker.io/library/x:1", **role}]})


def test_values_are_in_no_list_of_processes_and_do_not_mislead_podman() -> None:
    role, variables = (
        parsed().roles[0],
        {"TOKEN": "secret", "LD_SDK_KEY": "secret", "PATH": "/opt/bin", "HOME": "/root", "XDG_RUNTIME_DIR": "/x"},
    )
    words = container.run_arguments(role, OWN, PLACE, "sha", variables, [])
    given = [word for word in words if word.startswith("--env=")]
    assert given == [
        "--env=HOME=/root",
        "--env=LD_SDK_KEY",
        "--env=PATH=/opt/bin",
        "--env=TOKEN",
        "--env=XDG_RUNTIME_DIR=/x",
    ]


@pytest.mark.parametrize(
    ("one", "other"), [("x/a_b:1", "x/a-b:1"), ("dir:/data/App", "dir:/data/app"), ("x/a:1-2", "x/a-1:2")]
)
def test_no_image_is_taken_for_another_one(one: str, other: str) -> None:
    assert container._alias(one) != container._alias(other)
    assert container._alias(one) == container._alias(one)


@pytest.fixture(name="top")
def _top(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("run/7/0", "lib/7/0", "bin"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "bin" / "podman").touch(0o755)
    (tmp_path / "subuid").write_text(f"{os.geteuid()}:100000:65536\n")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("LOGNAME", "somebody")
    monkeypatch.setattr(node, "FOLDER", str(tmp_path / "run"))
    monkeypatch.setattr(node, "STORAGE", str(tmp_path / "lib"))
    monkeypatch.setattr(container, "_SUBUID", str(tmp_path / "subuid"))
    plan = {"job": 7, "here": ["main1"], "containers": [OWN._asdict()]}
    monkeypatch.setattr(node, "read_plan", lambda _job: plan)
    return tmp_path


def there(_argv: list[str], **_options: object) -> Completed:
    return Completed(0, "sha root\n", "")


def test_the_session_is_kept_where_only_its_user_reads_it(top: Path) -> None:
    word = job.encode(parsed(env={"TOKEN": "secret"}))
    assert container.prepare(there, word, 7, f"{top}/{{user}}", "key\n") == 0
    for name, text in (("spec", word), ("key", "key\n")):
        kept = top / "run" / "7" / "0" / name
        assert (kept.read_text(), kept.stat().st_mode & 0o777) == (text, 0o600)
    assert (top / ME).stat().st_mode & 0o777 == 0o700


def test_images_are_not_kept_where_others_could_replace_them(top: Path) -> None:
    (top / ME).mkdir()
    (top / ME).chmod(0o777)
    with pytest.raises(HostStateError, match="open to other users.*session_storage_dir"):
        container.prepare(there, job.encode(parsed()), 7, f"{top}/{{user}}", "")


def test_a_user_without_subordinate_ids_is_told_what_to_do(top: Path) -> None:
    (top / "subuid").write_text("other:100000:65536\n")
    with pytest.raises(HostStateError, match=f"{ME} has no subordinate user ids"):
        container.prepare(there, job.encode(parsed()), 7, f"{top}/{{user}}", "")


def test_the_log_is_beside_the_images_of_the_user() -> None:
    here = Settings("n1", "n1", "eth0", {}, [], [], True, [], [], [], "/scratch/{user}/images")
    assert sessions._logs(here) == f"/scratch/{ME}"
    assert sessions._logs(here._replace(storage="/scratch/{user}/images/")) == f"/scratch/{ME}"
    assert container.place_of(7, 0, "/scratch/{user}/").images == f"/scratch/{ME}/images"
