# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The results of the guide in a real browser: the run, its metrics and its file, and the page that names the slow rank."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import find_element, show_page, start_chromium
from tracking_lab import PASSWORDS, SHARED_VOLUME, TrackingLab


@pytest.fixture(name="browser")
def _browser(tmp_path: Path) -> Iterator:
    # The certificate that the server has made for itself is not among those of the browser.
    yield from start_chromium(tmp_path / "profile", "--ignore-certificate-errors")


def text(browser) -> str:
    return str(browser.execute_script("return document.body.innerText"))


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
        browser.get(page)
        try:
            lab.wait_until(f"{page} has {words}", lambda words=words: all(word in text(browser) for word in words), 240)
        except AssertionError:
            # The test cannot tell from outside whether the server or the page is late.
            print(text(browser), browser.get_log("browser"))
            raise
    browser.get(f"{where}/runs/{run['run_id']}/model-metrics")
    drawn = "return document.querySelectorAll('.js-plotly-plot .scatterlayer path, .js-plotly-plot canvas').length > 0"
    lab.wait_until("the loss is drawn", lambda: browser.execute_script(drawn), 240)


def test_the_page_names_the_slow_rank(browser) -> None:
    folder = SHARED_VOLUME / "alice" / "runs" / "slow" / "profile" / "001"
    show_page(browser, folder / "report.html")
    assert "Rank 1 on" in find_element(browser, "#findings .fail").text
    show_page(browser, folder / "report-2.html")
    assert "even" in text(browser)
