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

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import GpumeshError
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.ssh import keys, known_hosts, settings
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.ssh.causes import SHELL_REMEDY, SilentHostError, quoted
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.ssh.silence import LIMIT, Question

try:
    import paramiko
except ImportError:
    _PARAMIKO = False
else:
    # Since 3.2, which is the first with the fingerprints of keys as well.
    _PARAMIKO = hasattr(paramiko.PKey, "from_path")

#: Seconds for each step, out of LIMIT for all of them. Ansible's ssh has already waited before, in vain.
_LOOKUP, _CONNECT, _GREETING, _ANSWER = 4.0, 4.0, 5.0, 4.0
_MARK = "gpumesh-answers"
_HTTPS_ALERT = b"\x15\x03"


class _Heard:
    """A socket that records what it received first: paramiko reports that a greeting is wrong, but not its content."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.first = b""
        #: Whether the other end has closed the connection.
        self.closed = False

    def recv(self, size: int) -> bytes:
        try:
            data = self._connection.recv(size)
        except ConnectionError:
            self.closed = True
            raise
        self.closed = not data
        self.first += data[: 256 - len(self.first)]
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


class Examination:
    """The examination of one host. Each step raises SilentHostError if the connection fails there."""

    def __init__(self, question: Question) -> None:
        self._question = question
        self._end = time.monotonic() + LIMIT
        self._settings = settings.ask(question.arguments, question.host)
        self._place = f"{self._settings.host} port {self._settings.port}"
        self._proxy: subprocess.Popen[bytes] | None = None

    def _left(self, most: float) -> float:
        return max(0.2, min(most, self._end - time.monotonic()))

    def run(self) -> SilentHostError:
        """Perform all steps. That all succeed is a result, too."""
        connection = self._through_proxy() if self._settings.proxy else self._connect()
        heard = _Heard(connection)
        # paramiko accepts any object that behaves like a socket.
        with connection, self._transport(heard) as transport:
            self._greet(transport, heard)
            self._compare_host_key(transport)
            key = self._log_in(transport)
            self._command(transport)
        return SilentHostError(
            "answers",
            f"{self._place} answers now: {self._settings.user} can log in with {key} and run commands.",
            "Run the playbook again. If it fails again, check the message of ssh, the persistent connections of Ansible "
            "(~/.ansible/cp), and whether the account's home directory is writable and has free space.",
        )

    # The way to it

    def _connect(self) -> socket.socket:
        failures = []
        for family, address in self._lookup():
            connection = socket.socket(family, socket.SOCK_STREAM)
            connection.settimeout(self._left(_CONNECT))
            try:
                connection.connect(address)
            except OSError as failure:
                connection.close()
                failures.append((str(address[0]), failure))
            else:
                return connection
        # A refusal is more informative than silence.
        told = min(failures, key=lambda one: one[1].errno != errno.ECONNREFUSED)
        raise self._no_connection(*told)

    def _lookup(self) -> list[tuple[socket.AddressFamily, Any]]:
        found: list[Any] = []
        failed: list[Exception] = []
        wanted = (self._settings.host, self._settings.port)

        def look() -> None:
            try:
                found.extend(socket.getaddrinfo(*wanted, type=socket.SOCK_STREAM))
            except (OSError, UnicodeError) as failure:
                failed.append(failure)

        # The resolver has no time limit that could be set.
        thread = threading.Thread(target=look, daemon=True)
        thread.start()
        thread.join(self._left(_LOOKUP))
        if not found:
            why = f"{failed[0].args[-1]}" if failed else "the name server does not answer"
            raise SilentHostError(
                "name",
                f"The name '{self._settings.host}' cannot be resolved on the machine that runs Ansible: {why}.",
                "Set ansible_host=ADDRESS in the inventory, or add the name to DNS or /etc/hosts.",
            )
        return [(family, address) for family, _type, _protocol, _name, address in found]

    def _no_connection(self, address: str, failure: OSError) -> SilentHostError:
        place = f"{address} port {self._settings.port}"
        if failure.errno == errno.ECONNREFUSED:
            return SilentHostError(
                "refused",
                f"{address} answers, but nothing listens on port {self._settings.port}.",
                "Start its SSH server (systemctl start ssh, or sshd), or set ansible_port to its port.",
            )
        if isinstance(failure, TimeoutError) and failure.errno is None:
            return SilentHostError(
                "no_answer",
                f"Nothing comes back from {place} within {_CONNECT:.0f} s.",
                "Check that the machine is on and has this address, and that firewalls and the cloud's security group "
                f"allow TCP port {self._settings.port} from the machine that runs Ansible.",
            )
        return SilentHostError(
            "no_route",
            f"There is no route to {place}: {failure.strerror or failure}.",
            "Check that the machine is on, that ansible_host is correct, and whether a VPN is required "
            f"(ip route get {address}).",
        )

    def _through_proxy(self) -> socket.socket:
        """One end of a pair of sockets; the other one is the input and output of the command.

        paramiko's own ProxyCommand would read from a closed command forever.
        """
        ours, its = socket.socketpair()
        # As with ssh, the command is a line for the shell.
        argv = ["/bin/sh", "-c", f"exec {self._settings.proxy}"]
        with its:
            self._proxy = subprocess.Popen(argv, stdin=its.fileno(), stdout=its.fileno(), stderr=subprocess.PIPE)
        return ours

    def _proxy_words(self) -> str:
        """The command's error message when it has ended; empty if there is none, or it still runs."""
        if self._proxy is None or self._proxy.stderr is None:
            return ""
        try:
            self._proxy.wait(1)
        except subprocess.TimeoutExpired:
            return ""
        ready = select.select([self._proxy.stderr], [], [], 0)[0]
        return self._proxy.stderr.read().decode("utf-8", "replace").strip() if ready else "it ended without a message"

    # The server

    @contextmanager
    def _transport(self, heard: _Heard) -> Iterator[paramiko.Transport]:
        transport = paramiko.Transport(heard)  # type: ignore[arg-type]
        try:
            yield transport
        finally:
            transport.close()
            if self._proxy is not None:
                self._proxy.kill()

    def _greet(self, transport: paramiko.Transport, heard: _Heard) -> None:
        options = transport.get_security_options()
        known = {one.type for one in self._known()}
        # The server presents the key of a type that we know, as it does to ssh.
        options.key_types = sorted(options.key_types, key=lambda one: _family(one) not in known)
        transport.banner_timeout = self._left(_GREETING)
        try:
            # After its timeout, it returns without an error; then there is no key.
            transport.start_client(timeout=self._left(_GREETING))
            transport.get_remote_server_key()
        except (paramiko.SSHException, EOFError, OSError) as failure:
            raise self._no_greeting(heard, failure) from failure

    def _no_greeting(self, heard: _Heard, failure: Exception) -> SilentHostError:
        first = heard.first
        proxy = self._proxy_words()
        if proxy and b"SSH-" not in first:
            way = f"the jump host {self._settings.jump}" if self._settings.jump else "the ProxyCommand"
            return SilentHostError(
                "jump_host",
                f"{self._place} cannot be reached through {way}: {quoted(proxy, 300)}.",
                f"Try it manually: {self._settings.proxy} </dev/null",
            )
        if first.startswith((b"SSH-2", b"SSH-1.99")):
            return SilentHostError(
                "not_checked",
                f"{self._place} is an SSH server, but paramiko cannot negotiate a connection with it: {failure}.",
                f"Try 'ssh -v {self._settings.user}@{self._settings.host}'.",
            )
        if first:
            return self._other_greeting(first)
        if heard.closed:
            return SilentHostError(
                "turned_away",
                f"{self._place} accepts the connection and closes it without a message.",
                "If it is an SSH server, it rejects this machine: wait a few minutes, then check MaxStartups, "
                "PerSourcePenalties, fail2ban and /etc/hosts.deny there. If it is a load balancer, it has no backend.",
            )
        return SilentHostError(
            "no_banner",
            f"{self._place} accepts the connection but sends nothing for {_GREETING:.0f} s.",
            "Check its console: the machine may hang or be overloaded. Or something other than an SSH server listens "
            "there; then set ansible_port.",
        )

    def _other_greeting(self, first: bytes) -> SilentHostError:
        said = quoted(first.decode("utf-8", "replace").strip())
        if first.startswith((b"Exceeded MaxStartups", b"Not allowed at this time")):
            return SilentHostError(
                "turned_away",
                f"The SSH server at {self._place} rejects this machine: {said}.",
                "Wait a few minutes and run with fewer forks, or raise MaxStartups or PerSourcePenalties in its "
                "sshd_config.",
            )
        if first.startswith(_HTTPS_ALERT):
            said = "the alert of a TLS server"
        return SilentHostError(
            "not_ssh",
            f"{self._place} is not an SSH server: it sends {said}.",
            "Set ansible_port to the port of the SSH server, or ansible_host to its address.",
        )

    def _known(self) -> list[known_hosts.Known]:
        return known_hosts.find(self._settings.known_as, self._settings.known_hosts)

    def _is_known_without_port(self, key: paramiko.PKey) -> bool:
        """Whether the key is known under the name alone, which ssh accepts for any port as well."""
        wanted = self._settings
        if wanted.known_as != f"[{wanted.host}]:{wanted.port}":
            return False
        known = known_hosts.find(wanted.host, wanted.known_hosts)
        return known_hosts.judge(known, key.get_name(), key.get_base64()) == "known"

    def _compare_host_key(self, transport: paramiko.Transport) -> None:
        key = transport.get_remote_server_key()
        known = self._known()
        verdict = known_hosts.judge(known, key.get_name(), key.get_base64())
        if verdict == "unknown" and self._is_known_without_port(key):
            return
        name = key.get_name()
        kind = name.removeprefix("ssh-").split("-")[0]
        fingerprint = f"{name} {key.fingerprint}"
        compare = f"compare it at its console (ssh-keygen -lf /etc/ssh/ssh_host_{kind}_key.pub)"
        if verdict == "revoked":
            raise SilentHostError(
                "host_key_revoked",
                f"{self._place} presents a host key that is marked as revoked in known_hosts ({fingerprint}).",
                "Generate new host keys on the machine; anyone with the old one can impersonate it.",
            )
        if verdict == "changed" and self._settings.strict != "no":
            old = next(one for one in known if one.type == name)
            raise SilentHostError(
                "host_key_changed",
                f"{self._place} presents a different host key ({fingerprint}) than line {old.line} of {old.file}.",
                f"If it was reinstalled, {compare} and remove the old one: ssh-keygen -R "
                f"{shlex.quote(self._settings.known_as)} -f {shlex.quote(old.file)}. Otherwise, another machine answers "
                "at its address.",
                fingerprint=key.fingerprint,
            )
        if verdict == "unknown" and self._settings.strict not in ("no", "accept-new"):
            raise SilentHostError(
                "host_key_unknown",
                f"The host key of {self._place} is not known to the machine that runs Ansible ({fingerprint}).",
                f"Log in once manually and {compare}: ssh -p {self._settings.port} "
                f"{self._settings.user}@{self._question.host}. Or accept new keys without verification: "
                "ansible_ssh_common_args='-o StrictHostKeyChecking=accept-new'.",
                fingerprint=key.fingerprint,
            )

    # The login

    def _log_in(self, transport: paramiko.Transport) -> str:
        """Log in. Returns a description of the accepted key."""
        user = self._settings.user
        transport.auth_timeout = self._left(_ANSWER)
        try:
            transport.auth_none(user)
        except paramiko.BadAuthenticationType as refusal:
            methods = list(refusal.allowed_types)
        else:
            return "no key at all"
        if "publickey" not in methods:
            raise self._no_login(methods, keys.Keys([], []))
        with keys.of_agent(self._settings.agent) as in_agent:
            held = keys.gather(self._settings, self._question.key, in_agent)
            taken = self._try_keys(transport, held)
        if taken is None:
            raise self._no_login(methods, held)
        return taken

    def _try_keys(self, transport: paramiko.Transport, held: keys.Keys) -> str | None:
        user = self._settings.user
        for number, offer in enumerate(held.offers, 1):
            transport.auth_timeout = self._left(_ANSWER)
            try:
                more = transport.auth_publickey(user, offer.key)
            except paramiko.SSHException:
                if not transport.is_active():
                    raise SilentHostError(
                        "too_many_keys",
                        f"The SSH server at {self._place} closes the connection after {number} of {len(held.offers)} keys, "
                        "none of which it accepts.",
                        "Offer only the right one: set ansible_ssh_private_key_file to it, and "
                        "ansible_ssh_common_args='-o IdentitiesOnly=yes'.",
                        keys=[one.words for one in held.offers],
                        user=user,
                    ) from None
                continue
            if more:
                raise SilentHostError(
                    "second_factor",
                    f"{self._place} accepts {offer.words} for {user}, but requires more: {', '.join(more)}.",
                    "Exempt Ansible's account or address from the second factor (AuthenticationMethods in sshd_config).",
                )
            return offer.words
        return None

    def _no_login(self, methods: list[str], held: keys.Keys) -> SilentHostError:
        user, place = self._settings.user, self._place
        details = {"user": user, "keys": [offer.words for offer in held.offers], "methods": methods}
        asks = any(method in methods for method in ("password", "keyboard-interactive"))
        if self._question.password and asks:
            return SilentHostError(
                "password_refused",
                f"{place} rejects the password for {user}.",
                "Correct ansible_user and ansible_password" + (", or log in with a key." if held.offers else "."),
                **details,
            )
        if "publickey" not in methods:
            return SilentHostError(
                "password_wanted",
                f"{place} accepts no keys from {user}, only {' or '.join(methods) or 'nothing'}.",
                "Set ansible_password, use --ask-pass, or allow PubkeyAuthentication in its sshd_config.",
                **details,
            )
        unusable = " ".join(one.message for one in held.unusable)
        if not held.offers:
            first = held.unusable[0] if held.unusable else None
            return SilentHostError(
                first.cause if first else "no_key",
                f"{place} requires a key from {user}, but ssh has none. {unusable}".rstrip(),
                first.remedy
                if first
                else "Generate one (ssh-keygen) and copy the public key to the machine (ssh-copy-id), or set "
                "ansible_ssh_private_key_file.",
                **details,
            )
        root = " Or its sshd_config does not allow root (PermitRootLogin): then log in as another user with become." * (
            user == "root"
        )
        return SilentHostError(
            "key_refused",
            f"{place} accepts none of the keys for {user}: {', '.join(offer.words for offer in held.offers)}. "
            f"{unusable}".rstrip(),
            f"Add the public key to {user}'s authorized_keys there, which must be writable only by {user}; or set "
            "ansible_ssh_private_key_file to another key, or ansible_user to another account."
            + (root or (" It also accepts a password (--ask-pass)." if asks else "")),
            **details,
        )

    def _command(self, transport: paramiko.Transport) -> None:
        """An account may allow logins, but not run commands."""
        said = b""
        try:
            channel = transport.open_session(timeout=self._left(_ANSWER))
            channel.settimeout(self._left(_ANSWER))
            channel.set_combine_stderr(True)
            channel.exec_command(f"echo {_MARK}")
            while data := channel.recv(4096):
                said += data
        except (paramiko.SSHException, EOFError, OSError) as failure:
            said += str(failure).encode()
        text = said.decode("utf-8", "replace")
        if _MARK not in text:
            raise SilentHostError(
                "shell",
                f"{self._settings.user} can log in to {self._place}, but cannot run commands: "
                f"{quoted(text or 'no output', 200)}.",
                SHELL_REMEDY,
            )


def _family(algorithm: str) -> str:
    """The type of key of a signature algorithm, as in known_hosts."""
    return "ssh-rsa" if algorithm.startswith("rsa-") else algorithm


def examine(question: Question) -> SilentHostError:
    """Why a host does not answer."""
    if not _PARAMIKO:
        return SilentHostError(
            "not_checked",
            "The reason was not examined: the Python that runs Ansible has no paramiko 3.2 or later.",
            f"Install it: {sys.executable} -m pip install 'paramiko>=3.2'",
        )
    # Its threads log the exceptions as well.
    logging.getLogger("paramiko").addHandler(logging.NullHandler())
    try:
        return Examination(question).run()
    except SilentHostError as why:
        return why
    except (paramiko.SSHException, EOFError, OSError, subprocess.TimeoutExpired) as failure:
        return SilentHostError(
            "not_checked",
            f"The reason could not be determined: {type(failure).__name__}: {failure}.",
            f"Try 'ssh -v {question.host}' on the machine that runs Ansible.",
        )


def main() -> None:
    """Read one question, and write one error."""
    why: GpumeshError = examine(Question(**json.load(sys.stdin)))
    json.dump(why.as_result(), sys.stdout)


if __name__ == "__main__":
    main()
