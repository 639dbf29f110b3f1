# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""ssh between containers, with the real programs: a client's configuration, and logins to an ordinary user's daemon."""

from __future__ import annotations

import getpass
import shutil
from pathlib import Path

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import run
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session import plan, runtime, spec, ssh
from ansible_collections.gpumesh.cluster.tests.support.ssh_server import SSHD_PATH, SshServer

TOKEN = plan.parse_token("+;demo;main,sub;1,0+0,1")
MAIN, SUB = plan.place_containers(TOKEN, 5, ["n1", "n2"], {"n1": "10.0.0.1", "n2": "10.0.0.2"}, ["10.192.0.0/10"])

pytestmark = pytest.mark.skipif(not shutil.which("ssh-keygen"), reason="there is no OpenSSH here")


def test_client_verifies_only_the_session_key(tmp_path: Path) -> None:
    (tmp_path / "config").write_text(ssh.format_client_config([MAIN, SUB], "alice"))
    for name in ("sub1", SUB.address):
        asked = run(["ssh", "-G", "-F", str(tmp_path / "config"), name]).stdout.splitlines()
        for line in (
            "port 2200",
            "user alice",
            "hostkeyalias gpumesh-session",
            "stricthostkeychecking true",
            "identityfile /etc/gpumesh-ssh/key",
            "userknownhostsfile /etc/gpumesh-ssh/known_hosts",
        ):
            assert line in asked
    assert "port 22" in run(["ssh", "-G", "-F", str(tmp_path / "config"), "elsewhere"]).stdout.splitlines()


def test_ssh_requires_a_private_network() -> None:
    role = spec.parse_spec({"name": "demo", "roles": [{"name": "main", "image": "x"}]}).roles[0]
    task = runtime.ContainerTask(7, role, MAIN, runtime.ContainerPaths("/run/p", "/var/p", "/var/i"), {}, [])
    assert "/run/p/ssh:/etc/gpumesh-ssh:ro" in runtime.list_mounts(task)
    assert "gpumesh-ssh" not in " ".join(runtime.list_mounts(task._replace(container=MAIN._replace(vni=0))))


@pytest.mark.skipif(SSHD_PATH is None, reason="there is no sshd here")
def test_sshd_exposes_nothing_of_the_host(tmp_path: Path) -> None:
    ssh.make_key(run, str(tmp_path / ssh.KEY_FILE))
    (tmp_path / ssh.SERVER_CONFIG).write_text(ssh.format_server_config(MAIN, str(tmp_path), "/bin/echo"))
    known = run([str(SSHD_PATH), "-T", "-f", str(tmp_path / ssh.SERVER_CONFIG)]).stdout.splitlines()
    for line in (
        "allowstreamlocalforwarding no",
        "allowagentforwarding no",
        "permituserrc no",
        "x11forwarding no",
        "permittunnel no",
        "allowtcpforwarding yes",
    ):
        assert line in known
    # A name such as alice@corp.example would be a user and a host.
    assert not [line for line in known if line.startswith("allowusers")]


@pytest.mark.skipif(SSHD_PATH is None, reason="there is no sshd here")
def test_only_the_session_key_can_log_in(tmp_path: Path) -> None:
    user, own = getpass.getuser(), SUB._replace(address="127.0.0.1")
    private = ssh.make_key(run, str(tmp_path / ssh.KEY_FILE))
    public = ssh.read_public_key(run, str(tmp_path / ssh.KEY_FILE))
    (tmp_path / ssh.CLIENT_DIRECTORY).mkdir()
    command = "/bin/echo entered sub1:"
    with SshServer(tmp_path / ssh.SERVER_CONFIG) as daemon:
        port = str(daemon.port)
        for name, text in ssh.build_files(own, [MAIN, own], str(tmp_path), command, user, private, public).items():
            (tmp_path / name).write_text(
                text.replace(f":{ssh.SSH_PORT}", f":{port}").replace(ssh.CONTAINER_DIRECTORY, f"{tmp_path}/ssh")
            )
            (tmp_path / name).chmod(0o600)
        login = ["ssh", "-F", str(tmp_path / "ssh" / "config"), "-p", port, "-o", "BatchMode=yes"]
        done = run([*login, "127.0.0.1", "x"], check=False, timeout=300)
        assert done.stdout == "entered sub1:\n"
        # Ports are forwarded, and sockets of the host are not.
        refusing = [*login, "-o", "ExitOnForwardFailure=yes", "-R"]
        assert run([*refusing, "0:127.0.0.1:1", "127.0.0.1", "x"], check=False).rc == 0
        made = tmp_path / "made.sock"
        done = run([*refusing, f"{made}:127.0.0.1:1", "127.0.0.1", "x"], check=False)
        assert (done.rc, made.exists()) == (255, False)
        other = tmp_path / "other"
        ssh.make_key(run, str(other))
        # The first value of an option applies.
        key, config = tmp_path / "ssh" / "key", (tmp_path / "ssh" / "config").read_text()
        (tmp_path / "ssh" / "config").write_text(config.replace(str(key), str(other)))
        assert "Permission denied (publickey)" in run([*login, "127.0.0.1", "x"], check=False).stderr
        # A daemon with another key does not belong to this session.
        (tmp_path / "ssh" / "known_hosts").write_text(f"{ssh.HOST_KEY_ALIAS} {ssh.read_public_key(run, str(other))}\n")
        assert "Host key verification failed" in run([*login, "127.0.0.1", "x"], check=False).stderr
