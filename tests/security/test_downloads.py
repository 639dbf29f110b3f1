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
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from lab_hosts import ROOT, AnsibleRun, run_ansible
from role_runs import run_tasks
from task_files import load_tasks

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import plan

MAKEFILE = b"all:\n\ttrue\n"
#: The checksum of another file.
OTHER_CHECKSUM = "sha256:" + "0" * 64


class ImpostorServer(NamedTuple):
    """A server with two addresses, the directory that it serves, and the paths that were requested."""

    http_url: str
    https_url: str
    directory: Path
    requested_paths: list[str]

    def checksum(self, name: str) -> str:
        return "sha256:" + hashlib.sha256((self.directory / name).read_bytes()).hexdigest()


def create_archive(path: Path, files: dict[str, bytes]) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            entry.mode = 0o755
            archive.addfile(entry, io.BytesIO(content))


@pytest.fixture(name="impostor")
def _impostor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ImpostorServer]:
    """Start a server with a certificate that the hosts trust: only the checksum tells its archives from the right ones."""
    directory = tmp_path / "served"
    directory.mkdir()
    create_archive(directory / "tailscale.tgz", {"tailscale_1/tailscale": b"evil", "tailscale_1/tailscaled": b"evil"})
    create_archive(directory / "sources.tgz", {"sources/Makefile": MAKEFILE})
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
    requested_paths: list[str] = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_arguments: Any) -> None:
            requested_paths.append(self.path)

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    addresses = []
    servers = []
    for secure in (False, True):
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(directory)))
        if secure:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        addresses.append(f"127.0.0.1:{server.server_port}")
    try:
        yield ImpostorServer(f"http://{addresses[0]}", f"https://{addresses[1]}", directory, requested_paths)
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()


def record_of(machines: Iterable[str]) -> dict[str, Any]:
    members = [
        {"machine": machine, "address": f"10.0.0.{number}", "interface": "eth0"}
        for number, machine in enumerate(machines, 1)
    ]
    manager, stamp = members[0]["machine"], plan.ChangeStamp("2026-11-20T20:31:00Z", "alice")
    return plan.commit(plan.create("0" * 32, "lab", "10.0.0.0/24", manager, {"backend": "none"}, members, stamp), stamp)


def run_task(
    directory: Path, role: str, task: dict[str, Any], hosts: Mapping[str, Mapping[str, Any]]
) -> tuple[AnsibleRun, set[str]]:
    """Run a task with the variables of a role, on several hosts with a directory each for what is written. Returns the
    hosts that failed, too.
    """
    play_variables: dict[str, Any] = {}
    for part in ("defaults", "vars"):
        play_variables |= yaml.safe_load((ROOT / "roles" / role / part / "main.yml").read_text(encoding="utf-8"))
    play_variables |= {
        "__mesh_tailscale_folder": f"{directory}/{{{{ inventory_hostname }}}}/programs",
        "__mesh_tailscale_archive_path": f"{directory}/{{{{ inventory_hostname }}}}/tailscale.tgz",
        "__check_sources": f"{directory}/{{{{ inventory_hostname }}}}/sources",
        "cluster_record": record_of(hosts),
    }
    for host in hosts:
        (directory / host / "programs").mkdir(parents=True)
    host_variable_names = {name for variables in hosts.values() for name in variables}
    # A variable of the play would win over those of the hosts.
    defaults = {name: play_variables.pop(name) for name in host_variable_names}
    playbook_run = run_tasks(
        directory, {host: {**defaults, **variables} for host, variables in hosts.items()}, play_variables, [task]
    )
    return playbook_run, set(re.findall(r"^fatal: \[([\w-]+)\]", playbook_run.output, re.MULTILINE))


def find_task(tasks: str, name: str, **variables: Any) -> dict[str, Any]:
    """Return the task or block of this name in a file of tasks below roles, with the results that it uses."""
    (task,) = (task for task in load_tasks(ROOT / "roles" / tasks) if task["name"] == name)
    return {**without_packages(task), "vars": variables}


def without_packages(task: dict[str, Any]) -> dict[str, Any]:
    """Return a task or block without the installation of packages, which would be on this machine, and for several hosts
    at once.
    """
    tasks = [without_packages(inner) for inner in task.get("block", []) if "gpumesh.cluster.packages" not in inner]
    return {**task, "block": tasks} if tasks else task


def test_programs_are_installed_only_from_verified_sources(tmp_path: Path, impostor: ImpostorServer) -> None:
    plain, secure = f"{impostor.http_url}/tailscale.tgz", f"{impostor.https_url}/tailscale.tgz"
    right = impostor.checksum("tailscale.tgz")
    sources = {
        "plain": (plain, ""),
        "plain-checksum": (plain, right),
        "unchecked": (secure, ""),
        "file": ("file:///tmp/tailscale.tgz", ""),
        "weak": (secure, "md5:d41d8cd98f00b204e9800998ecf8427e"),
        "list": (secure, f"sha256:{impostor.http_url}/sums"),
        "none": (secure, "sha256:"),
        "changed": (secure, OTHER_CHECKSUM),
        "verified": (secure, right),
        "local": (str(impostor.directory / "tailscale.tgz"), ""),
    }
    hosts = {
        name: {"mesh_tailscale_archive": archive, "mesh_tailscale_checksum": checksum}
        for name, (archive, checksum) in sources.items()
    }
    install = find_task("mesh/tasks/enrol.yml", "Install Tailscale", __mesh_connection={"installed": False})
    playbook_run, failed = run_task(tmp_path, "mesh", install, hosts)
    assert failed == set(sources) - {"verified", "local"}, playbook_run.output
    # Nothing was requested for the other hosts.
    assert len(impostor.requested_paths) == len({"changed", "verified"}), playbook_run.output
    for name in sources:
        installed = {path.name for path in (tmp_path / name / "programs").iterdir()}
        assert installed == (set() if name in failed else {"tailscale", "tailscaled"}), name
    refused = failed - {"changed"}
    assert playbook_run.flat_output.count(
        "cannot be verified, and nothing has been changed. Give an https URL and"
    ) >= len(refused)


def test_package_key_is_used_only_if_verified(tmp_path: Path, impostor: ImpostorServer) -> None:
    sources = {
        "plain": (impostor.http_url, ""),
        "plain-checksum": (impostor.http_url, OTHER_CHECKSUM),
        "unchecked": (impostor.https_url, ""),
        "verified": (impostor.https_url, OTHER_CHECKSUM),
    }
    hosts = {
        name: {"mesh_tailscale_repository": url, "mesh_tailscale_repository_checksum": checksum}
        for name, (url, checksum) in sources.items()
    }
    playbook_run, failed = run_task(tmp_path, "mesh", {"gpumesh.cluster.role_options": {"roles": ["mesh"]}}, hosts)
    assert failed == set(sources) - {"verified"}, playbook_run.output
    assert "mesh_tailscale_repository_checksum=sha256:" in playbook_run.flat_output


def test_sources_are_built_only_if_verified(tmp_path: Path, impostor: ImpostorServer) -> None:
    plain, secure = f"{impostor.http_url}/sources.tgz", f"{impostor.https_url}/sources.tgz"
    right = impostor.checksum("sources.tgz")
    sources = {
        "plain": (plain, ""),
        "plain-checksum": (plain, right),
        "unchecked": (secure, ""),
        "changed": (secure, OTHER_CHECKSUM),
        "verified": (secure, right),
        "local": (str(impostor.directory / "sources.tgz"), ""),
    }
    hosts = {
        name: {"check_collective_source": source, "check_collective_source_checksum": checksum}
        for name, (source, checksum) in sources.items()
    }
    build = find_task(
        "check/tasks/collectives.yml",
        "Build the collective tests from source",
        __check_has_controller=True,
        __check_machines=list(sources),
    )
    playbook_run, failed = run_task(tmp_path, "check", build, hosts)
    assert failed == set(sources) - {"verified", "local"}, playbook_run.output
    assert len(impostor.requested_paths) == len({"changed", "verified"}), playbook_run.output
    for name in sources:
        assert (tmp_path / name / "sources" / "Makefile").exists() == (name not in failed), name


@pytest.mark.parametrize(
    "option", ["mesh_tailscale_archive=http://127.0.0.1:9/a.tgz", "check_collective_source=https://127.0.0.1:9/a.tgz"]
)
def test_site_rejects_unverified_download_first(tmp_path: Path, option: str) -> None:
    local = {"ansible_connection": "local", "ansible_python_interpreter": "{{ ansible_playbook_python }}"}
    (tmp_path / "hosts.json").write_text(json.dumps({"all": {"vars": local, "hosts": {"n1": {}}}}))
    playbook_run = run_ansible(
        "ansible-playbook",
        "-i",
        "hosts.json",
        "gpumesh.cluster.site",
        "--check",
        "-e",
        "cluster_hosts=n1",
        "-e",
        option,
        cwd=tmp_path,
    )
    assert playbook_run.exit_status != 0
    assert (
        "n1: " + option.replace("=", " ") + " cannot be verified, and nothing has been changed."
        in playbook_run.flat_output
    )
    assert playbook_run.play_count == 1
    assert "List the records of the hosts" not in playbook_run.output
