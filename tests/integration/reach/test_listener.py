# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The limits of a listener: it does not respond to strangers, listen elsewhere, or stay."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any
from uuid import uuid4

import pytest

from ansible_collections.gpumesh.cluster.tests.integration.reach.netns import Host, Network, await_none

TOKEN = "the-token-of-this-run"

#: A program that connects to the listener from another host, and prints what the stranger learns.
STRANGER = """
import json, socket, sys
from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.reachability import protocol
from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.reachability.runner import ListenerChannel

def raw(address, port, *messages):
    with socket.create_connection((address, port), 60) as tcp:
        answers = []
        for message in messages:
            tcp.sendall(message)
            try:
                answers.append(len(tcp.recv(4096)))
            except ConnectionResetError:
                answers.append(0)
        return answers

def datagrams(address, port, *messages, first=0.5):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        answers = []
        for message in messages:
            udp.settimeout(0.5 if answers else first)
            udp.sendto(message, (address, port))
            try:
                answers.append(len(udp.recv(65535)))
            except TimeoutError:
                answers.append(0)
        return answers

def session(address, port, token):
    channel = ListenerChannel(address, port, token, "n2", 60)
    return channel

print(json.dumps(eval(sys.argv[1])))
"""


def ask(host: Host, expression: str) -> Any:
    return json.loads(host.run(sys.executable, "-c", STRANGER, expression))


def listen(host: Host, **options: Any) -> tuple[str, dict[str, int]]:
    """Start a listener. Returns the run, and a port of each kind."""
    run = uuid4().hex
    settings = {"ports": [], "sample_count": 1, "lifetime": 300, "token": TOKEN, **options}
    result = host.listener(run=run, **settings)
    assert "ports" in result, result
    return run, {port["protocol"]: port["port"] for port in result["ports"]}


@pytest.fixture
def pair(net: Network) -> tuple[Host, Host]:
    return net.member(1), net.member(2)


def test_it_listens_on_its_address_alone(pair: tuple[Host, Host]) -> None:
    one, _other = pair
    one.ip("addr", "add", "10.50.0.101/24", "dev", "eth0")
    listen(one)
    lines = one.run("ss", "-Hltun").split("\n")
    bound = {line.split()[4].rsplit(":", 1)[0] for line in lines if line.strip()}
    assert bound == {"10.50.0.1"}


def test_strangers_learn_nothing(pair: tuple[Host, Host]) -> None:
    one, other = pair
    run, ports = listen(one)
    address, tcp, udp = f"'{one.address}'", ports["tcp"], ports["udp"]
    # Noise, a frame that claims to be huge, another protocol: hung up without a byte.
    assert ask(other, f"raw({address}, {tcp}, b'GET / HTTP/1.0\\r\\n\\r\\n')") == [0]
    assert ask(other, f"raw({address}, {tcp}, b'\\xff\\xff\\xff\\xff' + b'x' * 100)") == [0]
    hello = "protocol.encode_frame({'gpumesh': 1, 'nonce': 'aa'})"
    # After the nonce of the listener a wrong proof gets nothing.
    claim = "protocol.encode_frame({'proof': 'ab' * 32, 'machine': 'n2', 'echo': ''})"
    answers = ask(other, f"raw({address}, {tcp}, {hello}, {claim})")
    assert answers[0] > 0 and answers[1] == 0
    # An order before the proof too.
    assert ask(other, f"raw({address}, {tcp}, {hello}, protocol.encode_frame({{'do': 'give', 'size': 1000}}))")[1] == 0
    # A datagram without a session, even with the token.
    request = "protocol.pack_datagram('{}', protocol.Datagram(1, b'12345678', 1, 1400), 100)"
    assert ask(other, f"datagrams({address}, {udp}, b'noise', {request.format('wrong')}, {request.format(TOKEN)})") == [
        0,
        0,
        0,
    ]
    assert one.listener(state="stopped", run=run)["stopped"] is True


def test_a_recorded_datagram_is_answered_once(pair: tuple[Host, Host]) -> None:
    one, other = pair
    _run, ports = listen(one)
    expression = (
        f"(lambda channel: (lambda welcome: datagrams('{one.address}', {ports['udp']},"
        f" *[protocol.pack_datagram('{TOKEN}', protocol.Datagram(1, bytes.fromhex(welcome['session']), 7, 1400), 100)] * 2, first=60))"
        f"(channel.welcome_message))(session('{one.address}', {ports['tcp']}, '{TOKEN}'))"
    )
    assert ask(other, expression) == [1372, 0]


def test_it_ends_after_its_lifetime(pair: tuple[Host, Host]) -> None:
    one, _other = pair
    run, _ports = listen(one, lifetime=10)
    assert one.processes() != []
    await_none(one)
    assert one.listener(state="stopped", run=run)["stopped"] is False


def test_it_ends_although_its_program_hangs(pair: tuple[Host, Host]) -> None:
    """A stopped process stands for any that does nothing any more: the alarm waits in the kernel."""
    one, _other = pair
    listen(one, lifetime=10)
    (process,) = one.processes()
    subprocess.run(["kill", "-STOP", str(process)], check=True)
    time.sleep(11)
    subprocess.run(["kill", "-CONT", str(process)], check=True)
    await_none(one)


def test_another_user_cannot_stop_it(pair: tuple[Host, Host]) -> None:
    one, _other = pair
    run, _ports = listen(one)
    code = (
        "import socket; client = socket.socket(socket.AF_UNIX); client.settimeout(60); "
        f"client.connect('\\0gpumesh/reach/listener/{run}'); client.sendall(b'stop\\n'); client.recv(100)"
    )
    with pytest.raises(AssertionError, match="(ConnectionReset|BrokenPipe)Error"):
        one.run("setpriv", "--reuid=65534", "--clear-groups", "/usr/bin/python3", "-c", code)
    assert one.processes() != []
    assert one.listener(state="stopped", run=run)["stopped"] is True
    await_none(one)


def test_a_port_of_a_service_is_left_to_it(pair: tuple[Host, Host]) -> None:
    one, other = pair
    service = subprocess.Popen(
        ["ip", "netns", "exec", one.namespace, "nc", "-lk", "0.0.0.0", "6817"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        while not one.run("ss", "-Hltn", "sport = :6817"):
            assert service.poll() is None
            time.sleep(0.1)
        result = one.listener(run=uuid4().hex, token=TOKEN, ports=[6817], lifetime=300)
        ports = {port["port"]: port["state"] for port in result["ports"]}
        assert ports[6817] == "service"
        peers = [{"machine": "n1", "address": one.address, "ports": result["ports"]}]
        probed = other.probe(run=uuid4().hex, token=TOKEN, peers=peers)["probe"]["peers"][0]
        outcomes = {(port["protocol"], port["port"]): port["outcome"] for port in probed["ports"]}
        assert outcomes.pop(("tcp", 6817)) == "connected"
        assert set(outcomes.values()) == {"ok"}
    finally:
        service.terminate()
        service.wait()


def test_a_wrong_token_meets_a_stranger(pair: tuple[Host, Host]) -> None:
    one, other = pair
    result = one.listener(run=uuid4().hex, token=TOKEN, ports=[], sample_count=1, lifetime=300)
    peers = [{"machine": "n1", "address": one.address, "ports": result["ports"]}]
    probed = other.probe(run=uuid4().hex, token="another", peers=peers)["probe"]["peers"][0]
    assert [port["outcome"] for port in probed["ports"]] == ["stranger", "not_checked"]
    assert probed["seen"] is None


def test_a_payload_that_no_listener_takes_is_refused_in_words(pair: tuple[Host, Host]) -> None:
    result = pair[0].probe(run=uuid4().hex, token=TOKEN, peers=[], payload_bytes=1 << 29)
    assert result["failed"] is True
    assert result["error"]["kind"] == "input"
    assert "payload_bytes" in result["msg"]


def test_a_run_has_one_listener_on_a_host(pair: tuple[Host, Host]) -> None:
    one, _other = pair
    run, _ports = listen(one)
    again = one.listener(run=run, token=TOKEN, ports=[])
    assert again["failed"] is True
    assert again["error"]["kind"] == "host_state"
    assert one.listener(state="stopped", run=run)["stopped"] is True


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"ephemeral_range": "5"}, "invalid range of ports"),
        ({"ports": [70000]}, "70000 is an invalid port"),
        ({"address": "10.50.0.77"}, "Cannot listen on 10.50.0.77"),
        ({"lifetime": 0}, "lifetime is 0"),
    ],
)
def test_bad_options_are_refused_in_words(pair: tuple[Host, Host], options: dict[str, Any], words: str) -> None:
    result = pair[0].listener(**{"run": uuid4().hex, "token": TOKEN, **options})
    assert result["failed"] is True
    assert words in result["msg"]
    assert result["error"]["remedy"]
    assert pair[0].processes() == []
