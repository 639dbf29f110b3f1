# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The inventory plugin `clusters` as Ansible loads it, on directories of records and through a fake ssh."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.gpumesh.cluster.plugins.inventory.clusters import EXAMPLES, InventoryModule
from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import plan
from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.store import format_record

STAMP = plan.ChangeStamp("2026-11-20T20:31:00Z", "alice")


def write_record(
    folder: Path, name: str = "lab", machines: str = "ab", subnet: int = 0, without_jobs: str = ""
) -> None:
    members = [
        {
            "machine": machine,
            "address": f"10.0.{subnet}.{number}",
            "interface": "eth0",
            "site": f"s{number}",
            "slurm_node": machine != without_jobs,
        }
        for number, machine in enumerate(machines, start=1)
    ]
    mesh = {"backend": "none" if subnet else "wireguard"}
    draft = plan.create("0" * 32, name, f"10.0.{subnet}.0/24", machines[0], mesh, members, STAMP)
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.json").write_text(format_record(plan.commit(draft, STAMP)))


def list_inventory(tmp_path: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Return the result of `ansible-inventory --list` for a source with these options."""
    source = tmp_path / "x.clusters.yml"
    source.write_text(json.dumps({"plugin": "gpumesh.cluster.clusters", "path": "records", **options}))
    tool = Path(sys.executable).with_name("ansible-inventory")
    environment = {**os.environ, "ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED": "true"}
    return subprocess.run(
        [tool, "-i", source, "--list"], capture_output=True, text=True, env=environment, cwd=tmp_path, check=False
    )


def load_inventory(tmp_path: Path, **options: Any) -> dict[str, Any]:
    done = list_inventory(tmp_path, **options)
    assert done.returncode == 0, done.stderr
    # Ansible marks values from a file, so that they are never templated.
    found: dict[str, Any] = json.loads(done.stdout, object_hook=lambda item: item.get("__ansible_unsafe", item))
    return found


def host_variables(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    variables: dict[str, dict[str, Any]] = found["_meta"]["hostvars"]
    return variables


def test_groups_and_variables(tmp_path: Path) -> None:
    write_record(tmp_path / "records")
    found = load_inventory(tmp_path)
    assert sorted(found["lab"]["children"]) == ["lab_manager", "lab_members"]
    assert (found["lab_members"]["hosts"], found["lab_manager"]["hosts"]) == (["a", "b"], ["a"])
    expected = {
        "ansible_host": "10.0.0.2",
        "cluster_rank": 1,
        "cluster_address": "10.99.0.2",
        "cluster_interface": "gpumesh0",
        "cluster_is_manager": False,
        "cluster_site": "s2",
        "cluster_endpoint": "",
        "cluster_name": "lab",
        "cluster_subnet": "10.0.0.0/24",
        "cluster_generation": 1,
        "cluster_manager": "a",
    }
    assert {name: host_variables(found)["b"][name] for name in expected} == expected
    assert "slurm_node" not in host_variables(found)["b"]


def test_a_member_without_jobs_stays_one_for_site(tmp_path: Path) -> None:
    write_record(tmp_path / "records", without_jobs="a")
    found = host_variables(load_inventory(tmp_path))
    assert (found["a"]["slurm_node"], "slurm_node" in found["b"]) == (False, False)


def test_host_in_two_clusters_has_the_variables_of_both(tmp_path: Path) -> None:
    write_record(tmp_path / "records")
    write_record(tmp_path / "records", name="two-x", machines="bc", subnet=7)
    found = load_inventory(tmp_path)
    assert found["two_x_manager"]["hosts"] == ["b"]
    clusters = host_variables(found)["b"]["clusters"]
    assert {name: view["rank"] for name, view in clusters.items()} == {"lab": 1, "two-x": 0}


def test_names_and_address_options(tmp_path: Path) -> None:
    write_record(tmp_path / "records")
    write_record(tmp_path / "records", name="other", machines="cd", subnet=7)
    found = host_variables(load_inventory(tmp_path, names=["lab"], address="cluster"))
    assert {machine: variables["ansible_host"] for machine, variables in found.items()} == {
        "a": "10.99.0.1",
        "b": "10.99.0.2",
    }


def test_composed_groups(tmp_path: Path) -> None:
    write_record(tmp_path / "records")
    found = load_inventory(tmp_path, keyed_groups=[{"key": "cluster_site", "prefix": "site"}])
    assert found["site_s2"]["hosts"] == ["b"]


def test_cache_is_used_without_the_records(tmp_path: Path) -> None:
    records = tmp_path / "records"
    write_record(records)
    cached = {"cache": True, "cache_plugin": "ansible.builtin.jsonfile", "cache_connection": str(tmp_path / "cache")}
    assert set(host_variables(load_inventory(tmp_path, **cached))) == {"a", "b"}
    (records / "lab.json").unlink()
    assert set(host_variables(load_inventory(tmp_path, **cached))) == {"a", "b"}
    assert host_variables(load_inventory(tmp_path)) == {}


def fake_ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: str) -> Path:
    """Replace ssh with a script. Return the path of the file with its arguments."""
    ssh = tmp_path / "bin" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text(f'#!/bin/sh\necho "$@" > "$0.argv"\nfor last; do :; done\n{lines}\n')
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{ssh.parent}:/usr/bin:/bin")
    return ssh.with_name("ssh.argv")


def test_remote_shell_expands_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fake ssh does what sshd does: it passes the last argument to a shell."""
    write_record(tmp_path / "re$(touch oops)cords")
    argv = fake_ssh(tmp_path, monkeypatch, 'exec sh -c "$last"')
    found = load_inventory(tmp_path, host="root@gpu1", port=2222, path=f"{tmp_path}/re$(touch oops)cords")
    assert set(host_variables(found)) == {"a", "b"}
    assert not (tmp_path / "oops").exists()
    assert "-p 2222 -- root@gpu1" in argv.read_text()


def test_port_defaults_to_the_ssh_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_record(tmp_path / "records")
    argv = fake_ssh(tmp_path, monkeypatch, 'exec sh -c "$last"')
    assert set(host_variables(load_inventory(tmp_path, host="gpu1", path=f"{tmp_path}/records"))) == {"a", "b"}
    assert "-p" not in argv.read_text().partition(" -- ")[0].split()


def test_output_of_the_login_shell_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_record(tmp_path / "records")
    fake_ssh(tmp_path, monkeypatch, 'echo "Welcome [to] gpu1"; sh -c "$last"; echo Bye')
    assert set(host_variables(load_inventory(tmp_path, host="gpu1", path=f"{tmp_path}/records"))) == {"a", "b"}


def test_account_with_another_program_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_ssh(tmp_path, monkeypatch, "echo This account is not available")
    done = list_inventory(tmp_path, host="gpu1")
    assert done.returncode != 0
    assert "This account is not available" in " ".join(done.stderr.split())
    assert "records of gpu1 cannot be read" in " ".join(done.stderr.split())


def test_endless_output_of_the_manager_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_ssh(tmp_path, monkeypatch, "exec yes")
    done = list_inventory(tmp_path, host="gpu1", timeout=600)
    assert done.returncode != 0
    assert "wrote more than 64 MiB" in " ".join(done.stderr.split())


def test_terminal_codes_from_the_manager_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_ssh(tmp_path, monkeypatch, "printf 'no \\033[2J records' >&2; exit 1")
    done = list_inventory(tmp_path, host="gpu1")
    assert done.returncode != 0
    assert "[2J records" in " ".join(done.stderr.split())
    assert "\033[2J" not in done.stderr


def test_example_cache_is_in_a_private_directory() -> None:
    """Other users could otherwise choose the hosts of the run, and their addresses."""
    (source,) = yaml.safe_load_all(EXAMPLES)
    assert source["cache_connection"].startswith("~/")


def test_damaged_record_of_an_unselected_cluster_is_ignored(tmp_path: Path) -> None:
    write_record(tmp_path / "records")
    (tmp_path / "records" / "other.json").write_text("{")
    assert set(host_variables(load_inventory(tmp_path, names=["lab"]))) == {"a", "b"}
    for names in ([], ["other"]):
        assert "other.json is invalid" in " ".join(list_inventory(tmp_path, names=names).stderr.split())


@pytest.mark.parametrize(
    ("prepare", "options", "said"),
    [
        (
            lambda records: None,
            {},
            "is not a directory of cluster records. Set path or host; in AWX, select a credential",
        ),
        (lambda records: (records.mkdir(), (records / "lab.json").write_text("{")), {}, "lab.json is invalid"),
        (lambda records: (records.mkdir(), (records / "lab.json").write_text("{}")), {}, "schema_version"),
        (lambda records: None, {"host": "127.0.0.1", "port": 1}, "nothing listens on port 1. Start its SSH server"),
    ],
)
def test_invalid_sources_are_refused(tmp_path: Path, prepare: Any, options: dict[str, Any], said: str) -> None:
    prepare(tmp_path / "records")
    done = list_inventory(tmp_path, **options)
    assert done.returncode != 0
    assert said in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("clusters.yml", True),
        ("lab.clusters.yaml", True),
        ("hosts.yml", False),
        ("clusters.ini", False),
        ("myclusters.yml", False),
    ],
)
def test_source_file_names(tmp_path: Path, name: str, ours: bool) -> None:
    (tmp_path / name).write_text("plugin: gpumesh.cluster.clusters\n")
    assert InventoryModule().verify_file(str(tmp_path / name)) is ours


def test_values_are_not_marked_unsafe(tmp_path: Path) -> None:
    """AWX reads the output of `ansible-inventory`, and would treat a mark as the value."""
    write_record(tmp_path / "records")
    done = list_inventory(tmp_path)
    assert done.returncode == 0, done.stderr
    assert "10.0.0.1" in done.stdout
    assert "__ansible_unsafe" not in done.stdout


def test_clusters_with_the_same_group_name_are_refused(tmp_path: Path) -> None:
    write_record(tmp_path / "records", "a-b")
    write_record(tmp_path / "records", "a_b", machines="cd", subnet=1)
    listing = list_inventory(tmp_path)
    assert listing.returncode != 0
    assert "The clusters 'a-b' and 'a_b' would both be the group a_b." in " ".join(listing.stderr.split())
    assert load_inventory(tmp_path, names=["a-b"])["a_b_members"]["hosts"] == ["a", "b"]
