#include "distributed/launch_environment.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <set>
#include <sstream>
#include <string>

#include "linkboy/accelerator.hpp"
#include "linkboy/distributed/launch.hpp"
#include "support/expect_error.hpp"

namespace linkboy::launch_environment_test {
namespace {

using Launcher = LaunchEnvironment::Launcher;

/// Returns the variables of a text like "RANK=1 WORLD_SIZE=2". The last value of a variable counts.
std::map<std::string, std::string> variables_of(const std::string& text) {
  std::map<std::string, std::string> variables;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    const auto end = word.find('=');
    variables[word.substr(0, end)] = word.substr(end + 1);
  }
  return variables;
}

LaunchEnvironment read(const std::string& text) {
  const auto variables = variables_of(text);
  std::vector<std::string> names;
  for (const auto& [name, value] : variables) names.push_back(name);
  return read_launch_environment(
      [&](const char* name) -> std::optional<std::string> {
        const auto found = variables.find(name);
        return found != variables.end() ? std::optional(found->second) : std::nullopt;
      },
      names);
}

std::string text_of(const LaunchEnvironment& launch) {
  const char* launchers[] = {"none", "torchrun", "open_mpi", "mpich",   "slurm",
                             "jsm",  "flux",     "pals",     "mvapich", "pmix"};
  std::ostringstream text;
  text << launchers[static_cast<int>(launch.launcher)] << ": rank " << launch.rank << " of "
       << launch.world_size << ", local rank " << launch.local_rank << " of "
       << launch.local_world_size << ", " << launch.master_address << ", job " << launch.job_id;
  return text.str();
}

/// The variables that `torchrun --nnodes=2 --nproc-per-node=2 --max-restarts=3` of PyTorch 2.11
/// sets.
const std::string kTorchrun =
    "RANK=3 GROUP_RANK=1 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 WORLD_SIZE=4 MASTER_ADDR=node1 "
    "MASTER_PORT=43841 TORCHELASTIC_RESTART_COUNT=2 TORCHELASTIC_MAX_RESTARTS=3 "
    "TORCHELASTIC_RUN_ID=6f5d7cee-1435 TORCHELASTIC_USE_AGENT_STORE=True ";

/// The variables that `mpirun -np 2` of Open MPI 4.1.4 sets.
const std::string kOpenMpi =
    "OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2 OMPI_COMM_WORLD_RANK=1 "
    "OMPI_COMM_WORLD_SIZE=2 OMPI_MCA_ess_base_jobid=1765605377 PMIX_NAMESPACE=1765605377 "
    "PMIX_RANK=1 ";

/// The variables of a batch script that `sbatch --nodes=3 --ntasks=11` starts.
const std::string kBatchScript =
    "SLURM_JOB_ID=200505 SLURM_JOB_NODELIST=gnode[10,20,25] SLURM_JOB_NUM_NODES=3 SLURM_NTASKS=11 "
    "SLURM_TASKS_PER_NODE=4(x2),3 SLURM_NODEID=0 SLURM_PROCID=0 SLURM_LOCALID=0 ";

/// The variables of a task that `srun` starts in this script.
const std::string kSrun =
    kBatchScript +
    "SLURM_STEP_ID=1 SLURM_STEP_NODELIST=gnode[10,20,25] SLURM_STEP_NUM_NODES=3 "
    "SLURM_STEP_NUM_TASKS=11 SLURM_STEP_TASKS_PER_NODE=4(x2),3 SLURM_NODEID=2 SLURM_PROCID=9 "
    "SLURM_LOCALID=1 ";

TEST(LaunchEnvironmentTest, AnEmptyEnvironmentIsASingleProcess) {
  for (const char* variables : {"", "RANK= WORLD_SIZE="}) {
    const auto launch = read(variables);
    EXPECT_EQ(text_of(launch), "none: rank 0 of 1, local rank 0 of 1, , job ");
    EXPECT_FALSE(launch.is_distributed());
  }
}

TEST(LaunchEnvironmentTest, ReadsTheEnvironmentOfTheProcess) {
  for (const auto& [name, value] : variables_of(kTorchrun))
    ::setenv(name.c_str(), value.c_str(), 1);
  const auto launch = read_launch_environment();
  for (const auto& [name, value] : variables_of(kTorchrun)) ::unsetenv(name.c_str());
  EXPECT_EQ(text_of(launch), text_of(read(kTorchrun)));
}

TEST(LaunchEnvironmentTest, ReadsTorchrun) {
  const auto launch = read(kTorchrun);
  EXPECT_EQ(text_of(launch), "torchrun: rank 3 of 4, local rank 1 of 2, node1, job 6f5d7cee-1435");
  EXPECT_EQ(launch.master_port, 43'841);
  EXPECT_TRUE(launch.uses_agent_store);
  EXPECT_TRUE(launch.is_distributed());
  EXPECT_FALSE(read(kTorchrun + "TORCHELASTIC_USE_AGENT_STORE=False").uses_agent_store);
}

TEST(LaunchEnvironmentTest, OneProcessOfTorchrunOrMpirunFormsAGroup) {
  EXPECT_TRUE(read("RANK=0 WORLD_SIZE=1 MASTER_ADDR=gpu-box MASTER_PORT=29500").is_distributed());
  EXPECT_TRUE(read("OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1 OMPI_COMM_WORLD_LOCAL_RANK=0 "
                   "OMPI_COMM_WORLD_LOCAL_SIZE=1")
                  .is_distributed());
}

TEST(LaunchEnvironmentTest, TorchrunPrecedesMpirunPrecedesSrun) {
  for (const std::string& outer : {kSrun, kOpenMpi}) {
    EXPECT_EQ(text_of(read(outer + kTorchrun)), text_of(read(kTorchrun)));
  }
  EXPECT_EQ(read(kSrun + kOpenMpi).launcher, Launcher::open_mpi);
}

TEST(LaunchEnvironmentTest, RanksSetByHandOnOneHostAreLocalRanks) {
  for (const std::string address : {"localhost", "127.0.0.1", "127.0.1.1", "::1"}) {
    const auto launch = read("RANK=2 WORLD_SIZE=3 MASTER_PORT=65535 MASTER_ADDR=" + address);
    EXPECT_EQ(text_of(launch), "torchrun: rank 2 of 3, local rank 2 of 3, " + address + ", job ");
    EXPECT_FALSE(launch.uses_agent_store);
  }
  EXPECT_EQ(read(kTorchrun + "LOCAL_RANK= LOCAL_WORLD_SIZE=4").local_rank, 3);
  EXPECT_EQ(read(kTorchrun + "LOCAL_RANK= LOCAL_WORLD_SIZE=1").local_rank, 0);
}

TEST(LaunchEnvironmentTest, ReadsOpenMpiOnOneHost) {
  const auto launch = read(kOpenMpi);
  EXPECT_EQ(text_of(launch), "open_mpi: rank 1 of 2, local rank 1 of 2, 127.0.0.1, job 1765605377");
  EXPECT_FALSE(launch.uses_agent_store);
  EXPECT_EQ(read(kOpenMpi + "PMIX_NAMESPACE=").job_id, "1765605377");
}

TEST(LaunchEnvironmentTest, ReadsOpenMpiOnSeveralHostsGivenMasterAddrOrPmix) {
  const std::string with_pmix = kOpenMpi + "OMPI_COMM_WORLD_SIZE=4 ";
  EXPECT_EQ(read(with_pmix).exchange, LauncherExchange::pmix);
  EXPECT_EQ(read(with_pmix + "MASTER_ADDR=node1").exchange, LauncherExchange::none);
  const std::string hosts = with_pmix + "PMIX_RANK= ";
  const auto launch = read(hosts + "MASTER_ADDR=node1 MASTER_PORT=29500");
  EXPECT_EQ(launch.master_address, "node1");
  EXPECT_EQ(launch.master_port, 29'500);
  EXPECT_ERROR(read(hosts), "the launcher started only 2 of 4");
  EXPECT_ERROR(read(hosts), "-x MASTER_ADDR=<host of rank 0>");
}

TEST(LaunchEnvironmentTest, ReadsSrun) {
  const std::string expected = "slurm: rank 9 of 11, local rank 1 of 3, gnode10, job 200505.1";
  EXPECT_EQ(text_of(read(kSrun)), expected);
  EXPECT_TRUE(read(kSrun).is_distributed());
  EXPECT_EQ(read(kSrun + "SLURM_NODEID=1").local_world_size, 4);
  EXPECT_EQ(read(kSrun + "SLURM_STEP_NODELIST=").master_address, "gnode10");
  EXPECT_EQ(read(kSrun + "MASTER_ADDR=10.0.0.1").master_address, "10.0.0.1");
  // A script exports all variables but the rank.
  const auto launch = read(kSrun + "WORLD_SIZE=11 MASTER_ADDR=gnode10 MASTER_PORT=29500");
  EXPECT_EQ(text_of(launch), expected);
  EXPECT_EQ(launch.master_port, 29'500);
  // A step can be smaller than its allocation.
  EXPECT_EQ(text_of(read(kSrun + "SLURM_NTASKS=64 SLURM_STEP_NODELIST=gnode25 SLURM_NODEID=0 "
                                 "SLURM_STEP_NUM_TASKS=2 SLURM_STEP_TASKS_PER_NODE=2 "
                                 "SLURM_PROCID=1")),
            "slurm: rank 1 of 2, local rank 1 of 2, gnode25, job 200505.1");
}

TEST(LaunchEnvironmentTest, AShellInASlurmAllocationIsASingleProcess) {
  EXPECT_EQ(read(kBatchScript).launcher, Launcher::none);
  EXPECT_EQ(read(kBatchScript).warning,
            "this process trains alone, although its job has 11 tasks (SLURM_NTASKS). To train "
            "with all of them, start the program with srun.");
  EXPECT_EQ(read(kBatchScript + "SLURM_NTASKS=1").warning, "");
  // The shell of salloc with Slurm's setting use_interactive_step.
  EXPECT_EQ(read(kSrun + "SLURM_STEP_ID=4294967290").launcher, Launcher::none);
  // The shell of `srun --pty bash`.
  const auto pty = read(kBatchScript + "SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=1");
  EXPECT_EQ(text_of(pty), "slurm: rank 0 of 1, local rank 0 of 1, 127.0.0.1, job 200505.0");
  EXPECT_FALSE(pty.is_distributed());
}

TEST(LaunchEnvironmentTest, ThePortDependsOnTheJob) {
  std::set<uint16_t> ports;
  for (int step = 0; step < 100; ++step) {
    const std::string variables = kSrun + "SLURM_STEP_ID=" + std::to_string(step);
    const auto port = read(variables).master_port;
    EXPECT_EQ(read(variables + " SLURM_PROCID=10").master_port, port);
    EXPECT_GE(port, 15'000);
    EXPECT_LT(port, 30'000);
    ports.insert(port);
  }
  EXPECT_GE(ports.size(), 95U);
  // A different build of the program must choose the same port.
  EXPECT_EQ(read(kOpenMpi).master_port, 17'468);
}

TEST(LaunchEnvironmentTest, TheTasksOfAJobArrayUseDifferentPorts) {
  std::set<uint16_t> ports;
  for (int job = 200'505; job < 202'505; ++job) {
    ports.insert(read(kSrun + "SLURM_STEP_ID=0 SLURM_JOB_ID=" + std::to_string(job)).master_port);
  }
  EXPECT_EQ(ports.size(), 2000U);
}

/// The variables that mpiexec of MPICH 4.0.2 sets.
const std::string kMpich =
    "PMI_RANK=1 PMI_SIZE=2 PMI_FD=8 MPI_LOCALNRANKS=2 MPI_LOCALRANKID=1 HYDI_CONTROL_FD=7 ";

TEST(LaunchEnvironmentTest, ReadsMpich) {
  const auto one_host = read(kMpich);
  EXPECT_EQ(text_of(one_host), "mpich: rank 1 of 2, local rank 1 of 2, 127.0.0.1, job ");
  EXPECT_EQ(one_host.exchange, LauncherExchange::pmi) << "jobs on one host need different ports";
  EXPECT_EQ(read(kMpich + "MASTER_PORT=5").exchange, LauncherExchange::none);
  const auto hosts = read(kMpich + "PMI_SIZE=4");
  EXPECT_EQ(text_of(hosts), "mpich: rank 1 of 4, local rank 1 of 2, , job ");
  EXPECT_EQ(hosts.exchange, LauncherExchange::pmi);
  EXPECT_ERROR(read(kMpich + "PMI_SIZE=4 PMI_FD="), "it has neither PMIx nor PMI_FD");
  // Hydra starts its own processes with srun within a job of Slurm.
  EXPECT_EQ(read(kSrun + kMpich).launcher, Launcher::mpich);
  // The tasks of `srun --mpi=pmi2`.
  EXPECT_EQ(read(kSrun + "PMI_RANK=9 PMI_SIZE=11 PMI_FD=8 PMI_JOBID=7.0").launcher,
            Launcher::slurm);
}

TEST(LaunchEnvironmentTest, ReadsOtherLaunchers) {
  const std::string pmix = " PMIX_NAMESPACE=x PMIX_RANK=5";
  const std::pair<std::string, const char*> cases[] = {
      {"JSM_NAMESPACE_RANK=5 JSM_NAMESPACE_SIZE=8 JSM_NAMESPACE_LOCAL_RANK=1 "
       "JSM_NAMESPACE_LOCAL_SIZE=4 LSB_JOBID=77",
       "jsm: rank 5 of 8, local rank 1 of 4, , job x"},
      {"FLUX_TASK_RANK=5 FLUX_JOB_SIZE=8 FLUX_TASK_LOCAL_ID=1 FLUX_JOB_NNODES=2 FLUX_JOB_ID=f7",
       "flux: rank 5 of 8, local rank 1 of 4, , job f7"},
      {"PALS_RANKID=5 PMI_RANK=5 PMI_SIZE=8 PALS_LOCAL_RANKID=1 PMI_LOCAL_SIZE=4 PALS_APID=a9",
       "pals: rank 5 of 8, local rank 1 of 4, , job a9"},
      {"MV2_COMM_WORLD_RANK=5 MV2_COMM_WORLD_SIZE=8 MV2_COMM_WORLD_LOCAL_RANK=1 "
       "MV2_COMM_WORLD_LOCAL_SIZE=4",
       "mvapich: rank 5 of 8, local rank 1 of 4, , job "}};
  for (const auto& [variables, text] : cases) {
    const auto launch = read(variables + pmix);
    EXPECT_EQ(text_of(launch), text);
    EXPECT_EQ(launch.exchange, LauncherExchange::pmix);
    EXPECT_EQ(read(variables + " MASTER_ADDR=node1").master_address, "node1");
    EXPECT_ERROR(read(variables), "MASTER_ADDR must be the host of rank 0");
  }
  EXPECT_EQ(read(pmix).launcher, Launcher::pmix);
  EXPECT_EQ(read(cases[0].first + pmix + " MASTER_PORT=29500").port_with_exchange, 29'500);
}

TEST(LaunchEnvironmentTest, FluxMayPutDifferentNumbersOfTasksOnItsHosts) {
  const std::string flux = "FLUX_JOB_SIZE=5 FLUX_JOB_NNODES=2 FLUX_JOB_ID=f7 MASTER_ADDR=node1 ";
  EXPECT_EQ(text_of(read(flux + "FLUX_TASK_RANK=3 FLUX_TASK_LOCAL_ID=3")),
            "flux: rank 3 of 5, local rank 3 of 4, node1, job f7");
  // The tasks of a Flux in a job of Slurm.
  EXPECT_EQ(read(kSrun + flux + "FLUX_TASK_RANK=0 FLUX_TASK_LOCAL_ID=0").launcher, Launcher::flux);
}

TEST(LaunchEnvironmentTest, APodOfKubernetesIsAHost) {
  for (const char* address : {"job-master-0", "10.0.0.7"}) {
    const auto launch = read(c10::str("RANK=2 WORLD_SIZE=3 MASTER_PORT=23456 MASTER_ADDR=", address,
                                      " KUBERNETES_SERVICE_HOST=10.96.0.1"));
    EXPECT_EQ(text_of(launch),
              c10::str("torchrun: rank 2 of 3, local rank 0 of 1, ", address, ", job "));
  }
  EXPECT_EQ(text_of(read("RANK=0 WORLD_SIZE=3 MASTER_PORT=23456 MASTER_ADDR=localhost "
                         "KUBERNETES_SERVICE_HOST=10.96.0.1")),
            "torchrun: rank 0 of 3, local rank 0 of 1, localhost, job ");
  // Processes that were started by hand in one pod.
  EXPECT_EQ(text_of(read("RANK=2 WORLD_SIZE=3 LOCAL_RANK=2 MASTER_PORT=23456 MASTER_ADDR=localhost "
                         "KUBERNETES_SERVICE_HOST=10.96.0.1")),
            "torchrun: rank 2 of 3, local rank 2 of 3, localhost, job ");
}

TEST(LaunchEnvironmentTest, ProcessesOfAnUnknownLauncherDoNotTrainAlone) {
  EXPECT_ERROR(read("FOO_RANK=1 FOO_SIZE=2"),
               "FOO_RANK is 1 and FOO_SIZE is 2, so a launcher that linkboy does not know");
  EXPECT_ERROR(read("FOO_WORLD_RANK=0 FOO_WORLD_SIZE=3"), "To train alone, unset FOO_WORLD_SIZE.");
  for (const char* harmless :
       {"FOO_RANK=0 FOO_SIZE=1", "FOO_RANK=0", "FOO_SIZE=4", "FOO_RANK=first FOO_SIZE=4",
        "FOO_RANK=1 BAR_SIZE=4", "LORA_RANK=8 LORA_SIZE=4"}) {
    EXPECT_EQ(read(harmless).launcher, Launcher::none) << harmless;
  }
  EXPECT_EQ(read(kTorchrun + "FOO_RANK=1 FOO_SIZE=2").launcher, Launcher::torchrun);
  // Left-over or nested variables of torchrun.
  const std::string alone = "RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 MASTER_ADDR=::1 MASTER_PORT=1 ";
  EXPECT_ERROR(read(kOpenMpi + alone), "WORLD_SIZE is 1, but OMPI_COMM_WORLD_SIZE is 2, so each");
  EXPECT_ERROR(read(kMpich + alone), "WORLD_SIZE is 1, but PMI_SIZE is 2");
  EXPECT_ERROR(read(kSrun + alone), "WORLD_SIZE is 1, but SLURM_STEP_NUM_TASKS is 11");
  EXPECT_EQ(read(kBatchScript + alone).world_size, 1);
  // Of two elastic agents, one is lost.
  EXPECT_EQ(read(kSrun + alone + "TORCHELASTIC_RUN_ID=job").world_size, 1);
  EXPECT_ERROR(read(kSrun + "SLURM_PROCID="),
               "SLURM_STEP_NUM_TASKS is 11, but SLURM_PROCID is not set, so this task would train");
  // A container that does not get all variables of Slurm.
  EXPECT_ERROR(read(kBatchScript + "SLURM_PROCID=2"),
               "SLURM_PROCID is 2, but SLURM_STEP_ID is not set, so this task would train alone");
}

TEST(LaunchEnvironmentTest, MalformedVariablesAreErrors) {
  const std::string one_host = "RANK=0 WORLD_SIZE=2 MASTER_ADDR=::1 MASTER_PORT=1 ";
  const std::pair<std::string, const char*> cases[] = {
      {kTorchrun + "RANK=x", "RANK is \"x\"; it must be an integer from 0 to 3"},
      {kTorchrun + "RANK=4", "from 0 to 3 (WORLD_SIZE is 4). Launch with torchrun"},
      {kTorchrun + "RANK=-1", "RANK is \"-1\""},
      {kTorchrun + "WORLD_SIZE=0", "WORLD_SIZE is \"0\""},
      {kTorchrun + "WORLD_SIZE=99999999999999999999", "from 1 to 131072"},
      {kTorchrun + "WORLD_SIZE=1000000",
       "WORLD_SIZE is \"1000000\"; it must be an integer from 1 to 131072. Launch with"},
      {kTorchrun + "WORLD_SIZE=", "RANK is \"3\" but WORLD_SIZE is not set"},
      {kTorchrun + "RANK=", "WORLD_SIZE is \"4\" but RANK is not set"},
      {kTorchrun + "MASTER_ADDR=", "MASTER_ADDR is not set"},
      {kTorchrun + "MASTER_PORT=", "MASTER_PORT is not set"},
      {kTorchrun + "MASTER_PORT=0", "MASTER_PORT is \"0\""},
      {kTorchrun + "MASTER_PORT=65536", "an integer from 1 to 65535"},
      {kTorchrun + "LOCAL_WORLD_SIZE=", "the processes may be on several hosts"},
      {kTorchrun + "LOCAL_WORLD_SIZE=5", "from 1 to 4 (WORLD_SIZE is 4)"},
      {kTorchrun + "LOCAL_RANK=", "LOCAL_RANK is not set"},
      {kTorchrun + "LOCAL_RANK=2", "from 0 to 1 (LOCAL_WORLD_SIZE is 2)"},
      {one_host + "LOCAL_RANK=2", "LOCAL_RANK is \"2\""},
      {kOpenMpi + "OMPI_COMM_WORLD_SIZE=", "OMPI_COMM_WORLD_SIZE is not set"},
      {kOpenMpi + "OMPI_COMM_WORLD_RANK=2", "OMPI_COMM_WORLD_RANK is \"2\""},
      {kOpenMpi + "OMPI_COMM_WORLD_LOCAL_RANK=", "LOCAL_RANK is not set"},
      {kOpenMpi + "OMPI_COMM_WORLD_LOCAL_SIZE=3", "LOCAL_SIZE is \"3\""},
      {kOpenMpi + "MASTER_PORT=http", "MASTER_PORT is \"http\""},
      {kSrun + "SLURM_PROCID=11", "from 0 to 10 (SLURM_STEP_NUM_TASKS is 11)"},
      {kSrun + "SLURM_STEP_NUM_TASKS=many", "SLURM_STEP_NUM_TASKS is \"many\""},
      {kSrun + "SLURM_LOCALID=", "SLURM_LOCALID is not set"},
      {kSrun + "SLURM_LOCALID=3", "SLURM_LOCALID is \"3\""},
      {kSrun + "SLURM_NODEID=", "SLURM_NODEID is not set"},
      {kSrun + "SLURM_NODEID=3", "the number of tasks on node 3 (SLURM_NODEID)"},
      {kSrun + "SLURM_STEP_NODELIST= SLURM_JOB_NODELIST=", "Set MASTER_ADDR"},
      {kSrun + "SLURM_STEP_NODELIST=gnode[", "node list \"gnode[\""},
      {kSrun + "SLURM_STEP_TASKS_PER_NODE=12(x3)", "more than the 11 tasks"},
  };
  for (const auto& [variables, message] : cases) EXPECT_ERROR(read(variables), message);
  for (const char* tasks : {"", "4(x2", "4(2),3", "4(x),3", "4(x0),3", "0(x3)", "(x3)", "4,,3",
                            "4(x2)1", "four", "4(x2),", "-4(x3)"}) {
    EXPECT_ERROR(read(kSrun + "SLURM_STEP_TASKS_PER_NODE=" + tasks),
                 "SLURM_STEP_TASKS_PER_NODE is \"" + std::string(tasks) + "\"");
  }
}

TEST(LaunchEnvironmentTest, FindsTheFirstHostOfSlurmsNodeLists) {
  const std::pair<const char*, const char*> first_hosts[]{{"node1", "node1"},
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
    launch = read(kTorchrun + "CUDA_VISIBLE_DEVICES=" + one);
    EXPECT_EQ(device_index_of(launch, 1), 0) << one;
  }
  launch = read(kTorchrun + "CUDA_VISIBLE_DEVICES=2,3");
  EXPECT_EQ(device_index_of(launch, 2), 1);
  EXPECT_EQ(device_index_of(read(""), 1), 0);
}

// ---- The errors of `launch`; tests/distributed/launch_in_code.cpp tests a successful launch

void expect_refused(const LaunchOptions& options, const std::string& text) {
  EXPECT_OPTION_ERROR(launch(options), text);
}

TEST(LaunchTest, RefusesOptionsOutOfRange) {
  expect_refused({.rank = 0, .world_size = 0}, "world_size is 0; it must be from 1 to");
  expect_refused({.rank = 2, .world_size = 2}, "rank is 2; it must be from 0 to 1");
  expect_refused({.rank = -1, .world_size = 2}, "rank is -1");
  expect_refused({.rank = 0, .world_size = 2, .port = 70'000}, "port is 70000");
  expect_refused({.rank = 0, .world_size = 2, .host = ""}, "host is empty");
  expect_refused({.rank = 0, .world_size = 2, .local_rank = 2, .local_world_size = 2},
                 "local_rank is 2");
  expect_refused({.rank = 0, .world_size = 2, .local_rank = 0, .local_world_size = 3},
                 "local_world_size is 3");
}

TEST(LaunchTest, RefusesToGuessTheLocalRank) {
  expect_refused({.rank = 0, .world_size = 2, .local_rank = 0}, "set both or neither");
  expect_refused({.rank = 0, .world_size = 2, .host = "10.0.0.1"},
                 "may run on several hosts; set local_rank and local_world_size");
}

TEST(LaunchTest, RefusesToRunAfterAnAccelerator) {
  const Accelerator accelerator({.device = "cpu"});
  EXPECT_ERROR(launch({.rank = 0, .world_size = 1}), "launch was called after an Accelerator");
}

}  // namespace
}  // namespace linkboy::launch_environment_test
