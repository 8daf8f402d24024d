"""Two simulated hosts with two ranks each, whose network, memory or users differ."""

import os
import time

from cluster import ENDLESS, ClusterTest, hosts, programs, ssh, unittest_main


class HostsTest(ClusterTest):
    """Two hosts with two ranks each, started without a launcher."""

    HOSTS = {"count": 2}
    RANKS = 4

    def start_ranks(self, folder, network=None, master=None, separate_disks=False, **changes):
        network = network or self.network
        per_host = self.RANKS // 2
        return [self.start_on(f"node{rank // per_host + 1}", self.program(**changes),
                              f"{folder}/node{rank // per_host + 1}" if separate_disks else folder, network,
                              RANK=str(rank), WORLD_SIZE=str(self.RANKS), LOCAL_RANK=str(rank % per_host),
                              LOCAL_WORLD_SIZE=str(per_host), MASTER_ADDR=master or network["node1"].addresses[0],
                              MASTER_PORT="29411")
                for rank in range(self.RANKS)]

    def expected(self):
        if not hasattr(HostsTest, "weights_of_undisturbed_run"):
            self.end_well(*self.start_ranks("undisturbed"))
            HostsTest.weights_of_undisturbed_run = self.weights("undisturbed")
        return HostsTest.weights_of_undisturbed_run

    def wait_for_update(self, number, folder, processes):
        self.wait_until(lambda: self.updates(folder) and self.updates(folder)[-1] >= number, *processes)

    def test_delays_and_losses_change_nothing(self):
        expected = self.expected()
        with self.network.disturbed("node2"):
            self.end_well(*self.start_ranks("disturbed"))
        self.assertEqual(self.weights("disturbed"), expected)

    def test_a_host_that_is_cut_off_for_20_s_continues(self):
        endless = {**ENDLESS, "max_updates": 600}
        self.end_well(*self.start_ranks("whole", **endless))
        processes = self.start_ranks("cut", **endless)
        self.wait_for_update(50, "cut", processes)
        self.network.cut("node2")
        time.sleep(20)
        self.network.reconnect("node2")
        self.end_well(*processes)
        self.assertEqual(self.weights("cut"), self.weights("whole"))

    def check_lost(self, processes):
        """The ranks of node1 must name a rank of node2."""
        for rank, ended in enumerate(self.end(*processes[:2], seconds=60)):
            self.assertEqual(ended.status, 1, ended)
            self.assertRegex(ended.error, rf"(?m)^fashion_mnist \(rank {rank}\): error: .*ranks? [23]\b[^.]* (is|are) lost")

    def test_a_host_that_is_cut_off_for_ever_is_named(self):
        processes = self.start_ranks("cut", accelerator__distributed__timeout="10s", **ENDLESS)
        self.wait_for_update(50, "cut", processes)
        self.network.cut("node2")
        self.addCleanup(self.network.reconnect, "node2")
        self.check_lost(processes)
        for ended in self.end(*processes[2:], seconds=60):
            self.assertEqual(ended.status, 1, ended)
            self.assertRegex(ended.error, "rank 0, or the process that hosts the ranks' store, is lost")

    def test_a_host_without_power_is_named(self):
        with hosts.Network(programs.temporary_folder(self.addCleanup), 2) as network:
            processes = self.start_ranks("off", network, accelerator__distributed__timeout="10s", **ENDLESS)
            self.wait_for_update(50, "off", processes)
            network["node2"].kill()
            self.check_lost(processes)

    def test_hosts_with_their_own_disks_resume(self):
        processes = self.start_ranks("first", separate_disks=True, save_every_updates=20, max_updates=40, **ENDLESS)
        self.end_well(*processes)
        self.assertFalse((self.path / "first" / "node2" / "output").exists(), "rank 0 writes")
        resumed = self.start_ranks("first", separate_disks=True, resume_from="latest", max_updates=60, **ENDLESS)
        self.end_well(*resumed)
        self.end_well(*self.start_ranks("whole", max_updates=60, **ENDLESS))
        self.assertEqual(self.weights("first/node1"), self.weights("whole"))

    def test_ipv6_is_enough(self):
        with hosts.Network(programs.temporary_folder(self.addCleanup), 2, versions=(6,)) as network:
            for folder, master in (("address", None), ("name", "node1")):
                self.end_well(*self.start_ranks(folder, network, master))
                self.assertEqual(self.weights(folder), self.expected())

    def test_small_shared_memory_is_enough(self):
        """/dev/shm of 64 MB, as in containers, of a page, and none."""
        for size in ("64m", "4k", None):
            with self.subTest(size), hosts.Network(programs.temporary_folder(self.addCleanup), 2) as network:
                for name in ("node1", "node2"):
                    if size:
                        network[name].run("mount", "-o", f"remount,size={size}", "/dev/shm")
                    else:
                        network[name].run("sh", "-c", "umount /dev/shm && mount -t tmpfs -o mode=000,size=4k none /dev/shm "
                                          "&& mount -o remount,ro /dev/shm")
                self.end_well(*self.start_ranks(f"size_{size}", network))
                self.assertEqual(self.weights(f"size_{size}"), self.expected())

    def test_jobs_of_two_users_on_one_host_do_not_meet(self):
        jobs = []
        for user in (2001, 2002):
            folder = self.path / str(user)
            folder.mkdir()
            os.chown(folder, user, user)
            # The capability lets the user read the libraries in the home of root.
            capability = "+dac_read_search"
            as_user = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", f"--inh-caps={capability}",
                       f"--ambient-caps={capability}", "env", f"HOME={folder}"]
            jobs.append(self.start_on("node1", [*as_user, "mpirun.openmpi", "--oversubscribe", "-np", "2", *self.program()],
                                      str(user)))
        for parent in (self.path, self.folder, self.data):
            parent.chmod(0o755)
        self.end_well(*jobs)
        self.assertEqual(self.weights("2001"), self.weights("2002"))


class TwoNetworksTest(ClusterTest):
    """The first of two networks does not connect the hosts, although its interfaces are up."""

    HOSTS = {"count": 2, "num_networks": 2}

    @classmethod
    def start_servers(cls):
        for name in ("node1", "node2"):
            cls.network.switch.run("bridge", "link", "set", "dev", f"{name}.0", "isolated", "on")
        cls.ssh = ssh.Ssh(cls.network, cls.folder)

    def test_rank_0_is_found_through_the_other_network(self):
        addresses = [self.network[name].addresses[1] for name in ("node1", "node2")]
        by_hand = [self.start_on(f"node{rank + 1}", self.program(), "by_hand", RANK=str(rank), WORLD_SIZE="2",
                                 LOCAL_RANK="0", LOCAL_WORLD_SIZE="1", MASTER_ADDR=addresses[0], MASTER_PORT="29411")
                   for rank in range(2)]
        self.end_well(*by_hand)
        mpirun = ["mpirun.openmpi", "--allow-run-as-root", "--mca", "plm_rsh_agent", self.ssh.program,
                  "--mca", "oob_tcp_if_include", "eth1", "-host", ",".join(addresses), "-np", "2"]
        self.end_well(self.start_on("node1", [*mpirun, *self.program()], "mpirun"))
        self.assertEqual(self.weights("mpirun"), self.weights("by_hand"))


if __name__ == "__main__":
    unittest_main.main()
