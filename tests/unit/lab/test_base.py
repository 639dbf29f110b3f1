# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The base of the image without a container registry, where the container engine and the commands are stand-ins."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab_hosts import ROOT, run_ansible
from module_runs import write_programs


class NoRegistry(socketserver.StreamRequestHandler):
    """The engine's answer, as Docker gives it when the registry cannot be reached."""

    def handle(self) -> None:
        body = b'{"message":"dial tcp: lookup registry: no such host"}'
        self.rfile.readline()
        self.wfile.write(b"HTTP/1.1 500 Internal Server Error\r\nConnection: close\r\n")
        self.wfile.write(b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))


@pytest.fixture(name="engine")
def _engine(tmp_path: Path) -> Iterator[str]:
    path = str(tmp_path / "engine")
    with socketserver.ThreadingUnixStreamServer(path, NoRegistry) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield path
        server.shutdown()


@pytest.mark.parametrize("engine_is_there", [True, False])
def test_base_is_bootstrapped_without_a_word_of_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str, engine_is_there: bool
) -> None:
    """It is the first thing that people see of `make lab`."""
    play = {
        "hosts": "localhost",
        "connection": "local",
        "gather_facts": False,
        "vars_files": [str(ROOT / "lab" / "vars.yml")],
        "tasks": [{"ansible.builtin.include_tasks": str(ROOT / "lab" / "tasks" / "base.yml")}],
    }
    (tmp_path / "play.yml").write_text(json.dumps([play]), encoding="utf-8")
    scripts = {
        "mmdebstrap": f'for tar; do :; done; echo "$@" >{tmp_path}/bootstrapped; echo base >"$tar"',
        "docker": f'echo "$@" >{tmp_path}/imported',
    }
    monkeypatch.setenv("PATH", f"{write_programs(tmp_path / 'bin', scripts)}:/usr/bin:/bin")
    monkeypatch.setenv("ANSIBLE_STDOUT_CALLBACK", "gpumesh.cluster.progress")
    settings = {
        "lab_name": "none",
        "lab_hosts": [],
        "lab_release": "trixie",
        "__lab_docker_socket": engine if engine_is_there else f"{engine}-is-away",
        "__lab_base_name": "base:trixie",
    }
    done = run_ansible(
        "ansible-playbook", "-i", "localhost,", str(tmp_path / "play.yml"), "--extra-vars", json.dumps(settings)
    )
    assert done.exit_status == 0, done.output
    assert "trixie" in (tmp_path / "bootstrapped").read_text(encoding="utf-8")
    assert "base:trixie" in (tmp_path / "imported").read_text(encoding="utf-8")
    assert "500" not in done.output
    assert not {"rescued", "failed=1", "ignored"} & set(done.output.split()), done.output
