"""Simulates the hosts of a network by namespaces of Linux: each has its own addresses, name, /etc/hosts, /dev/shm, /tmp
and processes. Needs root.

    with hosts.Network(folder, 3) as network:
        process = network.start("node1", ["hostname"])
"""

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import threading
import time

NAMESPACES = ["--net", "--mount", "--uts", "--ipc", "--pid"]
SUBNETS = {4: ("10.77.{network}.{host}", 24), 6: ("fd77:{network}::{host}", 64)}


class NotPermitted(Exception):
    """This process may not create namespaces, or a program that is needed is missing."""


def _run(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))}: {done.stderr.strip()}")
    return done.stdout


class Host:
    """A host: a process that sleeps in new namespaces, and whatever is started in them."""

    def __init__(self, name, folder):
        self.name = name
        self.addresses = []
        # The first process of the namespace of processes: when it is killed, so are all others.
        self.first = subprocess.Popen(["unshare", *NAMESPACES, "--fork", "--kill-child", "--mount-proc", "--propagation",
                                       "private", "sleep", "infinity"], stdout=subprocess.DEVNULL,
                                      stderr=subprocess.PIPE, start_new_session=True)
        self.pid = self._pid_of_sleep()
        (folder / "tmp" / name).mkdir(parents=True)
        self.run("hostname", name)
        self.run("ip", "link", "set", "lo", "up")
        self.run("mount", "-t", "tmpfs", "tmpfs", "/dev/shm")
        self.run("mount", "-t", "tmpfs", "tmpfs", "/var/tmp")

    def _pid_of_sleep(self):
        children = pathlib.Path(f"/proc/{self.first.pid}/task/{self.first.pid}/children")
        for _ in range(200):
            if self.first.poll() is not None:
                raise NotPermitted(self.first.stderr.read().decode().strip())
            found = children.read_text().split()
            if found and pathlib.Path(f"/proc/{found[0]}/comm").read_text().strip() == "sleep":
                return int(found[0])
            time.sleep(0.01)
        raise NotPermitted("unshare did not start")

    def command(self, command, folder="/", environment=()):
        """The command that runs `command` on this host. Variables are those of the caller and `environment`."""
        return ["nsenter", f"--target={self.pid}", *NAMESPACES, "env", "-C", str(folder), *environment,
                *[str(word) for word in command]]

    def run(self, *command):
        return _run(*self.command(command))

    def is_running(self, program):
        """Whether a process with this name runs on the host. Nothing runs on a host that
        was killed."""
        if self.first.poll() is not None:
            return False
        return subprocess.run(self.command(["pgrep", "--runstates", "DRST", "-x", program]), capture_output=True).returncode == 0

    def kill(self):
        """Ends the host and all its processes, as a loss of power does."""
        if self.first.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
        self.first.wait()
        self.first.stderr.close()


class Network:
    """Hosts node1, node2, ... and a switch between them. `head` is one more host."""

    def __init__(self, folder, count, versions=(4,), num_networks=1, has_head=False):
        if os.geteuid() != 0:
            raise NotPermitted("only root may create namespaces")
        for program in ("ip", "nsenter", "unshare"):
            if not shutil.which(program):
                raise NotPermitted(f"there is no program {program}")
        self.folder = pathlib.Path(folder)
        self.hosts = {}
        self.num_networks = num_networks
        self.versions = versions
        try:
            self.switch = self._add("switch")
            for network in range(num_networks):
                self.switch.run("ip", "link", "add", f"br{network}", "type", "bridge")
                self.switch.run("ip", "link", "set", f"br{network}", "up")
            names = [f"node{i + 1}" for i in range(count)] + (["head"] if has_head else [])
            for number, name in enumerate(names, start=1):
                self._connect(self._add(name), number)
            self._name_hosts()
        except BaseException:
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.close()

    def __getitem__(self, name):
        return self.hosts[name]

    def close(self):
        for host in self.hosts.values():
            host.kill()

    def _add(self, name):
        self.hosts[name] = Host(name, self.folder)
        return self.hosts[name]

    def _connect(self, host, number):
        for network in range(self.num_networks):
            plug = f"{host.name}.{network}"
            _run("ip", "link", "add", "name", "eth" + str(network), "netns", host.pid, "type", "veth", "peer", "name",
                 plug, "netns", self.switch.pid)
            self.switch.run("ip", "link", "set", plug, "master", f"br{network}", "up")
            host.run("ip", "link", "set", f"eth{network}", "up")
            for version in self.versions:
                form, bits = SUBNETS[version]
                address = form.format(network=network, host=number)
                nodad = ["nodad"] if version == 6 else []
                host.run("ip", "address", "add", f"{address}/{bits}", "dev", f"eth{network}", *nodad)
                host.addresses.append(address)

    def _name_hosts(self):
        """Names the hosts by their addresses in the last network."""
        for host in self.hosts.values():
            loopback = "127.0.0.1 localhost\n" if 4 in self.versions else ""
            lines = loopback + "::1 localhost ip6-localhost\n"
            lines += "".join(f"{other.addresses[-1]} {other.name}\n" for other in self.hosts.values() if other.addresses)
            file = self.folder / f"hosts.{host.name}"
            file.write_text(lines)
            host.run("mount", "--bind", file, "/etc/hosts")

    def cut(self, name):
        """Cuts a host off from the others."""
        for network in range(self.num_networks):
            self.switch.run("ip", "link", "set", f"{name}.{network}", "down")

    def reconnect(self, name):
        for network in range(self.num_networks):
            self.switch.run("ip", "link", "set", f"{name}.{network}", "up")

    @contextlib.contextmanager
    def disturbed(self, name):
        """Delays and loses packets of a host: with netem, or, if the kernel lacks it, by short interruptions."""
        try:
            self.hosts[name].run("tc", "qdisc", "add", "dev", "eth0", "root", "netem", "delay", "5ms", "2ms", "loss", "1%")
        except RuntimeError:
            is_over = threading.Event()
            thread = threading.Thread(target=self._interrupt, args=(name, is_over))
            thread.start()
            try:
                yield
            finally:
                is_over.set()
                thread.join()
        else:
            yield
            self.hosts[name].run("tc", "qdisc", "del", "dev", "eth0", "root")

    def _interrupt(self, name, is_over):
        while not is_over.wait(0.3):
            self.cut(name)
            time.sleep(0.02)
            self.reconnect(name)
