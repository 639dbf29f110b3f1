# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Images as directories: what they say of their programs, and what has to be in them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Completed
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils.session import runtime, spec, tree

IMAGE = "docker.io/library/x:1"
PASSWD = "root:x:0:0::/root:/bin/sh\npostgres:x:70:71::/var/lib/postgresql:/bin/sh\n"
GROUP = "root:x:0:\nrender:x:105:\n"


def parsed(**config: Any) -> tree.Tree:
    return tree.parse("/images/x/rootfs", {"config": config}, PASSWD, GROUP)


@pytest.mark.parametrize(
    ("user", "numbers", "home"),
    [
        ("", (0, 0), "/root"),
        ("postgres", (70, 71), "/var/lib/postgresql"),
        ("postgres:render", (70, 105), "/var/lib/postgresql"),
        ("1000", (1000, 0), "/"),
        ("1000:1001", (1000, 1001), "/"),
        ("70", (70, 71), "/var/lib/postgresql"),
    ],
)
def test_the_user_of_an_image(user: str, numbers: tuple[int, int], home: str) -> None:
    found = parsed(User=user)
    assert (found.user, found.environment["HOME"]) == (numbers, home)


@pytest.mark.parametrize("user", ["nobody", "postgres:video"])
def test_a_user_that_an_image_does_not_have(user: str) -> None:
    with pytest.raises(HostStateError, match=f"The image has no user '{user}'"):
        parsed(User=user)


def test_an_image_says_how_its_programs_are_run() -> None:
    found = parsed(Entrypoint=["/init", "-v"], Cmd=["serve"], Env=["PATH=/x:/bin", "A=b=c"], WorkingDir="/app")
    assert found.environment == {"PATH": "/x:/bin", "HOME": "/root", "A": "b=c"}
    assert (found.directory, tree.parse("/x", {}, "", "").directory) == ("/app", "/")
    roles = [
        spec.parse({"name": "d", "roles": [{"name": "main", "image": "x", **more}]}).roles[0]
        for more in ({}, {"command": "a b"})
    ]
    assert [found.command(role) for role in roles] == [["sleep", "infinity"], ["/init", "-v", "a", "b"]]


class Tools:
    """skopeo and umoci, of which each notes what it was called with."""

    def __init__(self, refusal: str = "") -> None:
        self.refusal, self.called = refusal, list[list[str]]()

    def __call__(self, argv: list[str], **options: object) -> Completed:
        self.called.append(argv)
        assert argv[0] == "chmod" or options["environment"] == {"XDG_RUNTIME_DIR": "/run/x/7/0"}
        if self.refusal and argv[0] == "skopeo":
            return Completed(1, "", self.refusal)
        if argv[0] == "umoci":
            (Path(argv[-1]) / "rootfs" / "etc").mkdir(parents=True)
            (Path(argv[-1]) / "rootfs" / "etc" / "passwd").write_text(PASSWD)
        return Completed(0, '{"config": {"User": "postgres"}}' if "inspect" in argv else "", "")


def place_in(tmp_path: Path) -> runtime.Place:
    return runtime.Place("/run/x/7/0", "/var/x/7/0", f"{tmp_path}/images")


def test_an_image_is_fetched_once(tmp_path: Path) -> None:
    tools, place = Tools(), place_in(tmp_path)
    # What a killed one has left.
    (tmp_path / "trees" / "new" / "layout").mkdir(parents=True)
    images = tree.Unpacked(tools)
    assert not images.has(place, IMAGE) and images.find(place, IMAGE) is None
    images.fetch(place, IMAGE)
    assert images.has(place, IMAGE)
    assert tree.read(tree.folder(place, IMAGE)).user == (70, 71)
    assert os.listdir(tmp_path) == ["trees"]
    assert sorted(os.listdir(tmp_path / "trees")) == sorted([".lock", runtime.digest(IMAGE)])
    before = len(tools.called)
    images.fetch(place, IMAGE)
    assert len(tools.called) == before
    assert ["skopeo", "copy", "--quiet", f"docker://{IMAGE}"] in [argv[:4] for argv in tools.called]


def test_an_image_that_cannot_be_fetched(tmp_path: Path) -> None:
    place, images = place_in(tmp_path), tree.Unpacked(Tools("trying\nmanifest unknown\n"))
    with pytest.raises(HostStateError, match=f"The image {IMAGE} cannot be fetched on .*: manifest unknown. Correct"):
        images.fetch(place, IMAGE)
    assert not images.has(place, IMAGE)


def test_the_words_of_skopeo_without_its_log() -> None:
    line = 'time="2026-11-25T03:57:25Z" level=fatal msg="reading manifest none in \\"lab/x\\": manifest unknown"'
    assert runtime.last_line(f"first\n{line}\n") == 'reading manifest none in "lab/x": manifest unknown.'


def test_what_mounts_cover_is_made_in_the_image(tmp_path: Path) -> None:
    root, source = tmp_path / "rootfs", tmp_path / "source"
    (root / "etc").mkdir(parents=True)
    (root / "etc" / "hosts").symlink_to("/run/hosts")
    source.mkdir()
    (source / "file").touch()
    for _again in range(2):
        tree.make_targets(str(root), [f"{source}/file:/etc/hosts:ro", f"{source}:/data/more", f"{source}/file:/a/b"])
    assert (root / "data" / "more").is_dir()
    assert (root / "etc" / "hosts").is_file() and not (root / "etc" / "hosts").is_symlink()
    assert (root / "a" / "b").is_file()


def test_nothing_is_made_outside_of_an_image(tmp_path: Path) -> None:
    root = tmp_path / "rootfs"
    root.mkdir()
    (root / "data").symlink_to("../elsewhere")
    (tmp_path / "elsewhere").mkdir()
    with pytest.raises(HostStateError, match="a link that leaves it in /data"):
        tree.make_targets(str(root), [f"{tmp_path}:/data/more"])
    assert os.listdir(tmp_path / "elsewhere") == []


def test_a_mount_that_an_image_has_no_place_for(tmp_path: Path) -> None:
    root = tmp_path / "rootfs"
    root.mkdir()
    (root / "data").touch()
    with pytest.raises(HostStateError, match="/data cannot be mounted into the image: File exists"):
        tree.make_targets(str(root), [f"{tmp_path}:/data"])
