# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The effect of each change on a record, what is refused, and random sequences of changes against a simple model."""

from __future__ import annotations

import base64
import copy
import ipaddress
import json
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import membership, model, plan
from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.model import Record
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError

STAMP = plan.ChangeStamp("2026-11-20T20:31:00Z", "tester@here")
LATER = plan.ChangeStamp("2026-11-21T08:00:00Z", "tester@here")


def public_key(number: int) -> str:
    """A valid WireGuard public key."""
    return base64.b64encode(bytes([number]) * 32).decode()


def member_entry(number: int, **more: Any) -> dict[str, Any]:
    """Member n<number> of 10.77.0.0/24."""
    return {"machine": f"n{number}", "address": f"10.77.0.{number + 10}", "interface": "eth0", **more}


def build_record(count: int = 3, **more: Any) -> Record:
    """A committed cluster of n1 … n<count>."""
    arguments: dict[str, Any] = {"subnet": "10.77.0.11/24", "manager": "n1", "mesh": {}, **more}
    members = arguments.pop("members", [member_entry(number) for number in range(1, count + 1)])
    draft = plan.create("0" * 32, "lab", arguments["subnet"], arguments["manager"], arguments["mesh"], members, STAMP)
    return model.parse(plan.commit(draft, STAMP))


def machine_names(record: Record) -> list[str]:
    return [member["machine"] for member in record["members"]]


def mesh_addresses(record: Record) -> list[str | None]:
    return [member["mesh"]["address"] if member["mesh"] else None for member in record["members"]]


SHARED = {"name": "shared", "server": "n3", "path": "/srv/shared", "mount_point": "/mnt/shared"}


def record_with_tracking(**wanted: Any) -> Record:
    """made() with a volume on n3 and the tracking server."""
    return plan.set_tracking(plan.set_storage(build_record(), [SHARED]).record, wanted).record


class TestTracking:
    def test_default_server_is_the_manager_with_the_first_volume(self) -> None:
        assert record_with_tracking()["tracking"] == {
            "server": "n1",
            "port": 5000,
            "volume": "shared",
            "tls": False,
            "certificates": [],
        }

    def test_omitted_settings_are_kept(self) -> None:
        made = ["-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"]
        before = record_with_tracking(port=5100, tls=True, certificates=made)
        record = plan.set_tracking(before, {"server": "n2", "port": None}).record
        assert (
            record["tracking"] == {**before["tracking"], "server": "n2"} and record["tracking"]["certificates"] == made
        )
        without = plan.set_tracking(record, {"tls": False})
        assert without.record["tracking"]["certificates"] == []
        assert "tls False, certificates 0" in without.changes[0].detail
        assert not plan.set_tracking(record, {"server": "n2"}).changes
        assert plan.set_tracking(record, {"enabled": False}).record["tracking"] is None

    @pytest.mark.parametrize(
        ("wanted", "words"),
        [
            ({"server": "bad"}, "tracking_server 'bad' is not among the members of 'lab'"),
            ({"volume": "other"}, "tracking_volume 'other' is not a volume"),
            ({"port": 80}, "tracking port"),
        ],
    )
    def test_invalid_settings_are_refused(self, wanted: dict[str, Any], words: str) -> None:
        with pytest.raises(InputError, match=words):
            record_with_tracking(**wanted)

    def test_tracking_without_a_volume_is_refused(self) -> None:
        with pytest.raises(InputError, match="has no volume for the artifacts"):
            plan.set_tracking(build_record(), {})

    def test_container_without_tun_cannot_be_the_server(self) -> None:
        ends = [{"address": f"100.64.0.{number}", "userspace": number == 2} for number in (1, 2)]
        members = [member_entry(number, mesh=end) for number, end in enumerate(ends, 1)]
        record = plan.set_storage(
            build_record(members=members, mesh={"backend": "tailscale"}), [{**SHARED, "server": "n1"}]
        ).record
        with pytest.raises(InputError, match="'n2' is a container without TUN") as refused:
            plan.set_tracking(record, {"server": "n2"})
        assert refused.value.to_result()["candidates"] == ["n1"]

    def test_artifact_volume_cannot_be_changed_or_removed(self) -> None:
        more = {**SHARED, "name": "more", "path": "/srv/more", "mount_point": "/mnt/more"}
        record = plan.set_storage(record_with_tracking(), [SHARED, more]).record
        with pytest.raises(InputError, match="are on volume 'shared', not on 'more'"):
            plan.set_tracking(record, {"volume": "more"})
        with pytest.raises(InputError, match="Volume 'shared' has the artifacts"):
            plan.set_storage(record, [more])

    def test_server_leaves_only_after_tracking_has_moved(self) -> None:
        record = record_with_tracking(server="n2")
        with pytest.raises(InputError, match="experiments on n2 would be left behind.*set to one of n1, n3"):
            plan.remove(record, ["n2"], STAMP)
        assert plan.remove(record, ["n2"], STAMP, force=True).record["tracking"] is None
        assert plan.remove(record, ["n3"], STAMP, force=True).record["tracking"] is None, "the volume is gone, too"
        moved = plan.set_tracking(record, {"server": "n1"}).record
        assert plan.remove(moved, ["n2"], STAMP).record["tracking"] == moved["tracking"]


class TestCreate:
    def test_new_cluster_is_one_generation_with_history(self) -> None:
        record = build_record()
        assert record["generation"] == 1
        assert record["subnet"] == "10.77.0.0/24"
        assert machine_names(record) == ["n1", "n2", "n3"]
        assert [line["change"] for line in record["history"]] == ["create"]
        assert "n1, n2, n3" in record["history"][0]["detail"]

    def test_mesh_addresses_follow_the_joining_order(self) -> None:
        assert mesh_addresses(build_record()) == ["10.99.0.1", "10.99.0.2", "10.99.0.3"]
        assert mesh_addresses(build_record(mesh={"backend": "none"})) == [None, None, None]

    def test_manager_must_be_a_member(self) -> None:
        with pytest.raises(InputError, match="its manager 'n9' is not among its members"):
            build_record(manager="n9")

    @pytest.mark.parametrize(
        "subnet", ["10.77.0.11", "10.77.0.11/32", "10.77.0.11/255.255.255.0", "lan", "127.0.0.0/8"]
    )
    def test_invalid_subnet_is_refused(self, subnet: str) -> None:
        with pytest.raises(InputError, match="invalid subnet"):
            build_record(subnet=subnet)

    def test_mesh_overlapping_the_subnet_is_refused(self) -> None:
        with pytest.raises(InputError, match="10.77.0.0/16 overlaps the subnet 10.77.0.0/24"):
            build_record(mesh={"subnet": "10.77.0.0/16"})
        assert build_record(mesh={"subnet": "10.77.0.0/16", "backend": "none"})["mesh"]["backend"] == "none"

    def test_members_that_share_only_the_mesh(self) -> None:
        record = build_record(
            subnet="10.99.0.0/16",
            members=[{"machine": "a", "endpoint": "203.0.113.9"}, {"machine": "b", "address": "192.0.2.1"}],
            manager="a",
        )
        assert [(m["address"], m["interface"], m["endpoint"]) for m in record["members"]] == [
            ("10.99.0.1", "gpumesh0", "203.0.113.9:51820"),
            ("10.99.0.2", "gpumesh0", None),
        ]

    def test_ipv6_cluster(self) -> None:
        record = build_record(
            subnet="2001:db8:1::5/64",
            mesh={"subnet": "fd00:99::/64"},
            members=[{"machine": "n1", "address": "2001:db8:1::5", "interface": "eth0", "endpoint": "2001:db8:1::5"}],
        )
        assert record["subnet"] == "2001:db8:1::/64"
        assert mesh_addresses(record) == ["fd00:99::1"]
        assert record["members"][0]["endpoint"] == "[2001:db8:1::5]:51820"


class TestJoin:
    def test_new_machine_is_appended_without_changing_others(self) -> None:
        record = build_record()
        draft = plan.join(record, [member_entry(4, gpus=8, site="b")], LATER)
        after = plan.commit(draft, LATER)
        assert after["members"][:3] == record["members"]
        assert after["members"][3]["joined_at"] == LATER.changed_at
        assert (after["generation"], after["history"][-1]["detail"]) == (2, "machine n4 joined")

    def test_joining_without_changes_returns_the_same_record(self) -> None:
        record = build_record()
        draft = plan.join(record, [member_entry(1), {"machine": "n2"}, member_entry(3, gpus=None)], LATER)
        assert not draft.changes
        assert plan.commit(draft, LATER) is record

    def test_given_keys_are_merged_into_the_member(self) -> None:
        record = build_record(members=[member_entry(1, gpus=4, site="a", endpoint="192.0.2.1:7"), member_entry(2)])
        after = plan.join(record, [{"machine": "n1", "gpus": 0, "endpoint": ""}], LATER).record
        first = after["members"][0]
        assert (first["gpus"], first["endpoint"], first["site"]) == (0, None, "a")
        assert first["joined_at"] == STAMP.changed_at

    def test_mesh_key_keeps_the_address_of_the_member(self) -> None:
        after = plan.join(build_record(), [{"machine": "n2", "mesh": {"public_key": public_key(2)}}], LATER).record
        assert after["members"][1]["mesh"] == {"address": "10.99.0.2", "public_key": public_key(2)}

    def test_lowest_free_mesh_address_is_reused(self) -> None:
        record = plan.remove(build_record(), ["n2"], LATER).record
        after = plan.join(record, [member_entry(7), member_entry(8)], LATER).record
        assert mesh_addresses(after) == ["10.99.0.1", "10.99.0.3", "10.99.0.2", "10.99.0.4"]

    def test_members_can_swap_addresses_in_one_change(self) -> None:
        swapped = [{"machine": "n1", "address": "10.77.0.12"}, {"machine": "n2", "address": "10.77.0.11"}]
        after = plan.join(build_record(), swapped, LATER).record
        assert [member["address"] for member in after["members"][:2]] == ["10.77.0.12", "10.77.0.11"]

    @pytest.mark.parametrize(
        ("members", "message"),
        [
            ([member_entry(4), member_entry(4)], "'n4' is listed twice"),
            ([{**member_entry(4), "address": "10.77.0.11"}], "n1 and n4 have the same address 10.77.0.11"),
            ([{**member_entry(4), "machine": "N1"}], "n1 and N1 have the same name n1"),
            ([{**member_entry(4), "address": "10.78.0.14"}], "n4: 10.78.0.14 is not a host address of 10.77.0.0/24"),
            ([{**member_entry(4), "address": "10.77.0.255"}], "n4: 10.77.0.255 is not a host address"),
            ([{"machine": "n4"}], "n4 cannot join 'lab': its address in 10.77.0.0/24"),
            ([{**member_entry(4), "machine": "n 4"}], "'n 4' is not a valid machine name"),
            ([member_entry(4, interface="a/b")], "'a/b' is not a valid interface name"),
            ([member_entry(4, site="")], "'' is not a valid site name"),
            ([member_entry(4, endpoint="host:99999")], "'host:99999' is not a valid endpoint"),
            ([member_entry(4, slurm_node="no")], "'no' is not a boolean"),
            ([member_entry(4, gpus=-1)], "-1 cannot be the number of GPUs of n4"),
            ([member_entry(4, mesh={"address": "10.99.0.1"})], "n1 and n4 have the same mesh address"),
            ([member_entry(4, mesh={"address": "10.98.0.9"})], "10.98.0.9 is not a host address of the mesh's subnet"),
            ([member_entry(4, mesh={"public_key": "abc"})], "32 bytes in base64"),
            (
                [member_entry(4, endpoint="h:1"), member_entry(5, endpoint="h:1")],
                "n4 and n5 have the same endpoint h:1",
            ),
            (
                [{"machine": f"n{n}", "mesh": {"public_key": public_key(1)}} for n in (1, 2)],
                "n1 and n2 have the same mesh key",
            ),
            ([member_entry(4, ssh_host_keys=["ssh-rsa"])], "'ssh-rsa' is not a public SSH key"),
        ],
    )
    def test_invalid_join_is_refused(self, members: list[dict[str, Any]], message: str) -> None:
        with pytest.raises(InputError, match=message):
            plan.join(build_record(), members, LATER)

    def test_only_a_member_that_runs_no_jobs_has_a_field_for_it(self) -> None:
        members = [member_entry(1, slurm_node=False), member_entry(2, slurm_node=True), member_entry(3)]
        record = build_record(members=members)
        assert [member.get("slurm_node") for member in record["members"]] == [False, None, None]
        assert "slurm_node" not in record["members"][1]
        assert model.parse(json.loads(json.dumps(record))) == record
        assert membership.slurm_nodes(record) == ["n2", "n3"]
        # What an inventory says that does not name it.
        assert not plan.join(record, [{"machine": "n1"}, {"machine": "n2", "slurm_node": True}], LATER).changes

    def test_a_member_stops_running_jobs_and_runs_them_again(self) -> None:
        record = build_record()
        without = plan.join(record, [{"machine": "n3", "slurm_node": False}], LATER)
        assert [change.detail for change in without.changes] == ["n3: slurm_node False (was True)"]
        again = plan.join(without.record, [{"machine": "n3", "slurm_node": True}], LATER)
        assert [change.detail for change in again.changes] == ["n3: slurm_node True (was False)"]
        assert again.record == record

    def test_a_cluster_without_any_node_is_refused(self) -> None:
        nothing = [{"machine": f"n{number}", "slurm_node": False} for number in (1, 2, 3)]
        with pytest.raises(
            InputError, match="No member of cluster 'lab' would run jobs: slurm_node is false"
        ) as refused:
            plan.join(build_record(), nothing, LATER)
        assert "slurm_node=true for at least one" in refused.value.remedy
        with pytest.raises(InputError, match="No member of cluster 'lab' would run jobs"):
            build_record(members=[member_entry(1, slurm_node=False)])
        document = build_record(1)
        document["members"][0]["slurm_node"] = False
        with pytest.raises(model.InvalidRecordError, match="none of them is a Slurm node"):
            model.parse(document)

    def test_join_of_a_full_mesh_is_refused(self) -> None:
        record = build_record(2, mesh={"subnet": "10.99.0.0/30"})
        with pytest.raises(InputError, match="10.99.0.0/30 has no free address left"):
            plan.join(record, [member_entry(3)], LATER)

    def test_mesh_data_without_a_mesh_is_refused(self) -> None:
        with pytest.raises(InputError, match="has no mesh"):
            plan.join(
                build_record(mesh={"backend": "none"}),
                [{"machine": "n1", "mesh": {"public_key": public_key(1)}}],
                LATER,
            )

    def test_thousand_machines_join_in_one_change(self) -> None:
        members = [
            {"machine": f"g{number}", "address": f"10.77.{number // 250}.{number % 250 + 1}", "interface": "eth0"}
            for number in range(1000)
        ]
        record = build_record(subnet="10.77.0.0/16", manager="g0", members=members)
        assert len(set(mesh_addresses(record))) == 1000


class TestRemove:
    def test_member_is_removed(self) -> None:
        after = plan.commit(plan.remove(build_record(), ["n3"], LATER), LATER)
        assert machine_names(after) == ["n1", "n2"]
        assert after["history"][-1]["detail"] == "machine n3 left"

    def test_the_last_member_that_runs_jobs_stays(self) -> None:
        record = build_record(members=[member_entry(1, slurm_node=False), member_entry(2), member_entry(3)])
        assert machine_names(plan.remove(record, ["n3"], LATER).record) == ["n1", "n2"]
        with pytest.raises(InputError, match="would have no node left that runs jobs without n2, n3") as refused:
            plan.remove(record, ["n2", "n3"], LATER, force=True)
        assert "slurm_node=true for one of n1" in refused.value.remedy
        # A new manager alone removes nobody.
        assert plan.remove(record, [], LATER, "n2").record["manager"] == "n2"

    def test_removed_machine_is_recorded_until_it_rejoins(self) -> None:
        after = plan.commit(plan.remove(build_record(), ["n3", "n2"], LATER), LATER)
        assert after["removed"] == [{"machine": name, "at": LATER.changed_at, "keys": "kept"} for name in ("n2", "n3")]
        back = plan.join(after, [member_entry(3)], LATER).record
        assert [removed["machine"] for removed in back["removed"]] == ["n2"]

    def test_keys_of_untrusted_machines_are_changed_once(self) -> None:
        left = plan.commit(plan.remove(build_record(), ["n3"], LATER), LATER)
        distrusted = plan.distrust(left, ["n1", "n3"])
        assert [removed["keys"] for removed in distrusted.record["removed"]] == ["untrusted"]
        assert [change.kind for change in distrusted.changes] == ["keys"]
        assert plan.distrust(distrusted.record, ["n3"]) == (distrusted.record, [])
        new = plan.mark_keys_changed(distrusted.record)
        assert [removed["keys"] for removed in new.record["removed"]] == ["changed"]
        assert plan.mark_keys_changed(new.record) == (new.record, [])
        assert plan.distrust(new.record, ["n3"]) == (new.record, [])

    def test_untrusted_machine_rejoins_only_after_key_change(self) -> None:
        """Otherwise the record would forget that they have to: whoever has kept them could still use them."""
        left = plan.commit(plan.remove(build_record(), ["n3"], LATER), LATER)
        distrusted = plan.commit(plan.distrust(left, ["n3"]), LATER)
        with pytest.raises(InputError, match="n3 was removed .* keys that it had are still in use") as refused:
            plan.join(distrusted, [{**member_entry(3), "machine": "N3"}], LATER)
        assert "cluster_machine=n3 and cluster_untrusted=true" in refused.value.remedy
        assert machine_names(plan.join(distrusted, [member_entry(4)], LATER).record) == ["n1", "n2", "n4"]
        assert (
            machine_names(plan.join(plan.mark_keys_changed(distrusted).record, [member_entry(3)], LATER).record)[-1]
            == "n3"
        )

    def test_removal_of_an_unknown_machine_changes_nothing(self) -> None:
        record = build_record()
        assert plan.remove(record, ["n9"], LATER) == (record, [])

    def test_manager_leaves_with_a_successor(self) -> None:
        after = plan.commit(plan.remove(build_record(), ["n1"], LATER, "n3"), LATER)
        assert (after["manager"], machine_names(after), after["generation"]) == ("n3", ["n2", "n3"], 2)

    @pytest.mark.parametrize(
        ("leaving", "successor", "message"),
        [
            (["n1"], None, "'n1' is the manager"),
            (["n1"], "n9", "'n9' cannot be the manager"),
            (["n1", "n2"], "n2", "'n2' cannot be the new manager"),
            (["n1", "n2", "n3"], "n2", "no members left"),
        ],
    )
    def test_invalid_removal_is_refused(self, leaving: list[str], successor: str | None, message: str) -> None:
        with pytest.raises(InputError, match=message):
            plan.remove(build_record(), leaving, LATER, successor)

    def test_server_of_a_volume_leaves_only_with_force(self) -> None:
        volume = {"name": "data", "server": "n2", "path": "/srv/data", "mount_point": "/mnt/data"}
        record = plan.set_storage(build_record(), [volume]).record
        with pytest.raises(InputError, match="'data' in n2:/srv/data would be left behind"):
            plan.remove(record, ["n2"], LATER)
        after = plan.remove(record, ["n2"], LATER, force=True).record
        assert (machine_names(after), after["storage"]["volumes"]) == (["n1", "n3"], [])

    def test_remedy_covers_lost_machines(self) -> None:
        volume = {"name": "data", "server": "n1", "path": "/srv/data", "mount_point": "/mnt/data"}
        record = plan.set_storage(build_record(), [volume]).record
        with pytest.raises(InputError, match="If the machine is lost, set cluster_force=true: the volume is removed"):
            plan.remove(record, ["n1"], LATER, "n2")


class TestMeshAndStorage:
    def test_equal_settings_change_nothing(self) -> None:
        record = build_record()
        assert plan.set_mesh(record, {"backend": "wireguard", "port": None}) == (record, [])
        assert plan.set_storage(record, []) == (record, [])

    def test_mesh_is_added_and_removed(self) -> None:
        bare = build_record(mesh={"backend": "none"})
        with_mesh = plan.set_mesh(bare, {"backend": "wireguard"}).record
        assert mesh_addresses(with_mesh) == ["10.99.0.1", "10.99.0.2", "10.99.0.3"]
        assert mesh_addresses(plan.set_mesh(with_mesh, {"backend": "none"}).record) == [None, None, None]

    def test_new_mesh_subnet_keeps_the_keys(self) -> None:
        record = plan.join(build_record(), [{"machine": "n2", "mesh": {"public_key": public_key(2)}}], LATER).record
        after = plan.set_mesh(record, {"subnet": "10.98.0.0/24"}).record
        assert after["members"][1]["mesh"] == {"address": "10.98.0.2", "public_key": public_key(2)}

    def test_new_mtu_keeps_the_addresses(self) -> None:
        record = build_record()
        draft = plan.set_mesh(record, {"mtu": 1380})
        assert draft.record["members"] == record["members"]
        assert draft.changes[0].detail == "mesh: mtu 1380 (was none)"

    def test_mtu_too_small_for_ipv6_is_refused(self) -> None:
        assert plan.set_mesh(build_record(), {"mtu": 1200}).record["mesh"]["mtu"] == 1200
        for mesh in ({"subnet": "fd00:99::/64", "mtu": 1279}, {"subnet": "fd00:99::/64"}):
            record = build_record() if "mtu" in mesh else plan.set_mesh(build_record(), {"mtu": 1279}).record
            with pytest.raises(InputError, match="1279 is too small for the mesh's subnet fd00:99::/64.*at least 1280"):
                plan.set_mesh(record, mesh)
        assert plan.set_mesh(build_record(), {"subnet": "fd00:99::/64", "mtu": 1280}).record["mesh"]["mtu"] == 1280

    def test_only_shared_network_cannot_be_changed(self) -> None:
        record = build_record(subnet="10.99.0.0/16", members=[{"machine": "n1"}])
        for mesh in ({"backend": "none"}, {"subnet": "10.98.0.0/16"}):
            with pytest.raises(InputError, match="share no network except the mesh"):
                plan.set_mesh(record, mesh)

    def test_different_subnet_is_refused(self) -> None:
        plan.check_subnet(build_record(), "10.77.0.77/24")
        with pytest.raises(InputError, match="is on 10.77.0.0/24, not on 10.78.0.0/24"):
            plan.check_subnet(build_record(), "10.78.0.1/24")

    @pytest.mark.parametrize(
        ("volumes", "message"),
        [
            (
                [{"name": "data", "server": "n9", "path": "/a", "mount_point": "/b"}],
                "'n9' of volume 'data' is not among",
            ),
            ([{"name": "data", "server": "n1", "path": "a", "mount_point": "/b"}], "'a' is not an absolute path"),
            ([{"name": "data", "server": "n1"}], "no path and no mount_point"),
            ([{"name": "data", "path": "/a", "mount_point": "/b"}], "no server"),
            ([{"name": "data"}], "no mount_point"),
            (
                [{"name": n, "server": "n1", "path": "/a", "mount_point": "/b"} for n in ("x", "y")],
                "the mount_point '/b'",
            ),
        ],
    )
    def test_invalid_storage_is_refused(self, volumes: list[dict[str, Any]], message: str) -> None:
        with pytest.raises(InputError, match=message):
            plan.set_storage(build_record(), volumes)

    @pytest.mark.parametrize("mode", [0o777, 0o1777, 0o755, 1777])
    def test_unquoted_mode_is_refused(self, mode: int) -> None:
        volume = {"name": "data", "server": "n1", "path": "/srv/data", "mount_point": "/data"}
        with pytest.raises(InputError, match=rf"Volume 'data': mode is the number {mode}, .*: quote it"):
            plan.set_storage(build_record(), [{**volume, "mode": mode}])
        assert plan.set_storage(build_record(), [{**volume, "mode": f"{mode:o}"}]).changes

    def test_container_without_tun_cannot_serve_volumes(self) -> None:
        ends = [{"address": f"100.64.0.{number}", "userspace": number == 2} for number in (1, 2)]
        members = [member_entry(number, mesh=end) for number, end in enumerate(ends, 1)]
        record = build_record(members=members, mesh={"backend": "tailscale"})
        with pytest.raises(InputError, match="'n2' of volume 'shared' is a container without TUN") as refused:
            plan.set_storage(record, [{**SHARED, "server": "n2"}])
        assert refused.value.to_result()["candidates"] == ["n1"]
        assert plan.set_storage(record, [{"name": "lustre", "mount_point": "/lustre"}]).changes

    @pytest.mark.parametrize(
        ("path", "hiding"),
        [
            ("/mnt/shared/x", "'data' is mounted at /mnt/shared"),
            ("/mnt/b", "'b' is mounted at /mnt/b"),
            ("/mnt/b/x/y", "'b' is mounted at /mnt/b"),
            ("/mnt/shared2", ""),
            ("/lustre/x", ""),
        ],
    )
    def test_volume_path_below_a_mount_point_is_refused(self, path: str, hiding: str) -> None:
        volumes = [
            {**SHARED, "name": "data", "server": "n1", "path": path},
            {**SHARED, "name": "b", "path": "/srv/b", "mount_point": "/mnt/b"},
            # It is there before, whoever mounts it.
            {"name": "lustre", "mount_point": "/lustre"},
        ]
        if hiding:
            with pytest.raises(InputError, match=f"'data': its data at {path} would be hidden on n1, .* {hiding}:"):
                plan.set_storage(build_record(), volumes)
        else:
            assert plan.set_storage(build_record(), volumes).changes
        # A record of an earlier version stays valid, or nobody could correct it.
        record = plan.set_storage(build_record(), volumes[1:]).record
        record["storage"]["volumes"] = volumes
        assert model.parse(record)["storage"]["volumes"] == volumes
        assert plan.set_storage(record, [{**volumes[0], "path": "/srv/data"}, *volumes[1:]]).changes

    def test_recorded_numeric_mode_stays_valid_until_volumes_change(self) -> None:
        volume = {"name": "data", "server": "n1", "path": "/srv/data", "mount_point": "/data", "mode": 1777}
        record = plan.set_storage(build_record(), [{**volume, "mode": "1777"}]).record
        record["storage"]["volumes"] = [volume]
        assert model.parse(record)["storage"]["volumes"] == [volume]
        assert not plan.set_storage(record, [volume]).changes
        with pytest.raises(InputError, match="quote it"):
            plan.set_storage(record, [{**volume, "read_only": True}])

    def test_external_volume_survives_removal_of_members(self) -> None:
        volume = {"name": "data", "server": None, "path": None, "mount_point": "/mnt//data/", "filesystem": "lustre"}
        record = plan.set_storage(build_record(), [volume]).record
        kept = [{"name": "data", "mount_point": "/mnt/data", "filesystem": "lustre"}]
        assert record["storage"]["volumes"] == kept
        assert model.parse(record)["storage"]["volumes"] == kept
        assert plan.remove(record, ["n2"], LATER).record["storage"]["volumes"] == kept


NUMBERS = st.integers(1, 9)


class Life(RuleBasedStateMachine):
    """Random sequences of changes. A plain dictionary from machine to last octet has the expected members."""

    @initialize(first=st.sets(NUMBERS, min_size=1, max_size=3), backend=st.sampled_from(["none", "wireguard"]))
    def create(self, first: set[int], backend: str) -> None:
        manager = min(first)
        self.record = build_record(
            manager=f"n{manager}", mesh={"backend": backend}, members=[member_entry(number) for number in sorted(first)]
        )
        self.expected = {f"n{number}": f"10.77.0.{number + 10}" for number in sorted(first)}
        self.manager = f"n{manager}"
        self.mesh_of: dict[str, str] = {}
        self._remember_mesh()

    def _remember_mesh(self) -> None:
        self.mesh_of = {m["machine"]: m["mesh"]["address"] for m in self.record["members"] if m["mesh"]}

    def _commit(self, draft: plan.Draft) -> None:
        before, frozen = self.record, copy.deepcopy(self.record)
        after = plan.commit(draft, LATER)
        assert before == frozen, "a plan must not change what it was given"
        assert after["generation"] == before["generation"] + (1 if draft.changes else 0)
        assert (after == before) == (not draft.changes)
        assert after["history"][: len(before["history"])] == before["history"]
        self.record = after

    @rule(numbers=st.lists(NUMBERS, max_size=4), octet=st.integers(1, 254))
    def join(self, numbers: list[int], octet: int) -> None:
        members = [member_entry(number) for number in numbers]
        if members:
            members[0]["address"] = f"10.77.0.{octet}"
        wanted = dict(self.expected)
        for member in members:
            wanted[member["machine"]] = member["address"]
        clash = len(set(numbers)) < len(numbers) or len(set(wanted.values())) < len(wanted)
        stamped = self.record
        try:
            draft = plan.join(self.record, members, LATER)
        except InputError:
            assert clash
            assert self.record is stamped
            return
        assert not clash
        self._commit(draft)
        for machine, address in self.mesh_of.items():
            assert {m["machine"]: m["mesh"] for m in self.record["members"]}[machine]["address"] == address
        self.expected = wanted
        self._remember_mesh()

    @rule(numbers=st.sets(NUMBERS, max_size=3), successor=st.none() | NUMBERS)
    def remove(self, numbers: set[int], successor: int | None) -> None:
        leaving = {f"n{number}" for number in numbers}
        staying = [machine for machine in self.expected if machine not in leaving]
        new_manager = None if successor is None else f"n{successor}"
        try:
            draft = plan.remove(self.record, sorted(leaving), LATER, new_manager)
        except InputError:
            orphaned = self.manager in leaving and new_manager is None
            assert orphaned or not staying or (new_manager is not None and new_manager not in staying)
            return
        self._commit(draft)
        self.expected = {machine: self.expected[machine] for machine in staying}
        self.manager = new_manager or self.manager
        self._remember_mesh()

    @rule(subnet=st.sampled_from(["10.99.0.0/16", "10.98.0.0/24"]), backend=st.sampled_from(["none", "wireguard"]))
    def mesh(self, subnet: str, backend: str) -> None:
        self._commit(plan.set_mesh(self.record, {"subnet": subnet, "backend": backend}))
        self._remember_mesh()

    @precondition(lambda self: hasattr(self, "record"))
    @invariant()
    def record_is_valid_and_as_expected(self) -> None:
        assert model.parse(copy.deepcopy(self.record)) == self.record
        assert {m["machine"]: m["address"] for m in self.record["members"]} == self.expected
        assert self.record["manager"] == self.manager
        has_mesh = self.record["mesh"]["backend"] == "wireguard"
        assert all((member["mesh"] is not None) == has_mesh for member in self.record["members"])
        tunnels = ipaddress.ip_network(self.record["mesh"]["subnet"])
        assert all(ipaddress.ip_address(address) in tunnels for address in self.mesh_of.values())


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=150, stateful_step_count=25, deadline=None)
