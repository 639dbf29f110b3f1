# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Claims to what exists only once on a host: each belongs to one of its clusters."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster import claims
from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.claims import Owner
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm import conf, configure
from ansible_collections.gpumesh.cluster.plugins.modules import host_owner
from ansible_collections.gpumesh.cluster.tests.support.module_runs import read_result, start_module

ONE, TWO = Owner("one", "1" * 32), Owner("two", "2" * 32)


def records_of(*clusters: Owner) -> list:
    return [{"name": cluster.name, "id": cluster.id} for cluster in clusters]


def test_claims_round_trip() -> None:
    noted = {"munge": ONE, "slurm": TWO}
    assert claims.parse_claims(claims.render_claims(noted)) == noted
    assert claims.parse_claims(None) == {}


@pytest.mark.parametrize("text", ["", "[]", '{"munge": "one"}', '{"munge": {"name": "one"}}', "null"])
def test_damaged_claims_file_is_refused(text: str) -> None:
    with pytest.raises(HostStateError, match=r"/owners.json does not show"):
        claims.parse_claims(text, "/owners.json")


def test_claim_of_another_cluster_is_refused_with_its_owner() -> None:
    with pytest.raises(HostStateError, match=r"they belong to cluster 'one': munge, slurm.*remove"):
        claims.add_claims({"munge": ONE, "slurm": ONE}, ["munge", "slurm"], TWO)
    assert claims.add_claims({"munge": ONE}, ["slurm"], TWO) == {"munge": ONE, "slurm": TWO}
    assert claims.add_claims({"munge": ONE}, ["munge", "slurm"], ONE) == {"munge": ONE, "slurm": ONE}


def test_owner_is_identified_by_id_not_name() -> None:
    with pytest.raises(HostStateError):
        claims.add_claims({"munge": ONE}, ["munge"], Owner("one", "3" * 32))


def test_claims_of_a_removed_cluster_lapse() -> None:
    assert claims.select_valid_claims({"munge": ONE, "slurm": TWO}, records_of(TWO), None) == {"slurm": TWO}


def test_job_environment_shows_the_owner_of_unrecorded_claims() -> None:
    layer = json.dumps({"cluster": "one"})
    assert claims.select_valid_claims({}, records_of(ONE, TWO), layer) == dict.fromkeys(claims.CLAIMABLE_LAYERS, ONE)
    assert claims.select_valid_claims({}, records_of(TWO), layer) == {}
    assert claims.select_valid_claims({"munge": TWO}, records_of(ONE, TWO), layer) == {"munge": TWO}
    assert claims.select_valid_claims({}, records_of(ONE), "{") == {}


def test_leaving_cluster_releases_only_its_claims() -> None:
    noted = {"munge": ONE, "slurm": TWO}
    assert claims.remove_claims(noted, ONE) == {"slurm": TWO}
    assert claims.list_foreign_claims(noted, ONE) == ["slurm"]


def test_request_without_claims_changes_nothing(tmp_path: Path) -> None:
    folder, note = tmp_path / "clusters", tmp_path / "owners.json"
    text = claims.render_claims({"munge": ONE})
    note.write_text(text)
    looked = run_module(folder, TWO)
    assert (looked["changed"], note.read_text()) == (False, text), "also of a cluster whose record is gone"


def run_module(folder: Path, cluster: Owner, **given: object) -> dict:
    arguments = {"cluster": cluster.name, "cluster_id": cluster.id, "path": str(folder), **given}
    return read_result(start_module("host_owner", arguments))


def test_module_records_refuses_and_releases_claims(tmp_path: Path) -> None:
    folder, note = tmp_path / "gpumesh" / "clusters", tmp_path / "gpumesh" / "owners.json"
    members = [{"machine": "n1", "address": "10.0.0.1", "interface": "eth0"}]
    asked = {"name": "one", "subnet": "10.0.0.0/24", "manager": "n1", "members": members, "path": str(folder)}
    one = Owner("one", read_result(start_module("cluster", asked))["record"]["id"])
    things = {"claims": ["munge", "slurm"]}
    assert run_module(folder, one, **things, _ansible_check_mode=True)["changed"]
    assert not note.exists()
    assert run_module(folder, one, **things)["changed"]
    assert not run_module(folder, one, **things)["changed"]
    before = note.read_text()
    refused = run_module(folder, TWO, **things)
    assert "they belong to cluster 'one': munge, slurm" in refused["msg"]
    # A machine that never joined is refused, and removes nothing.
    left = run_module(folder, TWO, state="absent")
    assert (left["member"], left["foreign_claims"], left["changed"]) == (False, ["munge", "slurm"], False)
    assert note.read_text() == before
    # An unreadable record may be the owner's.
    (folder / "one.json").write_text("{")
    assert "they belong to cluster 'one'" in run_module(folder, TWO, **things)["msg"]
    # The unreadable record also shows that there was a valid one, even without the claims file.
    note.unlink()
    assert run_module(folder, one, state="absent")["member"]
    note.write_text(before)
    (folder / "one.json").write_bytes((folder / "one.json.good").read_bytes())
    left = run_module(folder, one, state="absent")
    assert (left["member"], left["foreign_claims"], left["changed"]) == (True, [], True)
    assert not note.exists()
    # An interrupted cleanup continues: the record still exists.
    assert run_module(folder, one, state="absent")["member"]


def test_former_claims_are_listed_until_released(tmp_path: Path) -> None:
    """The record may be lost. A cluster that has never set anything up has no claims."""
    folder, note = tmp_path / "gpumesh" / "clusters", tmp_path / "gpumesh" / "owners.json"
    note.parent.mkdir()
    note.write_text(claims.render_claims({"munge": ONE, "slurm": TWO}))
    assert [claims.plan_claims(str(folder), one, None).own_claims for one in (ONE, TWO)] == [["munge"], ["slurm"]]
    assert claims.plan_claims(str(folder), Owner("three", "3" * 32), None).own_claims == []


def process_files(pid: int, words: str, uid: int = 0, contained: str = "") -> dict[str, str]:
    """Return the files of a process."""
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
        # A configless node has no slurm.conf, and its slurmd may be stopped.
        ({"../default/slurmd": CONFIGLESS}, True),
        ({"../sysconfig/slurmd": CONFIGLESS}, True),
        ({"../default/slurmd": f"#{CONFIGLESS}SLURMD_OPTIONS=\n"}, False),
        ({"../default/slurmd": CONFIGLESS, "node/slurmd.env": "SLURMD_OPTIONS=\n"}, False),
        ({"../default/slurmd": CONFIGLESS, "slurm.conf": conf.render_file([]) + "ClusterName=lab\n"}, False),
        ({"../systemd/system/slurmd.service.d/site.conf": f"[Service]\nEnvironment={CONFIGLESS}"}, True),
        ({"../systemd/system/slurmd.service.d/site.conf.old": f"[Service]\nEnvironment={CONFIGLESS}"}, False),
        (process_files(7, "/opt/slurm/sbin/slurmd -D"), True),
        (process_files(7, "/opt/slurm/sbin/slurmctld -D"), True),
        (process_files(7, "/opt/slurm/sbin/slurmd -D", contained="\t1"), False),
        (process_files(7, "/tmp/slurmd -D", uid=1000), False),
        # Somebody has deleted the files of one of our nodes.
        ({"../systemd/system/slurmd.service.d/gpumesh.conf": "[Service]\n", **process_files(7, OURS)}, False),
        ({"../supervisor/conf.d/gpumesh-slurmd.conf": "[program:slurmd]\n", **process_files(7, OURS)}, False),
        ({"slurm.conf": "ClusterName=theirs\n"}, True),
        ({"slurm.conf": conf.render_file([]) + "ClusterName=lab\n"}, False),
        # Somebody has added a file on one of our nodes.
        ({"slurm.conf": "ClusterName=theirs\n", "node/slurmd.env": "SLURMD_OPTIONS=\n"}, False),
    ],
)
def test_foreign_slurm_is_not_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], foreign: bool
) -> None:
    folder = tmp_path / "etc" / "slurm"
    folder.mkdir(parents=True)
    monkeypatch.setattr(configure, "CONFIG_DIRECTORY", str(folder))
    monkeypatch.setattr(host_owner, "Tree", lambda: Tree(str(tmp_path)))
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    assert host_owner.list_other_claims(claims.ClaimsPlan("", None, None, True, ["job_environment"])) == (
        ["job_environment", "munge", "slurm"] if foreign else ["job_environment"]
    )
