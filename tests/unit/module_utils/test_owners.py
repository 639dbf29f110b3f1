# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What exists only once on a host belongs to one of its clusters."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils import owners
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils.net.sysfs import Tree
from ansible_collections.gpumesh.cluster.plugins.module_utils.owners import Owner
from ansible_collections.gpumesh.cluster.plugins.module_utils.slurm import conf, configure
from ansible_collections.gpumesh.cluster.plugins.modules import host_owner
from ansible_collections.gpumesh.cluster.tests.support.module_runs import result_of, start

ONE, TWO = Owner("one", "1" * 32), Owner("two", "2" * 32)


def held(*clusters: Owner) -> list:
    return [{"name": cluster.name, "id": cluster.id} for cluster in clusters]


def test_what_is_written_is_read() -> None:
    noted = {"munge": ONE, "slurm": TWO}
    assert owners.parse(owners.render(noted)) == noted
    assert owners.parse(None) == {}


@pytest.mark.parametrize("text", ["", "[]", '{"munge": "one"}', '{"munge": {"name": "one"}}', "null"])
def test_a_damaged_note_is_refused(text: str) -> None:
    with pytest.raises(HostStateError, match=r"/owners.json does not show"):
        owners.parse(text, "/owners.json")


def test_another_cluster_is_refused_and_says_what_is_whose() -> None:
    with pytest.raises(HostStateError, match=r"they belong to cluster 'one': munge, slurm.*remove"):
        owners.claim({"munge": ONE, "slurm": ONE}, ["munge", "slurm"], TWO)
    assert owners.claim({"munge": ONE}, ["slurm"], TWO) == {"munge": ONE, "slurm": TWO}
    assert owners.claim({"munge": ONE}, ["munge", "slurm"], ONE) == {"munge": ONE, "slurm": ONE}


def test_a_cluster_of_the_same_name_is_another_one() -> None:
    with pytest.raises(HostStateError):
        owners.claim({"munge": ONE}, ["munge"], Owner("one", "3" * 32))


def test_a_cluster_that_is_gone_owns_nothing() -> None:
    assert owners.known({"munge": ONE, "slurm": TWO}, held(TWO), None) == {"slurm": TWO}


def test_the_environment_of_jobs_tells_where_nothing_was_noted() -> None:
    layer = json.dumps({"cluster": "one"})
    assert owners.known({}, held(ONE, TWO), layer) == dict.fromkeys(owners.THINGS, ONE)
    assert owners.known({}, held(TWO), layer) == {}
    assert owners.known({"munge": TWO}, held(ONE, TWO), layer) == {"munge": TWO}
    assert owners.known({}, held(ONE), "{") == {}


def test_who_leaves_gives_up_its_own_alone() -> None:
    noted = {"munge": ONE, "slurm": TWO}
    assert owners.release(noted, ONE) == {"slurm": TWO}
    assert owners.of_others(noted, ONE) == ["slurm"]


def test_who_asks_for_nothing_changes_nothing(tmp_path: Path) -> None:
    folder, note = tmp_path / "clusters", tmp_path / "owners.json"
    text = owners.render({"munge": ONE})
    note.write_text(text)
    looked = run(folder, TWO)
    assert (looked["changed"], note.read_text()) == (False, text), "also of a cluster whose record is gone"


def run(folder: Path, cluster: Owner, **given: object) -> dict:
    arguments = {"cluster": cluster.name, "cluster_id": cluster.id, "path": str(folder), **given}
    return result_of(start("host_owner", arguments))


def test_the_module_notes_refuses_and_gives_up(tmp_path: Path) -> None:
    folder, note = tmp_path / "gpumesh" / "clusters", tmp_path / "gpumesh" / "owners.json"
    members = [{"machine": "n1", "address": "10.0.0.1", "interface": "eth0"}]
    asked = {"name": "one", "subnet": "10.0.0.0/24", "manager": "n1", "members": members, "path": str(folder)}
    one = Owner("one", result_of(start("cluster", asked))["record"]["id"])
    things = {"things": ["munge", "slurm"]}
    assert run(folder, one, **things, _ansible_check_mode=True)["changed"]
    assert not note.exists()
    assert run(folder, one, **things)["changed"]
    assert not run(folder, one, **things)["changed"]
    before = note.read_text()
    refused = run(folder, TWO, **things)
    assert "they belong to cluster 'one': munge, slurm" in refused["msg"]
    # A machine that never joined is refused, and removes nothing.
    left = run(folder, TWO, state="absent")
    assert (left["member"], left["others"], left["changed"]) == (False, ["munge", "slurm"], False)
    assert note.read_text() == before
    # An unreadable record may be the owner's.
    (folder / "one.json").write_text("{")
    assert "they belong to cluster 'one'" in run(folder, TWO, **things)["msg"]
    # It also shows that there was a valid one, even without the file of owners.
    note.unlink()
    assert run(folder, one, state="absent")["member"]
    note.write_text(before)
    (folder / "one.json").write_bytes((folder / "one.json.good").read_bytes())
    left = run(folder, one, state="absent")
    assert (left["member"], left["others"], left["changed"]) == (True, [], True)
    assert not note.exists()
    # An interrupted cleanup continues: the record still exists.
    assert run(folder, one, state="absent")["member"]


def test_what_a_cluster_owned_is_known_until_it_is_released(tmp_path: Path) -> None:
    """Also if its record is lost. A cluster that has never set anything up owned nothing."""
    folder, note = tmp_path / "gpumesh" / "clusters", tmp_path / "gpumesh" / "owners.json"
    note.parent.mkdir()
    note.write_text(owners.render({"munge": ONE, "slurm": TWO}))
    assert [owners.look(str(folder), one, None).owned for one in (ONE, TWO)] == [["munge"], ["slurm"]]
    assert owners.look(str(folder), Owner("three", "3" * 32), None).owned == []


def process(pid: int, words: str, uid: int = 0, contained: str = "") -> dict[str, str]:
    """The files of a process."""
    name = words.split(maxsplit=1)[0].rpartition("/")[2]
    status = f"Name:\t{name}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nNSpid:\t{pid}{contained}\n"
    files = {"comm": f"{name}\n", "status": status, "cmdline": words.replace(" ", "\0") + "\0"}
    return {f"../../proc/{pid}/{file}": text for file, text in files.items()}


OURS = "/usr/sbin/slurmd --systemd -Z -N n1 --conf-server 10.0.0.1 --conf NodeAddr=10.0.0.2"
CONFIGLESS = 'SLURMD_OPTIONS="--conf-server ctl"\n'


@pytest.mark.parametrize(
    ("files", "foreign"),
    [
        ({}, False),
        # A node without a file of its own, such as one whose slurmd is stopped.
        ({"../default/slurmd": CONFIGLESS}, True),
        ({"../sysconfig/slurmd": CONFIGLESS}, True),
        ({"../default/slurmd": f"#{CONFIGLESS}SLURMD_OPTIONS=\n"}, False),
        ({"../default/slurmd": CONFIGLESS, "node/slurmd.env": "SLURMD_OPTIONS=\n"}, False),
        ({"../default/slurmd": CONFIGLESS, "slurm.conf": conf.text_of([]) + "ClusterName=lab\n"}, False),
        ({"../systemd/system/slurmd.service.d/site.conf": f"[Service]\nEnvironment={CONFIGLESS}"}, True),
        ({"../systemd/system/slurmd.service.d/site.conf.old": f"[Service]\nEnvironment={CONFIGLESS}"}, False),
        (process(7, "/opt/slurm/sbin/slurmd -D"), True),
        (process(7, "/opt/slurm/sbin/slurmctld -D"), True),
        (process(7, "/opt/slurm/sbin/slurmd -D", contained="\t1"), False),
        (process(7, "/tmp/slurmd -D", uid=1000), False),
        # A node of ours, from which somebody has deleted the files.
        ({"../systemd/system/slurmd.service.d/gpumesh.conf": "[Service]\n", **process(7, OURS)}, False),
        ({"../supervisor/conf.d/gpumesh-slurmd.conf": "[program:slurmd]\n", **process(7, OURS)}, False),
        ({"slurm.conf": "ClusterName=theirs\n"}, True),
        ({"slurm.conf": conf.text_of([]) + "ClusterName=lab\n"}, False),
        # A node of ours, on which somebody has put a file.
        ({"slurm.conf": "ClusterName=theirs\n", "node/slurmd.env": "SLURMD_OPTIONS=\n"}, False),
    ],
)
def test_a_slurm_that_somebody_else_has_set_up_is_not_ours_to_remove(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], foreign: bool
) -> None:
    folder = tmp_path / "etc" / "slurm"
    folder.mkdir(parents=True)
    monkeypatch.setattr(configure, "FOLDER", str(folder))
    monkeypatch.setattr(host_owner, "Tree", lambda: Tree(str(tmp_path)))
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    assert host_owner.others_of(owners.Note("", None, None, True, ["job_environment"])) == (
        ["job_environment", "munge", "slurm"] if foreign else ["job_environment"]
    )
