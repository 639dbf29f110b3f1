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

from ansible_collections.gpumesh.cluster.tests.integration.reach.netns import (
    NamespaceHost,
    NamespaceNetwork,
    await_no_processes,
)

RUN_TOKEN = "the-token-of-this-run"

#: A program that connects to the listener from another host, and prints what the stranger learns.
STRANGER_PROGRAM = """
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


def evaluate_as_stranger(host: NamespaceHost, expression: str) -> Any:
    return json.loads(host.run(sys.executable, "-c", STRANGER_PROGRAM, expression))


def start_listener(host: NamespaceHost, **options: Any) -> tuple[str, dict[str, int]]:
    """Start a listener. Returns the run, and a port of each kind."""
    run_id = uuid4().hex
    settings = {"ports": [], "sample_count": 1, "lifetime": 300, "token": RUN_TOKEN, **options}
    result = host.run_listener(run=run_id, **settings)
    assert "ports" in result, result
    return run_id, {port["protocol"]: port["port"] for port in result["ports"]}


@pytest.fixture
def pair(net: NamespaceNetwork) -> tuple[NamespaceHost, NamespaceHost]:
    return net.add_member(1), net.add_member(2)


def test_listener_binds_only_its_address(pair: tuple[NamespaceHost, NamespaceHost]) -> None:
    listener_host, _other_host = pair
    listener_host.ip("addr", "add", "10.50.0.101/24", "dev", "eth0")
    start_listener(listener_host)
    lines = listener_host.run("ss", "-Hltun").split("\n")
    bound = {line.split()[4].rsplit(":", 1)[0] for line in lines if line.strip()}
    assert bound == {"10.50.0.1"}


def test_strangers_get_no_data(pair: tuple[NamespaceHost, NamespaceHost]) -> None:
    listener_host, other_host = pair
    run_id, ports = start_listener(listener_host)
    address, tcp, udp = f"'{listener_host.address}'", ports["tcp"], ports["udp"]
    # Noise, a frame that claims to be huge, another protocol: hung up without a byte.
    assert evaluate_as_stranger(other_host, f"raw({address}, {tcp}, b'GET / HTTP/1.0\\r\\n\\r\\n')") == [0]
    assert evaluate_as_stranger(other_host, f"raw({address}, {tcp}, b'\\xff\\xff\\xff\\xff' + b'x' * 100)") == [0]
    hello = "protocol.encode_frame({'gpumesh': 1, 'nonce': 'aa'})"
    # After the nonce of the listener a wrong proof gets nothing.
    wrong_proof = "protocol.encode_frame({'proof': 'ab' * 32, 'machine': 'n2', 'echo': ''})"
    answers = evaluate_as_stranger(other_host, f"raw({address}, {tcp}, {hello}, {wrong_proof})")
    assert answers[0] > 0 and answers[1] == 0
    # An order before the proof too.
    assert (
        evaluate_as_stranger(
            other_host, f"raw({address}, {tcp}, {hello}, protocol.encode_frame({{'do': 'give', 'size': 1000}}))"
        )[1]
        == 0
    )
    # A datagram without a session, even with the token.
    request = "protocol.pack_datagram('{}', protocol.Datagram(1, b'12345678', 1, 1400), 100)"
    assert evaluate_as_stranger(
        other_host, f"datagrams({address}, {udp}, b'noise', {request.format('wrong')}, {request.format(RUN_TOKEN)})"
    ) == [
        0,
        0,
        0,
    ]
    assert listener_host.run_listener(state="stopped", run=run_id)["stopped"] is True


def test_replayed_datagram_is_answered_once(pair: tuple[NamespaceHost, NamespaceHost]) -> None:
    listener_host, other_host = pair
    _run, ports = start_listener(listener_host)
    expression = (
        f"(lambda channel: (lambda welcome: datagrams('{listener_host.address}', {ports['udp']},"
        f" *[protocol.pack_datagram('{RUN_TOKEN}', protocol.Datagram(1, bytes.fromhex(welcome['session']), 7, 1400), 100)] * 2, first=60))"
        f"(channel.welcome_message))(session('{listener_host.address}', {ports['tcp']}, '{RUN_TOKEN}'))"
    )
    assert evaluate_as_stranger(other_host, expression) == [1372, 0]


def test_listener_ends_after_its_lifetime(pair: tuple[NamespaceHost, NamespaceHost]) -> None:
    listener_host, _other_host = pair
    run_id, _ports = start_listener(listener_host, lifetime=10)
    assert listener_host.find_processes() != []
    await_no_processes(listener_host)
    assert listener_host.run_listener(state="stopped", run=run_id)["stopped"] is False


def test_listener_ends_even_if_its_program_hangs(pair: tuple[NamespaceHost, NamespaceHost]) -> None:
    """A stopped process stands for any that does nothing any more: the alarm waits in the kernel."""
    listener_host, _other_host = pair
    start_listener(listener_host, lifetime=10)
    (process,) = listener_host.find_processes()
    subprocess.run(["kill", "-STOP", str(process)], check=True)
    time.sleep(11)
    subprocess.run(["kill", "-CONT", str(process)], check=True)
    await_no_processes(listener_host)


def test_another_user_cannot_stop_the_listener(pair: tuple[NamespaceHost, NamespaceHost]) -> None:
    listener_host, _other_host = pair
    run_id, _ports = start_listener(listener_host)
    code = (
        "import socket; client = socket.socket(socket.AF_UNIX); client.settimeout(60); "
        f"client.connect('\\0gpumesh/reach/listener/{run_id}'); client.sendall(b'stop\\n'); client.recv(100)"
    )
    with pytest.raises(AssertionError, match="(ConnectionReset|BrokenPipe)Error"):
        listener_host.run("setpriv", "--reuid=65534", "--clear-groups", "/usr/bin/python3", "-c", code)
    assert listener_host.find_processes() != []
    assert listener_host.run_listener(state="stopped", run=run_id)["stopped"] is True
    await_no_processes(listener_host)


def test_port_in_use_by_a_service_is_not_taken(pair: tuple[NamespaceHost, NamespaceHost]) -> None:
    listener_host, other_host = pair
    service = subprocess.Popen(
        ["ip", "netns", "exec", listener_host.namespace, "nc", "-lk", "0.0.0.0", "6817"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        while not listener_host.run("ss", "-Hltn", "sport = :6817"):
            assert service.poll() is None
            time.sleep(0.1)
        result = listener_host.run_listener(run=uuid4().hex, token=RUN_TOKEN, ports=[6817], lifetime=300)
        ports = {port["port"]: port["state"] for port in result["ports"]}
        assert ports[6817] == "service"
        peers = [{"machine": "n1", "address": listener_host.address, "ports": result["ports"]}]
        probed_peer = other_host.run_probe(run=uuid4().hex, token=RUN_TOKEN, peers=peers)["probe"]["peers"][0]
        outcomes = {(port["protocol"], port["port"]): port["outcome"] for port in probed_peer["ports"]}
        assert outcomes.pop(("tcp", 6817)) == "connected"
        assert set(outcomes.values()) == {"ok"}
    finally:
        service.terminate()
        service.wait()


def test_wrong_token_is_reported_as_stranger(pair: tuple[NamespaceHost, NamespaceHost]) -> None:
    listener_host, other_host = pair
    result = listener_host.run_listener(run=uuid4().hex, token=RUN_TOKEN, ports=[], sample_count=1, lifetime=300)
    peers = [{"machine": "n1", "address": listener_host.address, "ports": result["ports"]}]
    probed_peer = other_host.run_probe(run=uuid4().hex, token="another", peers=peers)["probe"]["peers"][0]
    assert [port["outcome"] for port in probed_peer["ports"]] == ["stranger", "not_checked"]
    assert probed_peer["seen"] is None


def test_oversized_payload_is_rejected_with_a_message(pair: tuple[NamespaceHost, NamespaceHost]) -> None:
    result = pair[0].run_probe(run=uuid4().hex, token=RUN_TOKEN, peers=[], payload_bytes=1 << 29)
    assert result["failed"] is True
    assert result["error"]["kind"] == "input"
    assert "payload_bytes" in result["msg"]


def test_run_has_one_listener_per_host(pair: tuple[NamespaceHost, NamespaceHost]) -> None:
    listener_host, _other_host = pair
    run_id, _ports = start_listener(listener_host)
    second_result = listener_host.run_listener(run=run_id, token=RUN_TOKEN, ports=[])
    assert second_result["failed"] is True
    assert second_result["error"]["kind"] == "host_state"
    assert listener_host.run_listener(state="stopped", run=run_id)["stopped"] is True


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ephemeral_range": "5"}, "invalid range of ports"),
        ({"ports": [70000]}, "70000 is an invalid port"),
        ({"address": "10.50.0.77"}, "Cannot listen on 10.50.0.77"),
        ({"lifetime": 0}, "lifetime is 0"),
    ],
)
def test_invalid_options_are_rejected_with_a_message(
    pair: tuple[NamespaceHost, NamespaceHost], options: dict[str, Any], message: str
) -> None:
    result = pair[0].run_listener(**{"run": uuid4().hex, "token": RUN_TOKEN, **options})
    assert result["failed"] is True
    assert message in result["msg"]
    assert result["error"]["remedy"]
    assert pair[0].find_processes() == []
