# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Our HTML pages in headless Chromium, driven by chromedriver."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

CHROMIUM = shutil.which("chromium")
DRIVER = shutil.which("chromedriver")
if not CHROMIUM or not DRIVER:
    pytest.skip("not checked: this machine has no chromium and chromedriver", allow_module_level=True)

webdriver = pytest.importorskip("selenium.webdriver", reason="not checked: selenium is not installed")

CHROMIUM_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def start_chromium(profile_directory: Path, *flags: str) -> Iterator:
    """Start Chromium, for a fixture. ``profile_directory`` is for its files."""
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*CHROMIUM_FLAGS, *flags, f"--user-data-dir={profile_directory}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


def show_page(browser, page: Path, width: int = 1200, scheme: str = "light") -> None:
    """Load a page. Raises AssertionError if the console is not empty."""
    device_metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", device_metrics)
    color_preference = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": color_preference})
    browser.get(page.as_uri())
    assert browser.get_log("browser") == []


def forget_theme(browser) -> None:
    """Forget the chosen theme, so that pages follow the system again."""
    browser.execute_script("try { localStorage.clear() } catch (refused) { }")


def find_element(browser, selector: str):
    return browser.find_element("css selector", selector)


def background_color(browser) -> str:
    return browser.execute_script("return getComputedStyle(document.body).backgroundColor")


def is_wider_than(browser, width: int) -> bool:
    return browser.execute_script("return document.documentElement.scrollWidth") > width


_CONTRAST_SCRIPT = """
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


def find_low_contrast(browser) -> list[str]:
    """Return the texts whose contrast is less than WCAG AA requires."""
    return browser.execute_script(_CONTRAST_SCRIPT)
