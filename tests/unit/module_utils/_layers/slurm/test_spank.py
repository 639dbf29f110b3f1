# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""When the plugin that sets the environment of jobs is compiled, and when Slurm could load the one that is there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from program_builds import push_options

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import CommandResult
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm import job_plugin, spank
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.job_environment import (
    program_sources as job_programs,
)
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.slurm import job_plugin_sources

PUSHED = push_options(job_plugin_sources())
VERSION = (24, 11, 5)


class Host:
    """A host with gcc and the headers of Slurm, in a folder."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.headers, self.library, self.compiled = folder / "slurm", folder / "lib", list[str]()
        self.programs = {"gcc"}
        self.headers.mkdir()
        for name in ("spank.h", "stdio.h"):
            (self.headers / name).touch()
        self.provide_headers("0x180b05")
        self.program = folder / "task_prolog"
        self.program.write_bytes(job_programs()["task_prolog.py"])
        monkeypatch.setattr(spank, "HEADER_DIRECTORY", str(self.headers))
        monkeypatch.setattr(spank, "REQUIRED_HEADERS", (self.headers / "spank.h", self.headers / "stdio.h"))
        monkeypatch.setattr(job_plugin, "LIBRARY_PATH", str(self.library / "job.so"))
        monkeypatch.setattr(job_plugin, "SOURCE_PATH", str(self.library / "job.c"))
        monkeypatch.setattr(spank, "find_program", lambda name: name if name in self.programs else None)

    def provide_headers(self, number: str) -> None:
        (self.headers / "slurm_version.h").write_text(f"#define SLURM_VERSION_NUMBER {number}\n")

    def run(self, argv: list[str], stdin: str = "", **_options: Any) -> CommandResult:
        self.compiled.append(stdin.splitlines()[0])
        Path(argv[argv.index("-o") + 1]).write_text("library")
        return CommandResult(0, "", "")

    def plan(self, version: job_plugin.Version | None = VERSION, **changed: Any) -> tuple[bool, bool]:
        """Plan and apply. Returns whether something changed, and whether the plugin can be used."""
        plugin = spank.plan_job_plugin(self.run, {**PUSHED, "task_prolog": str(self.program), **changed}, version)
        plugin.change.apply()
        return plugin.change.changed, plugin.is_usable


@pytest.fixture(name="host")
def _host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(tmp_path, monkeypatch)


def test_the_plugin_is_compiled_once_for_each_version_of_slurm(host: Host) -> None:
    assert host.plan() == (True, True)
    assert host.plan() == (False, True)
    host.provide_headers("0x180b06")
    assert host.plan((24, 11, 6)) == (True, True)
    assert host.compiled == ["/* For Slurm 24.11.5. */", "/* For Slurm 24.11.6. */"]
    (host.library / "job.so").unlink()
    assert host.plan((24, 11, 6)) == (True, True)


def test_the_source_is_asked_for_only_where_it_is_compiled(host: Host) -> None:
    params = {**PUSHED, "task_prolog": str(host.program), "contents": {}}
    plugin = spank.plan_job_plugin(host.run, params, VERSION)
    assert plugin.change.missing_content == job_plugin.SOURCE_NAME
    host.programs.clear()
    assert not spank.plan_job_plugin(host.run, params, VERSION).change.missing_content


@pytest.mark.parametrize("lacking", ["gcc", "spank.h", "stdio.h", "slurm_version.h", "Slurm", "its release"])
def test_a_host_that_cannot_compile_has_no_plugin(host: Host, lacking: str) -> None:
    host.programs -= {lacking}
    (host.headers / lacking).unlink(missing_ok=True)
    version = {"Slurm": None, "its release": (25, 5, 0)}.get(lacking, VERSION)
    assert host.plan(version) == (False, False)
    assert host.compiled == []


def test_a_program_that_computes_no_steps_remains_the_task_prolog(host: Host) -> None:
    host.program.write_text("#!/bin/sh\nexit 0\n")
    assert host.plan() == (False, False)
    assert host.plan(task_prolog="") == (False, False)


def test_earlier_releases_of_slurm_keep_the_task_prolog(host: Host) -> None:
    host.provide_headers("0x160508")
    assert host.plan((22, 5, 8)) == (False, False)
    assert host.compiled == []


def test_a_host_without_a_compiler_keeps_a_plugin_that_fits(host: Host) -> None:
    host.plan()
    host.programs.clear()
    assert host.plan() == (False, True)
    assert host.plan((24, 11, 9)) == (False, True)
    # Slurm would not load it, or it is not the one of this version of the collection.
    assert host.plan((25, 5, 0)) == (False, False)
    assert host.plan(digests={job_plugin.SOURCE_NAME: "another"}) == (False, False)
    (host.library / "job.so").unlink()
    assert host.plan() == (False, False)


def test_removal_leaves_no_directory(host: Host) -> None:
    host.plan()
    (host.library / "job.so").unlink()
    removal = spank.plan_removal(job_plugin.SOURCE_PATH)
    assert removal.changed
    removal.apply()
    assert not host.library.exists()
    assert not spank.plan_removal(job_plugin.SOURCE_PATH).changed


def test_stamps() -> None:
    assert job_plugin.parse_stamp("/* For Slurm 24.11.5. */\nint x;") == VERSION
    assert job_plugin.parse_stamp("/* For Slurm ?. */\n") is job_plugin.parse_stamp("") is None
    assert not job_plugin.fits(None, None)
