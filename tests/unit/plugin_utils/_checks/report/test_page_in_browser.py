# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The report in a real browser: headless Chromium, driven by chromedriver."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import (
    background_color,
    find_element,
    find_low_contrast,
    forget_theme,
    is_wider_than,
    show_page,
    start_chromium,
    webdriver,
)

from ansible_collections.gpumesh.cluster.plugins.plugin_utils._checks.report.html import render
from ansible_collections.gpumesh.cluster.tests.unit.plugin_utils._checks.report import samples


@pytest.fixture(name="browser", scope="module")
def _browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator:
    yield from start_chromium(tmp_path_factory.mktemp("profile"))


def show(browser, tmp_path: Path, verdict: dict, width: int = 1200, scheme: str = "light") -> None:
    """Load the page of a verdict."""
    page = tmp_path / "report.html"
    page.write_text(render(verdict), encoding="utf-8")
    show_page(browser, page, width, scheme)


def detail(browser) -> str:
    return find_element(browser, '.detail[data-for="latency"]').text


def test_a_large_cluster_is_drawn_by_groups(browser, tmp_path: Path) -> None:
    show(browser, tmp_path, samples.verdict(150, ("a", "b"), dead=["n137"]))
    for part in ("#topology svg .node", "#latency", "#health table", "#broken"):
        assert find_element(browser, part).is_displayed(), part
    assert len(browser.find_elements("css selector", "#topology g.node")) == 30
    for ends, said in (
        ("0,1", "25 of 25 pairs reach each other"),
        ("27,27", "12 of 20 pairs reach each other, 8 fail"),
    ):
        cell = find_element(browser, f'#latency [data-pair="{ends}"]')
        webdriver.ActionChains(browser).scroll_to_element(cell).move_to_element(cell).perform()
        assert said in detail(browser)


@pytest.mark.parametrize(("number", "dead"), [(3, []), (3, ["n3"]), (50, ["n37"])])
def test_the_page_has_every_section(browser, tmp_path: Path, number: int, dead: list) -> None:
    show(browser, tmp_path, samples.verdict(number, ("a", "b"), dead=dead))
    for part in (
        "#topology svg .node",
        "#latency",
        "#bandwidth",
        ".chart .threshold-label",
        "#health table",
        "#history .bars",
    ):
        assert find_element(browser, part).is_displayed(), part
    assert len(browser.find_elements("css selector", "#topology g.node")) == number
    assert bool(browser.find_elements("css selector", "#findings")) == bool(dead)
    assert len(browser.find_elements("css selector", "#broken tbody tr")) == len(dead) * 2 * (number - 1)


def test_pointing_at_a_cell_gives_the_pairs_numbers(browser, tmp_path: Path) -> None:
    verdict = samples.verdict(3)
    pair = next(p for p in verdict["reachability"]["pairs"] if (p["from"], p["to"]) == ("n2", "n3"))
    pair.update(rtt_ms=4.25, path_mtu=1391, offset_s=-0.125, bandwidth_gbps=7.5)
    show(browser, tmp_path, verdict)
    cell = find_element(browser, '#latency [data-pair="1,2"]')
    webdriver.ActionChains(browser).scroll_to_element(cell).move_to_element(cell).perform()
    for expected in ("n2 → n3", "4.25 ms", "1391 bytes", "-0.13 s", "7.50 Gbit/s"):
        assert expected in detail(browser)


def test_arrow_keys_move_over_the_diagonal(browser, tmp_path: Path) -> None:
    show(browser, tmp_path, samples.verdict(3, dead=["n3"]))
    browser.execute_script("arguments[0].focus()", find_element(browser, '#latency [data-pair="1,0"]'))
    assert "n2 → n1" in detail(browser)
    browser.switch_to.active_element.send_keys("\ue014")
    assert "n2 → n3" in detail(browser)
    assert "Start n3" in detail(browser)


def test_text_of_a_host_does_not_become_markup(browser, tmp_path: Path) -> None:
    verdict = samples.verdict(3)
    for pair in verdict["reachability"]["pairs"]:
        pair["message"] = "</script><b id=evil>x</b>"
    show(browser, tmp_path, verdict)
    browser.execute_script("arguments[0].focus()", find_element(browser, '#latency [data-pair="0,1"]'))
    assert "<b id=evil>" in detail(browser)
    assert browser.find_elements("css selector", "#evil") == []


def test_the_theme_follows_the_system_and_the_toggle(browser, tmp_path: Path) -> None:
    show(browser, tmp_path, samples.verdict(3), scheme="light")
    forget_theme(browser)
    show(browser, tmp_path, samples.verdict(3), scheme="light")
    light = background_color(browser)
    find_element(browser, "#theme").click()
    dark = background_color(browser)
    assert light != dark
    forget_theme(browser)
    show(browser, tmp_path, samples.verdict(3), scheme="dark")
    assert background_color(browser) == dark


@pytest.mark.parametrize("number", [3, 50])
def test_nothing_is_wider_than_a_phone(browser, tmp_path: Path, number: int) -> None:
    show(browser, tmp_path, samples.verdict(number, ("a", "b"), dead=["n2" if number < 10 else "n02"]), width=390)
    assert not is_wider_than(browser, 390)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_the_contrast_of_wcag_aa(browser, tmp_path: Path, scheme: str) -> None:
    forget_theme(browser)
    show(browser, tmp_path, samples.verdict(7, ("a", "b", "c"), dead=["n7"]), scheme=scheme)
    assert find_low_contrast(browser) == []
