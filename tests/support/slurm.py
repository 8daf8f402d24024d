"""Starts a real Slurm, with a folder and ports of its own, on the hosts of a network. See hosts.py."""

import os
import pathlib
import shutil
import subprocess
import tempfile
import time

import hosts

CONFIGURATION = """
ClusterName=linkboy
SlurmctldHost=head
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
# A requeued job waits until the credentials of its previous start have expired.
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
TmpFS=/var/tmp
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=5
JobRequeue=1
MailProg=/bin/true
SchedulerParameters=sched_interval=1,batch_sched_delay=0
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:8
"""


class Slurm:
    def __init__(self, network, cpus=4):
        for program in ("slurmctld", "slurmd", "munged", "srun", "sbatch"):
            if not shutil.which(program, path=os.environ["PATH"] + ":/usr/sbin:/sbin"):
                raise hosts.NotPermitted(f"there is no program {program}")
        self.network = network
        self.daemons = []
        # The path of a socket must be short.
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="slurm"))
        for name in ("state", "spool", "log"):
            (self.folder / name).mkdir()
        (self.folder / "munge.key").write_bytes(os.urandom(1024))
        (self.folder / "munge.key").chmod(0o600)
        self.nodes = [name for name in network.hosts if name.startswith("node")]
        lines = [f"NodeName={name} NodeAddr={network[name].addresses[0]} CPUs={cpus} State=UNKNOWN" for name in self.nodes]
        self.file = self.folder / "slurm.conf"
        self.file.write_text(CONFIGURATION.format(folder=self.folder, nodes="\n".join(lines)))
        self.environment = [f"SLURM_CONF={self.file}"]
        folder = self.folder
        self._start("head", "munged", "--foreground", "--force", f"--socket={folder}/munge.socket",
                    f"--key-file={folder}/munge.key", f"--pid-file={folder}/munged.pid", f"--seed-file={folder}/seed",
                    f"--log-file={folder}/log/munged.log")
        self._wait_until(lambda: (folder / "munge.socket").exists())
        self._start("head", "slurmctld", "-D", "-c", "-f", self.file)
        for name in self.nodes:
            (self.folder / "spool" / name).mkdir()
            self._start(name, "slurmd", "-D", "-f", self.file, "-N", name)
        self._wait_until(lambda: self.run("sinfo", "--noheader", "--format=%T").split() == ["idle"])

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.close()

    def close(self):
        for daemon in reversed(self.daemons):
            daemon.kill()
            daemon.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _start(self, host, program, *arguments):
        path = shutil.which(program, path=os.environ["PATH"] + ":/usr/sbin:/sbin")
        with open(self.folder / "log" / f"{program}.{host}", "w") as log:
            self.daemons.append(subprocess.Popen(
                self.network[host].command([path, *arguments], environment=["-u", "SLURM_CONF"]), stdout=log,
                stderr=subprocess.STDOUT))

    def _wait_until(self, condition):
        for _ in range(300):
            if condition():
                return
            time.sleep(0.1)
        raise RuntimeError(self.logs())

    def logs(self):
        return "\n".join(f"== {file.name}\n{file.read_text()[-2000:]}" for file in (self.folder / "log").iterdir())

    def command(self, command, folder="/"):
        """The command that runs a client of Slurm, such as srun, on the host `head`."""
        return self.network["head"].command(command, folder, self.environment)

    def run(self, *command, folder="/"):
        return subprocess.run(self.command(command, folder), capture_output=True, text=True).stdout
