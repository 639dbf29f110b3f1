# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The program that restores the names on a host whose container engine rewrites /etc/hosts."""

from __future__ import annotations

import configparser
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from program_builds import build_zipapp, push_options

from ansible_collections.gpumesh.cluster.plugins.module_utils._layers import names
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.names_apply import plan_boot_restore
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.names import boot_program_sources

MEMBERS = [{"address": "10.99.0.1", "names": ["n1"]}]


def params(folder: Path, **given: Any) -> dict[str, Any]:
    own = {"cluster": "lab", "state": "present", "members": MEMBERS, "address": "10.99.0.1"}
    return {**own, "supervisor_programs": str(folder), **push_options(boot_program_sources()), **given}


def test_the_program_is_installed_only_without_systemd_and_removed_with_the_member(tmp_path: Path) -> None:
    settings = str(tmp_path / "gpumesh-names-lab.conf")
    parts = plan_boot_restore(params(tmp_path), "supervisord")
    assert list(parts) == ["/usr/local/sbin/gpumesh-names-lab", settings]
    lacking = plan_boot_restore(params(tmp_path, contents={}), "supervisord")
    assert lacking["/usr/local/sbin/gpumesh-names-lab"].missing_content == "gpumesh-names"
    parts[settings].apply()
    program = configparser.RawConfigParser()
    program.read(settings)
    section = program["program:gpumesh-names-lab"]
    assert (section["command"], section["autorestart"]) == ("/usr/local/sbin/gpumesh-names-lab", "false")
    assert not plan_boot_restore(params(tmp_path), "supervisord")[settings].changed
    assert os.stat(settings).st_mode & 0o777 == 0o644
    for given, manager in (({}, "systemd"), ({"state": "absent"}, "supervisord")):
        part = plan_boot_restore(params(tmp_path, **given), manager)[settings]
        assert part.changed
    part.apply()
    assert not Path(settings).exists()


def test_the_program_runs_without_ansible(tmp_path: Path) -> None:
    path = tmp_path / "program"
    path.write_bytes(build_zipapp(sys.executable, names.__name__, {}))
    code = "import sys; sys.path = [sys.argv[1], *sys.path]; from {} import main, build_file_entries; print(build_file_entries({}, 'gpu1', ''))"
    command = [sys.executable, "-IS", "-c", code.format(names.__name__, params(tmp_path)), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "10.99.0.1 n1 gpu1" in done.stdout
