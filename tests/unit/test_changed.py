# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which tests `make changed` selects for a changed file, in a small repository and in this one."""

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.gpumesh.cluster.tests.changed import LAYERS_BY_SCENARIO, SelectedTests, select_tests

ROOT = Path(__file__).resolve().parents[2]
PREFIX = "ansible_collections.gpumesh.cluster"
#: A repository with two layers.
TEXTS = {
    "plugins/module_utils/_core/errors.py": "",
    "plugins/module_utils/_layers/slurm/show.py": f"from {PREFIX}.plugins.module_utils._core.errors import GpumeshError",
    "plugins/module_utils/_host/facts.py": "",
    "plugins/modules/slurm.py": f'from {PREFIX}.plugins.module_utils._layers.slurm import show\nEXAMPLES = "- gpumesh.cluster.discover: x"',
    "plugins/modules/discover.py": f"from {PREFIX}.plugins.module_utils import errors\nfrom {PREFIX}.plugins.module_utils._host import facts",
    "plugins/plugin_utils/other.py": "",
    "plugins/plugin_utils/_checks/report/html.py": "",
    "plugins/plugin_utils/_checks/report/page.css": "",
    "roles/slurm/tasks/main.yml": "- gpumesh.cluster.slurm:\n",
    "roles/slurm/meta/argument_specs.yml": "gpumesh.cluster.discover",
    "roles/discover/tasks/main.yml": "- gpumesh.cluster.discover:\n",
    "roles/cluster/tasks/main.yml": "- import_role:\n    name: gpumesh.cluster.slurm\n",
    "docs/guides/lan.md": "",
    "requirements.txt": "",
    "tests/unit/conftest.py": "",
    "tests/runner/steps.py": "",
    "tests/support/role_runs.py": 'ROOT / "plugins" / "modules"',
    "tests/unit/module_utils/_layers/slurm/test_show.py": f"from {PREFIX}.plugins.module_utils._layers.slurm import show",
    "tests/unit/module_utils/_host/test_facts.py": f"from {PREFIX}.plugins.module_utils._host.facts import x",
    "tests/unit/module_utils/_host/fixtures/one.json": "",
    "tests/unit/modules/test_slurm.py": "import module_runs",
    "tests/unit/roles/cluster/test_find.py": "from role_runs import run_plays",
    "tests/unit/plugin_utils/_checks/report/test_html.py": f"import {PREFIX}.plugins.plugin_utils._checks.report.html",
    "tests/unit/plugin_utils/test_other.py": f"import {PREFIX}.plugins.plugin_utils.other",
    "tests/unit/test_runner.py": "from runner import steps",
    "tests/unit/test_guides.py": 'GUIDES = ROOT / "docs" / "guides"',
    "extensions/molecule/slurm/tests/test_jobs.py": "",
    "extensions/molecule/guides/tests/test_lan.py": 'GUIDES = ROOT / "docs" / "guides"',
    "extensions/molecule/work/lab.yml": "",
    "extensions/molecule/work/molecule.yml": "",
    "extensions/molecule/work/tests/test_train.py": "",
    "extensions/molecule/tracking/molecule.yml": "LAB: ${MOLECULE_SCENARIO_DIRECTORY}/../work/lab.yml",
    "lab/up.yml": "",
}
UNITS = sorted(name for name in TEXTS if name.startswith("tests/unit/") and "/test_" in name)


def selected(*changed: str) -> SelectedTests:
    return select_tests({*TEXTS, *changed}, changed, TEXTS)


def having(*layers: str) -> list[str]:
    return sorted(name for name, proved in LAYERS_BY_SCENARIO.items() if proved & set(layers))


def test_the_table_names_exactly_the_scenarios_and_their_layers() -> None:
    assert set(LAYERS_BY_SCENARIO) == {path.parent.name for path in ROOT.glob("extensions/molecule/*/molecule.yml")}
    roles = {path.name for path in (ROOT / "roles").iterdir()}
    assert frozenset().union(*LAYERS_BY_SCENARIO.values()) == roles | {"wireguard", "tailscale"}


@pytest.mark.parametrize(
    ("changed", "units", "layers"),
    [
        # What imports it, directly or not, and the test of the module of its name.
        (
            "plugins/module_utils/_layers/slurm/show.py",
            ["module_utils/_layers/slurm/test_show", "modules/test_slurm"],
            ["slurm"],
        ),
        # Its examples name another module, and a role that is called has its own tests.
        ("plugins/modules/discover.py", [], ["discover"]),
        ("roles/slurm/tasks/main.yml", [], ["slurm"]),
        # The file was deleted.
        ("roles/slurm/tasks/old.yml", [], ["slurm"]),
        ("roles/cluster/tasks/main.yml", ["roles/cluster/test_find"], ["cluster"]),
        ("plugins/module_utils/_host/facts.py", ["module_utils/_host/test_facts"], ["discover"]),
        ("tests/unit/module_utils/_host/fixtures/one.json", ["module_utils/_host/test_facts"], []),
        ("plugins/plugin_utils/_checks/report/page.css", ["plugin_utils/_checks/report/test_html"], []),
        ("tests/support/role_runs.py", ["roles/cluster/test_find"], []),
        ("tests/runner/steps.py", ["test_runner"], []),
        ("tests/unit/modules/test_slurm.py", ["modules/test_slurm"], []),
    ],
)
def test_a_file_affects_what_refers_to_it(changed: str, units: list[str], layers: list[str]) -> None:
    assert selected(changed) == ([f"tests/unit/{name}.py" for name in units], having(*layers))


def test_what_a_scenario_reads_affects_it() -> None:
    assert selected("docs/guides/lan.md") == (["tests/unit/test_guides.py"], ["guides"])
    assert selected("extensions/molecule/slurm/tests/test_jobs.py") == ([], ["slurm"])
    # The small repository has files of only four scenarios.
    assert selected("lab/up.yml") == ([], ["guides", "slurm", "tracking", "work"])


def test_the_hosts_of_a_scenario_affect_those_that_use_them_as_well_and_its_tests_do_not() -> None:
    assert selected("extensions/molecule/work/lab.yml") == ([], ["tracking", "work"])
    assert selected("extensions/molecule/work/tests/test_train.py") == ([], ["work"])
    assert selected("extensions/molecule/tracking/molecule.yml") == ([], ["tracking"])


def test_an_unknown_file_affects_everything_and_a_fragment_nothing() -> None:
    everything = (UNITS, sorted(LAYERS_BY_SCENARIO))
    assert selected("requirements.txt") == everything
    assert selected("changelogs/fragments/new.yml", "tests/bench/new.py", "tests/upgrade/upgrade.py") == ([], [])
    assert selected("changelogs/fragments/new.yml", "requirements.txt") == everything
    assert selected() == ([], [])


def test_what_all_tests_have_affects_all_of_them() -> None:
    assert selected("tests/unit/conftest.py").unit_tests == UNITS
