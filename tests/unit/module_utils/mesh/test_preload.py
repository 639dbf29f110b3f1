# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The library of a pod: its file, its line, and failures. Integration tests cover that it works."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Completed
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError, InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils.mesh import preload

GIVEN: dict[str, Any] = {
    "source": "int one;",
    "address": "100.64.0.9",
    "subnet": "100.64.0.0/10",
    "interface": "tailscale0",
    "proxy_address": "127.0.0.2",
    "proxy_port": 1055,
    "api_socket": "/run/tailscale/tailscaled.sock",
}


@pytest.fixture(name="places")
def _places(tmp_path: Path) -> preload.Places:
    return preload.Places(str(tmp_path / "lib"), str(tmp_path / "ld.so.preload"))


class Host:
    """Runs no compiler. ``works``: the test's result with a library that is not active yet, and with an active one."""

    def __init__(self, aside: bool = True, active: bool = True) -> None:
        self.works = {True: aside, False: active}
        self.ran: list[str] = []

    def __call__(self, argv: list[str], **options: Any) -> Completed:
        if argv[0] == "gcc":
            Path(argv[argv.index("-o") + 1]).write_text(options["stdin"])
            self.ran.append("build")
            return Completed(0, "", "")
        aside = bool(options["environment"])
        self.ran.append("test aside" if aside else "test active")
        return Completed(0, "ok\n", "") if self.works[aside] else Completed(1, "", "AssertionError: {'127.0.0.1'}")


def bring_about(places: preload.Places, host: Host, **given: Any) -> preload.Plan:
    library = preload.library_of({**GIVEN, **given})
    plan = preload.make_plan(library, places)
    preload.apply(host, library, places, plan)
    return plan


def test_it_is_built_tested_activated_and_tested_again(places: preload.Places) -> None:
    host = Host()
    plan = bring_about(places, host)
    assert plan.changed
    assert host.ran == ["build", "test aside", "test active"]
    assert Path(places.preload).read_text() == f"{plan.path}\n"
    assert Path(str(plan.path)).stat().st_mode & 0o777 == 0o644
    again = Host()
    assert not bring_about(places, again).changed
    assert again.ran == []


def test_one_that_does_not_work_is_not_activated(places: preload.Places) -> None:
    with pytest.raises(HostStateError, match=r"is not active: AssertionError.* Set mesh_userspace_nodes=false"):
        bring_about(places, Host(aside=False))
    assert not Path(places.preload).exists()


@pytest.mark.parametrize("before", ["", "/usr/lib/other.so\n"])
def test_one_that_breaks_the_host_is_taken_back_at_once(places: preload.Places, before: str) -> None:
    if before:
        Path(places.preload).write_text(before)
    with pytest.raises(HostStateError):
        bring_about(places, Host(active=False))
    assert (Path(places.preload).read_text() if before else "") == before
    assert Path(places.preload).exists() == bool(before)


def test_another_address_is_another_library_and_the_old_one_goes(places: preload.Places) -> None:
    old = bring_about(places, Host())
    new = bring_about(places, Host(), address="100.64.0.10")
    assert new.path != old.path and not Path(str(old.path)).exists()
    assert Path(places.preload).read_text() == f"{new.path}\n"


def test_the_lines_of_others_stay_and_ours_is_before_their_comments(places: preload.Places) -> None:
    """glibc takes the words of all comments except the first for libraries."""
    others = "# one\n/usr/lib/other.so # two\n"
    Path(places.preload).write_text(others)
    plan = bring_about(places, Host())
    assert Path(places.preload).read_text() == f"{plan.path}\n{others}"
    gone = preload.make_plan(None, places)
    preload.apply(Host(), None, places, gone)
    assert Path(places.preload).read_text() == others
    assert not Path(str(plan.path)).exists()
    assert not preload.make_plan(None, places).changed


def test_the_list_is_removed_with_its_last_line(places: preload.Places) -> None:
    bring_about(places, Host())
    preload.apply(Host(), None, places, preload.make_plan(None, places))
    assert not Path(places.preload).exists()
    assert not Path(places.libraries).exists()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"address": "fd7a:115c:a1e0::2", "subnet": "fd7a:115c:a1e0::/48"}, "only IPv4"),
        ({"interface": 'x"'}, "quotation mark"),
    ],
)
def test_what_it_cannot_serve_is_refused(given: dict[str, str], words: str) -> None:
    with pytest.raises(InputError, match=words):
        preload.library_of({**GIVEN, **given})
