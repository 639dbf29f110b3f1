# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""/etc/hosts with the names of the members, and without them again."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils import host_files, names
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError

MEMBERS = [{"address": "10.99.0.1", "names": ["n1"]}, {"address": "10.99.0.2", "names": ["n2"]}]
PARAMS = {"cluster": "lab", "state": "present", "members": MEMBERS, "address": "10.99.0.1"}
DEBIANS = "127.0.0.1\tlocalhost\n127.0.1.1\tgpu1.example.net gpu1\n10.1.1.1 else\n"


def ours(*own: str) -> str:
    """The block, with the names of this host besides n1."""
    return (
        f"# BEGIN gpumesh cluster lab\n{' '.join(['10.99.0.1', 'n1', *own])}\n10.99.0.2 n2\n# END gpumesh cluster lab\n"
    )


OURS = ours("gpu1")


def after(text: str, params: dict[str, Any], node: str = "gpu1.example.net") -> str:
    """The file after the module has run."""
    (wanted,) = host_files.parse(names.files(params, node, text))
    step = host_files.plan(wanted, host_files.Current(host_files.FILE, text, 0o644), (0, 0))
    return text if step is None or step.text is None else step.text


def test_the_names_go_before_the_loopback_address_that_they_replace() -> None:
    named = after(DEBIANS, PARAMS)
    hidden = "# gpumesh: 127.0.1.1\tgpu1.example.net gpu1\n"
    assert named == ours("gpu1", "gpu1.example.net") + DEBIANS.replace("127.0.1.1\tgpu1.example.net gpu1\n", hidden)
    assert after(named, PARAMS) == named
    assert after(named, {"cluster": "lab", "state": "absent"}) == DEBIANS


@pytest.mark.parametrize(("line", "own"), [("172.17.0.4\tgpu1\n", []), ("fd00::4\tgpu1 3f2c\n", ["3f2c"])])
def test_an_engine_s_line_for_its_container_is_hidden_too(line: str, own: list[str]) -> None:
    """With it, the own name resolves to an address outside of the mesh as well."""
    assert after(line, PARAMS) == f"{ours('gpu1', *own)}# gpumesh: {line}"
    # Without a mesh, that is the member's address.
    assert after("10.99.0.1\tgpu1\n", PARAMS).endswith("\n10.99.0.1\tgpu1\n")


@pytest.mark.parametrize(
    "line", ["127.0.1.1 gpu10\n", "127.0.1.1 other\n", "10.127.0.1 gpu1\n", "10.1.0.1\tgpu10\n", "10.1.0.1\tx gpu1\n"]
)
def test_what_names_another_is_left_alone(line: str) -> None:
    assert after(line, PARAMS) == OURS + line


@pytest.mark.parametrize(
    ("line", "rest", "own"),
    [
        ("127.0.1.1 full.example.net gpu1 alias # by hand", "", ["gpu1", "full.example.net", "alias"]),
        # A name that a member or another line has, and localhost, stay theirs.
        ("127.0.1.1 n2 gpu1 localhost localhost.localdomain", "", ["gpu1"]),
        ("127.0.1.1 db gpu1 full", "10.1.1.1 db # full\n#10.1.1.1 full\n", ["gpu1", "full"]),
    ],
)
def test_the_other_names_of_a_hidden_line_go_on_resolving(line: str, rest: str, own: list[str]) -> None:
    named = after(f"{line}\n{rest}", PARAMS)
    assert named == f"{ours(*own)}# gpumesh: {line}\n{rest}"
    assert after(named, PARAMS) == named, "they are found in the hidden line"
    assert after(named, {"cluster": "lab", "state": "absent"}) == f"{line}\n{rest}"


def test_a_cluster_that_ends_leaves_the_names_of_another_one_as_they_are() -> None:
    """The loopback address comes back with the last one: until then, this host would resolve its name to it, too."""
    other = {**PARAMS, "cluster": "two", "members": [{"address": "10.98.0.1", "names": ["n1"]}], "address": "10.98.0.1"}
    one = after(DEBIANS, PARAMS)
    both = after(one, other)
    assert after(after(both, PARAMS), other) == both, "it is the same whichever runs next"
    left = after(both, {"cluster": "lab", "state": "absent"})
    assert left == after(DEBIANS, other), "also the full name of this host"
    assert after(left, {"cluster": "two", "state": "absent"}) == DEBIANS
    # Names of the others' members stay theirs.
    theirs = {**other, "members": [*other["members"], {"address": "10.98.0.7", "names": ["gpu1.example.net"]}]}
    assert "10.99.0.1 n1 gpu1\n" in after(after(DEBIANS, theirs), PARAMS)


@pytest.mark.parametrize("node", ["localhost", "localhost.localdomain", ""])
def test_localhost_is_never_hidden(node: str) -> None:
    text = "127.0.0.1\tlocalhost\n127.0.1.1 localhost\n::1\tlocalhost ip6-localhost\n"
    assert after(text, PARAMS, node) == ours() + text


def test_a_host_name_is_no_pattern() -> None:
    assert after("127.0.1.1 gpux1\n", PARAMS, "gpu.1") == after("127.0.1.1 gpux1\n", PARAMS, "gpu").replace(
        "gpu.1", "gpu"
    )


def test_the_program_does_what_the_module_did(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def refused(*_given: Any) -> None:
        raise HostStateError("/etc/hosts is a directory.")

    written: list[Any] = []
    monkeypatch.setattr(host_files, "see_to", lambda entries, look_only: written.append((entries, look_only)))
    assert names.main(PARAMS) == 0
    assert written == [(names.wanted_here(PARAMS), False)]
    monkeypatch.setattr(host_files, "see_to", refused)
    assert names.main(PARAMS) == 1
    assert "is a directory" in capsys.readouterr().out


def test_what_differs(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    path = tmp_path / "hosts"
    path.write_text("127.0.0.1 localhost\n")
    monkeypatch.setattr(names, "_PATH", str(path))
    assert names.differences(None, PARAMS) == ([f"{path} lacks the managed lines"], True)
    path.write_text("# BEGIN gpumesh cluster lab\n10.99.0.9 n1\n# END gpumesh cluster lab\n")
    assert names.differences(None, PARAMS) == ([f"{path} differs"], False)
    path.unlink()
    assert names.differences(None, PARAMS) == ([f"{path} is missing"], True)
