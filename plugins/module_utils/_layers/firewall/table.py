# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The clusters' table in this host's nftables: compare it, load it, remove it; now and at boot.

The part of each cluster is a file of its own, so that a cluster changes and removes its part without those of others.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import hashlib
import os
import re
from typing import Dict, Iterator, Mapping, NamedTuple, Optional, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import CommandResult, Runner, find_program
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import CommandError, HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.files import (
    read_text,
    remove_empty_directory,
    remove_file,
    write_atomic,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.firewall.rules import (
    BOOT_TARGET,
    HOST_RULES_UNIT,
    TABLE_FRAME,
    TABLE_NAME,
    DesiredFirewall,
    check_cluster_name,
    render_admission,
    render_cluster_rules,
    render_drop_in,
    render_main,
    render_unit,
)

#: The elements of a set of addresses that are admitted, as nft prints them.
_JOINING_ELEMENTS = re.compile(r"(set joining_[46] \{[^{}]*?)\n\s*elements = \{[^{}]*\}")


class FirewallHost(NamedTuple):
    """The host to work on. ``unit_directory`` is empty if systemd is not running."""

    run: Runner
    check_mode: bool
    rules_directory: str = "/etc/gpumesh"
    unit_directory: str = "/etc/systemd/system"
    #: The directory is lost at a reboot, like the table itself.
    loaded_directory: str = "/run"


class FirewallResult(NamedTuple):
    """The result of a run, or of check mode. Without nft(8) (``nft_installed``), nothing is done."""

    changed: bool
    nft_installed: bool
    before: str = ""
    after: str = ""


def ensure_present(host: FirewallHost, cluster: str, desired: DesiredFirewall) -> FirewallResult:
    """Load the table if the cluster's part is not as desired, and make systemd load it at boot. Raises GpumeshError."""
    nft_path = find_program("nft")
    if nft_path is None:
        return FirewallResult(host.check_mode, False)
    with _exclusive_access(host):
        return _apply_present(host, nft_path, cluster, desired)


@contextlib.contextmanager
def _exclusive_access(host: FirewallHost) -> Iterator[None]:
    """Wait for the runs of other clusters: each reads the parts of all, and loads them."""
    # The directory itself is locked, so that a removed cluster leaves no lock file.
    lock_descriptor = os.open(host.loaded_directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock_descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock_descriptor)


def _apply_present(host: FirewallHost, nft_path: str, cluster: str, desired: DesiredFirewall) -> FirewallResult:
    part_path, part_text = _part_path(host, cluster), render_cluster_rules(desired)
    previous_part = read_text(part_path) or ""
    text_by_path = {part_path: part_text, _rules_path(host, TABLE_NAME): render_main(_parts_directory(host))}
    outdated_files = {
        path: desired_text for path, desired_text in text_by_path.items() if read_text(path) != desired_text
    }
    table_text = _render_table({**_read_parts(host), cluster: part_text})
    table_outdated = not _is_loaded(host, table_text)
    rules_path = _rules_path(host, TABLE_NAME)
    unit_texts = {
        _unit_path(host, TABLE_NAME): render_unit(rules_path, nft_path),
        _drop_in_path(host, TABLE_NAME): render_drop_in(rules_path, nft_path),
    }
    unit_outdated = bool(host.unit_directory) and not _is_unit_active(host, unit_texts)
    has_former_table = _has_boot_files(host, _former_table_name(cluster))
    changed = bool(outdated_files) or table_outdated or unit_outdated or has_former_table
    if not host.check_mode:
        if outdated_files:
            _check_rules(host, table_text)
            os.makedirs(_parts_directory(host), mode=0o755, exist_ok=True)
            for path, desired_text in outdated_files.items():
                write_atomic(path, desired_text, 0o644)
        if table_outdated:
            _load_rules(host, table_text)
        if unit_outdated:
            os.makedirs(os.path.dirname(_drop_in_path(host, TABLE_NAME)), mode=0o755, exist_ok=True)
            for path, desired_text in unit_texts.items():
                write_atomic(path, desired_text, 0o644)
            host.run(["systemctl", "daemon-reload"])
            host.run(["systemctl", "enable", "--now", os.path.basename(_unit_path(host, TABLE_NAME))])
        if has_former_table:
            _remove_table(host, _former_table_name(cluster))
    load_note = "# not loaded\n" if table_outdated and previous_part == part_text else ""
    return FirewallResult(changed, True, previous_part + load_note, part_text)


def admit_addresses(host: FirewallHost, addresses: Sequence[str], duration: int) -> FirewallResult:
    """Accept these addresses for a limited time, if this host has the table. Nothing is written to disk.

    Raises GpumeshError.
    """
    table_exists = _table_exists(host, TABLE_NAME)
    admission_rules = render_admission(addresses, duration)
    if table_exists and not host.check_mode:
        host.run(["nft", "--file", "-"], stdin=admission_rules)
    return FirewallResult(table_exists, find_program("nft") is not None, "", admission_rules if table_exists else "")


def ensure_absent(host: FirewallHost, cluster: str) -> FirewallResult:
    """Remove the cluster's part, now and at boot; and the table, if no other cluster of this host has a part.

    A host that cannot have a table, such as a container without the capability, has none: that is not an error.
    """
    check_cluster_name(cluster)
    with _exclusive_access(host):
        return _apply_absent(host, cluster)


def _apply_absent(host: FirewallHost, cluster: str) -> FirewallResult:
    part_path = _part_path(host, cluster)
    nft_installed = find_program("nft") is not None
    previous_part = read_text(part_path) or ""
    other_parts = {name: text for name, text in _read_parts(host).items() if name != cluster}
    has_former_table, table_exists = _has_boot_files(host, _former_table_name(cluster)), _table_exists(host, TABLE_NAME)
    is_last_cluster = not other_parts and (table_exists or _has_boot_files(host, TABLE_NAME))
    changed = bool(previous_part) or has_former_table or is_last_cluster
    if not host.check_mode:
        if other_parts and previous_part and table_exists:
            # The table is loaded before the file is removed, so that the next run completes an interrupted one.
            _load_rules(host, _render_table(other_parts))
        if is_last_cluster:
            _remove_table(host, TABLE_NAME)
        if has_former_table:
            _remove_table(host, _former_table_name(cluster))
        remove_file(part_path)
        remove_empty_directory(_parts_directory(host))
    return FirewallResult(changed, nft_installed, previous_part)


def _former_table_name(cluster: str) -> str:
    """Return the table that earlier versions had for each cluster, with a unit of the same name."""
    return f"gpumesh_{cluster}"


def _has_boot_files(host: FirewallHost, table: str) -> bool:
    """Whether a table is to be loaded at boot."""
    paths = [_rules_path(host, table), *([_unit_path(host, table)] if host.unit_directory else [])]
    return any(os.path.exists(path) for path in paths)


def _remove_table(host: FirewallHost, table_name: str) -> None:
    """Remove a table with its files and its unit."""
    unit_path = _unit_path(host, table_name)
    if host.unit_directory and os.path.exists(unit_path):
        host.run(["systemctl", "disable", "--now", os.path.basename(unit_path)])
        remove_file(_drop_in_path(host, table_name))
        remove_empty_directory(os.path.dirname(_drop_in_path(host, table_name)))
        remove_file(unit_path)
        host.run(["systemctl", "daemon-reload"])
    # Stopping an active unit has already deleted the table.
    if _table_exists(host, table_name):
        host.run(["nft", "delete", "table", "inet", table_name])
    remove_file(_loaded_path(host, table_name))
    remove_file(_rules_path(host, table_name))


def _parts_directory(host: FirewallHost) -> str:
    return os.path.join(host.rules_directory, "firewall")


def _part_path(host: FirewallHost, cluster: str) -> str:
    return os.path.join(_parts_directory(host), f"{cluster}.nft")


def _read_parts(host: FirewallHost) -> Dict[str, str]:
    """Read the part of each cluster of this host, by its name."""
    paths = glob.glob(_part_path(host, "*"))
    return {os.path.basename(path)[: -len(".nft")]: read_text(path) or "" for path in paths}


def _render_table(part_by_cluster: Dict[str, str]) -> str:
    return "".join([TABLE_FRAME, *(part_by_cluster[name] for name in sorted(part_by_cluster))])


def _rules_path(host: FirewallHost, table: str) -> str:
    return os.path.join(host.rules_directory, f"{table}.nft")


def _unit_path(host: FirewallHost, table: str) -> str:
    return os.path.join(host.unit_directory, f"{table}.service")


def _drop_in_path(host: FirewallHost, table: str) -> str:
    return os.path.join(host.unit_directory, f"{HOST_RULES_UNIT}.d", f"{table}.conf")


def _is_unit_active(host: FirewallHost, text_by_path: Mapping[str, str]) -> bool:
    """Whether the files of systemd have these texts, and the unit of the table is enabled and active."""
    unit_name = os.path.basename(_unit_path(host, TABLE_NAME))
    return (
        all(read_text(path) == text for path, text in text_by_path.items())
        and os.path.lexists(os.path.join(host.unit_directory, f"{BOOT_TARGET}.wants", unit_name))
        and host.run(["systemctl", "is-active", "--quiet", unit_name], check=False).rc == 0
    )


def _loaded_path(host: FirewallHost, table: str) -> str:
    return os.path.join(host.loaded_directory, f"{table}.loaded")


def _read_live_table(host: FirewallHost) -> Optional[str]:
    """Read the table as the kernel lists it, without counters and admitted addresses; None if it does not exist."""
    listing = _list_table(host, TABLE_NAME)
    if listing.rc == 0:
        return _JOINING_ELEMENTS.sub(r"\1", re.sub(r"\bcounter packets \d+ bytes \d+", "counter", listing.stdout))
    if "No such file" in listing.stderr:
        return None
    raise _nftables_error(listing.stderr)


def _list_table(host: FirewallHost, table: str) -> CommandResult:
    return host.run(["nft", "--stateless", "list", "table", "inet", table], check=False)


def _table_exists(host: FirewallHost, table: str) -> bool:
    return find_program("nft") is not None and _list_table(host, table).rc == 0


def _is_loaded(host: FirewallHost, text: str) -> bool:
    """Whether the kernel has the table, unchanged since it was loaded from this text.

    nft does not print a table as it was given, so the two cannot be compared. The output directly after loading is
    stored together with the text.
    """
    live_table = _read_live_table(host)
    return live_table is not None and read_text(_loaded_path(host, TABLE_NAME)) == _loaded_fingerprint(text, live_table)


def _loaded_fingerprint(text: str, live_table: str) -> str:
    return hashlib.sha256(f"{text}\0{live_table}".encode()).hexdigest() + "\n"


def _check_rules(host: FirewallHost, rules_text: str) -> None:
    """Let nft check the rules without loading them, so that a file that cannot be loaded is never written."""
    try:
        host.run(["nft", "--check", "--file", "-"], stdin=rules_text)
    except CommandError as failure:
        raise _nftables_error(str(failure)) from failure


def _load_rules(host: FirewallHost, rules_text: str) -> None:
    try:
        host.run(["nft", "--file", "-"], stdin=rules_text)
    except CommandError as failure:
        raise _nftables_error(str(failure)) from failure
    write_atomic(_loaded_path(host, TABLE_NAME), _loaded_fingerprint(rules_text, _read_live_table(host) or ""), 0o644)


def _nftables_error(error_text: str) -> HostStateError:
    return HostStateError(
        f"nftables cannot be used on this host: {error_text.strip()[-600:]}",
        "In a container, this requires the capability NET_ADMIN; "
        "otherwise set firewall_enabled to false for this host.",
    )
