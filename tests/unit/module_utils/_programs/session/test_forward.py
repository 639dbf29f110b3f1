# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ports of main1 at the manager's address: which are refused, and the arguments of ssh."""

from __future__ import annotations

import os
import pwd
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import CommandResult, run
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session import forward, job, spec
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session.models import SessionSettings

HOST_SETTINGS = SessionSettings(
    "n1", "n1", "eth0", {"n1": "127.0.0.1"}, ["10.192.0.0/10"], [], True, [], [], [], "/var/tmp"
)


def make_spec(ports: Any, **more: Any) -> spec.SessionSpec:
    return spec.parse_spec({"name": "demo", "roles": [{"name": "main", "image": "x"}], "ports": ports, **more})


@pytest.mark.parametrize("ports", ["8888, 9000:80", "8888 9000:80", [8888, "9000:80"]])
def test_ports_are_parsed_from_numbers_and_survey_answers(ports: Any) -> None:
    found = make_spec(ports)
    assert forward.parse_ports(found.ports) == [(8888, 8888), (9000, 80)]
    assert job.decode_spec(job.encode_spec(found)) == found


@pytest.mark.parametrize("ports", [[0], ["http"], ["1:2:3"], ["80:"], [70000], ["80:1", "80:2"]])
def test_invalid_ports_are_refused(ports: Any) -> None:
    with pytest.raises(InputError, match="session_ports"):
        make_spec(ports)


def test_ports_require_a_private_network() -> None:
    with pytest.raises(InputError, match="session_network=private"):
        make_spec([8888], network="host")


@pytest.fixture(name="taken")
def _used_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


def test_used_port_and_start_outside_the_manager_are_refused(taken: int) -> None:
    with pytest.raises(InputError, match=f"port {taken} of 127.0.0.1 cannot be used"):
        forward.refuse_ports(make_spec([f"{taken}:8888"]), HOST_SETTINGS)
    with pytest.raises(InputError, match="Start the session on n1"):
        forward.refuse_ports(make_spec([8888]), HOST_SETTINGS._replace(machine="n2"))
    forward.refuse_ports(make_spec([]), HOST_SETTINGS._replace(machine="n2"))
    assert forward.wait_until_listening([f"{taken}:8888"], HOST_SETTINGS)


def test_listener_of_another_user_is_not_a_forward(taken: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward, "_START_TIMEOUT", 0.0)
    ours = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: ours + 1)
    assert not forward.wait_until_listening([f"{taken}:8888"], HOST_SETTINGS)


def test_only_the_published_address_counts(taken: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward, "_START_TIMEOUT", 0.0)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        # The other socket does not listen.
        assert not forward.wait_until_listening([f"{taken}:8888", f"{other.getsockname()[1]}:1"], HOST_SETTINGS)
    assert not forward.wait_until_listening([f"{taken}:8888"], HOST_SETTINGS._replace(members={"n1": "127.0.0.5"}))


def test_ipv6_forward_is_bracketed() -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as listening:
        port = listening.getsockname()[1]
        assert forward.wait_until_listening([f"{port}:1"], HOST_SETTINGS._replace(members={"n1": "::1"}))


def test_ssh_verifies_the_host_key_and_uses_a_job_step_as_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "3")
    argv = forward.tunnel_command(["srun", "--jobid=7", "a b"], "ssh-ed25519 AAAA", ["9000:8888"], "10.0.0.1")
    assert argv[-3:] == ["-L", "10.0.0.1:9000:127.0.0.1:8888", "main1"]
    assert "StrictHostKeyChecking=yes" in argv
    assert "KnownHostsCommand=/bin/echo gpumesh-session ssh-ed25519 AAAA" in argv
    (proxy,) = [word for word in argv if word.startswith("ProxyCommand=")]
    assert "-u SLURM_JOB_ID" in proxy
    assert proxy.endswith("GPUMESH_SESSION_PLACE=0 srun --jobid=7 'a b'")


def test_session_key_is_read_beside_the_first_container_and_never_an_argument(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SLURM_NTASKS", "3")
    ran: list[tuple[list[str], str]] = []

    def run(argv: list[str], stdin: str = "", **_options: object) -> CommandResult:
        ran.append((argv, stdin))
        return CommandResult(0, "ssh-ed25519 AAAA gpumesh-session\n" if "-L" in argv else "private\n", "")

    assert forward._load_session_key(run, ["srun", "--jobid=7", "key"]) == "ssh-ed25519 AAAA"
    (asked, _nothing), *_rest = ran
    assert asked[0] == "env" and asked[asked.index("SLURM_NTASKS") - 1] == "-u"
    assert asked[-4:] == ["GPUMESH_SESSION_PLACE=0", "srun", "--jobid=7", "key"]
    assert (["ssh-add", "-q", "-"], "private\n") in ran
    assert not [argv for argv, _stdin in ran if "private" in " ".join(argv)]


@pytest.fixture(name="slurm")
def _fake_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A controller that answers the second time, with sessions of this user with and without ports, and an ssh-agent."""
    user = pwd.getpwuid(os.geteuid()).pw_name
    lines = [
        f"{number}|{owner}|{state}|n1|n1|None|gpumesh-session +;demo;main;1 {stage}"
        for number, owner, state, stage in (
            (7, user, "RUNNING", "running"),
            (8, user, "PENDING", "waiting"),
            (9, user, "RUNNING", "running"),
            (10, "nobody-at-all", "RUNNING", "running"),
            (11, user, "RUNNING", "running"),
        )
    ]
    scripts = {7: ["8888"], 8: ["9000:80"], 9: [], 10: ["8890"]}
    for number, ports in scripts.items():
        (tmp_path / f"script-{number}").write_text(job.format_script("/x", make_spec(ports), "/mnt"))
    # Whatever a user submits with such a comment.
    (tmp_path / "script-11").write_text("#!/bin/sh\nexec x supervise /mnt <<'END'\nnonsense\nEND\n")
    (tmp_path / "lines").write_text("\n".join(lines) + "\n")
    bodies = {
        "squeue": f"test -e {tmp_path}/asked || {{ touch {tmp_path}/asked; exit 1; }}\n"
        f'mark=$(echo "$2" | sed "s/^--format=//; s/|.*//"); sed "s/^/$mark|/" {tmp_path}/lines',
        "scontrol": f'test "$1 $2" = "write batch_script" && cat {tmp_path}/script-$3',
        "ssh-agent": 'exec "$@"',
        "program": f'echo "$*" >> {tmp_path}/begun; echo $$ >> {tmp_path}/numbers; read line < {tmp_path}/never',
    }
    os.mkfifo(tmp_path / "never")
    for name, body in bodies.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(forward.processes, "runs_systemd", lambda: False)
    monkeypatch.setattr(forward, "_QUERY_INTERVAL", 0.05)
    yield tmp_path
    for number in (tmp_path / "numbers").read_text().split() if (tmp_path / "numbers").exists() else []:
        os.kill(int(number), signal.SIGKILL)


def test_forwards_are_resumed_after_a_reboot_of_the_manager(slurm: Path) -> None:
    program = str(slurm / "program")
    assert forward.resume_forwards(run, program) == [7, 8]
    while not (slurm / "begun").exists() or len((slurm / "begun").read_text().splitlines()) < 2:
        time.sleep(0.02)
    assert sorted((slurm / "begun").read_text().splitlines()) == ["forward 7 8888:8888", "forward 8 9000:80"]
    # slurmd has been started again, and they still run.
    assert forward.resume_forwards(run, program) == []
    os.kill(int((slurm / "numbers").read_text().split()[0]), 0)
