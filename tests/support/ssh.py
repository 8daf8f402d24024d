"""Starts an SSH server on each host of a network. See hosts.py."""

import os
import pathlib
import shutil
import subprocess

import hosts

SERVER = """
Port 22
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
PidFile none
StrictModes no
PermitRootLogin yes
PasswordAuthentication no
UsePAM no
"""
CLIENT = """
Host *
  IdentityFile {folder}/user_key
  StrictHostKeyChecking no
  UserKnownHostsFile /dev/null
  LogLevel ERROR
"""


class Ssh:
    """`program` is a script that is used like ssh, but with the keys of these servers."""

    def __init__(self, network, folder):
        server = shutil.which("sshd", path="/usr/sbin:/sbin:" + os.environ["PATH"])
        if not server or not shutil.which("ssh-keygen"):
            raise hosts.NotPermitted("there is no program sshd")
        self.folder = pathlib.Path(folder) / "ssh"
        self.folder.mkdir()
        for name in ("host_key", "user_key"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.folder / name], check=True)
        (self.folder / "server").write_text(SERVER.format(folder=self.folder))
        (self.folder / "client").write_text(CLIENT.format(folder=self.folder))
        self.program = self.folder / "ssh"
        self.program.write_text(f'#!/bin/sh\nexec ssh -F {self.folder}/client "$@"\n')
        self.program.chmod(0o755)
        pathlib.Path("/run/sshd").mkdir(exist_ok=True)  # for the server's process without rights
        for name, host in network.hosts.items():
            if name.startswith("node"):
                host.run(server, "-f", self.folder / "server")
