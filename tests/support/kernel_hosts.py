# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A lab of hosts with their own kernels: commands over SSH, power cuts, and boots that can be distinguished."""

from __future__ import annotations

import re
import socket
import struct
import subprocess
import tempfile
from collections.abc import Callable

from lab_hosts import ROOT, WAIT_TIMEOUT, Lab

#: The start of a request to User-mode Linux, and its fixed size: arch/um/drivers/mconsole.h of the kernel.
_REQUEST_MAGIC, _REQUEST_VERSION, _REQUEST_DATA_SIZE = 0xCAFEBABE, 2, 512


class KernelLab(Lab):
    """The lab that lab/kernel-up.yml has started."""

    def ssh(self, host: str, command: str, timeout: float = WAIT_TIMEOUT) -> subprocess.CompletedProcess[str]:
        """Run a shell command line on the host. Raises subprocess.TimeoutExpired if it does not end.

        Logins share a connection: a new process is expensive on these hosts, and each new connection starts several.
        """
        return self._ssh(host, "-o", "ControlMaster=auto", "-o", "ControlPersist=60", command=command, timeout=timeout)

    def run_shell(self, host: str, command: str, timeout: float = WAIT_TIMEOUT) -> str:
        """Run a shell command line. Returns its stdout; an error fails the test."""
        completed = self.ssh(host, command, timeout)
        assert completed.returncode == 0, f"{host}: {command}: {completed.stdout}{completed.stderr}"
        return completed.stdout

    def read_boot_id(self, host: str) -> str:
        """Return the boot ID, or an empty string if no login is possible."""
        try:
            own_connection = ("-o", "ControlPath=none")
            return self._ssh(
                host, *own_connection, command="cat /proc/sys/kernel/random/boot_id", timeout=120
            ).stdout.strip()
        except subprocess.TimeoutExpired:
            return ""

    def cut_power(self, host: str) -> None:
        """Cut the power of the host."""
        self._control_power("cut", host)
        self._close_connection(host)

    def boot(self, host: str) -> None:
        """Boot a host that is off, and wait until a login is possible."""
        self._control_power("start", host)
        self.wait_until(f"{host} is up", lambda: bool(self.read_boot_id(host)), seconds=900)

    def reboot(self, host: str, timeout: float = 900) -> None:
        """Reboot as an administrator does, and wait until a login is possible after the new boot."""
        previous_boot_id = self.run_shell(host, "cat /proc/sys/kernel/random/boot_id").strip()
        self.ssh(host, "systemctl reboot")
        self._close_connection(host)
        self.wait_until(
            f"{host} has rebooted", lambda: self.read_boot_id(host) not in {"", previous_boot_id}, seconds=timeout
        )

    def wait_until(
        self, description: str, condition: Callable[[], bool], seconds: float = WAIT_TIMEOUT, spacing: float = 3.0
    ) -> None:
        """Wait as on other hosts, and ask less often."""
        super().wait_until(description, condition, seconds, spacing)

    def read_console(self, host: str) -> str:
        """Return the console output of the kernel and systemd since the host was created, over all boots, without
        colours.
        """
        text = (self.inventory.parent / host / "console").read_text(errors="replace")
        return re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text)

    def log_as_kernel(self, host: str, message: str) -> None:
        """Have the kernel of the host write a message to its log. What root writes to /dev/kmsg does not count as its own."""
        request_text = f"log {message}\n".encode()
        header = struct.pack("=III", _REQUEST_MAGIC, _REQUEST_VERSION, len(request_text))
        console = str(self.inventory.parent / host / "run" / "host" / "mconsole")
        with tempfile.TemporaryDirectory() as directory, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as client:
            client.bind(f"{directory}/reply")
            client.settimeout(WAIT_TIMEOUT)
            client.sendto(header + request_text.ljust(_REQUEST_DATA_SIZE, b"\0"), console)
            error_number, _more, _length = struct.unpack_from("=III", client.recv(4096))
        assert error_number == 0, f"{host}: its kernel does not write to its log"

    def _ssh(self, host: str, *options: str, command: str = "", timeout: float) -> subprocess.CompletedProcess[str]:
        lab_directory = self.inventory.parent
        return subprocess.run(
            [
                *("ssh", *options, "-o", f"ControlPath={lab_directory / host}.ssh"),
                *("-i", str(lab_directory / "id_ed25519"), "-o", f"UserKnownHostsFile={lab_directory / 'known_hosts'}"),
                *("-o", "IdentitiesOnly=yes", "-o", "BatchMode=yes", "-o", "ConnectTimeout=60"),
                *("-o", "ServerAliveInterval=10", f"root@10.79.0.1{host[1:]}", *([command] if command else [])),
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout,
        )

    def _close_connection(self, host: str) -> None:
        """Close the connection that logins share. The host may not report that it has ended."""
        self._ssh(host, "-O", "exit", timeout=WAIT_TIMEOUT)

    def _control_power(self, action: str, host: str) -> None:
        command = [str(ROOT / "lab" / "kernel" / "host"), action, str(self.inventory.parent / host)]
        subprocess.run(command, check=True, capture_output=True, timeout=WAIT_TIMEOUT)
