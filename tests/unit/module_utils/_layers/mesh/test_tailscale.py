# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The login to a tailnet: the output of tailscale(1) is parsed, and only the necessary changes are requested."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._core import expiry
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import CommandResult
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import (
    CommandError,
    HostStateError,
    InputError,
    ParseError,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.mesh import tailnet, tailnet_api, tailscale

SERVER = "https://headscale.example.org"
#: The output of tailscale 1.94.1, without unused fields.
PREFS = {
    "ControlURL": SERVER,
    "RouteAll": False,
    "CorpDNS": False,
    "RunSSH": False,
    "ShieldsUp": False,
    "AdvertiseTags": None,
    "Hostname": "t1",
    "AdvertiseRoutes": None,
    "Config": {"PrivateNodeKey": "privkey:not-read"},
}
STATUS = {
    "Version": "1.94.1",
    "TUN": True,
    "BackendState": "Running",
    "Self": {
        "ID": "1",
        "PublicKey": "nodekey:00",
        "HostName": "t1",
        "DNSName": "t1.tail.test.",
        "Tags": ["tag:gpu"],
    },
    "TailscaleIPs": ["100.64.0.1", "fd7a:115c:a1e0::1"],
    "Health": None,
    "Peer": {
        "nodekey:01": {
            "DNSName": "t2.tail.test.",
            "TailscaleIPs": ["100.64.0.2"],
            "Online": True,
            "CurAddr": "192.0.2.2:41641",
            "Relay": "lab",
        },
        "nodekey:02": {"DNSName": "t3.tail.test.", "TailscaleIPs": ["100.64.0.3"], "Online": True, "Relay": "lab"},
        "nodekey:03": {"DNSName": "t4.tail.test.", "TailscaleIPs": ["100.64.0.4"], "Online": False},
    },
}
LOGGED_OUT: dict[str, Any] = {
    "Version": "1.94.1",
    "TUN": False,
    "BackendState": "NeedsLogin",
    "Self": None,
    "Peer": None,
}


def prefs(**changed: Any) -> tailscale.TailnetPrefs:
    return tailscale.parse_prefs(json.dumps({**PREFS, **changed}))


def status(**changed: Any) -> tailscale.TailnetStatus:
    return tailscale.parse_status(json.dumps({**STATUS, **changed}))


def desired(**overrides: Any) -> tailscale.DesiredPrefs:
    return tailscale.make_desired(overrides)


def test_status_is_parsed() -> None:
    read = status()
    assert (read.host_label, read.backend_state, read.tags) == ("t1", "Running", ("tag:gpu",))
    assert read.addresses == ("100.64.0.1", "fd7a:115c:a1e0::1")
    assert [peer.peer_name for peer in read.peers] == ["t2", "t3", "t4"]


def test_a_daemon_that_is_logged_out_has_no_addresses() -> None:
    assert tailscale.parse_status(json.dumps(LOGGED_OUT)).addresses == ()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"BackendState": "Running", "TUN": true}'])
def test_unreadable_output_names_the_command(text: str) -> None:
    with pytest.raises(ParseError, match="tailscale status --json"):
        tailscale.parse_status(text)
    with pytest.raises(ParseError, match="tailscale debug prefs"):
        tailscale.parse_prefs(text)


def test_secrets_of_the_daemon_are_dropped() -> None:
    assert "not-read" not in str(prefs())


def test_plan_is_empty_without_differences() -> None:
    desired_prefs = desired(login_server=SERVER + "/", hostname="t1", tags=["tag:gpu"], accept_dns=False, ssh=False)
    assert not tailscale.plan_login(desired_prefs, prefs(), status(), may_request_tags=False).has_steps


def test_unset_options_keep_their_values() -> None:
    assert not tailscale.plan_login(
        desired(), prefs(RunSSH=True, RouteAll=True), status(), may_request_tags=False
    ).has_steps


def test_only_differing_settings_are_set() -> None:
    desired_prefs = desired(
        hostname="gpu1", advertise_routes=["10.2.0.0/16", "10.1.0.0/16"], accept_dns=False, ssh=True
    )
    assert tailscale.plan_login(desired_prefs, prefs(), status(), may_request_tags=False).set_options == (
        "--hostname=gpu1",
        "--advertise-routes=10.1.0.0/16,10.2.0.0/16",
        "--ssh=true",
    )


def test_advertised_routes_are_withdrawn() -> None:
    steps = tailscale.plan_login(
        desired(advertise_routes=[]), prefs(AdvertiseRoutes=["10.1.0.0/16"]), status(), may_request_tags=False
    )
    assert steps.set_options == ("--advertise-routes=",)


@pytest.mark.parametrize("state", ["NeedsLogin", "NoState"])
def test_a_host_that_is_logged_out_or_expired_logs_in(state: str) -> None:
    assert (
        SERVER
        in tailscale.plan_login(desired(), prefs(), status(BackendState=state), may_request_tags=False).login_reason
    )


def test_stopped_host_is_resumed_without_a_login() -> None:
    assert tailscale.plan_login(
        desired(), prefs(), status(BackendState="Stopped"), may_request_tags=False
    ) == tailscale.LoginPlan(switch_on=True)


def test_host_in_another_tailnet_is_refused() -> None:
    with pytest.raises(HostStateError, match=r"logged in at https://headscale\.example\.org as t1"):
        tailscale.plan_login(
            desired(login_server="https://other.example.org"), prefs(), status(), may_request_tags=False
        )


def test_tags_are_requested_only_with_keys_that_allow_it() -> None:
    desired_prefs = desired(tags=["tag:other"])
    assert "tag:other" in tailscale.plan_login(desired_prefs, prefs(), status(), may_request_tags=True).login_reason
    assert not tailscale.plan_login(desired_prefs, prefs(), status(), may_request_tags=False).has_steps
    assert tailscale.tags_differ(desired_prefs, status())
    assert tailscale.requests_tags("tskey-auth-x")
    assert not tailscale.requests_tags("hskey-auth-x")
    assert not tailscale.requests_tags(None)


def test_login_options_include_all_settings_that_differ_from_the_defaults() -> None:
    """tailscale(1) rejects a login that omits a setting."""
    options = tailscale.login_options(
        desired(hostname="gpu1", ssh=False, tags=["tag:b", "tag:a"]),
        prefs(RunSSH=True, ShieldsUp=True, OperatorUser="alice"),
        with_tags=True,
    )
    assert options == [
        f"--login-server={SERVER}",
        "--hostname=gpu1",
        "--advertise-tags=tag:a,tag:b",
        "--accept-dns=false",
        "--ssh=false",
        "--shields-up=true",
        "--operator=alice",
    ]


def test_oauth_client_key_describes_the_key_to_create() -> None:
    key = tailscale.format_login_key("tskey-client-abc?ephemeral=false", True, ["tag:gpu"])
    assert key == "tskey-client-abc?ephemeral=true&preauthorized=true"
    assert tailscale.format_login_key("tskey-auth-abc", True, None) == "tskey-auth-abc"
    with pytest.raises(InputError, match="tags"):
        tailscale.format_login_key("tskey-client-abc", False, [])


@pytest.mark.parametrize(
    "options",
    [
        {"tags": ["gpu"]},
        {"tags": ["tag:a,tag:b"]},
        {"hostname": "GPU_1"},
        {"hostname": "-a"},
        {"login_server": "headscale.example.org"},
        {"login_server": "https://a b"},
        {"advertise_routes": ["10.0.0.1/8"]},
    ],
)
def test_bad_input_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        desired(**options)


@pytest.mark.parametrize(
    ("text", "path", "by"),
    [
        ("pong from t2 (100.64.0.2) via 10.77.60.12:41641 in 1ms\n", "direct", "10.77.60.12:41641"),
        ("pong from t2 (100.64.0.2) via [2001:db8::2]:41641 in 1ms\n", "direct", "[2001:db8::2]:41641"),
        ("pong from t3 (100.64.0.3) via DERP(lab) in 2ms\ndirect connection not established\n", "relayed", "lab"),
        (
            "pong from t3 (100.64.0.3) via DERP(lab) in 2ms\npong from t3 (100.64.0.3) via 192.0.2.3:1 in 1ms",
            "direct",
            "192.0.2.3:1",
        ),
        ("pong from t3 (100.64.0.3) via peer-relay(192.0.2.9:7:vni:1) in 1ms\n", "relayed", "192.0.2.9:7:vni:1"),
        ('ping "100.64.0.4" timed out\nno reply\n', "none", ""),
    ],
)
def test_path_is_taken_from_the_last_pong(text: str, path: str, by: str) -> None:
    parsed_path = tailscale.parse_ping(text)
    assert (parsed_path["path"], parsed_path["endpoint"] or parsed_path["relay"]) == (path, by)


def test_current_paths_from_the_status() -> None:
    paths = tailscale.find_peer_paths(status(), ["100.64.0.2", "100.64.0.3", "100.64.0.4", "100.64.0.5"])
    assert [way["path"] for way in paths.values()] == ["direct", "idle", "offline", "unknown"]


# --- the cluster record --------------------------------------------------------------------------------------

# --- on a host -----------------------------------------------------------------------------------------------


class FakeTailscaled:
    """Stands in for tailscale(1): reports its state, and records its commands."""

    def __init__(self, state: str) -> None:
        self.state = state
        self.commands: list[list[str]] = []
        self.key = ""
        self.mode = 0
        self.refuses = False
        self.unanswered: list[str] = []
        self.health: list[str] = []

    def run(self, argv: list[str], check: bool = True, timeout: float = 0, **_more: Any) -> CommandResult:
        if argv[1] == "status":
            return CommandResult(0, json.dumps({**STATUS, "BackendState": self.state, "Health": self.health}), "")
        if argv[1] == "debug":
            return CommandResult(0, json.dumps(PREFS), "")
        self.commands.append(argv)
        for option in argv:
            if option.startswith("--auth-key=file:"):
                path = Path(option.partition(":")[2])
                self.key, self.mode = path.read_text(encoding="utf-8"), path.stat().st_mode & 0o777
                if self.refuses:
                    raise CommandError(argv, "exited 1", 1, f"invalid key: {self.key}")
                if self.unanswered:
                    raise CommandError(argv, "exited 1", 1, self.unanswered.pop(0))
        self.state = "NeedsLogin" if argv[1] == "logout" else "Running"
        return CommandResult(0, "", "")


@pytest.fixture(name="host_of")
def _host_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(tailnet, "find_program", lambda program: f"/usr/local/sbin/{program}")

    def make(daemon: FakeTailscaled, check_mode: bool = False) -> tailnet.TailnetHost:
        identity = tmp_path / "tailscale"
        identity.mkdir(exist_ok=True)
        return tailnet.TailnetHost(daemon.run, check_mode, 5, str(tmp_path / "mark"), str(identity), 0.0)

    return make


def test_auth_key_is_only_in_a_file_readable_by_root(host_of: Any) -> None:
    daemon = FakeTailscaled("NeedsLogin")
    result = tailnet.ensure_login(host_of(daemon), desired(login_server=SERVER), "hskey-secret")
    assert result.changed
    assert result.managed_login
    assert (daemon.key, daemon.mode) == ("hskey-secret", 0o600)
    path = next(option for option in daemon.commands[0] if "file:" in option).partition(":")[2]
    assert not Path(path).exists()
    assert "hskey-secret" not in str(daemon.commands) + str(result)


def test_a_refused_login_does_not_show_the_key(host_of: Any) -> None:
    daemon = FakeTailscaled("NeedsLogin")
    daemon.refuses = True
    with pytest.raises(HostStateError) as failure:
        tailnet.ensure_login(host_of(daemon), desired(), "hskey-secret")
    assert "hskey-secret" not in str(failure.value) + str(failure.value.to_result())
    assert "(not shown)" in str(failure.value)
    assert len(daemon.commands) == 1


#: The messages of tailscale 1.94 if the control server is killed or hangs, and texts of its Go libraries.
NO_ANSWER = (
    'timeout waiting for Tailscale service to enter a Running state; check health with "tailscale status"',
    'backend error: fetch control key: Get "https://10.0.0.1/key?v=130": context deadline exceeded',
    'backend error: register request: Post "https://10.0.0.1/machine/register": EOF',
    "backend error: register request: http 500: database is locked",
    'backend error: fetch control key: Get "https://10.0.0.1/key": dial tcp 10.0.0.1:443: connect: connection refused',
)


@pytest.mark.parametrize("answer", NO_ANSWER)
def test_login_is_repeated_once_when_the_control_server_does_not_respond(host_of: Any, answer: str) -> None:
    daemon = FakeTailscaled("NeedsLogin")
    daemon.unanswered = [answer]
    assert tailnet.ensure_login(host_of(daemon), desired(login_server=SERVER), "hskey-secret").changed
    assert len(daemon.commands) == 2


def test_unreachable_control_server_is_reported_with_the_health_messages(host_of: Any) -> None:
    daemon = FakeTailscaled("NeedsLogin")
    daemon.unanswered = list(NO_ANSWER)
    daemon.health = ["You are logged out. The last login error was: connect: network is unreachable"]
    with pytest.raises(HostStateError, match="tailscaled reports: You are logged out.*network is unreachable"):
        tailnet.ensure_login(host_of(daemon), desired(login_server=SERVER), "hskey-secret")
    assert len(daemon.commands) == 2


def test_logged_in_host_needs_no_key(host_of: Any) -> None:
    daemon = FakeTailscaled("Running")
    assert not tailnet.ensure_login(host_of(daemon), desired(login_server=SERVER, hostname="t1"), None).changed
    assert daemon.commands == []


def test_login_without_a_key_is_refused(host_of: Any) -> None:
    with pytest.raises(HostStateError, match="mesh_auth_key"):
        tailnet.ensure_login(host_of(FakeTailscaled("NeedsLogin")), desired(), None)


def test_required_login_is_reported(host_of: Any) -> None:
    daemon = FakeTailscaled("NeedsLogin")
    result = tailnet.ensure_login(host_of(daemon), desired(login_server=SERVER), None, login=False)
    assert result.login_needed and not result.changed
    assert daemon.commands == []
    assert not tailnet.ensure_login(
        host_of(FakeTailscaled("Running")), desired(login_server=SERVER), None, login=False
    ).login_needed


def test_check_mode_runs_no_changing_command(host_of: Any) -> None:
    daemon = FakeTailscaled("NeedsLogin")
    result = tailnet.ensure_login(host_of(daemon, check_mode=True), desired(), "hskey-secret")
    assert result.changed
    assert "state: Running" in result.diff_after
    assert daemon.commands == []


# --- the key of the host in the tailnet

SECOND, THIRD, FOURTH = "100.64.0.2", "100.64.0.3", "100.64.0.4"


def expiry_in(days: float) -> str:
    return expiry.format_time(time.time() + days * 24 * 3600)


class RenewingTailscaled(FakeTailscaled):
    """Has a key that ends in some days, and peers that no longer hear the host after a change of its key."""

    def __init__(self, days: float, heals: str = "", deaf: Sequence[str] = ()) -> None:
        """``heals``: the word of the command after which ``deaf`` peers hear the host again."""
        super().__init__("Running")
        self.days, self.healing_argument, self.deaf_peers = days, heals, tuple(deaf)
        self.silent: tuple[str, ...] = ()
        self.pinged: list[str] = []
        self.offline: tuple[str, ...] = ()

    def run(self, argv: list[str], check: bool = True, timeout: float = 0, **more: Any) -> CommandResult:
        if argv[1] == "status":
            self_entry = {**STATUS["Self"], "KeyExpiry": expiry_in(self.days)}
            peers = {
                key: {
                    **peer,
                    "Online": peer["Online"] and peer["TailscaleIPs"][0] not in self.offline,
                    "Active": key[-1] == "1",
                }
                for key, peer in STATUS["Peer"].items()
            }
            return CommandResult(0, json.dumps({**STATUS, "Self": self_entry, "Peer": peers}), "")
        if argv[1] == "ping":
            self.pinged.append(argv[-1])
            return CommandResult(0, "" if argv[-1] in self.silent else "pong from t2 via TSMP in 2ms", "")
        if self.healing_argument and self.healing_argument in argv:
            self.silent = ()
        if "rotate-disco-key" in argv or argv[0] != "tailscale":
            self.commands.append(argv)
            return CommandResult(0, "", "")
        result = super().run(argv, check, timeout, **more)
        if "--force-reauth" in argv:
            self.days, self.silent = 180, self.deaf_peers
        return result


def renew_login(host: tailnet.TailnetHost, key: str | None = "hskey-secret", **more: Any) -> tailnet.TailnetResult:
    return tailnet.ensure_login(
        host, desired(login_server=SERVER), key, renew=True, member_addresses=[SECOND, THIRD, FOURTH], **more
    )


@pytest.mark.parametrize(("days", "due"), [(29.9, True), (30.1, False)])
def test_a_key_that_ends_within_a_month_is_replaced_once(host_of: Any, days: float, due: bool) -> None:
    daemon = RenewingTailscaled(days)
    first, second = renew_login(host_of(daemon)), renew_login(host_of(daemon))
    assert (first.changed, first.renewal_due, second.changed) == (due, False, False)
    assert len(daemon.commands) == due
    if due:
        assert {"--force-reauth", "--accept-risk=lose-ssh", f"--login-server={SERVER}"} <= set(daemon.commands[0])
        # Peers are pinged before and afterwards, over the tunnel; offline ones are not awaited.
        assert sorted(daemon.pinged) == [SECOND, SECOND, THIRD, THIRD]


def test_key_is_replaced_only_if_requested_and_possible(host_of: Any) -> None:
    daemon = RenewingTailscaled(3)
    for result in (
        renew_login(host_of(daemon), None),
        renew_login(host_of(daemon), login=False, key=None),
        tailnet.ensure_login(host_of(daemon), desired(), "hskey-secret"),
    ):
        assert (result.changed, result.renewal_due, result.renewal_failure) == (False, True, "")
    planned = renew_login(host_of(daemon, check_mode=True))
    assert (planned.changed, planned.renewal_due) == (True, False)
    assert daemon.commands == []


def test_host_keeps_its_key_if_the_new_one_is_refused(host_of: Any) -> None:
    daemon = RenewingTailscaled(3)
    daemon.refuses = True
    run = daemon.run

    def refuse_once(argv: list[str], **more: Any) -> CommandResult:
        daemon.refuses = "--force-reauth" in argv
        return run(argv, **more)

    daemon.run = refuse_once  # type: ignore[method-assign]
    result = renew_login(host_of(daemon))
    assert (result.changed, result.renewal_due) == (False, True)
    assert "invalid key" in result.renewal_failure and "hskey-secret" not in str(result)
    # The host would otherwise be offline from now on.
    assert [argv[2:] for argv in daemon.commands][1] == [
        "--timeout=5s",
        "--auth-key=file:/dev/null",
        f"--login-server={SERVER}",
        "--hostname=t1",
        "--accept-dns=false",
    ]


@pytest.mark.parametrize(("heals", "steps"), [("rotate-disco-key", 1), ("restart", 2)])
def test_peers_that_use_the_former_key_are_made_to_reconnect(host_of: Any, heals: str, steps: int) -> None:
    daemon = RenewingTailscaled(3, heals, [THIRD])
    assert renew_login(host_of(daemon)).changed
    assert [argv[-1] for argv in daemon.commands[1:]] == ["rotate-disco-key", "tailscaled"][:steps]


def test_unreachable_peer_is_named_unless_it_is_offline(host_of: Any) -> None:
    with pytest.raises(HostStateError, match=r"cannot reach 100\.64\.0\.3\."):
        renew_login(host_of(RenewingTailscaled(3, "", [THIRD])))
    daemon = RenewingTailscaled(3, "", [THIRD])
    host = host_of(daemon)
    run = host.run_command

    def leave(argv: list[str], **more: Any) -> CommandResult:
        result = run(argv, **more)
        daemon.offline = (THIRD,) if "--force-reauth" in argv else daemon.offline
        return CommandResult(*result)

    assert renew_login(host._replace(run_command=leave)).changed
    assert len(daemon.commands) == 1


def test_existing_login_is_not_ended(host_of: Any) -> None:
    daemon = FakeTailscaled("Running")
    result = tailnet.ensure_logout(host_of(daemon), delete_identity=False)
    assert not result.changed
    assert not result.managed_login
    assert daemon.commands == []


def test_managed_login_is_ended_and_its_identity_deleted_on_request(
    host_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = FakeTailscaled("NeedsLogin")
    host = host_of(daemon)
    tailnet.ensure_login(host, desired(), "hskey-secret")
    assert tailnet.ensure_logout(host, delete_identity=False).changed
    assert daemon.commands[-1] == ["tailscale", "logout"]
    assert Path(host.state_directory).exists()
    # The daemon has ended.
    monkeypatch.setattr(tailnet, "find_program", lambda _program: None)
    assert tailnet.ensure_logout(host, delete_identity=True).changed
    assert not Path(host.state_directory).exists()
    assert not tailnet.ensure_logout(host, delete_identity=True).changed


def test_former_addresses_are_returned_after_logout(host_of: Any) -> None:
    """Another run can then complete a failed deletion of its device."""
    daemon = FakeTailscaled("NeedsLogin")
    host = host_of(daemon)
    before = tailnet.ensure_login(host, desired(), "hskey-secret").addresses
    assert before
    assert tailnet.ensure_logout(host, delete_identity=False).addresses == before
    again = tailnet.ensure_logout(host, delete_identity=False)
    assert (again.changed, again.managed_login, again.addresses) == (False, True, before)
    # A host whose key has expired can no longer be queried.
    tailnet.ensure_login(host, desired(), "hskey-secret")
    daemon.state = "NeedsLogin"
    assert tailnet.ensure_logout(host, delete_identity=False).addresses == before
    # A rejected login keeps them, unless it was to another tailnet.
    daemon.refuses = True
    for server, result in ((None, before), ("https://other.example.org", ())):
        with pytest.raises(HostStateError):
            tailnet.ensure_login(host, desired(login_server=server), "hskey-secret")
        assert tailnet.ensure_logout(host, delete_identity=False).addresses == result


# --- the control server's API --------------------------------------------------------------------------------

HEADSCALE_NODES = {"nodes": [{"id": "7", "name": "t3", "givenName": "t3-x", "ipAddresses": ["100.64.0.3"], "tags": []}]}
TAILSCALE_DEVICES = {
    "devices": [{"id": "1", "nodeId": "nX", "name": "t3.ts.net", "addresses": ["100.64.0.3"], "tags": ["tag:gpu"]}]
}


class FakeControlServer:
    def __init__(self, devices: dict[str, Any]) -> None:
        self.devices = devices
        self.requests: list[tuple[str, str, Any]] = []

    def fetch(self, method: str, url: str, body: Any) -> dict[str, Any]:
        self.requests.append((method, url, body))
        return self.devices if method == "GET" else {}


@pytest.mark.parametrize(
    ("login_server", "devices", "name", "identity", "url"),
    [
        (SERVER, HEADSCALE_NODES, "t3-x", "7", f"{SERVER}/api/v1/node/7"),
        (None, TAILSCALE_DEVICES, "t3", "nX", "https://api.tailscale.com/api/v2/device/nX"),
    ],
)
def test_device_is_deleted_only_if_address_name_and_id_match(
    login_server: str | None, devices: dict[str, Any], name: str, identity: str, url: str
) -> None:
    expected = tailnet_api.DeviceIdentity("100.64.0.3", name, identity)
    server = FakeControlServer(devices)
    api = tailnet_api.find_api(login_server)
    assert not tailnet_api.delete_device(
        api, server.fetch, expected._replace(device_address="100.64.0.30"), check_mode=False
    ).changed
    assert tailnet_api.delete_device(api, server.fetch, expected, check_mode=True).changed
    assert [request[0] for request in server.requests] == ["GET", "GET"]
    assert tailnet_api.delete_device(api, server.fetch, expected._replace(device_id=""), check_mode=False).changed
    assert server.requests[-1] == ("DELETE", url, None)


T3 = tailnet_api.DeviceIdentity("100.64.0.3", "t3", "nX")


def test_tags_are_set_only_if_they_differ() -> None:
    server = FakeControlServer(TAILSCALE_DEVICES)
    api = tailnet_api.find_api(None)
    assert not tailnet_api.ensure_tags(api, server.fetch, T3, ["tag:gpu"], check_mode=False).changed
    assert tailnet_api.ensure_tags(api, server.fetch, T3, ["tag:b", "tag:a"], check_mode=False).changed
    assert server.requests[-1][2] == {"tags": ["tag:a", "tag:b"]}
    with pytest.raises(InputError, match=r"100\.64\.0\.9"):
        tailnet_api.ensure_tags(api, server.fetch, T3._replace(device_address="100.64.0.9"), [], check_mode=False)
