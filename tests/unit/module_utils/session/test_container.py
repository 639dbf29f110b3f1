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

from ansible_collections.gpumesh.cluster.plugins.module_utils import command
from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Completed
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils.session import (
    container,
    job,
    node,
    runtime,
    runtime_podman,
    sessions,
    spec,
    subordinate,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils.session.shapes import Container, Settings

OWN = Container("main1", "main", 1, 0, "n1", 0, "10.192.0.1", 257)
PLACE = runtime.Place("/run/x/7/0", "/var/x/7/0", "/scratch/alice/images")
ME = pwd.getpwuid(os.geteuid()).pw_name


def parsed(**role: Any) -> spec.Spec:
    return spec.parse({"name": "demo", "roles": [{"name": "main", "image": "docker.io/library/x:1", **role}]})


def test_values_are_in_no_list_of_processes_and_do_not_mislead_podman() -> None:
    role, variables = (
        parsed().roles[0],
        {"TOKEN": "secret", "LD_SDK_KEY": "secret", "PATH": "/opt/bin", "HOME": "/root", "XDG_RUNTIME_DIR": "/x"},
    )
    words = runtime_podman.run_arguments(runtime.Task(7, role, OWN, PLACE, variables, []), "sha")
    given = [word for word in words if word.startswith("--env=")]
    assert given == [
        "--env=HOME=/root",
        "--env=LD_SDK_KEY",
        "--env=PATH=/opt/bin",
        "--env=TOKEN",
        "--env=XDG_RUNTIME_DIR=/x",
    ]


def test_a_container_has_the_certificates_of_the_tracking_server_also_renewed_ones(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(runtime, "_SETTINGS", str(tmp_path))
    variables = {"MLFLOW_TRACKING_SERVER_CERT_PATH": f"{tmp_path}/tracking-ca-lab.crt"}
    task = runtime.Task(7, parsed().roles[0], OWN, PLACE, variables, [])
    wanted = f"{tmp_path}:{tmp_path}:ro"
    assert wanted not in runtime.mounts(task)
    (tmp_path / "tracking-ca-lab.crt").touch()
    # The directory, since a mounted file would stay the one that has been replaced.
    assert wanted in runtime.mounts(task)
    other = {"MLFLOW_TRACKING_SERVER_CERT_PATH": f"{tmp_path}/mine/tracking-ca-lab.crt"}
    assert wanted not in runtime.mounts(task._replace(variables=other))


def test_podman_stays_in_the_job_of_the_session() -> None:
    """Through the bus of the user's login, it would leave the job, and a health check of the image would be a timer."""
    task = runtime.Task(7, parsed().roles[0], OWN, PLACE, {}, [])
    assert "--no-healthcheck" in runtime_podman.run_arguments(task, "sha")
    known = runtime_podman.podman_environment(PLACE.run)
    assert (known["XDG_RUNTIME_DIR"], known["DBUS_SESSION_BUS_ADDRESS"]) == (PLACE.run, f"unix:path={PLACE.run}/no-bus")


def test_podman_shares_the_images_of_a_user_also_on_debian_12() -> None:
    """With vfs, which podman 4.3 chooses by itself, a container's store does not find them."""
    assert "overlay.imagestore=" in " ".join(runtime_podman.command(PLACE))
    assert runtime_podman.podman_environment(PLACE.run)["STORAGE_DRIVER"] == "overlay"


def test_a_container_has_the_gpus_of_its_step_and_no_others() -> None:
    given = container.own_gpus({"SLURM_STEP_GPUS": "1,3", "SLURM_JOB_GPUS": "0,1,2,3"}, 2)
    words = runtime_podman.run_arguments(runtime.Task(7, parsed(gpus=2).roles[0], OWN, PLACE, {}, given), "sha")
    assert [word for word in words if word.startswith("--device")] == [
        "--device=nvidia.com/gpu=1",
        "--device=nvidia.com/gpu=3",
    ]
    assert container.own_gpus({"SLURM_STEP_GPUS": "1"}, 0) == []
    with pytest.raises(HostStateError, match="Slurm has allocated 0 GPUs to a container that requests 2"):
        container.own_gpus({"SLURM_JOB_GPUS": "0,1"}, 2)


@pytest.mark.parametrize(
    ("one", "other"), [("x/a_b:1", "x/a-b:1"), ("dir:/data/App", "dir:/data/app"), ("x/a:1-2", "x/a-1:2")]
)
def test_no_image_is_taken_for_another_one(one: str, other: str) -> None:
    assert runtime_podman._alias(one) != runtime_podman._alias(other)
    assert runtime_podman._alias(one) == runtime_podman._alias(one)


@pytest.fixture(name="top")
def _top(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("run/7/0", "lib/7/0", "bin"):
        (tmp_path / name).mkdir(parents=True)
    for name in runtime.PROGRAMS:
        (tmp_path / "bin" / name).touch(0o755)
    (tmp_path / "subuid").write_text(f"{os.geteuid()}:100000:65536\n")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(command, "_SEARCH_PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("LOGNAME", "somebody")
    monkeypatch.setattr(node, "FOLDER", str(tmp_path / "run"))
    monkeypatch.setattr(node, "STORAGE", str(tmp_path / "lib"))
    (tmp_path / "subgid").write_text(f"{os.geteuid()}:100000:65536\n")
    files = [(str(tmp_path / os.path.basename(path)), *words) for path, *words in subordinate.FILES]
    monkeypatch.setattr(subordinate, "FILES", files)
    plan = {"job": 7, "here": ["main1"], "containers": [OWN._asdict()]}
    monkeypatch.setattr(node, "read_plan", lambda _job: plan)
    return tmp_path


def here(top: Path) -> Settings:
    return Settings("n1", "n1", "eth0", {}, [], [], True, [], [], [], f"{top}/{{user}}")


def there(_argv: list[str], **_options: object) -> Completed:
    return Completed(0, "sha root\n", "")


def test_the_session_is_kept_where_only_its_user_reads_it(top: Path) -> None:
    word = job.encode(parsed(env={"TOKEN": "secret"}))
    assert container.prepare(there, word, 7, here(top), "key\n") == 0
    for name, text in (("spec", word), ("key", "key\n")):
        kept = top / "run" / "7" / "0" / name
        assert (kept.read_text(), kept.stat().st_mode & 0o777) == (text, 0o600)
    assert (top / ME).stat().st_mode & 0o777 == 0o700


def test_podman_leaves_no_process_in_the_step_that_looks_for_images(top: Path) -> None:
    """Slurm takes a second to end a step that does."""
    with subprocess.Popen(["/bin/sleep", "600"]) as keeper:

        def podman(argv: list[str], environment: dict[str, str], **_options: object) -> Completed:
            assert argv[0] == "podman"
            Path(environment["XDG_RUNTIME_DIR"], "libpod", "tmp", "pause.pid").write_text(f"{keeper.pid}\n")
            return Completed(0, "sha root\n", "")

        try:
            assert container.prepare(podman, job.encode(parsed()), 7, here(top), "") == 0
            assert keeper.wait(240) == -signal.SIGKILL
        finally:
            keeper.kill()


def test_images_are_not_kept_where_others_could_replace_them(top: Path) -> None:
    (top / ME).mkdir()
    (top / ME).chmod(0o777)
    with pytest.raises(HostStateError, match="open to other users.*session_storage_dir"):
        container.prepare(there, job.encode(parsed()), 7, here(top), "")


def test_a_user_without_subordinate_ids_is_told_what_to_do(top: Path) -> None:
    (top / "subuid").write_text("other:100000:65536\n")
    with pytest.raises(HostStateError, match=f"{ME} has no subordinate user IDs"):
        container.prepare(there, job.encode(parsed()), 7, here(top), "")


def test_gpus_need_the_description_of_nvidias_toolkit(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_podman, "_CDI", (str(top / "none"), str(top / "cdi")))
    (top / "cdi").mkdir()
    # Of other devices, and content that the toolkit does not read.
    (top / "cdi" / "net.yaml").write_text('kind: "vendor.com/net"\n')
    (top / "cdi" / "nvidia.yaml.old").write_text('kind: "nvidia.com/gpu"\n')
    word = job.encode(parsed(gpus=1))
    with pytest.raises(HostStateError, match="no CDI specification of its GPUs") as refused:
        container.prepare(there, word, 7, here(top), "")
    assert "Install nvidia-container-toolkit, and run: nvidia-ctk cdi generate" in refused.value.remedy
    (top / "cdi" / "nvidia.yaml").write_text("cdiVersion: 0.5.0\nkind: nvidia.com/gpu\n")
    assert container.prepare(there, word, 7, here(top), "") == 0


def test_a_node_that_cannot_run_containers_says_why(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (top / "max").write_text("0\n")
    monkeypatch.setattr(container, "_LIMIT", str(top / "max"))
    with pytest.raises(HostStateError, match="no user namespaces.*user.max_user_namespaces"):
        container.prepare(there, job.encode(parsed()), 7, here(top), "")
    monkeypatch.setattr(container, "find", lambda _name: None)
    with pytest.raises(HostStateError, match="has no podman.*Run the role session"):
        container.prepare(there, job.encode(parsed()), 7, here(top), "")


@pytest.mark.parametrize("program", ["podman", "catatonit"])
def test_a_node_that_lacks_a_program_of_its_runtime(top: Path, program: str) -> None:
    (top / "bin" / program).unlink()
    with pytest.raises(HostStateError, match=f"has no {program}. Run the role session"):
        container.prepare(there, job.encode(parsed()), 7, here(top), "")


def test_a_folder_that_a_node_lacks_is_told_before_anything_is_fetched(top: Path) -> None:
    with pytest.raises(HostStateError, match=f"has no {top}/none. Mount or create it on all nodes"):
        container.prepare(there, job.encode(parsed(mounts=[f"{top}/none:/data"])), 7, here(top), "")


def test_the_log_is_beside_the_images_of_the_user() -> None:
    given = here(Path("/"))._replace(storage="/scratch/{user}")
    assert sessions._logs(given) == sessions._logs(given._replace(storage="/scratch/{user}/")) == f"/scratch/{ME}"
    assert container.place_of(7, 0, "/scratch/{user}/").images == f"/scratch/{ME}/images"


@pytest.mark.parametrize(
    ("text", "last"),
    [
        ("starting\nthere is no data.\n\n", "there is no data."),
        ("\n", "it printed no error."),
    ],
)
def test_the_reason_is_the_last_line_of_the_container(text: str, last: str) -> None:
    assert runtime.last_line(text) == last
