# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The check of the plugin that sets the environment of jobs, on hosts that are folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health import job_plugin
from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health.catalogue import CATALOGUE
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm import job_plugin as plugin_files

VERSION = (24, 11, 5)
BUILD = plugin_files.Build(
    plugin_files.Platform((24, 11, 4), "x86_64", "glibc 2.41"), plugin_files.digest_library(b"library")
)
LIBRARY = "usr/local/lib/gpumesh/gpumesh_job_environment"
FILES = {
    "etc/gpumesh/task_prolog": "program",
    "etc/slurm/plugstack.conf.d/gpumesh.conf": f"# header\noptional /{LIBRARY}.so\n",
    "run/slurm/conf/plugstack.conf": "# header\ninclude /etc/slurm/plugstack.conf.d/*.conf\n",
    f"{LIBRARY}.so": "library",
    f"{LIBRARY}.c": plugin_files.format_stamp(BUILD) + "int x;\n",
}


def judge(folder: Path, files: dict[str, str], version: tuple[int, int, int] | None = VERSION) -> tuple[str, str]:
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    judgement = job_plugin.judge_plugin(job_plugin.read_plugin(Tree(str(folder))), version)
    return judgement.status, judgement.reason


def test_a_plugin_that_slurm_loads_passes(tmp_path: Path) -> None:
    assert judge(tmp_path, FILES) == ("pass", "")
    # The manager's own file, where slurmd has fetched none.
    (tmp_path / "run/slurm/conf/plugstack.conf").unlink()
    assert judge(tmp_path, {"etc/slurm/plugstack.conf": "include /etc/slurm/plugstack.conf.d/*.conf\n"})[0] == "pass"


@pytest.mark.parametrize(
    ("lacking", "reason"),
    [
        ("etc/gpumesh/task_prolog", "/etc/gpumesh/task_prolog is missing"),
        (f"{LIBRARY}.so", "is missing"),
        (f"{LIBRARY}.c", "not the one that was installed"),
        ("run/slurm/conf/plugstack.conf", "does not include"),
    ],
)
def test_a_plugin_that_slurm_would_ignore_drains_the_node(tmp_path: Path, lacking: str, reason: str) -> None:
    status, text = judge(tmp_path, {path: text for path, text in FILES.items() if path != lacking})
    assert status == "fail" and reason in text
    assert {entry.action for entry in CATALOGUE if entry.check_id == "slurm.job_plugin"} == {"drain"}


def test_a_damaged_library_drains_the_node(tmp_path: Path) -> None:
    status, text = judge(tmp_path, {**FILES, f"{LIBRARY}.so": "librar"})
    assert status == "fail" and "not the one that was installed" in text


@pytest.mark.parametrize("version", [(25, 5, 0), None])
def test_a_plugin_of_another_release_drains_the_node(tmp_path: Path, version: tuple[int, int, int] | None) -> None:
    status, text = judge(tmp_path, FILES, version)
    assert status == "fail" and "another release of Slurm" in text


def test_a_node_without_a_plugin_says_that_containers_cannot_run(tmp_path: Path) -> None:
    status, text = judge(tmp_path, {"etc/gpumesh/task_prolog": "program"})
    assert status == "skipped" and "containers" in text and "libslurm-dev" in text
    assert judge(tmp_path / "other", {"etc/passwd": ""}) == (
        "skipped",
        "This host does not set the environment of jobs.",
    )
