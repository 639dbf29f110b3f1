# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The module as Ansible runs it, on a recorded host, compared with its documentation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
import yaml
from ansible.module_utils import basic

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import CommandResult
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import CommandError
from ansible_collections.gpumesh.cluster.plugins.modules import interface_info
from ansible_collections.gpumesh.cluster.tests.unit.module_utils._host.recorded import FIXTURES, RecordedIp


@pytest.fixture(autouse=True)
def _no_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pass no arguments, as Ansible would; its own helpers for this came with ansible-core 2.19."""
    monkeypatch.setattr(basic, "_ANSIBLE_ARGS", b'{"ANSIBLE_MODULE_ARGS": {}}')
    monkeypatch.setattr(basic, "_ANSIBLE_PROFILE", "legacy", raising=False)


def run_module(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    with pytest.raises(SystemExit):
        interface_info.main()
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def test_the_documented_keys_are_returned(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(interface_info, "run", RecordedIp(FIXTURES / "bond_mellanox"))
    result = run_module(capsys)
    documented = yaml.safe_load(interface_info.RETURN)
    assert result["changed"] is False
    assert set(result["host"]) == set(documented["host"]["contains"])
    interface = documented["interfaces"]["contains"]
    assert {key for item in result["interfaces"] for key in item} == set(interface)
    addresses = [address for item in result["interfaces"] for address in item["addresses"]]
    assert {key for address in addresses for key in address} == set(interface["addresses"]["contains"])


@pytest.mark.parametrize(
    ("output", "kind", "words"),
    [
        ('Object "-j" is unknown', "parse", "The output of 'ip -j -d addr show' cannot be read"),
        (None, "command", "'ip -j -d addr show' cannot be run"),
    ],
)
def test_a_failure_names_the_host_and_the_command(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    output: str | None,
    kind: str,
    words: str,
) -> None:
    def ip(argv: Sequence[str], check: bool = True) -> CommandResult:
        if output is None:
            raise CommandError(
                argv,
                "cannot be run: the program is not installed",
                remedy="Install ip, which is in Debian's package iproute2.",
            )
        return CommandResult(0, output, "")

    monkeypatch.setattr(interface_info, "run", ip)
    monkeypatch.setattr(interface_info.socket, "gethostname", lambda: "gpu7")
    result = run_module(capsys)
    assert result["failed"] is True
    assert result["msg"].startswith(f"gpu7: {words}")
    assert result["error"]["kind"] == kind
