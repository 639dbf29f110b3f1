# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The installation on a host: a kernel that cannot have sessions is refused first, and nothing remains afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import CommandResult
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import CommandError, HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session import install
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session.runtime import REQUIRED_PROGRAMS


@pytest.fixture(name="limits", autouse=True)
def _limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(install, "_NAMESPACE_SETTINGS", (str(tmp_path / "max"), str(tmp_path / "clone")))
    (tmp_path / "max").write_text("96365\n")
    return tmp_path


class Kernel:
    """Replies as ip does, and records the namespaces."""

    def __init__(self, refusal: str = "") -> None:
        self.refusal, self.spaces = refusal, set[str]()

    def __call__(self, argv: list[str], **_options: object) -> CommandResult:
        if argv[1:3] == ["netns", "add"]:
            self.spaces.add(argv[3])
        elif argv[1:3] == ["netns", "delete"]:
            self.spaces.discard(argv[3])
        elif "vxlan" in argv and self.refusal:
            return CommandResult(2, "", self.refusal)
        return CommandResult(0, "", "")


def test_probe_leaves_a_fit_host_unchanged() -> None:
    kernel = Kernel()
    install.refuse_unfit_host(kernel, "n3")
    assert kernel.spaces == set()


def test_host_without_vxlan_is_refused() -> None:
    kernel = Kernel("Error: Unknown device type.\n")
    with pytest.raises(HostStateError, match="n3: the kernel cannot create a VXLAN device: Error: Unknown") as refused:
        install.refuse_unfit_host(kernel, "n3")
    assert "set session_enabled: false for n3" in refused.value.remedy
    assert kernel.spaces == set()


@pytest.mark.parametrize("name", ["max", "clone"])
def test_host_without_user_namespaces_is_refused(limits: Path, name: str) -> None:
    (limits / name).write_text("0\n")
    with pytest.raises(HostStateError, match="n3: unprivileged users cannot create user namespaces"):
        install.refuse_unfit_host(Kernel(), "n3")


@pytest.mark.parametrize("others", [False, True])
def test_disabling_sessions_removes_all_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: bool) -> None:
    library = tmp_path / "lib"
    library.mkdir()
    paths = {name: library / name for name in ("plugin.so", "plugin.c")}
    for path in paths.values():
        path.write_text("x")
    for module, name, value in (
        (install, "PLUGIN_PATH", paths["plugin.so"]),
        (install, "_PLUGIN_SOURCE", paths["plugin.c"]),
        (install, "PROGRAM_PATH", tmp_path / "gpumesh-session"),
        (install.node, "TABLE_FILE", tmp_path / "session.nft"),
        (install.node, "RUN_DIRECTORY", tmp_path / "run"),
        (install.node, "STORAGE_ROOT", tmp_path / "storage"),
        (install.node, "_NAMESPACE_DIRECTORY", tmp_path / "netns"),
    ):
        monkeypatch.setattr(module, name, str(value))
    if others:
        (library / "libgpumesh-pod-0.so").write_text("x")
    for part in install.plan_changes(Kernel("no table"), {"state": "absent"}).values():
        part.apply()
    assert [path.name for path in library.glob("*")] == (["libgpumesh-pod-0.so"] if others else [])
    assert library.exists() == others


def test_rules_that_failed_to_load_are_loaded_by_the_next_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install.node, "TABLE_FILE", str(tmp_path / "session.nft"))
    monkeypatch.setattr(install.node, "RUN_DIRECTORY", str(tmp_path))
    monkeypatch.setattr(install, "find_program", lambda name: name)
    (tmp_path / "session.nft").write_text("old\n")
    loaded: list[str] = []
    failing = True

    def run(argv: list[str], stdin: str = "", **_options: object) -> CommandResult:
        if argv[1] == "--file":
            if failing:
                raise CommandError(argv, "exited 1")
            loaded.append(stdin)
        return CommandResult(0, "", "")

    with pytest.raises(CommandError):
        install._plan_rules(run, "new\n").apply()
    failing = False
    part = install._plan_rules(run, "new\n")
    assert part.changed
    part.apply()
    # What the table has to know of the interfaces is loaded with it.
    assert [text.partition("flush set")[0] for text in loaded] == ["new\n"]
    assert (tmp_path / "session.nft").read_text() == "new\n"
    assert not install._plan_rules(run, "new\n").changed


def test_all_missing_requirements_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "find_program", lambda _name: None)
    assert {*REQUIRED_PROGRAMS, "nft", "gcc"} < set(install.missing_requirements())


def test_certificates_are_required_wherever_the_distribution_has_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    paths = (str(tmp_path / "debian.crt"), str(tmp_path / "other.crt"))
    monkeypatch.setattr(install, "_CERTIFICATE_PATHS", paths)
    assert paths[0] in install.missing_requirements()
    Path(paths[1]).write_text("", encoding="utf-8")
    assert not set(paths) & set(install.missing_requirements())
