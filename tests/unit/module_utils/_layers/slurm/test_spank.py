# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""When the plugin that sets the environment of jobs is compiled, and when Slurm could load the one that is there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from program_builds import push_options

from ansible_collections.gpumesh.cluster.plugins.module_utils._core import push
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import CommandResult
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm import job_plugin, release, spank
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.job_environment import (
    program_sources as job_programs,
)
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.slurm import job_plugin_sources

PUSHED = push_options(job_plugin_sources())
VERSION = (24, 11, 5)


class Host:
    """A host with gcc and the headers of Slurm, in a folder. ``library``: what its compiler makes."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, library: str = "library") -> None:
        self.headers, self.library, self.compiled = folder / "slurm", folder / "lib", 0
        self.built, self.available = library, "24.11.5-4"
        self.programs = {"gcc", "apt-cache"}
        self.headers.mkdir(parents=True)
        for name in ("spank.h", "stdio.h"):
            (self.headers / name).touch()
        self.provide_headers("0x180b05")
        self.program = folder / "task_prolog"
        self.program.write_bytes(job_programs()["task_prolog.py"])
        self.monkeypatch = monkeypatch
        self.enter()

    def enter(self) -> None:
        """Make this host the one on which the module runs."""
        self.monkeypatch.setattr(spank, "HEADER_DIRECTORY", str(self.headers))
        self.monkeypatch.setattr(spank, "REQUIRED_HEADERS", (self.headers / "spank.h", self.headers / "stdio.h"))
        self.monkeypatch.setattr(job_plugin, "LIBRARY_PATH", str(self.library / "job.so"))
        self.monkeypatch.setattr(job_plugin, "SOURCE_PATH", str(self.library / "job.c"))
        for module in (spank, release):
            self.monkeypatch.setattr(module, "find_program", lambda name: name if name in self.programs else None)

    def provide_headers(self, number: str) -> None:
        (self.headers / "slurm_version.h").write_text(f"#define SLURM_VERSION_NUMBER {number}\n")

    def run(self, argv: list[str], **_options: Any) -> CommandResult:
        if argv[:2] == ["apt-cache", "policy"]:
            return CommandResult(0, f"{argv[2]}:\n  Candidate: {self.available}\n", "")
        self.compiled += 1
        Path(argv[argv.index("-o") + 1]).write_text(self.built)
        return CommandResult(0, "", "")

    def params(self, **changed: Any) -> dict[str, Any]:
        given = {"task_prolog": str(self.program), "job_plugin": True, "serve": False, "slurm_node": True}
        given.update(manager_plugin=None, controller_version="", install_compiler=True)
        return {**PUSHED, **given, **changed}

    def predict(self, version: release.Version | None = VERSION, **changed: Any) -> spank.JobPlugin:
        return spank.plan_job_plugin(self.run, self.params(**changed), version)

    def plan(self, version: release.Version | None = VERSION, **changed: Any) -> tuple[bool, bool]:
        """Plan and apply. Returns whether something changed, and whether slurmd will load the plugin."""
        plugin = self.predict(version, **changed)
        assert not push.missing_contents(plugin.changes) and not plugin.missing_requirements
        for change in plugin.changes:
            change.apply()
        return any(change.changed for change in plugin.changes), plugin.fits(version)

    def missing(self, version: release.Version | None = VERSION, **changed: Any) -> set[str]:
        return {Path(name).name for name in self.predict(version, **changed).missing_requirements}


@pytest.fixture(name="host")
def _host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(tmp_path / "host", monkeypatch)


def offer(manager: Host) -> dict[str, Any]:
    """What the module of a member is given of the manager's plugin, and what it is pushed."""
    manager.enter()
    assert manager.plan(serve=True) == (True, True)
    built = spank.read_built()
    assert built is not None
    contents = {**PUSHED["contents"], job_plugin.LIBRARY_NAME: built.pop("library")}
    return {"manager_plugin": built, "contents": contents}


def test_the_plugin_is_compiled_once_for_each_release_of_slurm(host: Host) -> None:
    assert host.plan() == (True, True)
    assert host.plan() == (False, True)
    # A newer version of the same release loads it.
    host.provide_headers("0x180b06")
    assert host.plan((24, 11, 6)) == (False, True)
    host.provide_headers("0x190500")
    assert host.plan((25, 5, 0)) == (True, True)
    assert host.compiled == 2


@pytest.mark.parametrize("damage", ["missing", "changed", "unreadable", "no stamp"])
def test_a_damaged_plugin_is_compiled_again(host: Host, damage: str) -> None:
    host.plan()
    library = host.library / "job.so"
    if damage == "missing":
        library.unlink()
    elif damage == "changed":
        library.write_text("libraries")
    elif damage == "unreadable":
        library.chmod(0o600)
    else:
        (host.library / "job.c").write_text("int x;")
    assert host.plan() == (True, True)
    assert host.plan() == (False, True)


def test_the_source_is_asked_for_only_where_it_is_compiled(host: Host) -> None:
    assert push.missing_contents(host.predict(contents={}).changes) == [job_plugin.SOURCE_NAME]
    host.programs.clear()
    assert not host.predict(contents={}).changes


def test_a_member_copies_the_plugin_of_a_manager_that_is_like_it(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = Host(tmp_path / "manager", monkeypatch, "the manager's")
    offered = offer(manager)
    host.enter()
    # It is asked for what it needs, which is nothing once it is there.
    plugin = host.predict(**{**offered, "contents": {}})
    assert push.missing_contents(plugin.changes) == [job_plugin.LIBRARY_NAME, job_plugin.SOURCE_NAME]
    host.programs -= {"gcc"}
    assert host.missing(**offered) == set()
    assert host.plan(**offered) == (True, True)
    assert ((host.library / "job.so").read_text(), host.compiled) == ("the manager's", 0)
    assert host.plan(**offered) == (False, True)
    assert host.plan() == (False, True), "without the manager, it keeps what fits"
    (host.library / "job.so").write_text("damaged")
    assert host.plan(**offered) == (True, True)


@pytest.mark.parametrize("other", ["release", "architecture", "libc", "source"])
def test_a_member_that_is_not_like_the_manager_compiles_its_own(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    offered = offer(Host(tmp_path / "manager", monkeypatch, "the manager's"))
    stamp = offered["manager_plugin"]["stamp"]
    build = job_plugin.parse_stamp(stamp)
    assert build is not None and job_plugin.format_stamp(build) == stamp
    platform = build.platform
    changed = {
        "release": platform._replace(slurm_version=(25, 5, 0)),
        "architecture": platform._replace(architecture="riscv64"),
        "libc": platform._replace(libc="glibc 2.0"),
        "source": platform,
    }[other]
    digest = "0" * 64 if other == "source" else offered["manager_plugin"]["source_digest"]
    given = {"stamp": job_plugin.format_stamp(build._replace(platform=changed)), "source_digest": digest}
    host.enter()
    assert host.plan(**{**offered, "manager_plugin": given}) == (True, True)
    assert ((host.library / "job.so").read_text(), host.compiled) == ("library", 1)


def test_what_is_needed_to_compile_is_installed_where_it_is_of_use(host: Host) -> None:
    host.programs -= {"gcc"}
    (host.headers / "spank.h").unlink()
    assert host.missing(serve=True) == {"gcc", "spank.h"}
    assert host.missing(serve=True, slurm_node=False) == {"gcc", "spank.h"}, "a manager compiles it for the others"
    assert host.missing() == set(), "a member waits for the manager"
    other = job_plugin.Platform((25, 5, 0), "x86_64", "glibc 2.41")
    given = {"stamp": job_plugin.format_stamp(job_plugin.Build(other, "0" * 64)), "source_digest": "0" * 64}
    assert host.missing(manager_plugin=given) == {"gcc", "spank.h"}
    assert host.missing(manager_plugin=given, slurm_node=False) == set()
    assert host.missing(serve=True, job_plugin=False) == set()
    assert host.missing(serve=True, install_compiler=False) == set()
    assert host.missing((23, 11, 4), serve=True) == set()
    # With what Slurm itself needs, in one go.
    assert host.missing(None, serve=True) == {"gcc", "spank.h"}
    # The manager has an older plugin, or an older Slurm until its next run, and then one for this host.
    own = job_plugin.format_stamp(job_plugin.Build(spank._read_platform(VERSION), "0" * 64))
    assert host.missing(manager_plugin={"stamp": own, "source_digest": "0" * 64}) == set()
    older = job_plugin.format_stamp(job_plugin.Build(spank._read_platform((23, 11, 4)), "0" * 64))
    waiting = {"stamp": older, "source_digest": "0" * 64}
    assert host.missing(manager_plugin=waiting, controller_version="24.11.6") == set()
    assert host.missing(manager_plugin=waiting, controller_version="25.11.0") == {"gcc", "spank.h"}
    # Slurm is from elsewhere: the headers of the distribution would not fit.
    host.available = "25.05.3-1"
    assert host.missing(serve=True) == set()
    host.available = "(none)"
    assert host.missing(serve=True) == set()
    host.available, host.programs = "24.11.5-4", {"gcc"}
    assert host.missing(serve=True) == set(), "another package manager"


@pytest.mark.parametrize("lacking", ["gcc", "spank.h", "stdio.h", "slurm_version.h", "Slurm", "its release", "option"])
def test_a_host_that_cannot_compile_has_no_plugin(host: Host, lacking: str) -> None:
    host.programs -= {lacking}
    (host.headers / lacking).unlink(missing_ok=True)
    version = {"Slurm": None, "its release": (25, 5, 0)}.get(lacking, VERSION)
    assert host.plan(version, job_plugin=lacking != "option", install_compiler=False) == (False, False)
    assert host.compiled == 0


def test_a_program_that_computes_no_steps_remains_the_task_prolog(host: Host) -> None:
    host.program.write_text("#!/bin/sh\nexit 0\n")
    assert host.plan() == (False, False)
    assert host.plan(task_prolog="") == (False, False)
    # A manager without jobs of its own compiles it for the others.
    assert host.plan(serve=True, slurm_node=False) == (True, False)


def test_earlier_releases_of_slurm_keep_the_task_prolog(host: Host) -> None:
    host.provide_headers("0x160508")
    assert host.plan((22, 5, 8)) == (False, False)
    assert host.compiled == 0


def test_a_host_without_a_compiler_keeps_a_plugin_that_fits(host: Host) -> None:
    host.plan()
    host.programs.clear()
    assert host.plan() == (False, True)
    assert host.plan((24, 11, 9)) == (False, True)
    # Slurm would not load it, or it is not the one of this version of the collection.
    assert host.plan((25, 5, 0)) == (False, False)
    assert not host.predict().fits((25, 5, 0)), "slurmd is newer than the slurmctld of the manager"
    assert host.plan(digests={job_plugin.SOURCE_NAME: "another"}) == (False, False)
    (host.library / "job.so").unlink()
    assert spank.read_built() is None
    assert host.plan() == (False, False)


def test_check_mode_predicts_that_members_copy_what_the_manager_will_compile(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = Host(tmp_path / "manager", monkeypatch)
    manager.programs -= {"gcc"}
    planned, given = manager.predict(serve=True), manager.params(serve=True)
    assert planned.missing_requirements == ["gcc"] and planned.fits(VERSION) and spank.read_built() is None
    offered = spank.predict_built(planned, given)
    assert offered is not None and offered.pop("library") == ""
    host.enter()
    plugin = host.predict(manager_plugin=offered, contents={})
    assert plugin.fits(VERSION) and [change.changed for change in plugin.changes] == [True, True]
    # Where nothing is planned, others get what is there.
    assert host.plan(serve=True) == (True, True)
    assert spank.predict_built(host.predict(serve=True), given) == spank.read_built()


def test_removal_leaves_no_directory(host: Host) -> None:
    host.plan()
    (host.library / "job.so").unlink()
    removal = spank.plan_removal(job_plugin.SOURCE_PATH)
    assert removal.changed
    removal.apply()
    assert not host.library.exists()
    assert not spank.plan_removal(job_plugin.SOURCE_PATH).changed


def test_stamps() -> None:
    build = job_plugin.Build(job_plugin.Platform(VERSION, "aarch64", "glibc 2.41"), "0" * 64)
    stamp = job_plugin.format_stamp(build)
    assert stamp == f"/* For Slurm 24.11.5 on aarch64 with glibc 2.41: {'0' * 64}. */\n"
    assert job_plugin.parse_stamp(stamp + "int x;") == build
    assert job_plugin.parse_stamp("/* For Slurm 24.11.5. */\n") is job_plugin.parse_stamp("") is None
    assert not job_plugin.fits(None, None)
