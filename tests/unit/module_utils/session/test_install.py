# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The installation on a host: a kernel that cannot have sessions is refused first, and nothing remains afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Completed
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import CommandError, HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils.session import install
from ansible_collections.gpumesh.cluster.plugins.module_utils.session.runtime import PROGRAMS


@pytest.fixture(name="limits", autouse=True)
def _limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(install, "_LIMITS", (str(tmp_path / "max"), str(tmp_path / "clone")))
    (tmp_path / "max").write_text("96365\n")
    return tmp_path


class Kernel:
    """Replies as ip does, and records the namespaces."""

    def __init__(self, refusal: str = "") -> None:
        self.refusal, self.spaces = refusal, set[str]()

    def __call__(self, argv: list[str], **_options: object) -> Completed:
        if argv[1:3] == ["netns", "add"]:
            self.spaces.add(argv[3])
        elif argv[1:3] == ["netns", "delete"]:
            self.spaces.discard(argv[3])
        elif "vxlan" in argv and self.refusal:
            return Completed(2, "", self.refusal)
        return Completed(0, "", "")


def test_a_host_that_can_have_sessions_is_left_as_it_was() -> None:
    kernel = Kernel()
    install.refuse_unfit(kernel, "n3")
    assert kernel.spaces == set()


def test_a_host_without_vxlan() -> None:
    kernel = Kernel("Error: Unknown device type.\n")
    with pytest.raises(HostStateError, match="n3: the kernel cannot create a VXLAN device: Error: Unknown") as refused:
        install.refuse_unfit(kernel, "n3")
    assert "set session_enabled: false for n3" in refused.value.remedy
    assert kernel.spaces == set()


@pytest.mark.parametrize("name", ["max", "clone"])
def test_a_host_without_user_namespaces(limits: Path, name: str) -> None:
    (limits / name).write_text("0\n")
    with pytest.raises(HostStateError, match="n3: unprivileged users cannot create user namespaces"):
        install.refuse_unfit(Kernel(), "n3")


@pytest.mark.parametrize("others", [False, True])
def test_nothing_is_left_when_sessions_are_switched_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: bool
) -> None:
    library = tmp_path / "lib"
    library.mkdir()
    paths = {name: library / name for name in ("plugin.so", "plugin.c")}
    for path in paths.values():
        path.write_text("x")
    for module, name, value in (
        (install, "FOLDER", library),
        (install, "PLUGIN", paths["plugin.so"]),
        (install, "_SOURCE", paths["plugin.c"]),
        (install, "PATH", tmp_path / "gpumesh-session"),
        (install.node, "TABLE_FILE", tmp_path / "session.nft"),
        (install.node, "FOLDER", tmp_path / "run"),
        (install.node, "STORAGE", tmp_path / "storage"),
        (install.node, "_NAMESPACES", tmp_path / "netns"),
    ):
        monkeypatch.setattr(module, name, str(value))
    if others:
        (library / "libgpumesh-pod-0.so").write_text("x")
    for part in install.parts(Kernel("no table"), {"state": "absent"}).values():
        part.apply()
    assert [path.name for path in library.glob("*")] == (["libgpumesh-pod-0.so"] if others else [])
    assert library.exists() == others


def test_rules_that_could_not_be_loaded_are_loaded_by_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(install.node, "TABLE_FILE", str(tmp_path / "session.nft"))
    monkeypatch.setattr(install.node, "FOLDER", str(tmp_path))
    monkeypatch.setattr(install, "find", lambda name: name)
    (tmp_path / "session.nft").write_text("old\n")
    loaded: list[str] = []
    failing = True

    def run(argv: list[str], stdin: str = "", **_options: object) -> Completed:
        if argv[1] == "--file":
            if failing:
                raise CommandError(argv, "exited 1")
            loaded.append(stdin)
        return Completed(0, "", "")

    with pytest.raises(CommandError):
        install._rules(run, "new\n").apply()
    failing = False
    part = install._rules(run, "new\n")
    assert part.changed
    part.apply()
    # What the table has to know of the interfaces is loaded with it.
    assert [text.partition("flush set")[0] for text in loaded] == ["new\n"]
    assert (tmp_path / "session.nft").read_text() == "new\n"
    assert not install._rules(run, "new\n").changed


def test_a_host_that_lacks_everything_is_told_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "find", lambda _name: None)
    assert {*PROGRAMS, "nft", "gcc"} < set(install.missing())
