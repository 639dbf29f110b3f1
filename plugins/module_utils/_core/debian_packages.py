# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The package of Debian and Ubuntu with each program that the collection runs on hosts.

The names are those of all releases in ``_host/releases.py``. A program that is not here comes from elsewhere, such as
the driver of a GPU. tests/unit/test_host_programs.py finds programs that are missing here, and layers that do not
install what they run.
"""

from __future__ import annotations

PACKAGE_BY_PROGRAM = {
    "apt-cache": "apt",
    "bridge": "iproute2",
    "cat": "coreutils",
    "catatonit": "catatonit",
    "crun": "crun",
    "du": "coreutils",
    "env": "coreutils",
    "exportfs": "nfs-kernel-server",
    "find": "findutils",
    "firewall-cmd": "firewalld",
    "fuse-overlayfs": "fuse-overlayfs",
    "ganesha.nfsd": "nfs-ganesha",
    "gcc": "gcc",
    "git": "git",
    "groupadd": "passwd",
    "ib_write_bw": "perftest",
    "ib_write_lat": "perftest",
    "ionice": "util-linux",
    "ip": "iproute2",
    "iperf3": "iperf3",
    "journalctl": "systemd",
    "make": "make",
    "mariadb": "mariadb-client",
    "mariadb-dump": "mariadb-client",
    "mariadbd": "mariadb-server",
    "modprobe": "kmod",
    "mount": "mount",
    "mount.nfs4": "nfs-common",
    "mpirun": "openmpi-bin",
    "munge": "munge",
    "munged": "munge",
    "mysql": "mariadb-client",
    "mysqldump": "mariadb-client",
    "newuidmap": "uidmap",
    "nft": "nftables",
    "openssl": "openssl",
    "pg_dump": "postgresql-client-common",
    "pg_lsclusters": "postgresql-common",
    "pg_restore": "postgresql-client-common",
    "podman": "podman",
    "psql": "postgresql-client-common",
    "python3": "python3",
    "rm": "coreutils",
    "rpc.nfsd": "nfs-kernel-server",
    "sacct": "slurm-client",
    "sacctmgr": "slurm-client",
    "sbatch": "slurm-client",
    "scancel": "slurm-client",
    "scontrol": "slurm-client",
    "setpriv": "util-linux",
    "sh": "dash",
    "sinfo": "slurm-client",
    "sleep": "coreutils",
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "slurmdbd": "slurmdbd",
    "slurmrestd": "slurmrestd",
    "squeue": "slurm-client",
    "srun": "slurm-client",
    "ssh": "openssh-client",
    "ssh-add": "openssh-client",
    "ssh-agent": "openssh-client",
    "ssh-keygen": "openssh-client",
    "sshd": "openssh-server",
    "stunnel": "stunnel4",
    "sudo": "sudo",
    "supervisorctl": "supervisor",
    "supervisord": "supervisor",
    "sysctl": "procps",
    "systemctl": "systemd",
    "systemd-detect-virt": "systemd",
    "systemd-run": "systemd",
    "timedatectl": "systemd",
    "timeout": "coreutils",
    "ufw": "ufw",
    "umount": "mount",
    "unmunge": "munge",
    "useradd": "passwd",
    "wg": "wireguard-tools",
    "wg-quick": "wireguard-tools",
    "wireguard-go": "wireguard-go",
    "xfs_quota": "xfsprogs",
}


def describe_installation(program: str) -> str:
    """Return the remedy for a program that a host does not have."""
    package = PACKAGE_BY_PROGRAM.get(program.rpartition("/")[2], program)
    return (
        f"Install {program}." if package == program else f"Install {program}, which is in Debian's package {package}."
    )
