# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The arguments of podman for a container, and what keeps a node from running it."""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._core import command
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import CommandResult
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session import (
    container,
    job,
    node,
    runtime,
    runtime_podman,
    sessions,
    spec,
    subordinate,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session.models import Container, SessionSettings

CONTAINER = Container("main1", "main", 1, 0, "n1", 0, "10.192.0.1", 257)
CONTAINER_PATHS = runtime.ContainerPaths("/run/x/7/0", "/var/x/7/0", "/scratch/alice/images")
USER_NAME = pwd.getpwuid(os.geteuid()).pw_name


def parse_role(**role: Any) -> spec.SessionSpec:
    return spec.parse_spec({"name": "demo", "roles": [{"name": "main", "image": "docker.io/library/x:1", **role}]})


def test_variables_are_not_arguments_and_do_not_affect_podman() -> None:
    role, variables = (
        parse_role().roles[0],
        {"TOKEN": "secret", "LD_SDK_KEY": "secret", "PATH": "/opt/bin", "HOME": "/root", "XDG_RUNTIME_DIR": "/x"},
    )
    words = runtime_podman.run_arguments(
        runtime.ContainerTask(7, role, CONTAINER, CONTAINER_PATHS, variables, []), "sha"
    )
    given = [word for word in words if word.startswith("--env=")]
    assert given == [
        "--env=HOME=/root",
        "--env=LD_SDK_KEY",
        "--env=PATH=/opt/bin",
        "--env=TOKEN",
        "--env=XDG_RUNTIME_DIR=/x",
    ]


def test_tracking_certificates_are_mounted_as_a_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(runtime, "_TRUST_DIRECTORY", str(tmp_path))
    variables = {"MLFLOW_TRACKING_SERVER_CERT_PATH": f"{tmp_path}/tracking-ca-lab.crt"}
    task = runtime.ContainerTask(7, parse_role().roles[0], CONTAINER, CONTAINER_PATHS, variables, [])
    wanted = f"{tmp_path}:{tmp_path}:ro"
    assert wanted not in runtime.list_mounts(task)
    (tmp_path / "tracking-ca-lab.crt").touch()
    # The directory, since a mounted file would stay the one that has been replaced.
    assert wanted in runtime.list_mounts(task)
    other = {"MLFLOW_TRACKING_SERVER_CERT_PATH": f"{tmp_path}/mine/tracking-ca-lab.crt"}
    assert wanted not in runtime.list_mounts(task._replace(variables=other))


def test_podman_stays_in_the_control_group_of_the_job() -> None:
    """Through the bus of the user's login, it would leave the job, and a health check of the image would be a timer."""
    task = runtime.ContainerTask(7, parse_role().roles[0], CONTAINER, CONTAINER_PATHS, {}, [])
    assert "--no-healthcheck" in runtime_podman.run_arguments(task, "sha")
    known = runtime_podman.podman_environment(CONTAINER_PATHS.run_directory)
    assert (known["XDG_RUNTIME_DIR"], known["DBUS_SESSION_BUS_ADDRESS"]) == (
        CONTAINER_PATHS.run_directory,
        f"unix:path={CONTAINER_PATHS.run_directory}/no-bus",
    )


def test_podman_shares_images_with_the_overlay_driver() -> None:
    """A container's store does not find images with vfs, which podman 4.3 chooses by default."""
    assert "overlay.imagestore=" in " ".join(runtime_podman.container_command(CONTAINER_PATHS))
    assert runtime_podman.podman_environment(CONTAINER_PATHS.run_directory)["STORAGE_DRIVER"] == "overlay"


def test_container_gets_only_the_gpus_of_its_step() -> None:
    given = container.allocated_gpus({"SLURM_STEP_GPUS": "1,3", "SLURM_JOB_GPUS": "0,1,2,3"}, 2)
    words = runtime_podman.run_arguments(
        runtime.ContainerTask(7, parse_role(gpus=2).roles[0], CONTAINER, CONTAINER_PATHS, {}, given), "sha"
    )
    assert [word for word in words if word.startswith("--device")] == [
        "--device=nvidia.com/gpu=1",
        "--device=nvidia.com/gpu=3",
    ]
    assert container.allocated_gpus({"SLURM_STEP_GPUS": "1"}, 0) == []
    with pytest.raises(HostStateError, match="Slurm has allocated 0 GPUs to a container that requests 2"):
        container.allocated_gpus({"SLURM_JOB_GPUS": "0,1"}, 2)


@pytest.mark.parametrize(
    ("one", "other"), [("x/a_b:1", "x/a-b:1"), ("dir:/data/App", "dir:/data/app"), ("x/a:1-2", "x/a-1:2")]
)
def test_different_image_names_have_different_aliases(one: str, other: str) -> None:
    assert runtime_podman._image_alias(one) != runtime_podman._image_alias(other)
    assert runtime_podman._image_alias(one) == runtime_podman._image_alias(one)


@pytest.fixture(name="top")
def _top(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("run/7/0", "lib/7/0", "bin"):
        (tmp_path / name).mkdir(parents=True)
    for name in runtime.REQUIRED_PROGRAMS:
        (tmp_path / "bin" / name).touch(0o755)
    (tmp_path / "subuid").write_text(f"{os.geteuid()}:100000:65536\n")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(command, "_SEARCH_PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("LOGNAME", "somebody")
    monkeypatch.setattr(node, "RUN_DIRECTORY", str(tmp_path / "run"))
    monkeypatch.setattr(node, "STORAGE_ROOT", str(tmp_path / "lib"))
    (tmp_path / "subgid").write_text(f"{os.geteuid()}:100000:65536\n")
    files = [(str(tmp_path / os.path.basename(path)), *words) for path, *words in subordinate.RANGE_FILES]
    monkeypatch.setattr(subordinate, "RANGE_FILES", files)
    plan = {"job": 7, "here": ["main1"], "containers": [CONTAINER._asdict()]}
    monkeypatch.setattr(node, "read_plan", lambda _job: plan)
    return tmp_path


def make_settings(top: Path) -> SessionSettings:
    return SessionSettings("n1", "n1", "eth0", {}, [], [], True, [], [], [], f"{top}/{{user}}")


def image_exists(_argv: list[str], **_options: object) -> CommandResult:
    return CommandResult(0, "sha root\n", "")


def test_spec_file_is_readable_only_by_the_user(top: Path) -> None:
    word = job.encode_spec(parse_role(env={"TOKEN": "secret"}))
    assert container.prepare(image_exists, word, 7, make_settings(top), "key\n") == 0
    for name, text in (("spec", word), ("key", "key\n")):
        kept = top / "run" / "7" / "0" / name
        assert (kept.read_text(), kept.stat().st_mode & 0o777) == (text, 0o600)
    assert (top / USER_NAME).stat().st_mode & 0o777 == 0o700


def test_pause_process_is_killed_after_image_commands(top: Path) -> None:
    """Slurm takes a second to end a step that does."""
    with subprocess.Popen(["/bin/sleep", "600"]) as keeper:

        def podman(argv: list[str], environment: dict[str, str], **_options: object) -> CommandResult:
            assert argv[0] == "podman"
            Path(environment["XDG_RUNTIME_DIR"], "libpod", "tmp", "pause.pid").write_text(f"{keeper.pid}\n")
            return CommandResult(0, "sha root\n", "")

        try:
            assert container.prepare(podman, job.encode_spec(parse_role()), 7, make_settings(top), "") == 0
            assert keeper.wait(240) == -signal.SIGKILL
        finally:
            keeper.kill()


def test_image_store_writable_by_others_is_refused(top: Path) -> None:
    (top / USER_NAME).mkdir()
    (top / USER_NAME).chmod(0o777)
    with pytest.raises(HostStateError, match="open to other users.*session_storage_dir"):
        container.prepare(image_exists, job.encode_spec(parse_role()), 7, make_settings(top), "")


def test_missing_subordinate_ids_are_refused_with_a_remedy(top: Path) -> None:
    (top / "subuid").write_text("other:100000:65536\n")
    with pytest.raises(HostStateError, match=f"{USER_NAME} has no subordinate user IDs"):
        container.prepare(image_exists, job.encode_spec(parse_role()), 7, make_settings(top), "")


def test_gpus_require_a_cdi_specification(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_podman, "_CDI_DIRECTORIES", (str(top / "none"), str(top / "cdi")))
    (top / "cdi").mkdir()
    # These files describe other devices, and have content that the toolkit does not read.
    (top / "cdi" / "net.yaml").write_text('kind: "vendor.com/net"\n')
    (top / "cdi" / "nvidia.yaml.old").write_text('kind: "nvidia.com/gpu"\n')
    word = job.encode_spec(parse_role(gpus=1))
    with pytest.raises(HostStateError, match="no CDI specification of its GPUs") as refused:
        container.prepare(image_exists, word, 7, make_settings(top), "")
    assert "Install nvidia-container-toolkit, and run: nvidia-ctk cdi generate" in refused.value.remedy
    (top / "cdi" / "nvidia.yaml").write_text("cdiVersion: 0.5.0\nkind: nvidia.com/gpu\n")
    assert container.prepare(image_exists, word, 7, make_settings(top), "") == 0


def test_disabled_user_namespaces_are_refused(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (top / "max").write_text("0\n")
    monkeypatch.setattr(container, "_USER_NAMESPACE_LIMIT", str(top / "max"))
    with pytest.raises(HostStateError, match="no user namespaces.*user.max_user_namespaces"):
        container.prepare(image_exists, job.encode_spec(parse_role()), 7, make_settings(top), "")
    monkeypatch.setattr(container, "find_program", lambda _name: None)
    with pytest.raises(HostStateError, match="has no podman.*Run the role session"):
        container.prepare(image_exists, job.encode_spec(parse_role()), 7, make_settings(top), "")


@pytest.mark.parametrize("program", ["podman", "catatonit"])
def test_missing_program_is_refused(top: Path, program: str) -> None:
    (top / "bin" / program).unlink()
    with pytest.raises(HostStateError, match=f"has no {program}. Run the role session"):
        container.prepare(image_exists, job.encode_spec(parse_role()), 7, make_settings(top), "")


def test_missing_mount_source_is_refused_before_fetching(top: Path) -> None:
    with pytest.raises(HostStateError, match=f"has no {top}/none. Mount or create it on all nodes"):
        container.prepare(
            image_exists, job.encode_spec(parse_role(mounts=[f"{top}/none:/data"])), 7, make_settings(top), ""
        )


def test_default_log_directory_contains_the_image_store() -> None:
    given = make_settings(Path("/"))._replace(storage="/scratch/{user}")
    assert (
        sessions._find_log_directory(given)
        == sessions._find_log_directory(given._replace(storage="/scratch/{user}/"))
        == f"/scratch/{USER_NAME}"
    )
    assert container.locate_container(7, 0, "/scratch/{user}/").image_store == f"/scratch/{USER_NAME}/images"


@pytest.mark.parametrize(
    ("text", "last"),
    [
        ("starting\nthere is no data.\n\n", "there is no data."),
        ("\n", "it printed no error."),
    ],
)
def test_failure_reason_is_the_last_line_of_the_output(text: str, last: str) -> None:
    assert runtime.last_line(text) == last
