# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Perform an SSH connection step by step, and report at which step it fails, and why.

This is a separate program, so the process that runs Ansible's task neither loads paramiko while all hosts answer, nor
hangs or fails with it. Reads a Question as JSON from standard input, and writes the error as JSON.
"""

from __future__ import annotations

import errno
import json
import logging
import select
import shlex
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import GpumeshError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import join_names
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.ssh import keys, known_hosts, settings
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.ssh.causes import (
    SHELL_REMEDY,
    SilentHostError,
    quote_message,
)
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.ssh.silence import TIME_LIMIT, Question

try:
    import paramiko
except ImportError:
    _HAS_PARAMIKO = False
else:
    # from_path and the fingerprints of keys exist since paramiko 3.2.
    _HAS_PARAMIKO = hasattr(paramiko.PKey, "from_path")

#: Seconds for each step, out of TIME_LIMIT for all of them. Ansible's own ssh has already waited in vain.
_LOOKUP_TIMEOUT, _CONNECT_TIMEOUT, _BANNER_TIMEOUT, _RESPONSE_TIMEOUT = 4.0, 4.0, 5.0, 4.0
_ECHO_MARKER = "gpumesh-answers"
_HTTPS_ALERT = b"\x15\x03"


class _RecordingSocket:
    """A socket that records the first bytes it receives: paramiko reports an invalid banner without its content."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.first_bytes = b""
        #: Whether the other end has closed the connection.
        self.closed = False

    def recv(self, size: int) -> bytes:
        try:
            chunk = self._connection.recv(size)
        except ConnectionError:
            self.closed = True
            raise
        self.closed = not chunk
        self.first_bytes += chunk[: 256 - len(self.first_bytes)]
        return chunk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


class HostExamination:
    """The examination of one host. Each step raises UnreachableHostError if the connection fails there."""

    def __init__(self, question: Question) -> None:
        self._question = question
        self._deadline = time.monotonic() + TIME_LIMIT
        self._ssh_settings = settings.query_settings(question.arguments, question.host)
        self._destination = f"{self._ssh_settings.host} port {self._ssh_settings.port}"
        self._proxy_process: subprocess.Popen[bytes] | None = None

    def _remaining_time(self, limit: float) -> float:
        return max(0.2, min(limit, self._deadline - time.monotonic()))

    def run(self) -> SilentHostError:
        """Perform all steps. If all of them succeed, the result says so."""
        connection = self._connect_through_proxy() if self._ssh_settings.proxy_command else self._connect()
        recording_socket = _RecordingSocket(connection)
        # paramiko accepts any object that behaves like a socket.
        with connection, self._transport(recording_socket) as transport:
            self._negotiate(transport, recording_socket)
            self._compare_host_key(transport)
            accepted_key = self._log_in(transport)
            self._run_test_command(transport)
        return SilentHostError(
            "answers",
            f"{self._destination} answers now: {self._ssh_settings.user} can log in with {accepted_key} and run commands.",
            "Run the playbook again. If it fails again, check the message of ssh, the persistent connections of Ansible "
            "(~/.ansible/cp), and whether the account's home directory is writable and has free space.",
        )

    # Reaching the server

    def _connect(self) -> socket.socket:
        failures = []
        for family, address in self._resolve_host():
            connection = socket.socket(family, socket.SOCK_STREAM)
            connection.settimeout(self._remaining_time(_CONNECT_TIMEOUT))
            try:
                connection.connect(address)
            except OSError as failure:
                connection.close()
                failures.append((str(address[0]), failure))
            else:
                return connection
        # A refused connection is more informative than a timeout.
        clearest_failure = min(failures, key=lambda attempt: attempt[1].errno != errno.ECONNREFUSED)
        raise self._explain_failed_connection(*clearest_failure)

    def _resolve_host(self) -> list[tuple[socket.AddressFamily, Any]]:
        resolved_addresses: list[Any] = []
        lookup_errors: list[Exception] = []
        host_and_port = (self._ssh_settings.host, self._ssh_settings.port)

        def resolve() -> None:
            try:
                resolved_addresses.extend(socket.getaddrinfo(*host_and_port, type=socket.SOCK_STREAM))
            except (OSError, UnicodeError) as failure:
                lookup_errors.append(failure)

        # The resolver has no time limit that could be set.
        lookup_thread = threading.Thread(target=resolve, daemon=True)
        lookup_thread.start()
        lookup_thread.join(self._remaining_time(_LOOKUP_TIMEOUT))
        if not resolved_addresses:
            failure_reason = f"{lookup_errors[0].args[-1]}" if lookup_errors else "the name server does not answer"
            raise SilentHostError(
                "name",
                f"The name '{self._ssh_settings.host}' cannot be resolved on the machine that runs Ansible: {failure_reason}.",
                "Set ansible_host=ADDRESS in the inventory, or add the name to DNS or /etc/hosts.",
            )
        return [(family, address) for family, _type, _protocol, _name, address in resolved_addresses]

    def _explain_failed_connection(self, address: str, failure: OSError) -> SilentHostError:
        destination = f"{address} port {self._ssh_settings.port}"
        if failure.errno == errno.ECONNREFUSED:
            return SilentHostError(
                "refused",
                f"{address} answers, but nothing listens on port {self._ssh_settings.port}.",
                "Start its SSH server (systemctl start ssh, or sshd), or set ansible_port to its port.",
            )
        if isinstance(failure, TimeoutError) and failure.errno is None:
            return SilentHostError(
                "no_answer",
                f"Nothing comes back from {destination} within {_CONNECT_TIMEOUT:.0f} s.",
                "Check that the machine is on and has this address, and that firewalls and the cloud's security group "
                f"allow TCP port {self._ssh_settings.port} from the machine that runs Ansible.",
            )
        return SilentHostError(
            "no_route",
            f"There is no route to {destination}: {failure.strerror or failure}.",
            "Check that the machine is on, that ansible_host is correct, and whether a VPN is required "
            f"(ip route get {address}).",
        )

    def _connect_through_proxy(self) -> socket.socket:
        """Run the proxy command on one end of a pair of sockets, and return the other end.

        paramiko's own ProxyCommand would read forever from a command that has ended.
        """
        our_end, proxy_end = socket.socketpair()
        # The command is a line for the shell, as with ssh.
        shell_command = ["/bin/sh", "-c", f"exec {self._ssh_settings.proxy_command}"]
        with proxy_end:
            self._proxy_process = subprocess.Popen(
                shell_command, stdin=proxy_end.fileno(), stdout=proxy_end.fileno(), stderr=subprocess.PIPE
            )
        return our_end

    def _read_proxy_error(self) -> str:
        """Return the error message of a proxy command that has ended; empty if there is none, or it still runs."""
        if self._proxy_process is None or self._proxy_process.stderr is None:
            return ""
        try:
            self._proxy_process.wait(1)
        except subprocess.TimeoutExpired:
            return ""
        readable_streams = select.select([self._proxy_process.stderr], [], [], 0)[0]
        return (
            self._proxy_process.stderr.read().decode("utf-8", "replace").strip()
            if readable_streams
            else "it ended without a message"
        )

    # The SSH protocol

    @contextmanager
    def _transport(self, recording_socket: _RecordingSocket) -> Iterator[paramiko.Transport]:
        transport = paramiko.Transport(recording_socket)  # type: ignore[arg-type]
        try:
            yield transport
        finally:
            transport.close()
            if self._proxy_process is not None:
                self._proxy_process.kill()

    def _negotiate(self, transport: paramiko.Transport, recording_socket: _RecordingSocket) -> None:
        security_options = transport.get_security_options()
        known_types = {candidate.type for candidate in self._known_host_entries()}
        # Preferring the known key types makes the server present one of these, as it does to ssh.
        security_options.key_types = sorted(
            security_options.key_types, key=lambda candidate: _key_type_of_algorithm(candidate) not in known_types
        )
        transport.banner_timeout = self._remaining_time(_BANNER_TIMEOUT)
        try:
            # start_client returns without an error after its timeout; then there is no key.
            transport.start_client(timeout=self._remaining_time(_BANNER_TIMEOUT))
            transport.get_remote_server_key()
        except (paramiko.SSHException, EOFError, OSError) as failure:
            raise self._explain_missing_banner(recording_socket, failure) from failure

    def _explain_missing_banner(self, recording_socket: _RecordingSocket, failure: Exception) -> SilentHostError:
        first_bytes = recording_socket.first_bytes
        proxy_error = self._read_proxy_error()
        if proxy_error and b"SSH-" not in first_bytes:
            proxy_description = (
                f"the jump host {self._ssh_settings.jump_hosts}"
                if self._ssh_settings.jump_hosts
                else "the ProxyCommand"
            )
            return SilentHostError(
                "jump_host",
                f"{self._destination} cannot be reached through {proxy_description}: {quote_message(proxy_error, 300)}.",
                f"Try it manually: {self._ssh_settings.proxy_command} </dev/null",
            )
        if first_bytes.startswith((b"SSH-2", b"SSH-1.99")):
            return SilentHostError(
                "not_checked",
                f"{self._destination} is an SSH server, but paramiko cannot negotiate a connection with it: {failure}.",
                f"Try 'ssh -v {self._ssh_settings.user}@{self._ssh_settings.host}'.",
            )
        if first_bytes:
            return self._explain_other_banner(first_bytes)
        if recording_socket.closed:
            return SilentHostError(
                "turned_away",
                f"{self._destination} accepts the connection and closes it without a message.",
                "If it is an SSH server, it rejects this machine: wait a few minutes, then check MaxStartups, "
                "PerSourcePenalties, fail2ban and /etc/hosts.deny there. If it is a load balancer, it has no backend.",
            )
        return SilentHostError(
            "no_banner",
            f"{self._destination} accepts the connection but sends nothing for {_BANNER_TIMEOUT:.0f} s.",
            "Check its console: the machine may hang or be overloaded. Or something other than an SSH server listens "
            "there; then set ansible_port.",
        )

    def _explain_other_banner(self, first_bytes: bytes) -> SilentHostError:
        banner_description = quote_message(first_bytes.decode("utf-8", "replace").strip())
        if first_bytes.startswith((b"Exceeded MaxStartups", b"Not allowed at this time")):
            return SilentHostError(
                "turned_away",
                f"The SSH server at {self._destination} rejects this machine: {banner_description}.",
                "Wait a few minutes and run with fewer forks, or raise MaxStartups or PerSourcePenalties in its "
                "sshd_config.",
            )
        if first_bytes.startswith(_HTTPS_ALERT):
            banner_description = "the alert of a TLS server"
        return SilentHostError(
            "not_ssh",
            f"{self._destination} is not an SSH server: it sends {banner_description}.",
            "Set ansible_port to the port of the SSH server, or ansible_host to its address.",
        )

    def _known_host_entries(self) -> list[known_hosts.KnownHostEntry]:
        return known_hosts.find_entries(self._ssh_settings.known_hosts_name, self._ssh_settings.known_hosts)

    def _is_known_without_port(self, host_key: paramiko.PKey) -> bool:
        """Whether the key is known under the host name without a port, which ssh accepts for any port."""
        ssh_settings = self._ssh_settings
        if ssh_settings.known_hosts_name != f"[{ssh_settings.host}]:{ssh_settings.port}":
            return False
        entries_without_port = known_hosts.find_entries(ssh_settings.host, ssh_settings.known_hosts)
        return known_hosts.judge_key(entries_without_port, host_key.get_name(), host_key.get_base64()) == "known"

    def _compare_host_key(self, transport: paramiko.Transport) -> None:
        host_key = transport.get_remote_server_key()
        known_entries = self._known_host_entries()
        verdict = known_hosts.judge_key(known_entries, host_key.get_name(), host_key.get_base64())
        if verdict == "unknown" and self._is_known_without_port(host_key):
            return
        key_type = host_key.get_name()
        algorithm = key_type.removeprefix("ssh-").split("-")[0]
        fingerprint = f"{key_type} {host_key.fingerprint}"
        comparison_hint = f"compare it at its console (ssh-keygen -lf /etc/ssh/ssh_host_{algorithm}_key.pub)"
        if verdict == "revoked":
            raise SilentHostError(
                "host_key_revoked",
                f"{self._destination} presents a host key that is marked as revoked in known_hosts ({fingerprint}).",
                "Generate new host keys on the machine; anyone with the old one can impersonate it.",
            )
        if verdict == "changed" and self._ssh_settings.strict_checking != "no":
            old_entry = next(entry for entry in known_entries if entry.type == key_type)
            raise SilentHostError(
                "host_key_changed",
                f"{self._destination} presents a different host key ({fingerprint}) than line {old_entry.line} of {old_entry.file}.",
                f"If it was reinstalled, {comparison_hint} and remove the old one: ssh-keygen -R "
                f"{shlex.quote(self._ssh_settings.known_hosts_name)} -f {shlex.quote(old_entry.file)}. Otherwise, another machine answers "
                "at its address.",
                fingerprint=host_key.fingerprint,
            )
        if verdict == "unknown" and self._ssh_settings.strict_checking not in ("no", "accept-new"):
            raise SilentHostError(
                "host_key_unknown",
                f"The host key of {self._destination} is not known to the machine that runs Ansible ({fingerprint}).",
                f"Log in once manually and {comparison_hint}: ssh -p {self._ssh_settings.port} "
                f"{self._ssh_settings.user}@{self._question.host}. Or accept new keys without verification: "
                "ansible_ssh_common_args='-o StrictHostKeyChecking=accept-new'.",
                fingerprint=host_key.fingerprint,
            )

    # The login

    def _log_in(self, transport: paramiko.Transport) -> str:
        """Log in, and return a description of the accepted key."""
        user = self._ssh_settings.user
        transport.auth_timeout = self._remaining_time(_RESPONSE_TIMEOUT)
        try:
            transport.auth_none(user)
        except paramiko.BadAuthenticationType as refusal:
            allowed_methods = list(refusal.allowed_types)
        else:
            return "no key at all"
        if "publickey" not in allowed_methods:
            raise self._explain_refused_login(allowed_methods, keys.CandidateKeys([], []))
        with keys.load_agent_keys(self._ssh_settings.agent_socket) as agent_keys:
            candidate_keys = keys.gather_keys(self._ssh_settings, self._question.key, agent_keys)
            accepted_key = self._try_keys(transport, candidate_keys)
        if accepted_key is None:
            raise self._explain_refused_login(allowed_methods, candidate_keys)
        return accepted_key

    def _try_keys(self, transport: paramiko.Transport, candidate_keys: keys.CandidateKeys) -> str | None:
        user = self._ssh_settings.user
        for attempt_count, offer in enumerate(candidate_keys.offers, 1):
            transport.auth_timeout = self._remaining_time(_RESPONSE_TIMEOUT)
            try:
                further_methods = transport.auth_publickey(user, offer.key)
            except paramiko.SSHException:
                if not transport.is_active():
                    raise SilentHostError(
                        "too_many_keys",
                        f"The SSH server at {self._destination} closes the connection after {attempt_count} of {len(candidate_keys.offers)} keys, "
                        "none of which it accepts.",
                        "Offer only the right one: set ansible_ssh_private_key_file to it, and "
                        "ansible_ssh_common_args='-o IdentitiesOnly=yes'.",
                        keys=[offered_key.description for offered_key in candidate_keys.offers],
                        user=user,
                    ) from None
                continue
            if further_methods:
                raise SilentHostError(
                    "second_factor",
                    f"{self._destination} accepts {offer.description} for {user}, but requires more: {', '.join(further_methods)}.",
                    "Exempt Ansible's account or address from the second factor (AuthenticationMethods in sshd_config).",
                )
            return offer.description
        return None

    def _explain_refused_login(self, allowed_methods: list[str], candidate_keys: keys.CandidateKeys) -> SilentHostError:
        user, destination = self._ssh_settings.user, self._destination
        login_details = {
            "user": user,
            "keys": [offer.description for offer in candidate_keys.offers],
            "methods": allowed_methods,
        }
        accepts_password = any(method in allowed_methods for method in ("password", "keyboard-interactive"))
        if self._question.password and accepts_password:
            return SilentHostError(
                "password_refused",
                f"{destination} rejects the password for {user}.",
                "Correct ansible_user and ansible_password"
                + (", or log in with a key." if candidate_keys.offers else "."),
                **login_details,
            )
        if "publickey" not in allowed_methods:
            return SilentHostError(
                "password_wanted",
                f"{destination} accepts no keys from {user}, only {join_names(allowed_methods, 'or') or 'nothing'}.",
                "Set ansible_password, use --ask-pass, or allow PubkeyAuthentication in its sshd_config.",
                **login_details,
            )
        unusable_reasons = " ".join(key_error.message for key_error in candidate_keys.unusable)
        if not candidate_keys.offers:
            first_error = candidate_keys.unusable[0] if candidate_keys.unusable else None
            return SilentHostError(
                first_error.cause if first_error else "no_key",
                f"{destination} requires a key from {user}, but ssh has none. {unusable_reasons}".rstrip(),
                first_error.remedy
                if first_error
                else "Generate one (ssh-keygen) and copy the public key to the machine (ssh-copy-id), or set "
                "ansible_ssh_private_key_file.",
                **login_details,
            )
        root_hint = (
            " Or its sshd_config does not allow root (PermitRootLogin): then log in as another user with become."
            * (user == "root")
        )
        return SilentHostError(
            "key_refused",
            f"{destination} accepts none of the keys for {user}: {', '.join(offer.description for offer in candidate_keys.offers)}. "
            f"{unusable_reasons}".rstrip(),
            f"Add the public key to {user}'s authorized_keys there, which must be writable only by {user}; or set "
            "ansible_ssh_private_key_file to another key, or ansible_user to another account."
            + (root_hint or (" It also accepts a password (--ask-pass)." if accepts_password else "")),
            **login_details,
        )

    def _run_test_command(self, transport: paramiko.Transport) -> None:
        """Run a command, since an account may allow logins, but no commands."""
        raw_output = b""
        try:
            channel = transport.open_session(timeout=self._remaining_time(_RESPONSE_TIMEOUT))
            channel.settimeout(self._remaining_time(_RESPONSE_TIMEOUT))
            channel.set_combine_stderr(True)
            channel.exec_command(f"echo {_ECHO_MARKER}")
            while chunk := channel.recv(4096):
                raw_output += chunk
        except (paramiko.SSHException, EOFError, OSError) as failure:
            raw_output += str(failure).encode()
        decoded_output = raw_output.decode("utf-8", "replace")
        if _ECHO_MARKER not in decoded_output:
            raise SilentHostError(
                "shell",
                f"{self._ssh_settings.user} can log in to {self._destination}, but cannot run commands: "
                f"{quote_message(decoded_output or 'no output', 200)}.",
                SHELL_REMEDY,
            )


def _key_type_of_algorithm(algorithm: str) -> str:
    """Return the key type of a signature algorithm, as known_hosts names it."""
    return "ssh-rsa" if algorithm.startswith("rsa-") else algorithm


def examine(question: Question) -> SilentHostError:
    """Find out why a host does not answer."""
    if not _HAS_PARAMIKO:
        return SilentHostError(
            "not_checked",
            "The cause could not be determined, because the Python that runs Ansible has no paramiko 3.2 or later.",
            f"Install it: {sys.executable} -m pip install 'paramiko>=3.2'",
        )
    # The threads of paramiko also log the exceptions.
    logging.getLogger("paramiko").addHandler(logging.NullHandler())
    try:
        return HostExamination(question).run()
    except SilentHostError as unreachable_reason:
        return unreachable_reason
    except (paramiko.SSHException, EOFError, OSError, subprocess.TimeoutExpired) as failure:
        return SilentHostError(
            "not_checked",
            f"The cause could not be determined: {type(failure).__name__}: {failure}.",
            f"Try 'ssh -v {question.host}' on the machine that runs Ansible.",
        )


def main() -> None:
    """Read one question from standard input, and write one error to standard output."""
    unreachable_reason: GpumeshError = examine(Question(**json.load(sys.stdin)))
    json.dump(unreachable_reason.to_result(), sys.stdout)


if __name__ == "__main__":
    main()
