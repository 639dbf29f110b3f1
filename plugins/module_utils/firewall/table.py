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

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Completed, Runner, find
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import CommandError, HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils.files import (
    read_text,
    remove_empty,
    remove_file,
    write_atomic,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils.firewall.rules import (
    FRAME,
    OWN_RULES,
    TABLE,
    WANTED_BY,
    Desired,
    checked_name,
    render_admission,
    render_drop_in,
    render_main,
    render_part,
    render_unit,
)

#: The elements of a set of addresses that are admitted, as nft prints them.
_JOINING = re.compile(r"(set joining_[46] \{[^{}]*?)\n\s*elements = \{[^{}]*\}")


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
    """Load the table if the cluster's part is not as desired, and make systemd load it at boot. Raises GpumeshError."""
    nft = find("nft")
    if nft is None:
        return Result(host.check_mode, False)
    with _alone(host):
        return _present(host, nft, cluster, desired)


@contextlib.contextmanager
def _alone(host: Host) -> Iterator[None]:
    """Wait for the runs of other clusters: each reads the parts of all, and loads them."""
    # The directory itself, which a removed cluster leaves as it was.
    handle = os.open(host.loaded, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _present(host: Host, nft: str, cluster: str, desired: Desired) -> Result:
    own, text = _part_path(host, cluster), render_part(desired)
    before = read_text(own) or ""
    files = {own: text, _rules_path(host, TABLE): render_main(_parts_folder(host))}
    outdated = {path: wanted for path, wanted in files.items() if read_text(path) != wanted}
    whole = _whole({**_parts(host), cluster: text})
    stale = not _is_loaded(host, whole)
    rules = _rules_path(host, TABLE)
    units = {_unit_path(host, TABLE): render_unit(rules, nft), _drop_in_path(host, TABLE): render_drop_in(rules, nft)}
    unit_stale = bool(host.units) and not _unit_works(host, units)
    former = _has_files(host, _former(cluster))
    changed = bool(outdated) or stale or unit_stale or former
    if not host.check_mode:
        if outdated:
            _refuse_bad(host, whole)
            os.makedirs(_parts_folder(host), mode=0o755, exist_ok=True)
            for path, wanted in outdated.items():
                write_atomic(path, wanted, 0o644)
        if stale:
            _load(host, whole)
        if unit_stale:
            os.makedirs(os.path.dirname(_drop_in_path(host, TABLE)), mode=0o755, exist_ok=True)
            for path, wanted in units.items():
                write_atomic(path, wanted, 0o644)
            host.run(["systemctl", "daemon-reload"])
            host.run(["systemctl", "enable", "--now", os.path.basename(_unit_path(host, TABLE))])
        if former:
            _remove(host, _former(cluster))
    note = "# not loaded\n" if stale and before == text else ""
    return Result(changed, True, before + note, text)


def admitted(host: Host, addresses: Sequence[str], seconds: int) -> Result:
    """Accept these addresses for a limited time, if this host has the table. Nothing is written to disk.

    Raises GpumeshError.
    """
    live = _is_live(host, TABLE)
    text = render_admission(addresses, seconds)
    if live and not host.check_mode:
        host.run(["nft", "--file", "-"], stdin=text)
    return Result(live, find("nft") is not None, "", text if live else "")


def absent(host: Host, cluster: str) -> Result:
    """Remove the cluster's part, now and at boot; and the table, if no other cluster of this host has a part.

    A host that cannot have a table, such as a container without the capability, has none: that is not an error.
    """
    checked_name(cluster)
    with _alone(host):
        return _absent(host, cluster)


def _absent(host: Host, cluster: str) -> Result:
    own = _part_path(host, cluster)
    tools = find("nft") is not None
    before = read_text(own) or ""
    rest = {name: text for name, text in _parts(host).items() if name != cluster}
    former, live = _has_files(host, _former(cluster)), _is_live(host, TABLE)
    last = not rest and (live or _has_files(host, TABLE))
    changed = bool(before) or former or last
    if not host.check_mode:
        if rest and before and live:
            # Before the file is removed: if this is interrupted, the next run finds what is left to do.
            _load(host, _whole(rest))
        if last:
            _remove(host, TABLE)
        if former:
            _remove(host, _former(cluster))
        remove_file(own)
        remove_empty(_parts_folder(host))
    return Result(changed, tools, before)


def _former(cluster: str) -> str:
    """The table that earlier versions had for each cluster, with a unit of the same name."""
    return f"gpumesh_{cluster}"


def _has_files(host: Host, table: str) -> bool:
    """Whether a table is to be loaded at boot."""
    paths = [_rules_path(host, table), *([_unit_path(host, table)] if host.units else [])]
    return any(os.path.exists(path) for path in paths)


def _remove(host: Host, table: str) -> None:
    """Remove a table with its files and its unit."""
    unit_path = _unit_path(host, table)
    if host.units and os.path.exists(unit_path):
        host.run(["systemctl", "disable", "--now", os.path.basename(unit_path)])
        remove_file(_drop_in_path(host, table))
        remove_empty(os.path.dirname(_drop_in_path(host, table)))
        remove_file(unit_path)
        host.run(["systemctl", "daemon-reload"])
    # If the unit was running, stopping it has deleted the table.
    if _is_live(host, table):
        host.run(["nft", "delete", "table", "inet", table])
    remove_file(_loaded_path(host, table))
    remove_file(_rules_path(host, table))


def _parts_folder(host: Host) -> str:
    return os.path.join(host.rules, "firewall")


def _part_path(host: Host, cluster: str) -> str:
    return os.path.join(_parts_folder(host), f"{cluster}.nft")


def _parts(host: Host) -> Dict[str, str]:
    """The part of each cluster of this host, by its name."""
    paths = glob.glob(_part_path(host, "*"))
    return {os.path.basename(path)[: -len(".nft")]: read_text(path) or "" for path in paths}


def _whole(parts: Dict[str, str]) -> str:
    return "".join([FRAME, *(parts[name] for name in sorted(parts))])


def _rules_path(host: Host, table: str) -> str:
    return os.path.join(host.rules, f"{table}.nft")


def _unit_path(host: Host, table: str) -> str:
    return os.path.join(host.units, f"{table}.service")


def _drop_in_path(host: Host, table: str) -> str:
    return os.path.join(host.units, f"{OWN_RULES}.d", f"{table}.conf")


def _unit_works(host: Host, units: Mapping[str, str]) -> bool:
    """Whether the files of systemd are as given, and the unit of the table is enabled and active."""
    unit = os.path.basename(_unit_path(host, TABLE))
    return (
        all(read_text(path) == text for path, text in units.items())
        and os.path.lexists(os.path.join(host.units, f"{WANTED_BY}.wants", unit))
        and host.run(["systemctl", "is-active", "--quiet", unit], check=False).rc == 0
    )


def _loaded_path(host: Host, table: str) -> str:
    return os.path.join(host.loaded, f"{table}.loaded")


def _live(host: Host) -> Optional[str]:
    """The table as the kernel lists it, without counters and admitted addresses; None if it does not exist."""
    shown = _list(host, TABLE)
    if shown.rc == 0:
        return _JOINING.sub(r"\1", re.sub(r"\bcounter packets \d+ bytes \d+", "counter", shown.stdout))
    if "No such file" in shown.stderr:
        return None
    raise _refused(shown.stderr)


def _list(host: Host, table: str) -> Completed:
    return host.run(["nft", "--stateless", "list", "table", "inet", table], check=False)


def _is_live(host: Host, table: str) -> bool:
    return find("nft") is not None and _list(host, table).rc == 0


def _is_loaded(host: Host, text: str) -> bool:
    """Whether the kernel has the table, unchanged since it was loaded from this text.

    nft does not print a table as it was given, so the two cannot be compared. The output directly after loading is
    stored together with the text.
    """
    live = _live(host)
    return live is not None and read_text(_loaded_path(host, TABLE)) == _print(text, live)


def _print(text: str, live: str) -> str:
    return hashlib.sha256(f"{text}\0{live}".encode()).hexdigest() + "\n"


def _refuse_bad(host: Host, text: str) -> None:
    """Let nft check the rules without loading them, so that a file that cannot be loaded is never written."""
    try:
        host.run(["nft", "--check", "--file", "-"], stdin=text)
    except CommandError as failure:
        raise _refused(str(failure)) from failure


def _load(host: Host, text: str) -> None:
    try:
        host.run(["nft", "--file", "-"], stdin=text)
    except CommandError as failure:
        raise _refused(str(failure)) from failure
    write_atomic(_loaded_path(host, TABLE), _print(text, _live(host) or ""), 0o644)


def _refused(words: str) -> HostStateError:
    return HostStateError(
        f"nftables cannot be used on this host: {words.strip()[-600:]}",
        "In a container, this requires the capability NET_ADMIN; otherwise set firewall_enabled to false for this host.",
    )
