# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The facts of recorded hosts, and fuzzed output of ``ip``."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import CommandResult
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import CommandError, ParseError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree
from ansible_collections.gpumesh.cluster.plugins.module_utils._host.facts import gather_facts
from ansible_collections.gpumesh.cluster.plugins.module_utils._host.iproute import parse_addresses, parse_default_routes
from ansible_collections.gpumesh.cluster.tests.unit.module_utils._host.recorded import (
    BOOT_ID,
    CASE_NAMES,
    FIXTURES,
    RecordedIp,
    gather_case,
)

RECORDED_ADDRESSES = {case: (FIXTURES / case / "addr.json").read_text(encoding="utf-8") for case in CASE_NAMES}


@pytest.mark.parametrize("case", CASE_NAMES)
def test_recorded_host_has_the_expected_facts(case: str, tmp_path: Path) -> None:
    expected = json.loads((FIXTURES / case / "expected.json").read_text(encoding="utf-8"))
    expected["host"]["boot_id"] = BOOT_ID
    assert gather_case(case, tmp_path) == expected


def test_ip_is_called_three_times_at_most() -> None:
    ip = RecordedIp(FIXTURES / "docker_kubernetes")
    gather_facts(ip, Tree("/nonexistent"), "gpu7", lambda name: [])
    assert len(ip.calls) == 3
    assert {call[0] for call in ip.calls} == {"ip"}


def test_a_host_without_sysfs_still_has_its_addresses() -> None:
    facts = gather_facts(RecordedIp(FIXTURES / "plain_ethernet"), Tree("/nonexistent"), "gpu7", lambda name: [])
    eno1 = facts["interfaces"][1]
    assert (eno1["physical"], eno1["speed_mbps"], eno1["driver"], eno1["rdma"]) == (False, None, None, None)
    assert eno1["addresses"][0]["address"] == "192.168.1.11"


def test_kernel_without_ipv6_is_accepted() -> None:
    recorded = RecordedIp(FIXTURES / "plain_ethernet")

    def ip(argv: Sequence[str], check: bool = True) -> CommandResult:
        if "-6" not in argv:
            return recorded(argv, check)
        if check:
            raise CommandError(argv, "exited 2", rc=2)
        return CommandResult(2, "", "RTNETLINK answers: Operation not supported")

    routes = gather_facts(ip, Tree("/nonexistent"), "gpu7", lambda name: [])["host"]["default_routes"]
    assert [route["family"] for route in routes] == ["inet"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "JSON"),
        ("1: lo: <LOOPBACK,UP>", "'1: lo: <LOOPBACK"),
        ('{"ifname": "lo"}', "list of objects"),
        ('[{"ifname": "eth0"}]', "no link_type"),
        ('[{"ifname": "eth0", "link_type": "ether", "mtu": "1500"}]', "mtu is '1500'"),
        ('[{"ifname": "eth0", "link_type": "ether", "mtu": true}]', "mtu is 'True'"),
        ('[{"ifname": "../x", "link_type": "ether", "mtu": 1500}]', "'../x' is an invalid interface name"),
        ('[{"ifname": "eth0", "link_type": "ether", "mtu": 1500, "flags": "UP"}]', "flags is 'UP'"),
        (
            '[{"ifname": "a", "link_type": "ether", "mtu": 1500, "addr_info": [{"local": "10.0.0", "prefixlen": 8}]}]',
            "'10.0.0' with prefix length 8",
        ),
        ("[" * 100_000, "nested too deeply|JSON"),
    ],
)
def test_unreadable_output_names_the_command_and_the_value(text: str, words: str) -> None:
    with pytest.raises(ParseError, match=words) as caught:
        parse_addresses(text)
    assert "'ip -j -d addr show'" in str(caught.value)
    assert caught.value.to_result()["command"] == "ip -j -d addr show"


def test_empty_objects_of_old_versions_are_skipped() -> None:
    text = '[{},{"ifname":"eth0","link_type":"ether","mtu":1500,"addr_info":[{}]}]'
    assert [(link["name"], link["addresses"]) for link in parse_addresses(text)] == [("eth0", [])]


def test_empty_route_output_is_accepted() -> None:
    assert parse_default_routes("", "inet6") == []


def test_a_gateway_of_the_other_family_is_found() -> None:
    text = '[{"dst":"default","via":{"family":"inet6","host":"fe80::1"},"dev":"eth0","flags":[]}]'
    assert parse_default_routes(text, "inet")[0]["gateway"] == "fe80::1"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
#: Objects with the right keys and arbitrary values get further than arbitrary JSON.
LIKELY = st.lists(
    st.dictionaries(
        st.sampled_from(
            [
                "ifname",
                "link_type",
                "mtu",
                "flags",
                "operstate",
                "linkinfo",
                "addr_info",
                "address",
                "master",
                "link",
                "altnames",
                "dst",
                "gateway",
                "via",
                "dev",
                "metric",
                "nexthops",
                "prefsrc",
            ]
        ),
        JSON | st.sampled_from(["ether", "eth0", "none", "UP"]) | st.just([{"local": "10.0.0.1", "prefixlen": 24}]),
    ),
    max_size=3,
)


@given(value=JSON | LIKELY)
def test_arbitrary_json_gives_facts_or_a_typed_error(value: Any) -> None:
    _parse_addresses_and_routes(json.dumps(value))


@given(text=st.text() | st.binary().map(lambda data: data.decode("utf-8", "replace")))
def test_arbitrary_text_gives_facts_or_a_typed_error(text: str) -> None:
    _parse_addresses_and_routes(text)


def _parse_addresses_and_routes(text: str) -> None:
    # Any other exception fails the test by itself.
    _typed(lambda: parse_addresses(text), "ip -j -d addr show")
    _typed(lambda: parse_default_routes(text, "inet"), "ip -j -4 route show default")


@st.composite
def damaged_output(draw: st.DrawFn) -> str:
    """Recorded output with one value replaced, one key removed, or truncated."""
    text = RECORDED_ADDRESSES[draw(st.sampled_from(CASE_NAMES))]
    if draw(st.booleans()):
        return text[: draw(st.integers(0, len(text)))] + draw(st.text(max_size=3))
    value = json.loads(text)
    holder, key = draw(st.sampled_from(list(_json_positions(value))))
    if isinstance(holder, dict) and draw(st.booleans()):
        del holder[key]
    else:
        holder[key] = draw(JSON)
    return json.dumps(value)


def _json_positions(value: Any) -> list[tuple[Any, Any]]:
    keys: list[Any] = []
    if isinstance(value, dict):
        keys = list(value)
    elif isinstance(value, list):
        keys = list(range(len(value)))
    return [(value, key) for key in keys] + [position for key in keys for position in _json_positions(value[key])]


@settings(max_examples=300)
@given(text=damaged_output())
def test_damaged_output_gives_complete_facts_or_a_typed_error(text: str) -> None:
    def ip(argv: Sequence[str], check: bool = True) -> CommandResult:
        return CommandResult(0, text if "addr" in argv else "[]", "")

    facts = _typed(lambda: gather_facts(ip, Tree("/nonexistent"), "gpu7", lambda name: None), "ip -j -d addr show")
    if not isinstance(facts, ParseError):
        json.dumps(facts)


def _typed(work: Callable[[], Any], command: str) -> Any:
    """The result of the work, or the one error that it may raise, which must name the command."""
    try:
        return work()
    except ParseError as error:
        named = error
    assert f"'{command}'" in named.message
    return named
