# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The results of the guide in a real browser: the run, its metrics and its file, and the page that names the slow rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import find_element, show_page, start_chromium
from tracking_lab import PASSWORDS, SHARED_VOLUME, TrackingLab


@pytest.fixture(name="browser")
def _browser(tmp_path: Path) -> Iterator:
    # The certificate that the server has made for itself is not among those of the browser.
    yield from start_chromium(tmp_path / "profile", "--ignore-certificate-errors")


def text(browser) -> str:
    return str(browser.execute_script("return document.body.innerText"))


def await_page(browser, lab: TrackingLab, page: str, condition: Callable[[], object]) -> None:
    """Load a page, and wait until the condition is true there."""
    entries: list[dict[str, Any]] = []

    def is_true() -> object:
        new_entries = browser.get_log("browser")
        entries.extend(new_entries)
        # Chromium gives up what it is loading when any network of this machine changes, such as those of other scenarios.
        if any("ERR_NETWORK_CHANGED" in entry["message"] for entry in new_entries):
            browser.refresh()
        return condition()

    browser.get(page)
    try:
        lab.wait_until(f"{page} is complete", is_true, 240)
    except AssertionError:
        # The test cannot tell from outside whether the server or the page is late.
        print(text(browser), entries)
        raise


def test_the_run_its_metrics_and_its_file(browser, lab: TrackingLab) -> None:
    run = lab.find_runs("alice")["tracked"]["info"]
    scheme, _slashes, place = lab.server_uri.partition("://")
    browser.set_window_size(1400, 1000)
    # A login is remembered for the following pages.
    browser.get(f"{scheme}://alice:{PASSWORDS['alice']}@{place}/api/2.0/mlflow/experiments/get?experiment_id=0")
    where = f"{lab.server_uri}/#/experiments/{run['experiment_id']}"
    for page, words in (
        (f"{where}/runs", ["slow", "tracked"]),
        (f"{where}/runs/{run['run_id']}", ["tracked", "loss", "width"]),
        (f"{where}/runs/{run['run_id']}/artifacts", ["losses.csv"]),
    ):
        await_page(browser, lab, page, lambda words=words: all(word in text(browser) for word in words))
    drawn = "return document.querySelectorAll('.js-plotly-plot .scatterlayer path, .js-plotly-plot canvas').length > 0"
    await_page(browser, lab, f"{where}/runs/{run['run_id']}/model-metrics", lambda: browser.execute_script(drawn))


def test_the_page_names_the_slow_rank(browser) -> None:
    folder = SHARED_VOLUME / "alice" / "runs" / "slow" / "profile" / "001"
    show_page(browser, folder / "report.html")
    assert "Rank 1 on" in find_element(browser, "#findings .fail").text
    show_page(browser, folder / "report-2.html")
    assert "even" in text(browser)
