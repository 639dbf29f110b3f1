# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The page of a profile in a real browser."""

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
)
from traces import TraceScenario

from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.trace import program

SETTINGS = {"volumes": [], "run_dir": "", "stage_dir": "", "library": ""}
LINKS = {rank: 92.0 if rank == 1 else 9400.0 for rank in range(4)}
#: A slow rank, a slow link and a rank without a trace; many ranks.
FEW, MANY = (
    TraceScenario(extra_other_ms={2: 30.0}, link_rates=LINKS),
    TraceScenario(ranks=64, ranks_per_node=8, extra_compute_ms={37: 30.0}),
)


@pytest.fixture(name="browser", scope="module")
def _browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator:
    yield from start_chromium(tmp_path_factory.mktemp("profile"))


@pytest.fixture(name="pages", scope="module")
def _pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("traces")
    FEW.write(folder / "few", selected_ranks=range(3))
    MANY.write(folder / "many")
    for runs in (["few"], ["many"], ["few", "many"]):
        assert program.main(SETTINGS, [str(folder / name) for name in runs]) == 0
    return {
        "few": folder / "few" / "report.html",
        "many": folder / "many" / "report.html",
        "both": folder / "few" / "report-2.html",
    }


@pytest.mark.parametrize("name", ["few", "many", "both"])
def test_every_part_is_there_and_fits(browser, pages: dict[str, Path], name: str) -> None:
    for width in (1200, 390):
        show_page(browser, pages[name], width)
        assert not is_wider_than(browser, width)
        for part in ("#findings .fail", "#steps rect.computing", "#timeline path.waiting", "#ranks td", "#clocks td"):
            assert find_element(browser, part).is_displayed(), part
    # Names of ranks are not truncated.
    show_page(browser, pages[name])
    cut = """return [...document.querySelectorAll(".drawing svg")].map(svg => Math.min(
        ...[...svg.querySelectorAll("text")].map(text => text.getBBox().x)))"""
    assert min(browser.execute_script(cut)) >= 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["few", "both"])
def test_text_has_the_contrast_of_wcag_aa(browser, pages: dict[str, Path], name: str, scheme: str) -> None:
    forget_theme(browser)
    show_page(browser, pages[name], scheme=scheme)
    assert find_low_contrast(browser) == []


def test_follows_the_system_and_the_toggle(browser, pages: dict[str, Path]) -> None:
    show_page(browser, pages["few"])
    forget_theme(browser)
    show_page(browser, pages["few"])
    light = background_color(browser)
    find_element(browser, "#theme").click()
    assert background_color(browser) != light
    forget_theme(browser)
