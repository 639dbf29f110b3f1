# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Log this host in to a tailnet, read its state, change its settings, and log it out."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import Runner, find_program
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import CommandError, HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.files import read_text, remove_file, write_atomic
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.processes import runs_systemd
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.mesh.tailscale import (
    NO_STATUS,
    DesiredPrefs,
    TailnetPrefs,
    TailnetStatus,
    describe_prefs,
    find_peer_paths,
    is_expiring,
    login_options,
    offline_addresses,
    parse_ping,
    parse_prefs,
    parse_status,
    plan_login,
    planned_state,
    requests_tags,
    required_peers,
    tags_differ,
)

_TUN_DEVICE = "/dev/net/tun"
#: The directory in which the daemon keeps the host's identity.
_STATE_DIRECTORY = "/var/lib/tailscale"
#: Shows that this collection logged the host in; without it, the login existed before, and must not be ended. Its lines
#: are the login server and the addresses that it assigned.
_LOGIN_MARK = "/var/lib/gpumesh/tailscale-login"
#: Seconds in which a daemon that has just started reports whether it is logged in.
_STARTUP_SECONDS = 20.0
#: The errors of a control server that has not responded, or not properly, rather than refused. ``tailscale up`` ends
#: with the first error of a connection, or waits for a request that got lost. Such a login is tried once more.
_NO_RESPONSE = re.compile(
    r"did not end within|deadline exceeded|timed out|timeout|connection (refused|reset)|\bEOF\b"
    r"|unreachable|no route|http 5[0-9][0-9]|database is locked",
    re.IGNORECASE,
)
#: The number of peers that are queried concurrently, and the time that each may take.
_CONCURRENT_PINGS, _PING_TIMEOUT = 16, "3s"
#: The packets that a peer may miss, one in two seconds, until it must have noticed the new key of this host.
_MISSED_PACKETS = 5


class TailnetHost(NamedTuple):
    """The host to work on. ``login_timeout``: the seconds that a login may take."""

    run_command: Runner
    check_mode: bool
    login_timeout: int = 60
    login_mark: str = _LOGIN_MARK
    state_directory: str = _STATE_DIRECTORY
    startup_seconds: float = _STARTUP_SECONDS


class TailnetResult(NamedTuple):
    """The changes made, or to be made in check mode. ``daemon_status`` is None if no daemon responds."""

    changed: bool
    daemon_status: Optional[TailnetStatus]
    tags_differ: bool = False
    #: Whether this collection made the login.
    managed_login: bool = False
    diff_before: str = ""
    diff_after: str = ""
    #: The addresses of the host in the tailnet; after leaving, the former ones, which identify its device.
    addresses: Tuple[str, ...] = ()
    #: Whether a login is needed and was not made.
    login_needed: bool = False
    #: Whether the key ends soon and was not replaced, and why it could not be.
    renewal_due: bool = False
    renewal_failure: str = ""


def ensure_login(
    host: TailnetHost,
    desired_prefs: DesiredPrefs,
    auth_key: Optional[str],
    login: bool = True,
    renew: bool = False,
    member_addresses: Sequence[str] = (),
) -> TailnetResult:
    """Log in if necessary, and bring the settings to the desired state.

    Without ``login``, a host that has to log in is left as it is. With ``renew``, a key that ends soon is replaced,
    after which the ``member_addresses`` must be reachable. If no daemon responds, nothing is done, so that it can be
    installed and started. Raises GpumeshError.
    """
    daemon_status = read_settled_status(host)
    if daemon_status is None:
        return TailnetResult(host.check_mode, None, managed_login=_is_managed(host))
    with_tags = requests_tags(auth_key)
    current_prefs = read_prefs(host)
    login_plan = plan_login(desired_prefs, current_prefs, daemon_status, with_tags)
    prefs_before = describe_prefs(current_prefs, daemon_status)
    if login_plan.login_reason and not login and not host.check_mode:
        return _make_result(
            host, False, daemon_status, tags_differ(desired_prefs, daemon_status), prefs_before, prefs_before
        )._replace(login_needed=True)
    renewal_due = is_expiring(daemon_status, time.time())
    key_renewed = renewal_due and renew and auth_key is not None and not login_plan.login_reason
    if host.check_mode:
        prefs_after = (
            describe_prefs(*planned_state(desired_prefs, current_prefs, daemon_status))
            if login_plan.has_steps
            else prefs_before
        )
        login_result = _make_result(
            host,
            login_plan.has_steps or key_renewed,
            daemon_status,
            tags_differ(desired_prefs, daemon_status),
            prefs_before,
            prefs_after,
        )
        return login_result._replace(renewal_due=renewal_due and not key_renewed)
    renewal_failure = (
        _renew_key(host, desired_prefs, current_prefs, daemon_status, auth_key, member_addresses)
        if key_renewed and auth_key is not None
        else ""
    )
    if login_plan.login_reason:
        _log_in(host, desired_prefs, current_prefs, auth_key, login_plan.login_reason, daemon_status.backend_state)
    elif login_plan.switch_on:
        _run_up(host, login_options(desired_prefs, current_prefs, bool(current_prefs.tags)), [])
    if login_plan.set_options:
        host.run_command(["tailscale", "set", *_risk_options(login_plan.set_options), *login_plan.set_options])
    if login_plan.has_steps or key_renewed:
        daemon_status = _await_settled(host) or daemon_status
        current_prefs = read_prefs(host)
    if login_plan.login_reason:
        _write_login_mark(host, current_prefs.login_server, _running_addresses(daemon_status))
    prefs_after = describe_prefs(current_prefs, daemon_status)
    key_renewed = key_renewed and not renewal_failure
    login_result = _make_result(
        host,
        login_plan.has_steps or key_renewed,
        daemon_status,
        tags_differ(desired_prefs, daemon_status),
        prefs_before,
        prefs_after,
    )
    return login_result._replace(renewal_due=renewal_due and not key_renewed, renewal_failure=renewal_failure)


def _make_result(
    host: TailnetHost, changed: bool, daemon_status: TailnetStatus, tags_differ: bool, before: str, after: str
) -> TailnetResult:
    return TailnetResult(
        changed, daemon_status, tags_differ, _is_managed(host), before, after, _running_addresses(daemon_status)
    )


def ensure_logout(host: TailnetHost, delete_identity: bool) -> TailnetResult:
    """Log out, if this collection logged in. ``delete_identity``: also delete its identity, if its device is deleted.

    With its identity, the host can return under the same name; a new one beside the old device becomes name-1. The
    daemon must be stopped before that.
    """
    daemon_status = read_settled_status(host)
    managed_login = _is_managed(host)
    own_addresses = (_running_addresses(daemon_status) if daemon_status else ()) or tuple(_read_login_mark(host)[1:])
    if daemon_status is None:
        identity_deleted = delete_identity and managed_login and os.path.isdir(host.state_directory)
        if identity_deleted and not host.check_mode:
            shutil.rmtree(host.state_directory)
            remove_file(host.login_mark)
        return TailnetResult(identity_deleted, None, managed_login=managed_login, addresses=own_addresses)
    changed = managed_login and daemon_status.backend_state not in ("NoState", "NeedsLogin")
    current_prefs = read_prefs(host)
    if changed and not host.check_mode:
        # The device is deleted later by its address, possibly in another run.
        _write_login_mark(host, current_prefs.login_server, own_addresses)
        host.run_command(["tailscale", "logout"], timeout=host.login_timeout)
    after = daemon_status._replace(backend_state="NeedsLogin") if changed else daemon_status
    return TailnetResult(
        changed,
        daemon_status,
        False,
        managed_login,
        describe_prefs(current_prefs, daemon_status),
        describe_prefs(current_prefs, after),
        own_addresses,
    )


def read_settled_status(host: TailnetHost) -> Optional[TailnetStatus]:
    """The status of the daemon, once it is known; None if the daemon does not answer."""
    if find_program("tailscale") is None:
        return None
    return _await_settled(host)


def read_prefs(host: TailnetHost) -> TailnetPrefs:
    """The daemon's settings."""
    return parse_prefs(host.run_command(["tailscale", "debug", "prefs"]).stdout)


def measure_paths(
    host: TailnetHost, daemon_status: TailnetStatus, peer_addresses: Sequence[str], send_pings: bool
) -> Dict[str, Dict[str, Any]]:
    """Return how each address is reached.

    With ``send_pings``, packets measure it, which also establishes direct paths.
    """
    paths_by_address = find_peer_paths(daemon_status, peer_addresses)
    if not send_pings or host.check_mode:
        return paths_by_address

    def ping_peer(address: str) -> Dict[str, str]:
        command = ["tailscale", "ping", f"--timeout={_PING_TIMEOUT}", "--c=5", address]
        return parse_ping(host.run_command(command, check=False, timeout=60).stdout)

    with ThreadPoolExecutor(_CONCURRENT_PINGS) as pool:
        ping_results = dict(zip(peer_addresses, pool.map(ping_peer, peer_addresses)))
    return {address: {**paths_by_address[address], **ping_results[address]} for address in peer_addresses}


def has_tun() -> bool:
    """Whether this host can have an interface for the tailnet."""
    return os.path.exists(_TUN_DEVICE)


def _write_login_mark(host: TailnetHost, login_server: str, addresses: Sequence[str]) -> None:
    """Record the data of this login for a later logout."""
    os.makedirs(os.path.dirname(host.login_mark), mode=0o755, exist_ok=True)
    write_atomic(host.login_mark, "".join(f"{line}\n" for line in (login_server, *addresses)), 0o644)


def _read_login_mark(host: TailnetHost) -> List[str]:
    return (read_text(host.login_mark) or "").splitlines()


def _running_addresses(daemon_status: TailnetStatus) -> Tuple[str, ...]:
    return daemon_status.addresses if daemon_status.backend_state == "Running" else ()


def _is_managed(host: TailnetHost) -> bool:
    return os.path.exists(host.login_mark)


def _await_settled(host: TailnetHost) -> Optional[TailnetStatus]:
    """The daemon's status, once it knows whether it is logged in."""
    deadline = time.monotonic() + host.startup_seconds
    daemon_status = _query_status(host)
    while daemon_status and daemon_status.backend_state in ("NoState", "Starting") and time.monotonic() <= deadline:
        time.sleep(0.2)
        daemon_status = _query_status(host)
    return daemon_status


def _query_status(host: TailnetHost) -> Optional[TailnetStatus]:
    """The daemon's status now; None if it does not answer."""
    status_output = host.run_command(["tailscale", "status", "--json"], check=False)
    # tailscale exits with 1 for a logged-out daemon too, but reports that in JSON.
    return parse_status(status_output.stdout) if status_output.stdout.lstrip().startswith("{") else None


def _renew_key(
    host: TailnetHost,
    desired_prefs: DesiredPrefs,
    current_prefs: TailnetPrefs,
    daemon_status: TailnetStatus,
    key: str,
    members: Sequence[str],
) -> str:
    """Replace the key of this host, which keeps its addresses. Returns why the control server has refused that, or ''.

    Raises HostStateError if peers do not find this host any more.
    """
    reachable_peers = _ping_addresses(host, required_peers(daemon_status, members), 1)
    try:
        _log_in(
            host,
            desired_prefs,
            current_prefs,
            key,
            "its key expires soon",
            daemon_status.backend_state,
            ["--force-reauth"],
        )
    except HostStateError as failure:
        return failure.message
    _await_peers(host, reachable_peers)
    return ""


def _await_peers(host: TailnetHost, peer_addresses: Sequence[str]) -> None:
    """Wait until these peers use the new key of this host. Raises HostStateError.

    A peer that is sending while it learns of the new key can continue with the old one forever (seen with 1.94). It
    makes a new tunnel if the other key of this host changes as well, with which the two find each other. A restart does
    the same, but in user space, it ends the connections of programs.
    """
    systemd = runs_systemd()
    restart = ["systemctl", "restart", "tailscaled"] if systemd else ["supervisorctl", "restart", "tailscaled"]
    silent_peers = list(peer_addresses)
    for remedy in ([], ["tailscale", "debug", "rotate-disco-key"], restart):
        if remedy:
            host.run_command(remedy, check=False, timeout=host.login_timeout)
        answering_peers = _ping_addresses(host, silent_peers, _MISSED_PACKETS)
        offline_peers = offline_addresses(_await_settled(host) or NO_STATUS)
        silent_peers = [
            address for address in silent_peers if address not in answering_peers and address not in offline_peers
        ]
        if not silent_peers:
            return
    raise HostStateError(
        f"This host has a new key in its tailnet, but cannot reach {', '.join(silent_peers)}.",
        "Restart tailscaled there, and see journalctl -u tailscaled.",
        addresses=silent_peers,
    )


def _ping_addresses(host: TailnetHost, addresses: Sequence[str], attempts: int) -> List[str]:
    """Return the addresses that respond through the tunnel."""

    def peer_answers(address: str) -> bool:
        command = ["tailscale", "ping", "--tsmp", "--timeout=2s", f"--c={attempts}", address]
        return "pong" in host.run_command(command, check=False, timeout=60).stdout

    with ThreadPoolExecutor(_CONCURRENT_PINGS) as pool:
        return [
            address for address, peer_answered in zip(addresses, pool.map(peer_answers, addresses)) if peer_answered
        ]


def _log_in(
    host: TailnetHost,
    desired_prefs: DesiredPrefs,
    current_prefs: TailnetPrefs,
    auth_key: Optional[str],
    login_reason: str,
    daemon_state: str,
    extra_options: Sequence[str] = (),
) -> None:
    """Log in with the key. If that fails while the daemon runs, it continues with the key that it has."""
    if auth_key is None:
        raise HostStateError(
            f"This host has to log in ({login_reason}), but no auth key is set.",
            "Set auth_key (mesh_auth_key or mesh_auth_key_file of the role).",
        )
    handle, key_path = tempfile.mkstemp(prefix="gpumesh-", dir="/run" if os.path.isdir("/run") else None)
    try:
        # mkstemp makes it readable by root only.
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(auth_key)
        # The mark is written before the login: after an interruption, the login would not be recognized as ours.
        server = desired_prefs.login_server or current_prefs.login_server
        if _read_login_mark(host)[:1] != [server]:
            _write_login_mark(host, server, ())
        _run_up(
            host,
            [
                *extra_options,
                f"--auth-key=file:{key_path}",
                *login_options(desired_prefs, current_prefs, requests_tags(auth_key)),
            ],
            [auth_key],
        )
    except HostStateError:
        if daemon_state == "Running":
            # The daemon otherwise tries the refused key again and again, and the control server takes the host for
            # offline. Without an option for a key, it would only compare its settings.
            _run_up(
                host,
                [
                    f"--auth-key=file:{os.devnull}",
                    *login_options(DesiredPrefs(), current_prefs, bool(current_prefs.tags)),
                ],
                [],
            )
        raise
    finally:
        remove_file(key_path)


def _run_up(host: TailnetHost, options: List[str], secret_keys: List[str]) -> None:
    """Run ``tailscale up``. Raises HostStateError with its message, without the secrets."""
    command = ["tailscale", "up", f"--timeout={host.login_timeout}s", *_risk_options(options), *options]
    failure = _try_command(host, command)
    if failure and _NO_RESPONSE.search(failure.outcome):
        failure = _try_command(host, command)
    if not failure:
        return
    failure_message = failure.message
    for secret in secret_keys:
        failure_message = failure_message.replace(secret.partition("?")[0], "(not shown)")
    raise HostStateError(
        f"The login to the tailnet failed: {failure_message}{_describe_health(host)}",
        "Check that the key is valid and not used up, that this host can reach the login server, and see the log of "
        "tailscaled (with systemd, journalctl -u tailscaled).",
    )


def _try_command(host: TailnetHost, command: List[str]) -> Optional[CommandError]:
    """Run the command. Returns how it failed, or None."""
    try:
        host.run_command(command, timeout=host.login_timeout + 15)
    except CommandError as failure:
        return failure
    return None


def _describe_health(host: TailnetHost) -> str:
    """Return the problems that the daemon reports, as a sentence; empty if there are none, or it does not respond."""
    daemon_status = _query_status(host)
    health = [health_message.rstrip(".") for health_message in daemon_status.health_messages] if daemon_status else []
    return f" tailscaled reports: {'; '.join(health)}." if health else ""


def _risk_options(options: Sequence[str]) -> List[str]:
    """Return the confirmation that tailscale(1) requires for what could end SSH through the tailnet."""
    may_end_ssh = any(option.startswith(("--ssh", "--force-reauth")) for option in options)
    return ["--accept-risk=lose-ssh"] if may_end_ssh else []
