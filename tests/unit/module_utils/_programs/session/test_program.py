# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A command in all containers, with an srun that is a script."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session import job, program, runtime
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session import spec as specs
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session.models import PROGRAM_PATH

_SETTINGS = {
    "machine": "n1",
    "manager": "n1",
    "interface": "eth0",
    "members": {"n1": "10.0.0.1", "n2": "10.0.0.2"},
    "pools": ["10.192.0.0/10"],
    "closed": [],
    "nat": True,
    "allow": [],
    "volumes": [],
    "mounts_allowed": [],
    "storage": "/var/tmp",
}
_QUEUE = "7|alice|RUNNING|n[1-2]|n1|None|gpumesh-session +;demo;main,sub;1,0+0,1 running"
_MAIN = f"""
import sys
from {program.__name__} import main
sys.exit(main({_SETTINGS!r}, ["run", "demo", "--", "true"]))
"""


@pytest.fixture(name="bin_folder")
def _bin_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    # Before the fields is the prefix in the format.
    write_program(tmp_path, "squeue", f'echo "$2" | sed "s/^--format=//; s/|.*//" | sed \'s/$/|{_QUEUE}/\'')
    return tmp_path


def write_program(folder: Path, name: str, body: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{body}\n")
    (folder / name).chmod(0o755)


def test_output_lines_are_prefixed_with_the_container(bin_folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_program(bin_folder, "srun", 'echo "of $GPUMESH_SESSION_PLACE"')
    assert program.main(_SETTINGS, ["run", "demo", "--", "true"]) == 0
    assert sorted(capfd.readouterr().out.splitlines()) == ["main1: of 0", "sub1: of 1"]


def test_command_ended_by_a_signal_is_a_failure(bin_folder: Path) -> None:
    write_program(bin_folder, "srun", 'test "$GPUMESH_SESSION_PLACE" = 0 || kill -9 $$')
    assert program.main(_SETTINGS, ["run", "demo", "--", "true"]) == 9


def test_show_names_the_log(bin_folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    spec = specs.parse_spec({"name": "demo", "roles": [{"name": "main", "image": "debian"}]})
    (bin_folder / "script").write_text(job.format_script(PROGRAM_PATH, spec, "/mnt/shared/al ice"))
    write_program(bin_folder, "scontrol", f'test "$*" = "write batch_script 7 -" && cat {bin_folder}/script')
    assert program.main(_SETTINGS, ["show", "demo"]) == 0
    log = "/mnt/shared/al ice/gpumesh-session-demo-7.log"
    assert capfd.readouterr().out.splitlines()[-1] == f"log {log} on n1"


def test_show_works_without_the_batch_script(bin_folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_program(bin_folder, "scontrol", "exit 1")
    assert program.main(_SETTINGS, ["show", "demo"]) == 0
    assert "log" not in capfd.readouterr().out


def test_closed_standard_output_ends_the_command(bin_folder: Path) -> None:
    write_program(bin_folder, "srun", "exec yes")
    with subprocess.Popen([sys.executable, "-c", _MAIN], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.readline()
        process.stdout.close()
        assert (process.wait(240), process.stderr.read()) == (1, b"")


def test_failed_session_is_shown_with_the_reason(
    bin_folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Slurm has forgotten its job."""
    settings = {**_SETTINGS, "storage": str(tmp_path / "logs")}
    write_program(bin_folder, "squeue", "true")
    (tmp_path / "logs").mkdir()
    log = tmp_path / "logs" / "gpumesh-session-demo-7.log"
    log.write_text("gpumesh-session: failed: main1 on n1 ended with status 3: no data.\n")
    for words in (["show"], ["show", "demo"]):
        assert program.main(settings, words) == 0
        line, where = capfd.readouterr().out.splitlines()
        assert line.startswith("demo: job 7 · ") and line.endswith("failed: main1 on n1 ended with status 3: no data.")
        assert where == f"log {log}"
    assert program.main(settings, ["show", "other"]) == 2
    assert "There is no session 'other'" in capfd.readouterr().err


@pytest.mark.parametrize(("machine", "verbs"), [("n1", ["watch", "publish"]), ("n2", ["watch"])])
def test_manager_resumes_forwards_after_a_boot(
    bin_folder: Path, monkeypatch: pytest.MonkeyPatch, machine: str, verbs: list[str]
) -> None:
    begun: list[str] = []
    monkeypatch.setattr(program.node, "start_own_task", lambda _run, verb: begun.append(verb))
    assert program.main({**_SETTINGS, "machine": machine}, ["guard"]) == 0
    assert begun == verbs


def test_images_are_listed_and_removed_by_name(
    bin_folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    settings = {**_SETTINGS, "storage": str(tmp_path / "store")}
    identifier = "0123456789ab" + "c" * 52
    alias = f"localhost/gpumesh-session/{runtime.image_digest('docker.io/library/x:1')}:latest"
    (tmp_path / "images").write_text(
        f"sha256:{identifier}|120 MB|docker.io/library/x:1\nsha256:{identifier}|120 MB|{alias}\n"
        f"sha256:{'d' * 64}|5 MB|localhost/gpumesh-session/{'e' * 32}:latest\n"
    )
    write_program(
        bin_folder,
        "podman",
        f'echo "$*" >> {tmp_path}/seen\n'
        f'case "$*" in *" images --no-trunc "*) cat {tmp_path}/images ;;\n'
        f'  *" image inspect "*{alias}) echo {identifier} root ;; *" image inspect "*) exit 1 ;; esac',
    )
    # Nobody has started a session here yet.
    write_program(bin_folder, "squeue", "true")
    assert program.main(settings, ["images"]) == 0 and capfd.readouterr().out == ""
    assert program.main(settings, ["images", "--remove", "x"]) == 2
    assert "You have no images on n1" in capfd.readouterr().err
    (tmp_path / "store" / "images").mkdir(parents=True)
    assert program.main(settings, ["images"]) == 0
    assert capfd.readouterr().out.splitlines() == [
        f"{'d' * 12}        5 MB  without a name",
        "0123456789ab      120 MB  docker.io/library/x:1",
    ]
    assert program.main(settings, ["images", "--remove", "docker.io/library/x:1"]) == 0
    assert capfd.readouterr().out == "n1: 0123456789ab removed\n"
    assert program.main(settings, ["images", "--remove", "all"]) == 0
    removed = [line.split()[-1] for line in (tmp_path / "seen").read_text().splitlines() if " rmi " in line]
    assert removed == [identifier, "d" * 64, identifier]
    write_program(bin_folder, "squeue", f'echo "$2" | sed "s/^--format=//; s/|.*//" | sed \'s/$/|{_QUEUE}/\'')
    assert program.main(settings, ["images", "--remove", "all"]) == 2
    assert "n1 runs the session 'demo', which may need the images" in capfd.readouterr().err
    assert len([line for line in (tmp_path / "seen").read_text().splitlines() if " rmi " in line]) == 3
