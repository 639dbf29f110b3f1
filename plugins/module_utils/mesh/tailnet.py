# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""This host in a tailnet: read its state, log in, change its settings, log out."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Runner, find
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import CommandError, HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils.files import read_text, remove_file, write_atomic
from ansible_collections.gpumesh.cluster.plugins.module_utils.mesh.tailscale import (
    NOBODY,
    Desired,
    Prefs,
    Status,
    asks_for_tags,
    describe,
    expires_soon,
    login_options,
    offline,
    parse_ping,
    parse_prefs,
    parse_status,
    partners,
    peer_paths,
    plan,
    planned,
    tags_differ,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils.processes import runs_systemd

_TUN = "/dev/net/tun"
#: The directory in which the daemon keeps the host's identity.
_STATE_DIRECTORY = "/var/lib/tailscale"
#: Shows that this collection logged the host in; without it, the login existed before, and must not be ended. Its lines
#: are the login server and the addresses that it assigned.
_MARK = "/var/lib/gpumesh/tailscale-login"
#: Seconds in which a daemon that has just started reports whether it is logged in.
_SETTLE_FOR = 20.0
#: What is reported when the control server has not answered, or not as it should, rather than refused. ``tailscale up``
#: ends with the first error of a connection, or waits for a request that got lost. Such a login is tried once more.
_NO_ANSWER = re.compile(
    r"did not end within|deadline exceeded|timed out|timeout|connection (refused|reset)|\bEOF\b"
    r"|unreachable|no route|http 5[0-9][0-9]|database is locked",
    re.IGNORECASE,
)
#: The number of peers that are queried at the same time, and the seconds that each may take.
_AT_ONCE, _PING_FOR = 16, "3s"
#: The packets that a peer may miss, one in two seconds, until it must have noticed the new key of this host.
_MISSED = 5


class Host(NamedTuple):
    """Where the work is done. ``timeout``: the seconds that a login may take."""

    run: Runner
    check_mode: bool
    timeout: int = 60
    mark: str = _MARK
    state_directory: str = _STATE_DIRECTORY
    settle_for: float = _SETTLE_FOR


class Result(NamedTuple):
    """What was done, or would be in check mode. ``status`` is None if no daemon answers."""

    changed: bool
    status: Optional[Status]
    tags_differ: bool = False
    #: Whether this collection made the login.
    managed: bool = False
    before: str = ""
    after: str = ""
    #: The addresses of the host in the tailnet; after leaving, the former ones, which identify its device.
    addresses: Tuple[str, ...] = ()
    #: Whether a login is needed and was not made.
    login_needed: bool = False
    #: Whether the key ends soon and was not replaced, and why it could not be.
    renewal_due: bool = False
    renewal_failure: str = ""


def present(
    host: Host,
    desired: Desired,
    key: Optional[str],
    login: bool = True,
    renew: bool = False,
    members: Sequence[str] = (),
) -> Result:
    """Log in if necessary, and bring the settings to the desired state.

    Without ``login``, a host that has to log in is left as it is. With ``renew``, a key that ends soon is replaced, after
    which the ``members`` must be reachable. If no daemon answers, nothing is done, so that it can be installed and
    started. Raises GpumeshError.
    """
    status = read_status(host)
    if status is None:
        return Result(host.check_mode, None, managed=_is_managed(host))
    with_tags = asks_for_tags(key)
    prefs = read_prefs(host)
    steps = plan(desired, prefs, status, with_tags)
    before = describe(prefs, status)
    if steps.login and not login and not host.check_mode:
        return _result(host, False, status, tags_differ(desired, status), before, before)._replace(login_needed=True)
    due = expires_soon(status, time.time())
    renewed = due and renew and key is not None and not steps.login
    if host.check_mode:
        after = describe(*planned(desired, prefs, status)) if steps.needed else before
        result = _result(host, steps.needed or renewed, status, tags_differ(desired, status), before, after)
        return result._replace(renewal_due=due and not renewed)
    failure = _renew(host, desired, prefs, status, key, members) if renewed and key is not None else ""
    if steps.login:
        _log_in(host, desired, prefs, key, steps.login, status.state)
    elif steps.resume:
        _up(host, login_options(desired, prefs, bool(prefs.tags)), [])
    if steps.settings:
        host.run(["tailscale", "set", *_risk(steps.settings), *steps.settings])
    if steps.needed or renewed:
        status = _settled(host) or status
        prefs = read_prefs(host)
    if steps.login:
        _note(host, prefs.login_server, _held(status))
    after = describe(prefs, status)
    renewed = renewed and not failure
    result = _result(host, steps.needed or renewed, status, tags_differ(desired, status), before, after)
    return result._replace(renewal_due=due and not renewed, renewal_failure=failure)


def _result(host: Host, changed: bool, status: Status, tags_differ: bool, before: str, after: str) -> Result:
    return Result(changed, status, tags_differ, _is_managed(host), before, after, _held(status))


def absent(host: Host, forget: bool) -> Result:
    """Log out, if this collection logged in. ``forget``: also delete the host's identity, if its device is deleted.

    With its identity, the host can return under the same name; a new one beside the old device becomes name-1. The
    daemon must be stopped before that.
    """
    status = read_status(host)
    ours = _is_managed(host)
    addresses = (_held(status) if status else ()) or tuple(_noted(host)[1:])
    if status is None:
        gone = forget and ours and os.path.isdir(host.state_directory)
        if gone and not host.check_mode:
            shutil.rmtree(host.state_directory)
            remove_file(host.mark)
        return Result(gone, None, managed=ours, addresses=addresses)
    changed = ours and status.state not in ("NoState", "NeedsLogin")
    prefs = read_prefs(host)
    if changed and not host.check_mode:
        # The device is deleted later by its address, possibly in another run.
        _note(host, prefs.login_server, addresses)
        host.run(["tailscale", "logout"], timeout=host.timeout)
    after = status._replace(state="NeedsLogin") if changed else status
    return Result(changed, status, False, ours, describe(prefs, status), describe(prefs, after), addresses)


def read_status(host: Host) -> Optional[Status]:
    """The status of the daemon, once it is known; None if the daemon does not answer."""
    if find("tailscale") is None:
        return None
    return _settled(host)


def read_prefs(host: Host) -> Prefs:
    """The daemon's settings."""
    return parse_prefs(host.run(["tailscale", "debug", "prefs"]).stdout)


def paths(host: Host, status: Status, addresses: Sequence[str], probe: bool) -> Dict[str, Dict[str, Any]]:
    """How each address is reached.

    With ``probe``, this is measured with packets, which also establishes direct paths.
    """
    found = peer_paths(status, addresses)
    if not probe or host.check_mode:
        return found

    def ping(address: str) -> Dict[str, str]:
        command = ["tailscale", "ping", f"--timeout={_PING_FOR}", "--c=5", address]
        return parse_ping(host.run(command, check=False, timeout=60).stdout)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        answers = dict(zip(addresses, pool.map(ping, addresses)))
    return {address: {**found[address], **answers[address]} for address in addresses}


def has_tun() -> bool:
    """Whether this host can have an interface for the tailnet."""
    return os.path.exists(_TUN)


def _note(host: Host, login_server: str, addresses: Sequence[str]) -> None:
    """Record the data of this login for a later logout."""
    os.makedirs(os.path.dirname(host.mark), mode=0o755, exist_ok=True)
    write_atomic(host.mark, "".join(f"{line}\n" for line in (login_server, *addresses)), 0o644)


def _noted(host: Host) -> List[str]:
    return (read_text(host.mark) or "").splitlines()


def _held(status: Status) -> Tuple[str, ...]:
    return status.addresses if status.state == "Running" else ()


def _is_managed(host: Host) -> bool:
    return os.path.exists(host.mark)


def _settled(host: Host) -> Optional[Status]:
    """The daemon's status, once it knows whether it is logged in."""
    end = time.monotonic() + host.settle_for
    status = _status(host)
    while status and status.state in ("NoState", "Starting") and time.monotonic() <= end:
        time.sleep(0.2)
        status = _status(host)
    return status


def _status(host: Host) -> Optional[Status]:
    """The daemon's status now; None if it does not answer."""
    answer = host.run(["tailscale", "status", "--json"], check=False)
    # It exits with 1 for a logged-out daemon too, but reports that in JSON.
    return parse_status(answer.stdout) if answer.stdout.lstrip().startswith("{") else None


def _renew(host: Host, desired: Desired, prefs: Prefs, status: Status, key: str, members: Sequence[str]) -> str:
    """Replace the key of this host, which keeps its addresses. Returns why the control server has refused that, or ''.

    Raises HostStateError if peers do not find this host any more.
    """
    reached = _answering(host, partners(status, members), 1)
    try:
        _log_in(host, desired, prefs, key, "its key ends soon", status.state, ["--force-reauth"])
    except HostStateError as failure:
        return failure.message
    _return_to(host, reached)
    return ""


def _return_to(host: Host, peers: Sequence[str]) -> None:
    """Wait until these peers use the new key of this host. Raises HostStateError.

    A peer that is sending while it hears of the new key can go on with the old one for good (seen with 1.94). It makes a
    new tunnel if the other key of this host changes as well, with which the two find each other. That is the same as a
    restart does, but in user space, a restart ends the connections of programs.
    """
    systemd = runs_systemd()
    restart = ["systemctl", "restart", "tailscaled"] if systemd else ["supervisorctl", "restart", "tailscaled"]
    silent = list(peers)
    for remedy in ([], ["tailscale", "debug", "rotate-disco-key"], restart):
        if remedy:
            host.run(remedy, check=False, timeout=host.timeout)
        answering = _answering(host, silent, _MISSED)
        gone = offline(_settled(host) or NOBODY)
        silent = [address for address in silent if address not in answering and address not in gone]
        if not silent:
            return
    raise HostStateError(
        f"This host has a new key in its tailnet, with which it does not reach {', '.join(silent)}.",
        "Restart tailscaled there, and see journalctl -u tailscaled.",
        addresses=silent,
    )


def _answering(host: Host, addresses: Sequence[str], attempts: int) -> List[str]:
    """Those of the addresses that answer through the tunnel."""

    def answers(address: str) -> bool:
        command = ["tailscale", "ping", "--tsmp", "--timeout=2s", f"--c={attempts}", address]
        return "pong" in host.run(command, check=False, timeout=60).stdout

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return [address for address, answer in zip(addresses, pool.map(answers, addresses)) if answer]


def _log_in(
    host: Host,
    desired: Desired,
    prefs: Prefs,
    key: Optional[str],
    why: str,
    state: str,
    options: Sequence[str] = (),
) -> None:
    """Log in with the key. If that fails where the daemon runs (``state``), it continues with the key that it has."""
    if key is None:
        raise HostStateError(
            f"This host has to log in ({why}), but no auth key is set.",
            "Set auth_key (mesh_auth_key or mesh_auth_key_file of the role).",
        )
    handle, path = tempfile.mkstemp(prefix="gpumesh-", dir="/run" if os.path.isdir("/run") else None)
    try:
        # mkstemp makes it readable by root only.
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(key)
        # Before the login: if interrupted in between, the login would not be recognized as ours.
        server = desired.login_server or prefs.login_server
        if _noted(host)[:1] != [server]:
            _note(host, server, ())
        _up(host, [*options, f"--auth-key=file:{path}", *login_options(desired, prefs, asks_for_tags(key))], [key])
    except HostStateError:
        if state == "Running":
            # Until then, it tries the refused key again and again, and the control server takes the host for offline.
            # Without an option for a key, it would only compare its settings.
            _up(host, [f"--auth-key=file:{os.devnull}", *login_options(Desired(), prefs, bool(prefs.tags))], [])
        raise
    finally:
        remove_file(path)


def _up(host: Host, options: List[str], secrets: List[str]) -> None:
    """Run ``tailscale up``. Raises HostStateError with its message, without the secrets."""
    command = ["tailscale", "up", f"--timeout={host.timeout}s", *_risk(options), *options]
    failure = _tried(host, command)
    if failure and _NO_ANSWER.search(failure.outcome):
        failure = _tried(host, command)
    if not failure:
        return
    words = failure.message
    for secret in secrets:
        words = words.replace(secret.partition("?")[0], "(not shown)")
    raise HostStateError(
        f"The login to the tailnet failed: {words}{_complaints(host)}",
        "Check that the key is valid and not used up, that this host can reach the login server, and see the log of "
        "tailscaled (with systemd, journalctl -u tailscaled).",
    )


def _tried(host: Host, command: List[str]) -> Optional[CommandError]:
    """Run the command. Returns how it failed, or None."""
    try:
        host.run(command, timeout=host.timeout + 15)
    except CommandError as failure:
        return failure
    return None


def _complaints(host: Host) -> str:
    """What the daemon says is wrong, as a sentence; empty if that is nothing, or it does not answer."""
    status = _status(host)
    health = [text.rstrip(".") for text in status.health] if status else []
    return f" tailscaled reports: {'; '.join(health)}." if health else ""


def _risk(options: Sequence[str]) -> List[str]:
    """If the host is reached through the tailnet, tailscale(1) requires a confirmation of what could end SSH."""
    risky = any(option.startswith(("--ssh", "--force-reauth")) for option in options)
    return ["--accept-risk=lose-ssh"] if risky else []
