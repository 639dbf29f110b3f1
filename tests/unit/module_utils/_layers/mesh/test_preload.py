# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The library of a pod: its file, its line, and failures. Integration tests cover that it works."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import CommandResult
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError, InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.mesh import preload

GIVEN: dict[str, Any] = {
    "source": "int one;",
    "address": "100.64.0.9",
    "subnet": "100.64.0.0/10",
    "interface": "tailscale0",
    "proxy_address": "127.0.0.2",
    "proxy_port": 1055,
    "api_socket": "/run/tailscale/tailscaled.sock",
}


@pytest.fixture(name="preload_paths")
def _preload_paths(tmp_path: Path) -> preload.PreloadPaths:
    return preload.PreloadPaths(str(tmp_path / "lib"), str(tmp_path / "ld.so.preload"))


class FakeCompilerHost:
    """Runs no compiler. ``works``: the test's result with a library that is not active yet, and with an active one."""

    def __init__(self, aside: bool = True, active: bool = True) -> None:
        self.works = {True: aside, False: active}
        self.ran: list[str] = []

    def __call__(self, argv: list[str], **options: Any) -> CommandResult:
        if argv[0] == "gcc":
            Path(argv[argv.index("-o") + 1]).write_text(options["stdin"])
            self.ran.append("build")
            return CommandResult(0, "", "")
        aside = bool(options["environment"])
        self.ran.append("test aside" if aside else "test active")
        return (
            CommandResult(0, "ok\n", "") if self.works[aside] else CommandResult(1, "", "AssertionError: {'127.0.0.1'}")
        )


def apply_library(preload_paths: preload.PreloadPaths, host: FakeCompilerHost, **overrides: Any) -> preload.PreloadPlan:
    library = preload.make_library({**GIVEN, **overrides})
    plan = preload.plan_preload(library, preload_paths)
    preload.apply_plan(host, library, preload_paths, plan)
    return plan


def test_library_is_built_tested_activated_and_tested_again(preload_paths: preload.PreloadPaths) -> None:
    host = FakeCompilerHost()
    plan = apply_library(preload_paths, host)
    assert plan.changed
    assert host.ran == ["build", "test aside", "test active"]
    assert Path(preload_paths.preload_list).read_text() == f"{plan.library_path}\n"
    assert Path(str(plan.library_path)).stat().st_mode & 0o777 == 0o644
    again = FakeCompilerHost()
    assert not apply_library(preload_paths, again).changed
    assert again.ran == []


def test_failing_library_is_not_activated(preload_paths: preload.PreloadPaths) -> None:
    with pytest.raises(HostStateError, match=r"is not active: AssertionError.* Set mesh_userspace_nodes=false"):
        apply_library(preload_paths, FakeCompilerHost(aside=False))
    assert not Path(preload_paths.preload_list).exists()


@pytest.mark.parametrize("before", ["", "/usr/lib/other.so\n"])
def test_library_that_breaks_the_host_is_deactivated_at_once(preload_paths: preload.PreloadPaths, before: str) -> None:
    if before:
        Path(preload_paths.preload_list).write_text(before)
    with pytest.raises(HostStateError):
        apply_library(preload_paths, FakeCompilerHost(active=False))
    assert (Path(preload_paths.preload_list).read_text() if before else "") == before
    assert Path(preload_paths.preload_list).exists() == bool(before)


def test_new_address_builds_a_new_library_and_removes_the_old_one(preload_paths: preload.PreloadPaths) -> None:
    old = apply_library(preload_paths, FakeCompilerHost())
    new = apply_library(preload_paths, FakeCompilerHost(), address="100.64.0.10")
    assert new.library_path != old.library_path and not Path(str(old.library_path)).exists()
    assert Path(preload_paths.preload_list).read_text() == f"{new.library_path}\n"


def test_foreign_lines_are_kept_after_our_library(preload_paths: preload.PreloadPaths) -> None:
    """glibc takes the words of all comments except the first for libraries."""
    foreign_lines = "# one\n/usr/lib/other.so # two\n"
    Path(preload_paths.preload_list).write_text(foreign_lines)
    plan = apply_library(preload_paths, FakeCompilerHost())
    assert Path(preload_paths.preload_list).read_text() == f"{plan.library_path}\n{foreign_lines}"
    gone = preload.plan_preload(None, preload_paths)
    preload.apply_plan(FakeCompilerHost(), None, preload_paths, gone)
    assert Path(preload_paths.preload_list).read_text() == foreign_lines
    assert not Path(str(plan.library_path)).exists()
    assert not preload.plan_preload(None, preload_paths).changed


def test_preload_list_is_removed_with_its_last_line(preload_paths: preload.PreloadPaths) -> None:
    apply_library(preload_paths, FakeCompilerHost())
    preload.apply_plan(FakeCompilerHost(), None, preload_paths, preload.plan_preload(None, preload_paths))
    assert not Path(preload_paths.preload_list).exists()
    assert not Path(preload_paths.library_directory).exists()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"address": "fd7a:115c:a1e0::2", "subnet": "fd7a:115c:a1e0::/48"}, "only IPv4"),
        ({"interface": 'x"'}, "quotation mark"),
    ],
)
def test_unsupported_options_are_refused(overrides: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        preload.make_library({**GIVEN, **overrides})
