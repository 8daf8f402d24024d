#include "distributed/launch_environment.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "support/expect_error.hpp"

namespace linkboy::launch_environment_test {
namespace {

using Launcher = LaunchEnvironment::Launcher;
using Variables = std::map<std::string, std::string>;

LaunchEnvironment read(const Variables& variables) {
  return read_launch_environment([&](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found != variables.end() ? std::optional(found->second) : std::nullopt;
  });
}

/// Returns `variables` with `changes` applied. An empty value removes a variable.
Variables with(Variables variables, const Variables& changes) {
  for (const auto& [name, value] : changes) variables[name] = value;
  std::erase_if(variables, [](const auto& variable) { return variable.second.empty(); });
  return variables;
}

/// The variables that `torchrun --nnodes=2 --nproc-per-node=2 --max-restarts=3` of PyTorch 2.11
/// sets.
const Variables kTorchrun{{"RANK", "3"},
                          {"GROUP_RANK", "1"},
                          {"LOCAL_RANK", "1"},
                          {"LOCAL_WORLD_SIZE", "2"},
                          {"WORLD_SIZE", "4"},
                          {"MASTER_ADDR", "node1"},
                          {"MASTER_PORT", "43841"},
                          {"TORCHELASTIC_RESTART_COUNT", "2"},
                          {"TORCHELASTIC_MAX_RESTARTS", "3"},
                          {"TORCHELASTIC_RUN_ID", "6f5d7cee-1435-4d77-99d1-6a91fc47d9fe"},
                          {"TORCHELASTIC_USE_AGENT_STORE", "True"}};

/// The variables that `mpirun -np 2` of Open MPI 4.1.4 sets.
const Variables kOpenMpi{{"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                         {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                         {"OMPI_COMM_WORLD_RANK", "1"},
                         {"OMPI_COMM_WORLD_SIZE", "2"},
                         {"OMPI_MCA_ess_base_jobid", "1765605377"},
                         {"PMIX_NAMESPACE", "1765605377"},
                         {"PMIX_RANK", "1"}};

/// The variables of a batch script that `sbatch --nodes=3 --ntasks=11` starts.
const Variables kBatchScript{{"SLURM_JOB_ID", "200505"},
                             {"SLURM_JOB_NODELIST", "gnode[10,20,25]"},
                             {"SLURM_JOB_NUM_NODES", "3"},
                             {"SLURM_NTASKS", "11"},
                             {"SLURM_TASKS_PER_NODE", "4(x2),3"},
                             {"SLURM_NODEID", "0"},
                             {"SLURM_PROCID", "0"},
                             {"SLURM_LOCALID", "0"}};

/// The variables of a task that `srun` starts in this script.
const Variables kSrun = with(kBatchScript, {{"SLURM_STEP_ID", "1"},
                                            {"SLURM_STEP_NODELIST", "gnode[10,20,25]"},
                                            {"SLURM_STEP_NUM_NODES", "3"},
                                            {"SLURM_STEP_NUM_TASKS", "11"},
                                            {"SLURM_STEP_TASKS_PER_NODE", "4(x2),3"},
                                            {"SLURM_NODEID", "2"},
                                            {"SLURM_PROCID", "9"},
                                            {"SLURM_LOCALID", "1"}});

TEST(LaunchEnvironmentTest, AnEmptyEnvironmentIsASingleProcess) {
  for (const Variables& variables : {Variables{}, {{"RANK", ""}, {"WORLD_SIZE", ""}}}) {
    const auto launch = read(variables);
    EXPECT_EQ(launch.launcher, Launcher::none);
    EXPECT_EQ(launch.world_size, 1);
    EXPECT_FALSE(launch.is_distributed());
  }
}

TEST(LaunchEnvironmentTest, ReadsTheEnvironmentOfTheProcess) {
  for (const auto& [name, value] : kTorchrun) ::setenv(name.c_str(), value.c_str(), 1);
  const auto launch = read_launch_environment();
  for (const auto& [name, value] : kTorchrun) ::unsetenv(name.c_str());
  EXPECT_EQ(launch.launcher, Launcher::torchrun);
  EXPECT_EQ(launch.rank, 3);
}

TEST(LaunchEnvironmentTest, ReadsTorchrun) {
  const auto launch = read(kTorchrun);
  EXPECT_EQ(launch.launcher, Launcher::torchrun);
  EXPECT_EQ(launch.rank, 3);
  EXPECT_EQ(launch.world_size, 4);
  EXPECT_EQ(launch.local_rank, 1);
  EXPECT_EQ(launch.local_world_size, 2);
  EXPECT_EQ(launch.master_address, "node1");
  EXPECT_EQ(launch.master_port, 43'841);
  EXPECT_TRUE(launch.uses_agent_store);
  EXPECT_EQ(launch.restart_count, 2);
  EXPECT_EQ(launch.job_id, "6f5d7cee-1435-4d77-99d1-6a91fc47d9fe");
  EXPECT_TRUE(launch.is_distributed());
  EXPECT_FALSE(read(with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "False"}})).uses_agent_store);
}

TEST(LaunchEnvironmentTest, OneProcessOfTorchrunOrMpirunFormsAGroup) {
  const Variables by_hand{
      {"RANK", "0"}, {"WORLD_SIZE", "1"}, {"MASTER_ADDR", "gpu-box"}, {"MASTER_PORT", "29500"}};
  EXPECT_TRUE(read(by_hand).is_distributed());
  const Variables of_mpirun{{"OMPI_COMM_WORLD_RANK", "0"},
                            {"OMPI_COMM_WORLD_SIZE", "1"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}};
  EXPECT_TRUE(read(of_mpirun).is_distributed());
}

TEST(LaunchEnvironmentTest, TorchrunPrecedesMpirunPrecedesSrun) {
  for (const Variables& outer : {kSrun, kOpenMpi}) {
    const auto launch = read(with(outer, kTorchrun));
    EXPECT_EQ(launch.launcher, Launcher::torchrun);
    EXPECT_EQ(launch.world_size, 4);
  }
  EXPECT_EQ(read(with(kSrun, kOpenMpi)).launcher, Launcher::open_mpi);
}

TEST(LaunchEnvironmentTest, RanksSetByHandOnOneHostAreLocalRanks) {
  for (const char* address : {"localhost", "127.0.0.1", "127.0.1.1", "::1"}) {
    const auto launch = read(
        {{"RANK", "2"}, {"WORLD_SIZE", "3"}, {"MASTER_ADDR", address}, {"MASTER_PORT", "65535"}});
    EXPECT_EQ(launch.local_rank, 2) << address;
    EXPECT_EQ(launch.local_world_size, 3) << address;
    EXPECT_FALSE(launch.uses_agent_store);
  }
  const Variables no_local_rank = with(kTorchrun, {{"LOCAL_RANK", ""}});
  EXPECT_EQ(read(with(no_local_rank, {{"LOCAL_WORLD_SIZE", "4"}})).local_rank, 3);
  EXPECT_EQ(read(with(no_local_rank, {{"LOCAL_WORLD_SIZE", "1"}})).local_rank, 0);
}

TEST(LaunchEnvironmentTest, ReadsOpenMpiOnOneHost) {
  const auto launch = read(kOpenMpi);
  EXPECT_EQ(launch.launcher, Launcher::open_mpi);
  EXPECT_EQ(launch.rank, 1);
  EXPECT_EQ(launch.world_size, 2);
  EXPECT_EQ(launch.local_rank, 1);
  EXPECT_EQ(launch.local_world_size, 2);
  EXPECT_EQ(launch.master_address, "127.0.0.1");
  EXPECT_EQ(launch.job_id, "1765605377");
  EXPECT_FALSE(launch.uses_agent_store);
  EXPECT_EQ(read(with(kOpenMpi, {{"PMIX_NAMESPACE", ""}})).job_id, "1765605377");
}

TEST(LaunchEnvironmentTest, ReadsOpenMpiOnSeveralHostsGivenMasterAddr) {
  const Variables hosts = with(kOpenMpi, {{"OMPI_COMM_WORLD_SIZE", "4"}});
  const auto launch = read(with(hosts, {{"MASTER_ADDR", "node1"}, {"MASTER_PORT", "29500"}}));
  EXPECT_EQ(launch.master_address, "node1");
  EXPECT_EQ(launch.master_port, 29'500);
  EXPECT_ERROR(read(hosts), "mpirun started only 2 of 4");
  EXPECT_ERROR(read(hosts), "-x MASTER_ADDR=<host of rank 0>");
}

TEST(LaunchEnvironmentTest, ReadsSrun) {
  const auto launch = read(kSrun);
  EXPECT_EQ(launch.launcher, Launcher::slurm);
  EXPECT_EQ(launch.rank, 9);
  EXPECT_EQ(launch.world_size, 11);
  EXPECT_EQ(launch.local_rank, 1);
  EXPECT_EQ(launch.local_world_size, 3);
  EXPECT_EQ(launch.master_address, "gnode10");
  EXPECT_EQ(launch.job_id, "200505.1");
  EXPECT_TRUE(launch.is_distributed());

  EXPECT_EQ(read(with(kSrun, {{"SLURM_NODEID", "1"}})).local_world_size, 4);
  EXPECT_EQ(read(with(kSrun, {{"SLURM_STEP_NODELIST", ""}})).master_address, "gnode10");
  EXPECT_EQ(read(with(kSrun, {{"MASTER_ADDR", "10.0.0.1"}})).master_address, "10.0.0.1");
}

TEST(LaunchEnvironmentTest, SrunProvidesTheRankIfAScriptExportsTheRest) {
  const auto launch = read(
      with(kSrun, {{"WORLD_SIZE", "11"}, {"MASTER_ADDR", "gnode10"}, {"MASTER_PORT", "29500"}}));
  EXPECT_EQ(launch.launcher, Launcher::slurm);
  EXPECT_EQ(launch.rank, 9);
  EXPECT_EQ(launch.master_port, 29'500);
}

TEST(LaunchEnvironmentTest, AStepCanBeSmallerThanItsAllocation) {
  const auto launch = read(with(kSrun, {{"SLURM_NTASKS", "64"},
                                        {"SLURM_STEP_NODELIST", "gnode25"},
                                        {"SLURM_STEP_NUM_TASKS", "2"},
                                        {"SLURM_STEP_TASKS_PER_NODE", "2"},
                                        {"SLURM_NODEID", "0"},
                                        {"SLURM_PROCID", "1"}}));
  EXPECT_EQ(launch.world_size, 2);
  EXPECT_EQ(launch.local_world_size, 2);
  EXPECT_EQ(launch.master_address, "gnode25");
}

TEST(LaunchEnvironmentTest, AShellInASlurmAllocationIsASingleProcess) {
  EXPECT_EQ(read(kBatchScript).launcher, Launcher::none);
  // The shell of salloc with Slurm's setting use_interactive_step.
  const auto interactive = read(with(kSrun, {{"SLURM_STEP_ID", "4294967290"}}));
  EXPECT_EQ(interactive.launcher, Launcher::none);
  // The shell of `srun --pty bash`.
  const auto pty =
      read(with(kBatchScript, {{"SLURM_STEP_ID", "0"}, {"SLURM_STEP_NUM_TASKS", "1"}}));
  EXPECT_EQ(pty.launcher, Launcher::slurm);
  EXPECT_EQ(pty.world_size, 1);
  EXPECT_EQ(pty.master_address, "127.0.0.1");
  EXPECT_FALSE(pty.is_distributed());
}

TEST(LaunchEnvironmentTest, ThePortDependsOnTheJob) {
  std::set<uint16_t> ports;
  for (int step = 0; step < 100; ++step) {
    const Variables variables = with(kSrun, {{"SLURM_STEP_ID", std::to_string(step)}});
    const auto port = read(variables).master_port;
    EXPECT_EQ(read(with(variables, {{"SLURM_PROCID", "10"}})).master_port, port);
    EXPECT_GE(port, 15'000);
    EXPECT_LT(port, 30'000);
    ports.insert(port);
  }
  EXPECT_GE(ports.size(), 95U);
  // A different build of the program must choose the same port.
  EXPECT_EQ(read(kOpenMpi).master_port, 17'468);
}

TEST(LaunchEnvironmentTest, MalformedVariablesAreErrors) {
  struct Case {
    Variables variables;
    std::string message;
  };
  const Variables one_host{
      {"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "::1"}, {"MASTER_PORT", "1"}};
  const std::vector<Case> cases = {
      {with(kTorchrun, {{"RANK", "x"}}), "RANK is \"x\"; it must be an integer from 0 to 3"},
      {with(kTorchrun, {{"RANK", "4"}}), "from 0 to 3 (WORLD_SIZE is 4). Launch with torchrun"},
      {with(kTorchrun, {{"RANK", "-1"}}), "RANK is \"-1\""},
      {with(kTorchrun, {{"WORLD_SIZE", "0"}}), "WORLD_SIZE is \"0\""},
      {with(kTorchrun, {{"WORLD_SIZE", "99999999999999999999"}}), "from 1 to 131072"},
      {with(kTorchrun, {{"WORLD_SIZE", "1000000"}}),
       "WORLD_SIZE is \"1000000\"; it must be an integer from 1 to 131072. Launch with"},
      {with(kTorchrun, {{"WORLD_SIZE", ""}}), "RANK is \"3\" but WORLD_SIZE is not set"},
      {with(kTorchrun, {{"RANK", ""}}), "WORLD_SIZE is \"4\" but RANK is not set"},
      {with(kTorchrun, {{"MASTER_ADDR", ""}}), "MASTER_ADDR is not set"},
      {with(kTorchrun, {{"MASTER_PORT", ""}}), "MASTER_PORT is not set"},
      {with(kTorchrun, {{"MASTER_PORT", "0"}}), "MASTER_PORT is \"0\""},
      {with(kTorchrun, {{"MASTER_PORT", "65536"}}), "an integer from 1 to 65535"},
      {with(kTorchrun, {{"LOCAL_WORLD_SIZE", ""}}), "the processes may be on several hosts"},
      {with(kTorchrun, {{"LOCAL_WORLD_SIZE", "5"}}), "from 1 to 4 (WORLD_SIZE is 4)"},
      {with(kTorchrun, {{"LOCAL_RANK", ""}}), "LOCAL_RANK is not set"},
      {with(kTorchrun, {{"LOCAL_RANK", "2"}}), "from 0 to 1 (LOCAL_WORLD_SIZE is 2)"},
      {with(kTorchrun, {{"TORCHELASTIC_RESTART_COUNT", "one"}}), "RESTART_COUNT is \"one\""},
      {with(one_host, {{"LOCAL_RANK", "2"}}), "LOCAL_RANK is \"2\""},
      {with(kOpenMpi, {{"OMPI_COMM_WORLD_SIZE", ""}}), "OMPI_COMM_WORLD_SIZE is not set"},
      {with(kOpenMpi, {{"OMPI_COMM_WORLD_RANK", "2"}}), "OMPI_COMM_WORLD_RANK is \"2\""},
      {with(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_RANK", ""}}), "LOCAL_RANK is not set"},
      {with(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "3"}}), "LOCAL_SIZE is \"3\""},
      {with(kOpenMpi, {{"MASTER_PORT", "http"}}), "MASTER_PORT is \"http\""},
      {with(kSrun, {{"SLURM_PROCID", "11"}}), "from 0 to 10 (SLURM_STEP_NUM_TASKS is 11)"},
      {with(kSrun, {{"SLURM_STEP_NUM_TASKS", "many"}}), "SLURM_STEP_NUM_TASKS is \"many\""},
      {with(kSrun, {{"SLURM_LOCALID", ""}}), "SLURM_LOCALID is not set"},
      {with(kSrun, {{"SLURM_LOCALID", "3"}}), "SLURM_LOCALID is \"3\""},
      {with(kSrun, {{"SLURM_NODEID", ""}}), "SLURM_NODEID is not set"},
      {with(kSrun, {{"SLURM_NODEID", "3"}}), "the number of tasks on node 3 (SLURM_NODEID)"},
      {with(kSrun, {{"SLURM_STEP_NODELIST", ""}, {"SLURM_JOB_NODELIST", ""}}), "Set MASTER_ADDR"},
      {with(kSrun, {{"SLURM_STEP_NODELIST", "gnode["}}), "node list \"gnode[\""},
      {with(kSrun, {{"SLURM_STEP_TASKS_PER_NODE", "12(x3)"}}), "more than the 11 tasks"},
  };
  for (const auto& [variables, message] : cases) EXPECT_ERROR(read(variables), message);
  for (const char* tasks : {"", "4(x2", "4(2),3", "4(x),3", "4(x0),3", "0(x3)", "(x3)", "4,,3",
                            "4(x2)1", "four", "4(x2),", "-4(x3)"}) {
    EXPECT_ERROR(read(with(kSrun, {{"SLURM_STEP_TASKS_PER_NODE", tasks}})),
                 "SLURM_STEP_TASKS_PER_NODE is \"" + std::string(tasks) + "\"");
  }
}

TEST(LaunchEnvironmentTest, FindsTheFirstHostOfSlurmsNodeLists) {
  const Variables first_hosts{{"node1", "node1"},
                              {"node1,node2", "node1"},
                              {"node[01-04,07]", "node01"},
                              {"gnode[10,20,25,37]", "gnode10"},
                              {"gpu-[3,5-7],login1", "gpu-3"},
                              {"login1,gpu-[3,5-7]", "login1"},
                              {"a[1-2]b[3-4]", "a1b3"},
                              {"n[008-011]-ib", "n008-ib"},
                              {"r4i2n[2-4]", "r4i2n2"},
                              {"[7-9]", "7"},
                              {"c_1.example.org", "c_1.example.org"}};
  for (const auto& [list, host] : first_hosts) EXPECT_EQ(first_host(list), host);
  for (const char* list : {"", ",node1", "node[1-2", "node[]", "node[-2]", "node[1-]", "node[1,",
                           "node[a]", "node]", "node[[1]]", "(null)", "node 1", "node[1]]"}) {
    EXPECT_ERROR(first_host(list), "\"" + std::string(list) + "\" is malformed");
  }
}

TEST(LaunchEnvironmentTest, EachProcessUsesTheDeviceOfItsLocalRankOrTheOnlyVisibleOne) {
  LaunchEnvironment launch = read(kTorchrun);  // the second of two processes on its host
  EXPECT_EQ(device_index_of(launch, 2), 1);
  EXPECT_EQ(device_index_of(launch, 1), std::nullopt) << "two processes would share it";
  for (const char* one : {"0", "3", "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"}) {
    launch = read(with(kTorchrun, {{"CUDA_VISIBLE_DEVICES", one}}));
    EXPECT_EQ(device_index_of(launch, 1), 0) << one;
  }
  launch = read(with(kTorchrun, {{"CUDA_VISIBLE_DEVICES", "2,3"}}));
  EXPECT_EQ(device_index_of(launch, 2), 1);
  EXPECT_EQ(device_index_of(read({}), 1), 0);
}

}  // namespace
}  // namespace linkboy::launch_environment_test
