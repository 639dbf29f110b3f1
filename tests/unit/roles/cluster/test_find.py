# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One host sends the full record that all have. Each other record is requested from one of the hosts that have it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import model, plan
from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.store import Store
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.version import VERSION
from ansible_collections.gpumesh.cluster.tests.support.role_runs import run_plays

STAMP = plan.ChangeStamp("2026-11-22T07:00:00Z", "alice@desk")
ENTRIES = [{"machine": f"n{n}", "address": f"10.77.0.{n}", "interface": "eth0"} for n in (1, 2, 3, 4)]
OLD = plan.commit(plan.create("0" * 32, "lab", "10.77.0.0/24", "n1", {}, ENTRIES, STAMP), STAMP)
NEW = plan.commit(plan.join(OLD, [{"machine": "n2", "gpus": 4}], STAMP), STAMP)
OTHER_CLUSTER = plan.commit(plan.create("1" * 32, "other", "10.77.0.0/24", "n1", {}, ENTRIES, STAMP), STAMP)
#: All hosts are this machine, so each has a folder of its own.
FOLDER = "{{ playbook_dir }}/{{ item.machine | default(item) | default(inventory_hostname) }}"
FULL_RECORD_NAMES = "selectattr('schema_version', 'defined') | map(attribute='name')"
SUMMARY_TEMPLATE = (
    "'found ' ~ __cluster_copies.record.generation ~ ' of ' ~ __cluster_copies.source ~ ', told ' ~ "
    "(__cluster_copies.reachable + __cluster_copies.outside | list) | sort | join(' ')"
)


def run_role(entry: str, **variables: Any) -> dict[str, Any]:
    return {"ansible.builtin.include_role": {"name": "gpumesh.cluster.cluster", "tasks_from": entry}, "vars": variables}


def run_find(
    folder: Path, held: dict[str, list[model.Record]], *entries: str, hosts: str = "all", **variables: Any
) -> tuple[str, list[str], list[str]]:
    """What the role found, who sent which whole record in the first query, and who was queried for it later."""
    for name, records in held.items():
        (folder / name).mkdir(mode=0o700)
        for record in records:
            Store(str(folder / name), record["name"]).write(record)
    show = "sent {{ inventory_hostname }} {{ __cluster_info.clusters | " + FULL_RECORD_NAMES + " | join(' ') }}."
    play = {
        "hosts": hosts,
        "vars": {"cluster_name": "lab", "cluster_manager": "n1"},
        "module_defaults": {
            "gpumesh.cluster.cluster_info": {"path": FOLDER},
            "gpumesh.cluster.cluster": {"path": "{{ playbook_dir }}/{{ inventory_hostname }}"},
        },
        "tasks": [
            *(run_role(entry, **variables) for entry in entries),
            {"ansible.builtin.debug": {"msg": "{{ " + SUMMARY_TEMPLATE + " }}"}, "run_once": True},
            {"ansible.builtin.debug": {"msg": show}},
        ],
    }
    run = run_plays(folder, {name: {} for name in held}, [play])
    assert run.exit_status == 0, run.output
    found = re.search(r"found \d of \w+, told [n\d ]+", run.flat_output)
    assert found, run.output
    later = [
        name
        for task in run.output.split("TASK [")
        if task.startswith("gpumesh.cluster.cluster : Query other hosts")
        for name in re.findall(r"item=(n\d)", task)
    ]
    return found[0].strip(), re.findall(r"sent (n\d \w[\w ]*)\.", run.output), later


def test_the_manager_sends_the_record_and_all_others_its_digest(tmp_path: Path) -> None:
    held = {"n1": [NEW, OTHER_CLUSTER], "n2": [NEW, OTHER_CLUSTER], "n3": [NEW], "n4": [NEW]}
    assert run_find(tmp_path, held, "find") == ("found 2 of n1, told n1 n2 n3 n4", ["n1 lab"], [])


def test_a_different_record_is_queried_from_one_of_its_hosts(tmp_path: Path) -> None:
    held = {"n1": [NEW], "n2": [OLD], "n3": [OLD], "n4": [NEW]}
    assert run_find(tmp_path, held, "find") == ("found 2 of n1, told n1 n2 n3 n4", ["n1 lab"], ["n2"])
    copies = [Store(str(tmp_path / name), "lab").read() for name in held]
    assert copies == [NEW, OLD, OLD, NEW], "only loading it updates the copies"


def test_a_limited_run_uses_a_newer_record_of_the_hosts_that_it_also_queries(tmp_path: Path) -> None:
    held = {"n1": [NEW], "n2": [OLD], "n3": [OLD], "n4": [NEW]}
    found, sent, later = run_find(tmp_path, held, "find", hosts="n2,n3")
    assert (found, sent, later) == ("found 2 of n1, told n1 n2 n3 n4", [], ["n2", "n1", "n4"])


def test_a_record_is_not_sent_twice_in_a_run(tmp_path: Path) -> None:
    held = {"n1": [NEW], "n2": [NEW], "n3": [OLD]}
    assert run_find(tmp_path, held, "find", "find") == ("found 2 of n1, told n1 n2 n3", [], ["n3"])


def test_an_outdated_copy_is_updated_when_the_record_is_loaded(tmp_path: Path) -> None:
    """A run may have been interrupted when the manager had the new record, but the others did not."""
    run_find(tmp_path, {"n1": [NEW], "n2": [OLD], "n3": [NEW]}, "load")
    assert [Store(str(tmp_path / name), "lab").read() for name in ("n1", "n2", "n3")] == [NEW] * 3


def test_a_check_does_not_update_outdated_copies(tmp_path: Path) -> None:
    """The playbook check loads the record in this way."""
    run_find(tmp_path, {"n1": [NEW], "n2": [OLD], "n3": [NEW]}, "load", __cluster_purpose="read")
    assert [Store(str(tmp_path / name), "lab").read() for name in ("n1", "n2", "n3")] == [NEW, OLD, NEW]


@pytest.mark.parametrize("purpose", ["load", "read"])
def test_a_missing_cluster_is_named(tmp_path: Path, purpose: str) -> None:
    """cluster_name may be misspelt in a playbook that changes members, or in the playbook check."""
    play = {"hosts": "all", "tasks": [run_role("load", __cluster_purpose=purpose)]}
    play["vars"] = {"cluster_name": "lap", "cluster_manager": "n1"}
    play["module_defaults"] = {"gpumesh.cluster.cluster_info": {"path": FOLDER}}
    run = run_plays(tmp_path, {"n1": {}, "n2": {}}, [play])
    assert run.exit_status != 0
    assert "There is no cluster 'lap': none of n1, n2 has its record." in run.flat_output


def load_record(folder: Path, noted: str | None, **variables: Any) -> tuple[int, str, list[Any]]:
    """The end of a run that loads a record that names this version of the collection, and what the hosts have then."""
    held = {**NEW, "collection_version": noted}
    for name in ("n1", "n2"):
        (folder / name).mkdir(mode=0o700, exist_ok=True)
        Store(str(folder / name), "lab").write(held)
    play = {
        "hosts": "all",
        "vars": {"cluster_name": "lab", "cluster_manager": "n1"},
        "module_defaults": {
            "gpumesh.cluster.cluster_info": {"path": FOLDER},
            "gpumesh.cluster.cluster": {"path": "{{ playbook_dir }}/{{ inventory_hostname }}"},
        },
        "tasks": [run_role("load", **variables)],
    }
    run = run_plays(folder, {"n1": {}, "n2": {}}, [play])
    kept = [Store(str(folder / name), "lab").read() for name in ("n1", "n2")]
    return run.exit_status, run.flat_output, [(one["collection_version"], one["generation"]) for one in kept if one]


def test_an_older_version_refuses_before_anything_changes_unless_it_is_allowed(tmp_path: Path) -> None:
    code, words, kept = load_record(tmp_path, "99.0.0")
    assert code != 0 and "Cluster 'lab' was last changed by gpumesh.cluster 99.0.0, and this is" in words
    assert kept == [("99.0.0", 2)] * 2
    code, _words, kept = load_record(tmp_path, "99.0.0", cluster_older_version=True)
    assert (code, kept) == (0, [(VERSION, 3)] * 2)


def test_a_playbook_that_applies_no_layer_continues_with_a_remark(tmp_path: Path) -> None:
    code, words, kept = load_record(tmp_path, "99.0.0", __cluster_applies=False)
    assert code == 0 and "gpumesh.cluster 99.0.0, which is newer than this version" in words
    assert kept == [("99.0.0", 2)] * 2
    assert load_record(tmp_path, None, __cluster_applies=False)[2] == [(None, 2)] * 2


def test_a_single_layer_notes_a_newer_version_once(tmp_path: Path) -> None:
    assert load_record(tmp_path, None)[::2] == (0, [(VERSION, 3)] * 2)
    assert load_record(tmp_path, VERSION)[::2] == (0, [(VERSION, 2)] * 2)
