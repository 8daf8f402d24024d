"""The cluster starts a run again: systemd with the units of docs/distributed_failures.md, and what Kubernetes does with
the Jobs of docs/containers.md."""

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

from cluster import ENDLESS, ClusterTest, Launchers, hosts, programs, scripts_of, unittest_main

sys.path.append(os.environ.get("LINKBOY_PEER_PATH", ""))


class SystemdTest(ClusterTest):
    """A manager of a user's units."""

    HOSTS = {"count": 1}

    @classmethod
    def start_servers(cls):
        if not shutil.which("systemctl"):
            raise hosts.NotPermitted("there is no program systemctl")
        cls.network["node1"].run("mount", "-t", "tmpfs", "tmpfs", "/run")
        cls.network["node1"].run("mkdir", "-p", "/run/systemd/system", "/run/user")  # the sign of a running systemd

    def setUp(self):
        super().setUp()
        self.units = self.path / ".config" / "systemd" / "user"
        (self.units / "train.service.d").mkdir(parents=True)
        self.project = self.path / "project"
        self.project.mkdir()
        targets = self.path / "targets"
        targets.mkdir()
        for name in ("basic", "default", "shutdown"):
            (targets / f"{name}.target").write_text("[Unit]\nDescription=A target\nAllowIsolate=yes\n")
        scripts = scripts_of("distributed_failures.md")
        (self.units / "train.service").write_text(scripts["train.service"])
        self.ranks = scripts["ranks.conf"]
        self.add("test.conf", "[Service]\nRestartSec=1\nStandardOutput=append:%h/project/log\n"
                              "StandardError=append:%h/project/log\n"
                              "Environment=OMP_NUM_THREADS=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
                              "OMPI_MCA_rmaps_base_oversubscribe=1\n")
        self.environment = {"HOME": str(self.path), "XDG_RUNTIME_DIR": "/run/user",
                            "SYSTEMD_UNIT_PATH": f"{self.units}:{targets}"}
        # The manager creates groups below its own.
        self.group = f"linkboy-test-{os.getpid()}"
        top = pathlib.Path("/sys/fs/cgroup")
        groups = [file.parent for file in (*top.glob("cgroup.procs"), *top.glob("*/cgroup.procs"))]
        enter = "".join(f"mkdir -p {group}/{self.group} && echo $$ > {group}/{self.group}/cgroup.procs; " for group in groups)
        self.addCleanup(lambda: subprocess.run(["find", "/sys/fs/cgroup", "-depth", "-type", "d", "-path",
                                                f"*/{self.group}*", "-exec", "rmdir", "{}", ";"], capture_output=True))
        self.manager = self.start_on("node1", ["sh", "-c", f"{enter} exec /lib/systemd/systemd --user"], **self.environment)
        self.addCleanup(self.network["node1"].run, "sh", "-c", "pkill -KILL -x systemd; pkill -KILL -x fashion_mnist; true")
        while self.systemctl("is-system-running").strip() not in ("running", "degraded"):
            if self.manager.poll() is not None:
                self.skipTest(f"systemd cannot run here: {programs.output_of(self.manager)}")
            time.sleep(0.1)

    def add(self, name, text):
        (self.units / "train.service.d" / name).write_text(text)

    def systemctl(self, *words):
        environment = [f"{name}={value}" for name, value in self.environment.items()]
        return programs.run(self.network["node1"].command(["systemctl", "--user", *words], environment=environment)).output

    def write_program(self, **changes):
        words = " ".join(map(str, self.program(**{**ENDLESS, "save_every_updates": 10, **changes})))
        (self.project / "new").write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        (self.project / "new").chmod(0o755)
        (self.project / "new").rename(self.project / "train")

    def log(self):
        file = self.project / "log"
        return file.read_text() if file.exists() else ""

    def property(self, name):
        return self.systemctl("show", "--property", name, "--value", "train").strip()

    def wait_for(self, condition):
        self.wait_until(condition, self.manager)

    def wait_for_update(self, number):
        deadline = time.monotonic() + 60
        while self.last_update("project") < number:
            self.assertLess(time.monotonic(), deadline, self.log() + self.systemctl("status", "train"))
            time.sleep(0.05)

    def check_restart_and_stop(self, status):
        self.write_program()
        self.systemctl("daemon-reload")
        self.systemctl("enable", "--now", "train")
        self.wait_for_update(25)
        self.network["node1"].run("pkill", "-KILL", "-o", "-x", "fashion_mnist")
        self.wait_for(lambda: self.log().count("Resumed training state") == 1)
        self.assertEqual(self.property("NRestarts"), "1")
        self.wait_for_update(self.last_update("project") + 20)
        self.systemctl("stop", "train")
        self.assertEqual(self.property("Result"), "success", self.log())
        self.assertEqual(self.property("ExecMainStatus"), str(status))
        last = self.last_update("project")
        self.write_program(max_updates=last + 20)
        self.systemctl("start", "train")
        self.wait_for(lambda: self.property("ActiveState") == "inactive")
        self.assertIn(f"update {last})", self.log(), "the stop has saved its last update")
        self.assertEqual(self.property("ExecMainStatus"), "0", self.log())

    def test_a_killed_program_resumes_and_a_stopped_one_has_saved_its_state(self):
        self.check_restart_and_stop(128 + signal.SIGTERM)

    def test_mpirun_passes_the_signal_on(self):
        self.add("ranks.conf", self.ranks)
        self.check_restart_and_stop(128 + signal.SIGUSR1)

    def test_a_wrong_option_does_not_start_the_program_again(self):
        self.write_program(lr=-1)
        self.systemctl("start", "train")
        self.wait_for(lambda: self.property("ActiveState") == "failed")
        self.assertEqual((self.property("NRestarts"), self.property("ExecMainStatus")), ("0", "2"), self.log())

    def test_the_units_are_valid(self):
        self.write_program()
        self.add("ranks.conf", self.ranks)
        environment = [f"{name}={value}" for name, value in self.environment.items()]
        done = programs.run(self.network["node1"].command(
            ["systemd-analyze", "--user", "verify", self.units / "train.service"], environment=environment))
        self.assertEqual((done.status, done.output + done.error), (0, ""))


class KubernetesTest(ClusterTest):
    """The commands of the manifests, which are started again as `restartPolicy: OnFailure` demands."""

    HOSTS = {"count": 3, "has_head": True}
    # Like a container: the program is the first process, and there is no /dev/shm.
    CONTAINER = ["unshare", "--pid", "--mount", "--fork", "--kill-child", "--mount-proc", "--propagation", "private", "sh",
                 "-c", 'mkdir -p /var/tmp/dev && mount -t tmpfs dev /var/tmp/dev && for f in null zero full random urandom '
                       'tty; do touch /var/tmp/dev/$f && mount --bind /dev/$f /var/tmp/dev/$f; done && mount --move '
                       '/var/tmp/dev /dev && exec "$@"', "sh"]

    @classmethod
    def start_servers(cls):
        try:
            import kubernetes_validate
            import yaml
        except ImportError as error:
            raise hosts.NotPermitted(str(error))
        cls.validate = staticmethod(lambda object: kubernetes_validate.validate(object, "1.30", strict=True))
        cls.refusal = kubernetes_validate.ValidationError
        cls.objects = {name: list(yaml.safe_load_all(text)) for name, text in scripts_of("containers.md").items()
                       if name.endswith(".yaml")}
        for file in cls.folder.glob("hosts.*"):  # the name of a pod in its service
            file.write_text(file.read_text() + f"{cls.network['node1'].addresses[0]} train-0.train\n")

    def container(self, manifest):
        pod = self.objects[manifest][-1]["spec"]["template"]["spec"]
        self.assertEqual(pod["restartPolicy"], "OnFailure")
        return pod["containers"][0]

    def command(self, manifest, **changes):
        program = self.program(**{**ENDLESS, "save_every_updates": 10, "accelerator__distributed__timeout": "10s", **changes})
        return [*self.CONTAINER, *program, *self.container(manifest)["args"]]

    def test_the_manifests_fit_the_schema(self):
        self.assertEqual(set(self.objects), {"job.yaml", "indexed_job.yaml"})
        for manifest in self.objects.values():
            for object in manifest:
                self.validate(object)
        object = self.objects["job.yaml"][0]
        with self.assertRaises(self.refusal):
            self.validate({**object, "spec": {**object["spec"], "backofLimit": 1}})

    def test_a_container_that_is_started_again_resumes(self):
        for sent, status in ((signal.SIGKILL, None), (signal.SIGTERM, 128 + signal.SIGTERM)):
            process = self.start_on("node1", self.command("job.yaml"))
            before = self.last_update()
            self.wait_until(lambda: self.last_update() >= before + 25, process)
            self.network["node1"].run("pkill", f"-{int(sent)}", "-x", "fashion_mnist")
            (ended,) = self.end(process)
            self.assertNotEqual(ended.status, 0)
            if status:
                self.assertEqual(ended.status, status, ended)
                self.assertIn("Resumed training state", ended.output, "SIGKILL has left a state")
        last = self.last_update()
        (ended,) = self.end_well(self.start_on("node1", self.command("job.yaml", max_updates=last + 20)))
        self.assertIn(f"update {last})", ended.output, "SIGTERM has saved its last update")

    def test_the_pods_of_an_indexed_job_meet_again_after_the_loss_of_any(self):
        variables = {one["name"]: one.get("value") for one in self.container("indexed_job.yaml")["env"]}
        started = []
        for rank in range(3):
            again = ["sh", "-c", 'until "$@"; do sleep 1; done', "sh", *self.command("indexed_job.yaml", max_updates=1500)]
            started.append(self.start_on(f"node{rank + 1}", again, **{**variables, "RANK": str(rank)}))
        for lost in (1, 0, 2):
            before = self.last_update()
            self.wait_until(lambda: self.last_update() >= before + 25, *started)
            self.network[f"node{lost + 1}"].run("pkill", "-KILL", "-x", "fashion_mnist")
        self.end_well(*started, seconds=120)
        self.assertEqual(programs.output_of(started[0])[0].count("Resumed training state"), 3)
        launchers = Launchers(self.network, self.addCleanup)
        self.end_well(*launchers.start(self, "none", "whole", self.program(**{**ENDLESS, "max_updates": 1500})))
        self.assertEqual(self.weights(), self.weights("whole"))


if __name__ == "__main__":
    unittest_main.main()
