# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ports, clock, path MTU, routes, ARP and the timetable: values in, values out."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.reachability import (
    arp,
    clock,
    options,
    path_mtu,
    ports,
    routes,
    runner,
    schedule,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import CommandResult
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError, ParseError


class TestPorts:
    @pytest.mark.parametrize("text", ["32768-60999", "32768:60999", " 32768-60999 "])
    def test_a_range(self, text: str) -> None:
        assert ports.parse_range(text) == ports.PortRange(32768, 60999)

    @pytest.mark.parametrize("text", ["", "80", "0-10", "10-5", "1-65536", "a-b", "1-2-3", "-1-5"])
    def test_invalid_range_is_refused_with_its_text(self, text: str) -> None:
        with pytest.raises(InputError, match="invalid range of ports") as caught:
            ports.parse_range(text)
        assert caught.value.details["range"] == text

    def test_ports_are_checked_and_deduplicated(self) -> None:
        assert ports.check_ports([22, 80, 22]) == [22, 80]
        with pytest.raises(InputError, match="70000"):
            ports.check_ports([22, 70000])

    @settings(deadline=None)
    @given(st.integers(1, 65535), st.integers(0, 65534), st.integers(0, 40))
    def test_slices_cover_the_range_without_a_gap(self, first: int, more: int, count: int) -> None:
        whole = ports.PortRange(first, min(65535, first + more))
        parts = ports.split_range(whole, count)
        assert len(parts) == min(count, whole.last_port - whole.first_port + 1)
        if parts:
            assert parts[0].first_port == whole.first_port
            assert parts[-1].last_port == whole.last_port
            assert all(previous_part.last_port + 1 == two.first_port for previous_part, two in zip(parts, parts[1:]))
            sizes = [part.last_port - part.first_port for part in parts]
            assert max(sizes) - min(sizes) <= 1

    @settings(deadline=None)
    @given(st.integers(1, 65000), st.integers(0, 500), st.text(max_size=5))
    def test_candidates_are_inside_distinct_and_repeatable(self, first: int, more: int, seed: str) -> None:
        part = ports.PortRange(first, first + more)
        candidate_ports = ports.list_candidates(part, seed)
        assert candidate_ports == ports.list_candidates(part, seed)
        assert len(set(candidate_ports)) == len(candidate_ports) == min(16, more + 1)
        assert all(part.first_port <= port <= part.last_port for port in candidate_ports)


class TestOptions:
    PROBER = {"timeout": 5.0, "payload_bytes": 1 << 20, "throughput_seconds": 3}
    LISTENER = {"lifetime": 300, "sample_count": 4}

    @pytest.mark.parametrize(
        ("option", "value"),
        [
            *(("timeout", 0.0), ("timeout", float("nan")), ("payload_bytes", -1), ("payload_bytes", (1 << 28) + 1)),
            *(("throughput_seconds", -1), ("throughput_seconds", 60)),
            *(("lifetime", 0), ("lifetime", -5), ("lifetime", 1 << 31), ("sample_count", -1)),
        ],
    )
    def test_option_out_of_range_is_named(self, option: str, value: float) -> None:
        prober_options, check = (
            (self.LISTENER, options.check_listener_options)
            if option in self.LISTENER
            else (self.PROBER, options.check_prober_options)
        )
        check(prober_options)
        with pytest.raises(InputError) as caught:
            check({**prober_options, option: value})
        assert caught.value.details["option"] == option

    def test_zero_payload_and_zero_seconds_are_valid(self) -> None:
        options.check_prober_options({"timeout": 0.5, "payload_bytes": 0, "throughput_seconds": 0})


class TestClock:
    @settings(deadline=None)
    @given(
        st.floats(-1e5, 1e5),
        st.lists(
            st.tuples(st.floats(0, 2), st.floats(0, 2), st.floats(0, 1)),
            min_size=1,
            max_size=8,
        ),
    )
    def test_offset_error_is_at_most_half_the_round_trip(
        self, offset: float, ways: list[tuple[float, float, float]]
    ) -> None:
        samples = []
        now = 1e9
        for outbound_delay, back, busy in ways:
            received = now + outbound_delay + offset
            samples.append(clock.ClockSample(now, received, received + busy, now + outbound_delay + busy + back))
            now += 10
        best = clock.choose_sample(samples)
        assert best.round_trip <= min(outbound_delay + back for outbound_delay, back, _busy in ways) + 1e-5
        assert abs(best.offset - offset) <= best.round_trip / 2 + 1e-5

    def test_sample_of_a_stepped_clock_is_not_chosen(self) -> None:
        good = clock.ClockSample(0, 5, 5, 0.1)
        stepped = clock.ClockSample(10, 15, 25, 10.1)
        assert stepped.round_trip < 0
        assert clock.choose_sample([stepped, good]) == good
        assert clock.choose_sample([stepped]) == stepped


class TestPathMtu:
    @settings(deadline=None)
    @given(st.integers(100, 65535), st.integers(577, 65535))
    def test_the_search_finds_the_size_exactly_in_a_few_rounds(self, truth: int, largest: int) -> None:
        search = path_mtu.MtuSearch(576, largest)
        rounds = 0
        while search.next_sizes():
            sizes = search.next_sizes()
            assert sizes == sorted(set(sizes))
            assert len(sizes) <= 16
            search.record_results({size for size in sizes if size <= truth})
            rounds += 1
        assert search.largest_passed == (min(truth, largest) if truth >= 576 else None)
        assert rounds <= 6

    @settings(deadline=None)
    @given(st.integers(577, 9000), st.randoms(use_true_random=False))
    def test_search_ends_with_any_losses(self, largest: int, chance: Random) -> None:
        search = path_mtu.MtuSearch(576, largest)
        for _round in range(40):
            sizes = search.next_sizes()
            if not sizes:
                break
            search.record_results({size for size in sizes if chance.random() < 0.5})
        assert not search.next_sizes()

    def test_a_perfect_path_takes_one_round(self) -> None:
        search = path_mtu.MtuSearch(576, 1500)
        assert search.next_sizes() == [576, 1500]
        search.record_results({576, 1500})
        assert search.next_sizes() == []
        assert search.largest_passed == 1500

    @pytest.mark.parametrize(
        ("interface", "measured", "signalled", "expected"),
        [
            (1500, 1500, 1500, False),
            (1500, 1400, 1500, True),
            (1500, 1400, None, True),
            # A router has reported what fits: the kernel sends no larger packets.
            (1500, 1400, 1400, False),
            (1500, 1300, 1400, True),
            (None, 1400, 1500, False),
            (1500, None, 1500, False),
        ],
    )
    def test_black_hole(
        self, interface: int | None, measured: int | None, signalled: int | None, expected: bool
    ) -> None:
        assert path_mtu.is_black_hole(interface, measured, signalled) is expected


def read_routes(stdout: str, stderr: str) -> dict[str, Any] | str:
    """The routes, or the message of the error."""
    try:
        return routes.parse_routes(["10.5.0.2"], stdout, stderr)
    except ParseError as error:
        return str(error)


class TestRoutes:
    #: The output of iproute2 6.1, one answer per line, the second address without a route.
    OUTPUT = (
        '[{"dst":"10.5.0.2","dev":"e0","prefsrc":"10.5.0.1","flags":[],"uid":0,"cache":[]}]\n'
        '[{"dst":"8.8.8.8","gateway":"10.5.0.9","dev":"e0","prefsrc":"10.5.0.1","flags":[],"uid":0,"cache":[]}]\n'
    )
    ERRORS = "RTNETLINK answers: Network is unreachable\nCommand failed -:2\n"

    def test_routes_and_errors_are_distinguished(self) -> None:
        routes_by_address = routes.parse_routes(["10.5.0.2", "10.6.0.1", "8.8.8.8"], self.OUTPUT, self.ERRORS)
        assert routes_by_address == {
            "10.5.0.2": {"dev": "e0", "prefsrc": "10.5.0.1", "gateway": None, "error": None},
            "10.6.0.1": {"dev": None, "prefsrc": None, "gateway": None, "error": "Network is unreachable"},
            "8.8.8.8": {"dev": "e0", "prefsrc": "10.5.0.1", "gateway": "10.5.0.9", "error": None},
        }

    def test_a_gateway_of_the_other_family(self) -> None:
        text = '[{"dst":"10.5.0.2","via":{"family":"inet6","host":"fe80::1"},"dev":"e0","prefsrc":"10.5.0.1"}]'
        assert routes.parse_routes(["10.5.0.2"], text, "")["10.5.0.2"]["gateway"] == "fe80::1"

    def test_ipv6_address_matches_in_any_notation(self) -> None:
        text = '[{"dst":"fd00::2","from":"::","dev":"e0","prefsrc":"fd00::1"}]'
        assert routes.parse_routes(["fd00:0:0::2"], text, "")["fd00:0:0::2"]["dev"] == "e0"

    def test_address_that_ip_skipped_has_an_error(self) -> None:
        assert routes.parse_routes(["10.5.0.2"], "", "")["10.5.0.2"]["error"] == "ip printed nothing"

    def test_all_routes_are_queried_in_one_call(self) -> None:
        calls = []

        def run(argv: tuple[str, ...], stdin: str, timeout: float, check: bool) -> CommandResult:
            calls.append((argv, stdin, check))
            return CommandResult(1, self.OUTPUT, self.ERRORS)

        assert routes.query_routes(run, []) == {}
        assert (
            routes.query_routes(run, ["10.5.0.2", "10.6.0.1", "8.8.8.8"])["10.6.0.1"]["error"]
            == "Network is unreachable"
        )
        assert calls == [
            (
                ("ip", "-j", "-force", "-batch", "-"),
                "route get 10.5.0.2\nroute get 10.6.0.1\nroute get 8.8.8.8\n",
                False,
            )
        ]

    @settings(deadline=None)
    @given(st.text(max_size=200), st.text(max_size=200))
    def test_any_output_is_a_route_or_an_error_naming_the_command(self, stdout: str, stderr: str) -> None:
        outcome = read_routes(stdout, stderr)
        assert "ip -j" in outcome if isinstance(outcome, str) else set(outcome) == {"10.5.0.2"}

    @settings(deadline=None)
    @given(
        st.lists(
            st.dictionaries(
                st.sampled_from(["dst", "dev", "prefsrc", "gateway", "via"]),
                st.none()
                | st.integers()
                | st.text(max_size=9)
                | st.lists(st.integers(), max_size=2)
                | st.dictionaries(st.just("host"), st.integers() | st.text(max_size=5), max_size=1),
            ),
            max_size=4,
        )
    )
    def test_any_json_is_a_route_or_an_error(self, items: list[dict[str, object]]) -> None:
        outcome = read_routes(json.dumps(items), "")
        if isinstance(outcome, str):
            assert "ip -j" in outcome
        else:
            assert set(outcome["10.5.0.2"]) == {"dev", "prefsrc", "gateway", "error"}


class TestArp:
    #: A real reply: 10.50.0.2 is at 32:6e:b1:13:7f:a0, sent to 56:cd:e4:3c:b2:c4.
    REPLY = bytes.fromhex(
        "56cde43cb2c4326eb1137fa008060001080006040002326eb1137fa00a32000256cde43cb2c40a320001" + "00" * 18
    )

    def test_reply_is_parsed(self) -> None:
        assert arp.parse_reply(self.REPLY) == arp.ArpReply("10.50.0.2", "32:6e:b1:13:7f:a0")

    def test_request_is_not_a_reply(self) -> None:
        frame = arp.build_request("56:cd:e4:3c:b2:c4", arp.UNSPECIFIED_SENDER, "10.50.0.2")
        assert len(frame) == 60
        assert frame[:14].hex() == "ffffffffffff56cde43cb2c40806"
        assert frame[28:32] == bytes(4)
        assert frame[38:42] == bytes([10, 50, 0, 2])
        assert arp.parse_reply(frame) is None

    @settings(deadline=None)
    @given(st.binary(max_size=80))
    def test_other_frames_are_not_replies(self, data: bytes) -> None:
        reply = arp.parse_reply(data)
        assert reply is None or len(data) >= 42

    def test_a_tunnel_has_no_hardware_address(self, tmp_path: Path) -> None:
        for name, kind in (("eth0", "1"), ("wg0", "65534")):
            (tmp_path / name).mkdir()
            (tmp_path / name / "mtu").write_text("1420\n")
            (tmp_path / name / "type").write_text(f"{kind}\n")
            (tmp_path / name / "address").write_text("56:cd:e4:3c:b2:c4\n")
        (tmp_path / "bonding_masters").write_text("")
        assert arp.read_nic("wg0", str(tmp_path)) == {"name": "wg0", "mtu": 1420, "mac": None}
        assert arp.read_nic("eth0", str(tmp_path))["mac"] == "56:cd:e4:3c:b2:c4"
        assert arp.read_nic("eth9", str(tmp_path)) == {"name": "eth9", "mtu": None, "mac": None}
        # The kernel answers EINVAL for an interface that vanishes meanwhile, as it always does for the speed of lo.
        (tmp_path / "veth0").mkdir()
        for entry in ("mtu", "type", "address"):
            (tmp_path / "veth0" / entry).symlink_to("/sys/class/net/lo/speed")
        assert arp.read_own_macs(str(tmp_path)) == ["56:cd:e4:3c:b2:c4"]


class TestSchedule:
    @settings(deadline=None)
    @given(st.integers(0, 60))
    def test_rounds_pair_every_machine_once(self, number: int) -> None:
        machines = [f"n{index}" for index in range(number)]
        rounds = schedule.plan_rounds(machines)
        matches = [frozenset(match) for matches in rounds for match in matches]
        # All pairs meet exactly once.
        assert len(matches) == len(set(matches)) == number * (number - 1) // 2
        assert all(len(match) == 2 for match in matches)
        # No machine is in two pairs of a round.
        for machine_pair in rounds:
            busy = [machine for match in machine_pair for machine in match]
            assert len(busy) == len(set(busy))
        if number > 1:
            assert len(rounds) == (number - 1 if number % 2 == 0 else number)

    @settings(deadline=None)
    @given(st.integers(2, 30))
    def test_timetables_of_all_hosts_are_consistent(self, number: int) -> None:
        machines = [f"n{index}" for index in range(number)]
        slots: dict[tuple[int, int], list[str]] = {}
        pairs = set()
        for machine in machines:
            for slot in schedule.plan_slots(machines, machine):
                slots.setdefault((slot.round, slot.half), []).extend([machine, slot.peer])
                pairs.add((machine, slot.peer))
        assert len(pairs) == number * (number - 1)
        assert all(len(busy) == len(set(busy)) for busy in slots.values())


class TestIperf3:
    def test_received_rate_is_reported(self) -> None:
        text = json.dumps(
            {"end": {"sum_received": {"bits_per_second": 9.41e9}, "sum_sent": {"bits_per_second": 9.5e9}}}
        )
        assert runner.parse_iperf3(text) == 9.41

    @pytest.mark.parametrize("text", ["", "[]", "{}", '{"error": "unable to connect"}', '{"end": {"sum_received": 1}}'])
    def test_error_is_not_a_measurement(self, text: str) -> None:
        assert runner.parse_iperf3(text) is None
