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

from ansible_collections.gpumesh.cluster.plugins.module_utils import expiry
from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Completed
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import (
    CommandError,
    HostStateError,
    InputError,
    ParseError,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils.mesh import tailnet, tailnet_api, tailscale

SERVER = "https://headscale.example.org"
#: As printed by tailscale 1.94.1, without unused fields.
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


def prefs(**changed: Any) -> tailscale.Prefs:
    return tailscale.parse_prefs(json.dumps({**PREFS, **changed}))


def status(**changed: Any) -> tailscale.Status:
    return tailscale.parse_status(json.dumps({**STATUS, **changed}))


def desired(**given: Any) -> tailscale.Desired:
    return tailscale.make_desired(given)


def test_the_status_is_read() -> None:
    read = status()
    assert (read.name, read.state, read.tags) == ("t1", "Running", ("tag:gpu",))
    assert read.addresses == ("100.64.0.1", "fd7a:115c:a1e0::1")
    assert [peer.name for peer in read.peers] == ["t2", "t3", "t4"]


def test_a_daemon_that_is_logged_out_has_no_addresses() -> None:
    assert tailscale.parse_status(json.dumps(LOGGED_OUT)).addresses == ()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"BackendState": "Running", "TUN": true}'])
def test_what_cannot_be_read_names_the_command(text: str) -> None:
    with pytest.raises(ParseError, match="tailscale status --json"):
        tailscale.parse_status(text)
    with pytest.raises(ParseError, match="tailscale debug prefs"):
        tailscale.parse_prefs(text)


def test_no_secret_of_the_daemon_is_kept() -> None:
    assert "not-read" not in str(prefs())


def test_nothing_to_do_needs_nothing() -> None:
    wish = desired(login_server=SERVER + "/", hostname="t1", tags=["tag:gpu"], accept_dns=False, ssh=False)
    assert not tailscale.plan(wish, prefs(), status(), with_tags=False).needed


def test_what_nobody_asked_for_stays() -> None:
    assert not tailscale.plan(desired(), prefs(RunSSH=True, RouteAll=True), status(), with_tags=False).needed


def test_only_what_differs_is_set() -> None:
    wish = desired(hostname="gpu1", advertise_routes=["10.2.0.0/16", "10.1.0.0/16"], accept_dns=False, ssh=True)
    assert tailscale.plan(wish, prefs(), status(), with_tags=False).settings == (
        "--hostname=gpu1",
        "--advertise-routes=10.1.0.0/16,10.2.0.0/16",
        "--ssh=true",
    )


def test_routes_are_taken_back() -> None:
    steps = tailscale.plan(
        desired(advertise_routes=[]), prefs(AdvertiseRoutes=["10.1.0.0/16"]), status(), with_tags=False
    )
    assert steps.settings == ("--advertise-routes=",)


@pytest.mark.parametrize("state", ["NeedsLogin", "NoState"])
def test_a_host_that_is_logged_out_or_expired_logs_in(state: str) -> None:
    assert SERVER in tailscale.plan(desired(), prefs(), status(BackendState=state), with_tags=False).login


def test_a_host_that_was_switched_off_is_switched_on_without_a_login() -> None:
    assert tailscale.plan(desired(), prefs(), status(BackendState="Stopped"), with_tags=False) == tailscale.Plan(
        resume=True
    )


def test_a_host_in_another_tailnet_is_left_there() -> None:
    with pytest.raises(HostStateError, match=r"logged in at https://headscale\.example\.org as t1"):
        tailscale.plan(desired(login_server="https://other.example.org"), prefs(), status(), with_tags=False)


def test_tags_are_asked_for_only_where_the_key_lets_the_host_ask() -> None:
    wish = desired(tags=["tag:other"])
    assert "tag:other" in tailscale.plan(wish, prefs(), status(), with_tags=True).login
    assert not tailscale.plan(wish, prefs(), status(), with_tags=False).needed
    assert tailscale.tags_differ(wish, status())
    assert tailscale.asks_for_tags("tskey-auth-x")
    assert not tailscale.asks_for_tags("hskey-auth-x")
    assert not tailscale.asks_for_tags(None)


def test_a_login_mentions_all_that_is_not_as_it_comes() -> None:
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


def test_a_key_of_an_oauth_client_says_what_it_is_to_make() -> None:
    key = tailscale.login_key("tskey-client-abc?ephemeral=false", True, ["tag:gpu"])
    assert key == "tskey-client-abc?ephemeral=true&preauthorized=true"
    assert tailscale.login_key("tskey-auth-abc", True, None) == "tskey-auth-abc"
    with pytest.raises(InputError, match="tags"):
        tailscale.login_key("tskey-client-abc", False, [])


@pytest.mark.parametrize(
    "given",
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
def test_bad_input_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        desired(**given)


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
def test_the_last_answer_says_the_path(text: str, path: str, by: str) -> None:
    found = tailscale.parse_ping(text)
    assert (found["path"], found["endpoint"] or found["relay"]) == (path, by)


def test_the_paths_that_the_daemon_remembers() -> None:
    found = tailscale.peer_paths(status(), ["100.64.0.2", "100.64.0.3", "100.64.0.4", "100.64.0.5"])
    assert [way["path"] for way in found.values()] == ["direct", "idle", "offline", "unknown"]


# --- the cluster record --------------------------------------------------------------------------------------

# --- on a host -----------------------------------------------------------------------------------------------


class Daemon:
    """Stands in for tailscale(1): reports its state, and records its commands."""

    def __init__(self, state: str) -> None:
        self.state = state
        self.told: list[list[str]] = []
        self.key = ""
        self.mode = 0
        self.refuses = False
        self.unanswered: list[str] = []
        self.health: list[str] = []

    def run(self, argv: list[str], check: bool = True, timeout: float = 0, **_more: Any) -> Completed:
        if argv[1] == "status":
            return Completed(0, json.dumps({**STATUS, "BackendState": self.state, "Health": self.health}), "")
        if argv[1] == "debug":
            return Completed(0, json.dumps(PREFS), "")
        self.told.append(argv)
        for option in argv:
            if option.startswith("--auth-key=file:"):
                path = Path(option.partition(":")[2])
                self.key, self.mode = path.read_text(encoding="utf-8"), path.stat().st_mode & 0o777
                if self.refuses:
                    raise CommandError(argv, "exited 1", 1, f"invalid key: {self.key}")
                if self.unanswered:
                    raise CommandError(argv, "exited 1", 1, self.unanswered.pop(0))
        self.state = "NeedsLogin" if argv[1] == "logout" else "Running"
        return Completed(0, "", "")


@pytest.fixture(name="host_of")
def _host_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(tailnet, "find", lambda program: f"/usr/local/sbin/{program}")

    def make(daemon: Daemon, check_mode: bool = False) -> tailnet.Host:
        identity = tmp_path / "tailscale"
        identity.mkdir(exist_ok=True)
        return tailnet.Host(daemon.run, check_mode, 5, str(tmp_path / "mark"), str(identity), 0.0)

    return make


def test_the_key_is_in_a_file_of_root_and_nowhere_else(host_of: Any) -> None:
    daemon = Daemon("NeedsLogin")
    result = tailnet.present(host_of(daemon), desired(login_server=SERVER), "hskey-secret")
    assert result.changed
    assert result.managed
    assert (daemon.key, daemon.mode) == ("hskey-secret", 0o600)
    path = next(option for option in daemon.told[0] if "file:" in option).partition(":")[2]
    assert not Path(path).exists()
    assert "hskey-secret" not in str(daemon.told) + str(result)


def test_a_refused_login_does_not_show_the_key(host_of: Any) -> None:
    daemon = Daemon("NeedsLogin")
    daemon.refuses = True
    with pytest.raises(HostStateError) as failure:
        tailnet.present(host_of(daemon), desired(), "hskey-secret")
    assert "hskey-secret" not in str(failure.value) + str(failure.value.as_result())
    assert "(not shown)" in str(failure.value)
    assert len(daemon.told) == 1


#: What tailscale 1.94 prints if the control server is killed or hangs, and texts of its Go libraries.
NO_ANSWER = (
    'timeout waiting for Tailscale service to enter a Running state; check health with "tailscale status"',
    'backend error: fetch control key: Get "https://10.0.0.1/key?v=130": context deadline exceeded',
    'backend error: register request: Post "https://10.0.0.1/machine/register": EOF',
    "backend error: register request: http 500: database is locked",
    'backend error: fetch control key: Get "https://10.0.0.1/key": dial tcp 10.0.0.1:443: connect: connection refused',
)


@pytest.mark.parametrize("answer", NO_ANSWER)
def test_a_login_that_the_control_server_did_not_answer_is_tried_once_more(host_of: Any, answer: str) -> None:
    daemon = Daemon("NeedsLogin")
    daemon.unanswered = [answer]
    assert tailnet.present(host_of(daemon), desired(login_server=SERVER), "hskey-secret").changed
    assert len(daemon.told) == 2


def test_a_control_server_that_never_answers_is_reported_with_what_the_daemon_says(host_of: Any) -> None:
    daemon = Daemon("NeedsLogin")
    daemon.unanswered = list(NO_ANSWER)
    daemon.health = ["You are logged out. The last login error was: connect: network is unreachable"]
    with pytest.raises(HostStateError, match="tailscaled reports: You are logged out.*network is unreachable"):
        tailnet.present(host_of(daemon), desired(login_server=SERVER), "hskey-secret")
    assert len(daemon.told) == 2


def test_no_key_is_needed_by_a_host_that_is_logged_in(host_of: Any) -> None:
    daemon = Daemon("Running")
    assert not tailnet.present(host_of(daemon), desired(login_server=SERVER, hostname="t1"), None).changed
    assert daemon.told == []


def test_a_login_without_a_key_is_refused_in_words(host_of: Any) -> None:
    with pytest.raises(HostStateError, match="mesh_auth_key"):
        tailnet.present(host_of(Daemon("NeedsLogin")), desired(), None)


def test_a_host_says_that_it_needs_a_key_before_it_gets_one(host_of: Any) -> None:
    daemon = Daemon("NeedsLogin")
    result = tailnet.present(host_of(daemon), desired(login_server=SERVER), None, login=False)
    assert result.login_needed and not result.changed
    assert daemon.told == []
    assert not tailnet.present(host_of(Daemon("Running")), desired(login_server=SERVER), None, login=False).login_needed


def test_check_mode_tells_nothing(host_of: Any) -> None:
    daemon = Daemon("NeedsLogin")
    result = tailnet.present(host_of(daemon, check_mode=True), desired(), "hskey-secret")
    assert result.changed
    assert "state: Running" in result.after
    assert daemon.told == []


# --- the key of the host in the tailnet

SECOND, THIRD, FOURTH = "100.64.0.2", "100.64.0.3", "100.64.0.4"


def ending(days: float) -> str:
    return expiry.shown(time.time() + days * 24 * 3600)


class Renewing(Daemon):
    """Has a key that ends in some days, and peers that no longer hear the host after a change of its key."""

    def __init__(self, days: float, heals: str = "", deaf: Sequence[str] = ()) -> None:
        """``heals``: the word of the command after which ``deaf`` peers hear the host again."""
        super().__init__("Running")
        self.days, self.heals, self.deaf = days, heals, tuple(deaf)
        self.silent: tuple[str, ...] = ()
        self.pinged: list[str] = []
        self.offline: tuple[str, ...] = ()

    def run(self, argv: list[str], check: bool = True, timeout: float = 0, **more: Any) -> Completed:
        if argv[1] == "status":
            own = {**STATUS["Self"], "KeyExpiry": ending(self.days)}
            peers = {
                key: {
                    **peer,
                    "Online": peer["Online"] and peer["TailscaleIPs"][0] not in self.offline,
                    "Active": key[-1] == "1",
                }
                for key, peer in STATUS["Peer"].items()
            }
            return Completed(0, json.dumps({**STATUS, "Self": own, "Peer": peers}), "")
        if argv[1] == "ping":
            self.pinged.append(argv[-1])
            return Completed(0, "" if argv[-1] in self.silent else "pong from t2 via TSMP in 2ms", "")
        if self.heals and self.heals in argv:
            self.silent = ()
        if "rotate-disco-key" in argv or argv[0] != "tailscale":
            self.told.append(argv)
            return Completed(0, "", "")
        done = super().run(argv, check, timeout, **more)
        if "--force-reauth" in argv:
            self.days, self.silent = 180, self.deaf
        return done


def renewed(host: tailnet.Host, key: str | None = "hskey-secret", **more: Any) -> tailnet.Result:
    return tailnet.present(host, desired(login_server=SERVER), key, renew=True, members=[SECOND, THIRD, FOURTH], **more)


@pytest.mark.parametrize(("days", "due"), [(29.9, True), (30.1, False)])
def test_a_key_that_ends_within_a_month_is_replaced_once(host_of: Any, days: float, due: bool) -> None:
    daemon = Renewing(days)
    first, second = renewed(host_of(daemon)), renewed(host_of(daemon))
    assert (first.changed, first.renewal_due, second.changed) == (due, False, False)
    assert len(daemon.told) == due
    if due:
        assert {"--force-reauth", "--accept-risk=lose-ssh", f"--login-server={SERVER}"} <= set(daemon.told[0])
        # Before and afterwards, over the tunnel; who is offline is not waited for.
        assert sorted(daemon.pinged) == [SECOND, SECOND, THIRD, THIRD]


def test_a_key_is_replaced_only_if_that_is_wanted_and_possible(host_of: Any) -> None:
    daemon = Renewing(3)
    for result in (
        renewed(host_of(daemon), None),
        renewed(host_of(daemon), login=False, key=None),
        tailnet.present(host_of(daemon), desired(), "hskey-secret"),
    ):
        assert (result.changed, result.renewal_due, result.renewal_failure) == (False, True, "")
    planned = renewed(host_of(daemon, check_mode=True))
    assert (planned.changed, planned.renewal_due) == (True, False)
    assert daemon.told == []


def test_with_a_refused_key_the_host_keeps_its_own(host_of: Any) -> None:
    daemon = Renewing(3)
    daemon.refuses = True
    run = daemon.run

    def refuse_once(argv: list[str], **more: Any) -> Completed:
        daemon.refuses = "--force-reauth" in argv
        return run(argv, **more)

    daemon.run = refuse_once  # type: ignore[method-assign]
    result = renewed(host_of(daemon))
    assert (result.changed, result.renewal_due) == (False, True)
    assert "invalid key" in result.renewal_failure and "hskey-secret" not in str(result)
    # Otherwise, it would be offline from now on.
    assert [argv[2:] for argv in daemon.told][1] == [
        "--timeout=5s",
        "--auth-key=file:/dev/null",
        f"--login-server={SERVER}",
        "--hostname=t1",
        "--accept-dns=false",
    ]


@pytest.mark.parametrize(("heals", "steps"), [("rotate-disco-key", 1), ("restart", 2)])
def test_peers_that_keep_to_the_former_key_make_a_new_tunnel(host_of: Any, heals: str, steps: int) -> None:
    daemon = Renewing(3, heals, [THIRD])
    assert renewed(host_of(daemon)).changed
    assert [argv[-1] for argv in daemon.told[1:]] == ["rotate-disco-key", "tailscaled"][:steps]


def test_a_peer_that_stays_deaf_is_named_unless_it_has_left(host_of: Any) -> None:
    with pytest.raises(HostStateError, match=r"does not reach 100\.64\.0\.3\."):
        renewed(host_of(Renewing(3, "", [THIRD])))
    daemon = Renewing(3, "", [THIRD])
    host = host_of(daemon)
    run = host.run

    def leave(argv: list[str], **more: Any) -> Completed:
        done = run(argv, **more)
        daemon.offline = (THIRD,) if "--force-reauth" in argv else daemon.offline
        return Completed(*done)

    assert renewed(host._replace(run=leave)).changed
    assert len(daemon.told) == 1


def test_a_login_that_was_there_before_is_not_ended(host_of: Any) -> None:
    daemon = Daemon("Running")
    result = tailnet.absent(host_of(daemon), forget=False)
    assert not result.changed
    assert not result.managed
    assert daemon.told == []


def test_our_login_is_ended_and_its_identity_dropped_when_asked(host_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = Daemon("NeedsLogin")
    host = host_of(daemon)
    tailnet.present(host, desired(), "hskey-secret")
    assert tailnet.absent(host, forget=False).changed
    assert daemon.told[-1] == ["tailscale", "logout"]
    assert Path(host.state_directory).exists()
    # The daemon has ended.
    monkeypatch.setattr(tailnet, "find", lambda _program: None)
    assert tailnet.absent(host, forget=True).changed
    assert not Path(host.state_directory).exists()
    assert not tailnet.absent(host, forget=True).changed


def test_a_host_that_has_left_still_says_which_addresses_it_had(host_of: Any) -> None:
    """So that another run can complete a failed deletion of its device."""
    daemon = Daemon("NeedsLogin")
    host = host_of(daemon)
    before = tailnet.present(host, desired(), "hskey-secret").addresses
    assert before
    assert tailnet.absent(host, forget=False).addresses == before
    again = tailnet.absent(host, forget=False)
    assert (again.changed, again.managed, again.addresses) == (False, True, before)
    # A host whose key has expired can no longer be queried.
    tailnet.present(host, desired(), "hskey-secret")
    daemon.state = "NeedsLogin"
    assert tailnet.absent(host, forget=False).addresses == before
    # A rejected login keeps them, unless it was to another tailnet.
    daemon.refuses = True
    for server, kept in ((None, before), ("https://other.example.org", ())):
        with pytest.raises(HostStateError):
            tailnet.present(host, desired(login_server=server), "hskey-secret")
        assert tailnet.absent(host, forget=False).addresses == kept


# --- the control server's API --------------------------------------------------------------------------------

HEADSCALE_NODES = {"nodes": [{"id": "7", "name": "t3", "givenName": "t3-x", "ipAddresses": ["100.64.0.3"], "tags": []}]}
TAILSCALE_DEVICES = {
    "devices": [{"id": "1", "nodeId": "nX", "name": "t3.ts.net", "addresses": ["100.64.0.3"], "tags": ["tag:gpu"]}]
}


class Server:
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
def test_a_device_is_deleted_where_address_name_and_id_are_its_own(
    login_server: str | None, devices: dict[str, Any], name: str, identity: str, url: str
) -> None:
    wanted = tailnet_api.Sought("100.64.0.3", name, identity)
    server = Server(devices)
    api = tailnet_api.api_of(login_server)
    assert not tailnet_api.absent(api, server.fetch, wanted._replace(address="100.64.0.30"), check_mode=False).changed
    assert tailnet_api.absent(api, server.fetch, wanted, check_mode=True).changed
    assert [request[0] for request in server.requests] == ["GET", "GET"]
    assert tailnet_api.absent(api, server.fetch, wanted._replace(id=""), check_mode=False).changed
    assert server.requests[-1] == ("DELETE", url, None)


T3 = tailnet_api.Sought("100.64.0.3", "t3", "nX")


def test_tags_are_set_only_where_they_differ() -> None:
    server = Server(TAILSCALE_DEVICES)
    api = tailnet_api.api_of(None)
    assert not tailnet_api.present(api, server.fetch, T3, ["tag:gpu"], check_mode=False).changed
    assert tailnet_api.present(api, server.fetch, T3, ["tag:b", "tag:a"], check_mode=False).changed
    assert server.requests[-1][2] == {"tags": ["tag:a", "tag:b"]}
    with pytest.raises(InputError, match=r"100\.64\.0\.9"):
        tailnet_api.present(api, server.fetch, T3._replace(address="100.64.0.9"), [], check_mode=False)
