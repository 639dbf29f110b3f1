# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The cluster's table in this host's nftables: compare it, load it, remove it; now and at boot."""

from __future__ import annotations

import hashlib
import os
import re
from typing import NamedTuple, Optional

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Completed, Runner, find
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import CommandError, HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils.files import read_text, remove_file, write_atomic
from ansible_collections.gpumesh.cluster.plugins.module_utils.firewall.rules import (
    Desired,
    render,
    render_unit,
    table_of,
)


class Host(NamedTuple):
    """The host to work on. ``units`` is empty if systemd is not running."""

    run: Runner
    check_mode: bool
    rules: str = "/etc/gpumesh"
    units: str = "/etc/systemd/system"
    #: Lost at a reboot, like the table itself.
    loaded: str = "/run"


class Result(NamedTuple):
    """What was done, or would be in check mode. ``tools``: whether nft(8) is installed; without it, nothing is done."""

    changed: bool
    tools: bool
    before: str = ""
    after: str = ""


def present(host: Host, cluster: str, desired: Desired) -> Result:
    """Load the table if it is not as desired, and make systemd load it at boot. Raises GpumeshError."""
    nft = find("nft")
    if nft is None:
        return Result(host.check_mode, False)
    path, text = _rules_path(host, desired.table), render(desired)
    before = read_text(path) or ""
    stale = not _is_loaded(host, desired.table, text)
    unit_path, unit = _unit_path(host, desired.table), render_unit(cluster, path, nft)
    unit_stale = bool(host.units) and (
        read_text(unit_path) != unit or not os.path.lexists(_boot_path(host, desired.table))
    )
    changed = before != text or stale or unit_stale
    if not host.check_mode:
        if before != text:
            _refuse_bad(host, text)
            os.makedirs(host.rules, mode=0o755, exist_ok=True)
            write_atomic(path, text, 0o644)
        if stale:
            _load(host, path)
            write_atomic(_loaded_path(host, desired.table), _print(text, _live(host, desired.table) or ""), 0o644)
        if unit_stale:
            write_atomic(unit_path, unit, 0o644)
            host.run(["systemctl", "daemon-reload"])
            host.run(["systemctl", "enable", "--now", os.path.basename(unit_path)])
    note = "# not loaded\n" if stale and before == text else ""
    return Result(changed, True, before + note, text)


def absent(host: Host, cluster: str) -> Result:
    """Remove the table, now and at boot.

    A host that cannot have a table, such as a container without the capability, has none: that is not an error.
    """
    table = table_of(cluster)
    path, unit_path = _rules_path(host, table), _unit_path(host, table)
    tools = find("nft") is not None
    before = read_text(path) or ""
    unit = bool(host.units) and os.path.exists(unit_path)
    live = tools and _list(host, table).rc == 0
    changed = bool(before) or live or unit
    if not host.check_mode:
        if unit:
            host.run(["systemctl", "disable", "--now", os.path.basename(unit_path)])
            remove_file(unit_path)
            host.run(["systemctl", "daemon-reload"])
        # If the unit was running, stopping it has deleted the table.
        if live and _live(host, table) is not None:
            host.run(["nft", "delete", "table", "inet", table])
        remove_file(_loaded_path(host, table))
        remove_file(path)
    return Result(changed, tools, before)


def _rules_path(host: Host, table: str) -> str:
    return os.path.join(host.rules, f"{table}.nft")


def _unit_path(host: Host, table: str) -> str:
    return os.path.join(host.units, f"{table}.service")


def _boot_path(host: Host, table: str) -> str:
    return os.path.join(host.units, "sysinit.target.wants", f"{table}.service")


def _loaded_path(host: Host, table: str) -> str:
    return os.path.join(host.loaded, f"{table}.loaded")


def _live(host: Host, table: str) -> Optional[str]:
    """The table as the kernel lists it, without counters; None if it does not exist."""
    shown = _list(host, table)
    if shown.rc == 0:
        return re.sub(r"\bcounter packets \d+ bytes \d+", "counter", shown.stdout)
    if "No such file" in shown.stderr:
        return None
    raise _refused(shown.stderr)


def _list(host: Host, table: str) -> Completed:
    return host.run(["nft", "--stateless", "list", "table", "inet", table], check=False)


def _is_loaded(host: Host, table: str, text: str) -> bool:
    """Whether the kernel has this table, unchanged since it was loaded from this text.

    nft does not print a table as it was given, so the two cannot be compared. The output directly after loading is
    stored together with the text.
    """
    live = _live(host, table)
    return live is not None and read_text(_loaded_path(host, table)) == _print(text, live)


def _print(text: str, live: str) -> str:
    return hashlib.sha256(f"{text}\0{live}".encode()).hexdigest() + "\n"


def _refuse_bad(host: Host, text: str) -> None:
    """Let nft check the rules without loading them, so that a file that cannot be loaded is never written."""
    try:
        host.run(["nft", "--check", "--file", "-"], stdin=text)
    except CommandError as failure:
        raise _refused(str(failure)) from failure


def _load(host: Host, path: str) -> None:
    try:
        host.run(["nft", "--file", path])
    except CommandError as failure:
        raise _refused(str(failure)) from failure


def _refused(words: str) -> HostStateError:
    return HostStateError(
        f"nftables cannot be used on this host: {words.strip()[-600:]}",
        "In a container, this requires the capability NET_ADMIN; otherwise set firewall_enabled to false for this host.",
    )
