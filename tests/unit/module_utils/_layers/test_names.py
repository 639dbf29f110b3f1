# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""/etc/hosts with the names of the members, and without them again."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._core import managed_files
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers import names

MEMBERS = [{"address": "10.99.0.1", "names": ["n1"]}, {"address": "10.99.0.2", "names": ["n2"]}]
PARAMS = {"cluster": "lab", "state": "present", "members": MEMBERS, "address": "10.99.0.1"}
DEBIAN_HOSTS = "127.0.0.1\tlocalhost\n127.0.1.1\tgpu1.example.net gpu1\n10.1.1.1 else\n"


def expected_block(*own: str) -> str:
    """Return the block, with the names of this host besides n1."""
    return (
        f"# BEGIN gpumesh cluster lab\n{' '.join(['10.99.0.1', 'n1', *own])}\n10.99.0.2 n2\n# END gpumesh cluster lab\n"
    )


EXPECTED_BLOCK = expected_block("gpu1")


def text_after(text: str, params: dict[str, Any], node: str = "gpu1.example.net") -> str:
    """Return the file after the module has run."""
    (wanted,) = managed_files.parse_entries(names.build_file_entries(params, node, text))
    step = managed_files.plan_change(wanted, managed_files.CurrentFile(managed_files.FILE, text, 0o644), (0, 0))
    return text if step is None or step.text is None else step.text


def test_names_are_inserted_before_the_hidden_loopback_line() -> None:
    named = text_after(DEBIAN_HOSTS, PARAMS)
    hidden = "# gpumesh: 127.0.1.1\tgpu1.example.net gpu1\n"
    assert named == expected_block("gpu1", "gpu1.example.net") + DEBIAN_HOSTS.replace(
        "127.0.1.1\tgpu1.example.net gpu1\n", hidden
    )
    assert text_after(named, PARAMS) == named
    assert text_after(named, {"cluster": "lab", "state": "absent"}) == DEBIAN_HOSTS


@pytest.mark.parametrize(("line", "own"), [("172.17.0.4\tgpu1\n", []), ("fd00::4\tgpu1 3f2c\n", ["3f2c"])])
def test_container_engine_line_is_hidden(line: str, own: list[str]) -> None:
    """The name of the host would otherwise resolve to an address outside of the mesh as well."""
    assert text_after(line, PARAMS) == f"{expected_block('gpu1', *own)}# gpumesh: {line}"
    # The address of the engine is the cluster address if there is no mesh.
    assert text_after("10.99.0.1\tgpu1\n", PARAMS).endswith("\n10.99.0.1\tgpu1\n")


@pytest.mark.parametrize(
    "line", ["127.0.1.1 gpu10\n", "127.0.1.1 other\n", "10.127.0.1 gpu1\n", "10.1.0.1\tgpu10\n", "10.1.0.1\tx gpu1\n"]
)
def test_lines_for_other_names_are_kept(line: str) -> None:
    assert text_after(line, PARAMS) == EXPECTED_BLOCK + line


@pytest.mark.parametrize(
    ("line", "rest", "own"),
    [
        ("127.0.1.1 full.example.net gpu1 alias # by hand", "", ["gpu1", "full.example.net", "alias"]),
        # Names of a member or in another line, and localhost, are not added.
        ("127.0.1.1 n2 gpu1 localhost localhost.localdomain", "", ["gpu1"]),
        ("127.0.1.1 db gpu1 full", "10.1.1.1 db # full\n#10.1.1.1 full\n", ["gpu1", "full"]),
    ],
)
def test_other_names_of_a_hidden_line_still_resolve(line: str, rest: str, own: list[str]) -> None:
    named = text_after(f"{line}\n{rest}", PARAMS)
    assert named == f"{expected_block(*own)}# gpumesh: {line}\n{rest}"
    assert text_after(named, PARAMS) == named, "they are found in the hidden line"
    assert text_after(named, {"cluster": "lab", "state": "absent"}) == f"{line}\n{rest}"


@pytest.mark.parametrize("first", ["lab", "two"])
def test_lines_stay_hidden_until_the_last_cluster_leaves(first: str) -> None:
    """The name of the host would otherwise resolve to the loopback address for the other cluster, too."""
    members = [{"address": "10.98.0.1", "names": ["n1"]}]
    two = {"cluster": "two", "state": "present", "members": members, "address": "10.98.0.1"}
    both = text_after(text_after(DEBIAN_HOSTS, PARAMS), two)
    assert (text_after(both, PARAMS), text_after(both, two)) == (both, both)
    last = "two" if first == "lab" else "lab"
    left = text_after(both, {"cluster": first, "state": "absent"})
    assert "# gpumesh: 127.0.1.1\tgpu1.example.net gpu1\n" in left
    address = "10.98.0.1" if last == "two" else "10.99.0.1"
    assert f"{address} n1 gpu1 gpu1.example.net\n" in left, "all names still resolve"
    assert text_after(left, {"cluster": last, "state": "absent"}) == DEBIAN_HOSTS


@pytest.mark.parametrize("node", ["localhost", "localhost.localdomain", ""])
def test_localhost_is_never_hidden(node: str) -> None:
    text = "127.0.0.1\tlocalhost\n127.0.1.1 localhost\n::1\tlocalhost ip6-localhost\n"
    assert text_after(text, PARAMS, node) == expected_block() + text


def test_host_name_is_matched_literally() -> None:
    assert text_after("127.0.1.1 gpux1\n", PARAMS, "gpu.1") == text_after("127.0.1.1 gpux1\n", PARAMS, "gpu").replace(
        "gpu.1", "gpu"
    )


def test_boot_program_does_what_the_module_does(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def refused(*_given: Any) -> None:
        raise HostStateError("/etc/hosts is a directory.")

    written: list[Any] = []
    monkeypatch.setattr(managed_files, "ensure_files", lambda entries, look_only: written.append((entries, look_only)))
    assert names.main(PARAMS) == 0
    assert written == [(names.build_local_entries(PARAMS), False)]
    monkeypatch.setattr(managed_files, "ensure_files", refused)
    assert names.main(PARAMS) == 1
    assert "is a directory" in capsys.readouterr().out


def test_differences_are_described(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    path = tmp_path / "hosts"
    path.write_text("127.0.0.1 localhost\n")
    monkeypatch.setattr(names, "_HOSTS_PATH", str(path))
    assert names.differences(None, PARAMS) == ([f"{path} lacks the managed lines"], True)
    path.write_text("# BEGIN gpumesh cluster lab\n10.99.0.9 n1\n# END gpumesh cluster lab\n")
    assert names.differences(None, PARAMS) == ([f"{path} differs"], False)
    path.unlink()
    assert names.differences(None, PARAMS) == ([f"{path} is missing"], True)
