# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import copy
import itertools
import re
from html.parser import HTMLParser

import pytest

from ansible_collections.gpumesh.cluster.plugins.plugin_utils._checks.report import figures, view
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._checks.report.html import render
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._checks.report.verdict import assemble_verdict
from ansible_collections.gpumesh.cluster.tests.unit.plugin_utils._checks.report import samples

MALICIOUS_TEXT = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&{{7*7}}"


class Reader(HTMLParser):
    """Collects tags with their attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list = []

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.tags.append((tag, dict(attrs)))


def tags(page: str) -> list:
    reader = Reader()
    reader.feed(page)
    return reader.tags


@pytest.mark.parametrize("number", [1, 2, 3, 12, 13, 50])
def test_the_page_is_created_for_any_cluster_size(number: int) -> None:
    page = render(samples.verdict(number, ("a", "b")[: min(number, 2)]))
    cells = [attrs for tag, attrs in tags(page) if "data-pair" in attrs]
    assert len(cells) == 2 * number * (number - 1)


def test_the_page_is_self_contained() -> None:
    page = render(samples.verdict())
    assert not re.search(r"(src|href)\s*=\s*[\"'](?!#)", page)
    assert "http://" not in page and "https://" not in page
    assert "url(" not in page and "@import" not in page
    assert "default-src 'none'" in page


def test_volumes_are_shown_with_their_free_space() -> None:
    page = render(samples.verdict(3))
    for words in ('id="storage"', "n1:/srv/data", "3 TiB", "8 TiB", "every member", "1100", "412"):
        assert words in page
    unmeasured = samples.verdict(3)
    for volume in unmeasured["volumes"]:
        for member in volume["members"]:
            member.update(write_mbps=None, read_mbps=None, files_per_second=None)
    quick = render(unmeasured)
    assert 'id="storage"' in quick
    assert "Small files/s" in page and "Small files/s" not in quick
    older = samples.verdict(3)
    del older["volumes"]
    assert 'id="storage"' not in render(older)


def test_inserted_text_is_escaped() -> None:
    verdict = samples.verdict(3, dead=["n3"])
    before = [tag for tag, _attrs in tags(render(verdict))]
    for check in verdict["checks"]:
        check.update(reason=MALICIOUS_TEXT, remedy=MALICIOUS_TEXT, purpose=MALICIOUS_TEXT)
    for pair in verdict["reachability"]["pairs"]:
        pair.update(message=MALICIOUS_TEXT, remedy=MALICIOUS_TEXT)
    verdict["jobs"][0].update(output=MALICIOUS_TEXT, command=MALICIOUS_TEXT)
    verdict["cluster"]["name"] = MALICIOUS_TEXT
    verdict["volumes"][0].update(name=MALICIOUS_TEXT, mount_point=MALICIOUS_TEXT, filesystem=MALICIOUS_TEXT)
    page = render(verdict)
    assert "<script>alert" not in page
    assert "<img" not in page
    # The same elements, except for findings that now have the same message and are shown once.
    assert {tag for tag, _attrs in tags(page)} == set(before)
    assert not [attrs for _tag, attrs in tags(page) if any(name.startswith("on") for name in attrs)]


def test_an_unreachable_member_is_marked() -> None:
    made = figures.draw_topology(samples.verdict(3, dead=["n3"])["cluster"], samples.pairs(samples.record(3), ["n3"]))
    assert [link["title"] for link in made["links"] if link["kind"] == "broken"] == ["n1 and n3", "n2 and n3"]
    assert [node["machine"] for node in made["nodes"] if not node["answered"]] == ["n3"]


def test_link_kinds_come_from_the_record() -> None:
    one = {"site": "a", "endpoint": None}
    other = {"site": "b", "endpoint": None}
    assert figures.classify_link({"backend": "none"}, one, other) == "lan"
    assert figures.classify_link({"backend": "wireguard"}, one, other) == "relayed"
    assert figures.classify_link({"backend": "wireguard"}, one, {**other, "endpoint": "h:1"}) == "tunnel"
    assert figures.classify_link({"backend": "wireguard"}, one, {**other, "site": "a"}) == "tunnel"


def test_curves_rise_on_a_log_axis_and_show_the_threshold() -> None:
    made = figures.draw_curves(samples.collectives(required=9.0))
    points = made["series"][0]["points"]
    gaps = {round(b["x"] - a["x"], 0) for a, b in itertools.pairwise(points)}
    assert len(gaps) == 1
    assert [line["text"] for line in made["thresholds"]] == ["required 9 GB/s"]
    assert figures.draw_curves([]) is None


def test_axes_have_titles() -> None:
    page = render(samples.verdict())
    assert re.findall(r'<text class="tick axis"[^>]*>([^<]*)</text>', page) == ["bus bandwidth, GB/s", "message size"]


@pytest.mark.parametrize(("value", "top"), [(0, 1.0), (11.97, 12.0), (0.0031, 0.004), (480, 500.0), (504, 600.0)])
def test_the_top_of_an_axis_is_a_round_number(value: float, top: float) -> None:
    assert figures.nice_ceiling(value) == pytest.approx(top)


def test_equal_latencies_are_one_class() -> None:
    assert figures.class_bounds([0.31, 0.33, 0.35]) == [0.35]
    bounds = figures.class_bounds([0.1, 1, 10, 100])
    assert [figures.find_class(value, bounds) for value in (0.1, 1, 10, 100)] == [0, 1, 3, 4]


def test_findings_of_several_hosts_are_merged_in_the_order_of_layers() -> None:
    verdict = samples.verdict(50, dead=["n37"])
    made = view.collect_findings(verdict["checks"], ("fail", "error"))
    assert [(entry["id"], len(entry["hosts"])) for entry in made] == [("members.answer", 1), ("reachability.peers", 49)]


def test_skipped_checks_are_merged_even_if_their_requirements_differ() -> None:
    checks = [
        samples.check("reachability.unique_address", f"n{one}", "skipped", required=f"10.0.0.{one}", reason="No ARP.")
        for one in range(1, 49)
    ]
    (entry,) = view.collect_findings(checks, ("skipped",))
    assert len(entry["hosts"]) == 48


def test_measured_values_are_not_among_the_skipped_checks() -> None:
    checks = [
        samples.check("reachability.bandwidth", "n1", "skipped", actual=0.9, unit="Gbit/s", reason="Not judged."),
        samples.check("health.gpu_ecc", "n1", "skipped", reason="No GPUs."),
        samples.check("health.gpu_ecc", "n2", "skipped", reason="No GPUs."),
    ]
    verdict = assemble_verdict(samples.record(2), checks, "2026-11-20T20:31:00Z")
    measured, skipped = render(verdict).partition('id="checks"')[2].split("2 skipped, and why")
    assert "reachability.bandwidth: 0.9 Gbit/s" in measured and "health.gpu_ecc" not in measured
    assert "health.gpu_ecc" in skipped and "Not judged." not in skipped


def test_skipped_pairs_are_not_counted_as_broken() -> None:
    verdict = copy.deepcopy(samples.verdict(3))
    for pair in verdict["reachability"]["pairs"]:
        pair |= {"status": "skipped", "verdict": "not_probed", "rtt_ms": None}
    page = view.build_page(verdict)
    assert "Pairs that reach each other" not in {fact["name"] for fact in page["facts"]}
    assert page["latency"] is None
    verdict["reachability"]["pairs"][0] |= {"status": "pass", "rtt_ms": 0.2}
    page = view.build_page(verdict)
    assert next(fact["value"] for fact in page["facts"] if fact["name"] == "Pairs that reach each other") == "1 of 1"
    assert page["probed"] == "1 of 6 ordered pairs were probed."


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [(1, "peers", "1 peer"), (2, "peers", "2 peers"), (0, "GPUs", "0 GPUs"), (1, "s", "1 s"), (True, "GPUs", "yes")],
)
def test_a_count_of_one_is_singular(value: object, unit: str, text: str) -> None:
    assert view.format_quantity(value, unit) == text
