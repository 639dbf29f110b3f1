# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An attacker on the way responds instead of the server of a download: nothing of theirs is installed."""

from __future__ import annotations

import functools
import hashlib
import http.server
import io
import json
import re
import ssl
import subprocess
import tarfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from lab_hosts import ROOT, Run, ansible
from role_runs import run_tasks
from task_files import tasks_of

MAKEFILE = b"all:\n\ttrue\n"
#: The checksum of another file.
OTHER = "sha256:" + "0" * 64


class Impostor(NamedTuple):
    """A server with two addresses, the directory that it serves, and the paths that were requested."""

    plain: str
    secure: str
    folder: Path
    asked: list[str]

    def checksum(self, name: str) -> str:
        return "sha256:" + hashlib.sha256((self.folder / name).read_bytes()).hexdigest()


def pack(path: Path, files: dict[str, bytes]) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            entry.mode = 0o755
            archive.addfile(entry, io.BytesIO(content))


@pytest.fixture(name="impostor")
def _impostor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Impostor]:
    """Start a server with a certificate that the hosts trust: only the checksum tells its archives from the right ones."""
    folder = tmp_path / "served"
    folder.mkdir()
    pack(folder / "tailscale.tgz", {"tailscale_1/tailscale": b"evil", "tailscale_1/tailscaled": b"evil"})
    pack(folder / "sources.tgz", {"sources/Makefile": MAKEFILE})
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subject = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"]
    request = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-keyout",
        str(key),
        "-out",
        str(certificate),
    ]
    subprocess.run([*request, *subject], check=True, capture_output=True)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    asked: list[str] = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_arguments: Any) -> None:
            asked.append(self.path)

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    addresses = []
    servers = []
    for secure in (False, True):
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(folder)))
        if secure:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        addresses.append(f"127.0.0.1:{server.server_port}")
    try:
        yield Impostor(f"http://{addresses[0]}", f"https://{addresses[1]}", folder, asked)
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()


def run_task(
    folder: Path, role: str, task: dict[str, Any], hosts: Mapping[str, Mapping[str, Any]]
) -> tuple[Run, set[str]]:
    """Run a task with the variables of a role, on several hosts with a directory each for what is written. Returns the
    hosts that failed, too.
    """
    known: dict[str, Any] = {}
    for part in ("defaults", "vars"):
        known |= yaml.safe_load((ROOT / "roles" / role / part / "main.yml").read_text(encoding="utf-8"))
    known |= {
        "__mesh_tailscale_folder": f"{folder}/{{{{ inventory_hostname }}}}/programs",
        "__mesh_tailscale_archive_path": f"{folder}/{{{{ inventory_hostname }}}}/tailscale.tgz",
        "__check_sources": f"{folder}/{{{{ inventory_hostname }}}}/sources",
        "cluster_record": {"manager": next(iter(hosts)), "members": [{"machine": host, "gpus": 0} for host in hosts]},
    }
    for host in hosts:
        (folder / host / "programs").mkdir(parents=True)
    given = {name for variables in hosts.values() for name in variables}
    # A variable of the play would win over those of the hosts.
    defaults = {name: known.pop(name) for name in given}
    done = run_tasks(folder, {host: {**defaults, **variables} for host, variables in hosts.items()}, known, [task])
    return done, set(re.findall(r"^fatal: \[(\w+)\]", done.output, re.MULTILINE))


def named(tasks: str, name: str, **variables: Any) -> dict[str, Any]:
    """Return the task or block of this name in a file of tasks below roles, with the results that it uses."""
    (task,) = (task for task in tasks_of(ROOT / "roles" / tasks) if task["name"] == name)
    return {**task, "vars": variables}


def test_programs_are_installed_from_what_can_be_verified_alone(tmp_path: Path, impostor: Impostor) -> None:
    plain, secure = f"{impostor.plain}/tailscale.tgz", f"{impostor.secure}/tailscale.tgz"
    right = impostor.checksum("tailscale.tgz")
    given = {
        "plain": (plain, ""),
        "plain_checksum": (plain, right),
        "unchecked": (secure, ""),
        "file": ("file:///tmp/tailscale.tgz", ""),
        "weak": (secure, "md5:d41d8cd98f00b204e9800998ecf8427e"),
        "list": (secure, f"sha256:{impostor.plain}/sums"),
        "none": (secure, "sha256:"),
        "changed": (secure, OTHER),
        "verified": (secure, right),
        "local": (str(impostor.folder / "tailscale.tgz"), ""),
    }
    hosts = {
        name: {"mesh_tailscale_archive": archive, "mesh_tailscale_checksum": checksum}
        for name, (archive, checksum) in given.items()
    }
    install = named("mesh/tasks/enrol.yml", "Install Tailscale", __mesh_connection={"installed": False})
    done, failed = run_task(tmp_path, "mesh", install, hosts)
    assert failed == set(given) - {"verified", "local"}, done.output
    # Nothing was requested for the other hosts.
    assert len(impostor.asked) == len({"changed", "verified"})
    for name in given:
        installed = {path.name for path in (tmp_path / name / "programs").iterdir()}
        assert installed == (set() if name in failed else {"tailscale", "tailscaled"}), name
    refused = failed - {"changed"}
    assert done.words.count("cannot be verified, and nothing has been changed. Give an https URL and") >= len(refused)


def test_a_key_of_packages_is_taken_where_it_can_be_verified_alone(tmp_path: Path, impostor: Impostor) -> None:
    given = {
        "plain": (impostor.plain, ""),
        "plain_checksum": (impostor.plain, OTHER),
        "unchecked": (impostor.secure, ""),
        "verified": (impostor.secure, OTHER),
    }
    hosts = {
        name: {"mesh_tailscale_repository": url, "mesh_tailscale_repository_checksum": checksum}
        for name, (url, checksum) in given.items()
    }
    done, failed = run_task(tmp_path, "mesh", {"gpumesh.cluster.role_options": {"roles": ["mesh"]}}, hosts)
    assert failed == set(given) - {"verified"}, done.output
    assert "mesh_tailscale_repository_checksum=sha256:" in done.words


def test_sources_are_built_from_what_can_be_verified_alone(tmp_path: Path, impostor: Impostor) -> None:
    plain, secure = f"{impostor.plain}/sources.tgz", f"{impostor.secure}/sources.tgz"
    right = impostor.checksum("sources.tgz")
    given = {
        "plain": (plain, ""),
        "plain_checksum": (plain, right),
        "unchecked": (secure, ""),
        "changed": (secure, OTHER),
        "verified": (secure, right),
        "local": (str(impostor.folder / "sources.tgz"), ""),
    }
    hosts = {
        name: {"check_collective_source": source, "check_collective_source_checksum": checksum}
        for name, (source, checksum) in given.items()
    }
    build = named(
        "check/tasks/collectives.yml",
        "Build the collective tests from source",
        __check_sinfo={"rc": 0},
        __check_machines=list(given),
    )
    done, failed = run_task(tmp_path, "check", build, hosts)
    assert failed == set(given) - {"verified", "local"}, done.output
    assert len(impostor.asked) == len({"changed", "verified"})
    for name in given:
        assert (tmp_path / name / "sources" / "Makefile").exists() == (name not in failed), name


@pytest.mark.parametrize(
    "given", ["mesh_tailscale_archive=http://127.0.0.1:9/a.tgz", "check_collective_source=https://127.0.0.1:9/a.tgz"]
)
def test_a_site_is_refused_before_anything_else(tmp_path: Path, given: str) -> None:
    local = {"ansible_connection": "local", "ansible_python_interpreter": "{{ ansible_playbook_python }}"}
    (tmp_path / "hosts.json").write_text(json.dumps({"all": {"vars": local, "hosts": {"n1": {}}}}))
    done = ansible(
        "ansible-playbook",
        "-i",
        "hosts.json",
        "gpumesh.cluster.site",
        "--check",
        "-e",
        "cluster_hosts=n1",
        "-e",
        given,
        cwd=tmp_path,
    )
    assert done.code != 0
    assert "n1: " + given.replace("=", " ") + " cannot be verified, and nothing has been changed." in done.words
    assert done.plays == 1
    assert "List the records of the hosts" not in done.output
