# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The report in a real browser: headless Chromium, driven by chromedriver."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from ansible_collections.gpumesh.cluster.plugins.plugin_utils.report.html import render
from ansible_collections.gpumesh.cluster.tests.unit.plugin_utils.report import samples

CHROMIUM = shutil.which("chromium")
DRIVER = shutil.which("chromedriver")
if not CHROMIUM or not DRIVER:
    pytest.skip("not checked: this machine has no chromium and chromedriver", allow_module_level=True)

webdriver = pytest.importorskip("selenium.webdriver", reason="not checked: selenium is not installed")

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


def show(browser, tmp_path: Path, verdict: dict, width: int = 1200, scheme: str = "light") -> None:
    """Load the page of a verdict; the console must stay empty."""
    page = tmp_path / "report.html"
    page.write_text(render(verdict), encoding="utf-8")
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    preference = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": preference})
    browser.get(page.as_uri())
    assert browser.get_log("browser") == []


def find(browser, selector: str):
    return browser.find_element("css selector", selector)


def detail(browser) -> str:
    return find(browser, '.detail[data-for="latency"]').text


def test_a_large_cluster_is_drawn_by_groups(browser, tmp_path: Path) -> None:
    show(browser, tmp_path, samples.verdict(150, ("a", "b"), dead=["n137"]))
    for part in ("#topology svg .node", "#latency", "#health table", "#broken"):
        assert find(browser, part).is_displayed(), part
    assert len(browser.find_elements("css selector", "#topology g.node")) == 30
    for ends, said in (
        ("0,1", "25 of 25 pairs reach each other"),
        ("27,27", "12 of 20 pairs reach each other, 8 fail"),
    ):
        cell = find(browser, f'#latency [data-pair="{ends}"]')
        webdriver.ActionChains(browser).scroll_to_element(cell).move_to_element(cell).perform()
        assert said in detail(browser)


@pytest.mark.parametrize(("number", "dead"), [(3, []), (3, ["n3"]), (50, ["n37"])])
def test_every_part_is_there(browser, tmp_path: Path, number: int, dead: list) -> None:
    show(browser, tmp_path, samples.verdict(number, ("a", "b"), dead=dead))
    for part in (
        "#topology svg .node",
        "#latency",
        "#bandwidth",
        ".chart .threshold-label",
        "#health table",
        "#history .bars",
    ):
        assert find(browser, part).is_displayed(), part
    assert len(browser.find_elements("css selector", "#topology g.node")) == number
    assert bool(browser.find_elements("css selector", "#findings")) == bool(dead)
    assert len(browser.find_elements("css selector", "#broken tbody tr")) == len(dead) * 2 * (number - 1)


def test_pointing_at_a_cell_gives_the_pairs_numbers(browser, tmp_path: Path) -> None:
    verdict = samples.verdict(3)
    pair = next(p for p in verdict["reachability"]["pairs"] if (p["from"], p["to"]) == ("n2", "n3"))
    pair.update(rtt_ms=4.25, path_mtu=1391, offset_s=-0.125, bandwidth_gbps=7.5)
    show(browser, tmp_path, verdict)
    cell = find(browser, '#latency [data-pair="1,2"]')
    webdriver.ActionChains(browser).scroll_to_element(cell).move_to_element(cell).perform()
    for expected in ("n2 → n3", "4.25 ms", "1391 bytes", "-0.13 s", "7.50 Gbit/s"):
        assert expected in detail(browser)


def test_arrow_keys_move_over_the_diagonal(browser, tmp_path: Path) -> None:
    show(browser, tmp_path, samples.verdict(3, dead=["n3"]))
    browser.execute_script("arguments[0].focus()", find(browser, '#latency [data-pair="1,0"]'))
    assert "n2 → n1" in detail(browser)
    browser.switch_to.active_element.send_keys("\ue014")
    assert "n2 → n3" in detail(browser)
    assert "Start n3" in detail(browser)


def test_text_of_a_host_does_not_become_markup(browser, tmp_path: Path) -> None:
    verdict = samples.verdict(3)
    for pair in verdict["reachability"]["pairs"]:
        pair["message"] = "</script><b id=evil>x</b>"
    show(browser, tmp_path, verdict)
    browser.execute_script("arguments[0].focus()", find(browser, '#latency [data-pair="0,1"]'))
    assert "<b id=evil>" in detail(browser)
    assert browser.find_elements("css selector", "#evil") == []


def background(browser) -> str:
    return browser.execute_script("return getComputedStyle(document.body).backgroundColor")


def test_follows_the_system_and_the_toggle(browser, tmp_path: Path) -> None:
    show(browser, tmp_path, samples.verdict(3), scheme="light")
    browser.execute_script("localStorage.clear()")
    show(browser, tmp_path, samples.verdict(3), scheme="light")
    light = background(browser)
    find(browser, "#theme").click()
    dark = background(browser)
    assert light != dark
    browser.execute_script("localStorage.clear()")
    show(browser, tmp_path, samples.verdict(3), scheme="dark")
    assert background(browser) == dark


@pytest.mark.parametrize("number", [3, 50])
def test_nothing_is_wider_than_a_phone(browser, tmp_path: Path, number: int) -> None:
    show(browser, tmp_path, samples.verdict(number, ("a", "b"), dead=["n2" if number < 10 else "n02"]), width=390)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 390


_CONTRAST = """
const channel = v => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; };
const parse = c => (c.match(/[0-9.]+/g) || []).map(Number);
const light = c => 0.2126 * channel(c[0]) + 0.7152 * channel(c[1]) + 0.0722 * channel(c[2]);
const behind = e => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor);
  if (c.length === 3 || c[3] === 1) { return c; } } return [255, 255, 255]; };
const low = [];
for (const e of document.querySelectorAll("main *")) {
  if (e.closest("svg") || e.closest(".sr") || ![...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim())) { continue; }
  const pair = [light(parse(getComputedStyle(e).color)), light(behind(e))].sort((a, b) => b - a);
  const ratio = (pair[0] + 0.05) / (pair[1] + 0.05);
  if (ratio < 4.5) { low.push(e.className + " " + e.textContent.trim().slice(0, 20) + " " + ratio.toFixed(2)); }
}
return [...new Set(low)];
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_the_contrast_of_wcag_aa(browser, tmp_path: Path, scheme: str) -> None:
    browser.execute_script("try { localStorage.clear() } catch (refused) { }")
    show(browser, tmp_path, samples.verdict(7, ("a", "b", "c"), dead=["n7"]), scheme=scheme)
    assert browser.execute_script(_CONTRAST) == []
