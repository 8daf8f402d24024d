// Reads the identity of this process from the variables of its launcher.

#include "distributed/launch_environment.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <limits>
#include <mutex>
#include <string>
#include <vector>

#include "linkboy/distributed/launch.hpp"
#include "linkboy/error.hpp"
#include "util/ceil_div.hpp"
#include "util/parse_number.hpp"

namespace linkboy {
namespace {

using Launcher = LaunchEnvironment::Launcher;

constexpr int64_t kMaxProcesses = 131'072;  // most keys for which c10d's store waits
constexpr const char* kLoopback = "127.0.0.1";
constexpr const char* kHostCharacters =
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";

/// The variables in which a launcher describes a process.
struct LauncherVariables {
  Launcher launcher;
  const char* world_size;
  const char* rank;
  const char* local_world_size;
  const char* local_rank;
  std::array<const char*, 2> job_id;  // the first one that is set identifies the launch
  const char* advice;
};

constexpr LauncherVariables kTorchrun{
    .launcher = Launcher::torchrun,
    .world_size = "WORLD_SIZE",
    .rank = "RANK",
    .local_world_size = "LOCAL_WORLD_SIZE",
    .local_rank = "LOCAL_RANK",
    .job_id = {"TORCHELASTIC_RUN_ID"},
    .advice =
        "Launch with torchrun, or set RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, "
        "MASTER_ADDR and MASTER_PORT for each process."};

/// Open MPI without PMIx sets the second name of the job.
constexpr LauncherVariables kOpenMpi{
    .launcher = Launcher::open_mpi,
    .world_size = "OMPI_COMM_WORLD_SIZE",
    .rank = "OMPI_COMM_WORLD_RANK",
    .local_world_size = "OMPI_COMM_WORLD_LOCAL_SIZE",
    .local_rank = "OMPI_COMM_WORLD_LOCAL_RANK",
    .job_id = {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"},
    .advice = "Do not change the OMPI_COMM_WORLD_ variables of mpirun."};

constexpr LauncherVariables kMpich{
    .launcher = Launcher::mpich,
    .world_size = "PMI_SIZE",
    .rank = "PMI_RANK",
    .local_world_size = "MPI_LOCALNRANKS",
    .local_rank = "MPI_LOCALRANKID",
    .job_id = {},
    .advice = "Do not change the PMI_ and MPI_ variables of mpiexec."};

/// The local world size is computed from the number of nodes. The broker of Flux may run under
/// Slurm or jsrun, whose variables its tasks then have, too.
constexpr LauncherVariables kFlux{.launcher = Launcher::flux,
                                  .world_size = "FLUX_JOB_SIZE",
                                  .rank = "FLUX_TASK_RANK",
                                  .local_world_size = "FLUX_JOB_NNODES",
                                  .local_rank = "FLUX_TASK_LOCAL_ID",
                                  .job_id = {"FLUX_JOB_ID"},
                                  .advice = "Do not change the FLUX_ variables of flux run."};

/// These differ only in the names.
constexpr std::array kOtherLaunchers{
    LauncherVariables{.launcher = Launcher::jsm,
                      .world_size = "JSM_NAMESPACE_SIZE",
                      .rank = "JSM_NAMESPACE_RANK",
                      .local_world_size = "JSM_NAMESPACE_LOCAL_SIZE",
                      .local_rank = "JSM_NAMESPACE_LOCAL_RANK",
                      .job_id = {"PMIX_NAMESPACE", "LSB_JOBID"},  // a job may have several steps
                      .advice = "Do not change the JSM_NAMESPACE_ variables of jsrun."},
    LauncherVariables{.launcher = Launcher::pals,
                      .world_size = "PMI_SIZE",
                      .rank = "PALS_RANKID",
                      .local_world_size = "PMI_LOCAL_SIZE",
                      .local_rank = "PALS_LOCAL_RANKID",
                      .job_id = {"PALS_APID"},
                      .advice = "Do not change the PALS_ and PMI_ variables of mpiexec."},
    LauncherVariables{.launcher = Launcher::mvapich,
                      .world_size = "MV2_COMM_WORLD_SIZE",
                      .rank = "MV2_COMM_WORLD_RANK",
                      .local_world_size = "MV2_COMM_WORLD_LOCAL_SIZE",
                      .local_rank = "MV2_COMM_WORLD_LOCAL_RANK",
                      .job_id = {},
                      .advice = "Do not change the MV2_COMM_WORLD_ variables of mpirun."}};

/// The local world size is a list with the number of tasks on each node.
constexpr LauncherVariables kSlurm{
    .launcher = Launcher::slurm,
    .world_size = "SLURM_STEP_NUM_TASKS",
    .rank = "SLURM_PROCID",
    .local_world_size = "SLURM_STEP_TASKS_PER_NODE",
    .local_rank = "SLURM_LOCALID",
    .job_id = {"SLURM_JOB_ID"},
    .advice = "Do not change the SLURM_ variables of srun, and pass them into containers."};

struct Range {
  int64_t least;
  int64_t most;
  std::string reason = "";
};

const Range kAnyCount{0, std::numeric_limits<int>::max()};

Range below(const char* name, int64_t count) {
  return {0, count - 1, c10::str(" (", name, " is ", count, ")")};
}

Range up_to(const char* name, int64_t count) {
  return {1, count, c10::str(" (", name, " is ", count, ")")};
}

// Ports below 32768, where Linux's automatically assigned ports begin.
constexpr uint64_t kFirstPort = 15'000;
constexpr uint64_t kNumPorts = 15'000;

/// Returns a port that is the same on all ranks and unlikely to be used by another job on the host.
uint16_t port_of(std::string_view job_id) {
  uint64_t hash = 14695981039346656037u;  // FNV-1a: std::hash may differ between builds
  for (const char c : job_id) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return static_cast<uint16_t>(kFirstPort + hash % kNumPorts);
}

/// Returns a port that differs from those of the next thousands of jobs, such as the other tasks of
/// a job array, and from those of the next six steps of the job.
uint16_t port_of_step(int64_t job, int64_t step) {
  constexpr uint64_t kPortsPerJob = 7;
  const uint64_t place = static_cast<uint64_t>(job) * kPortsPerJob + static_cast<uint64_t>(step);
  return static_cast<uint16_t>(kFirstPort + place % kNumPorts);
}

/// Reads the variables of one launcher.
class Variables {
 public:
  explicit Variables(const EnvironmentLookup& lookup, const LauncherVariables& names = kTorchrun)
      : lookup_(lookup), names_(names) {}

  std::optional<std::string> find(const char* name) const {
    auto value = lookup_(name);
    if (value && value->empty()) return std::nullopt;
    return value;
  }

  bool has(const char* name) const { return find(name).has_value(); }

  /// @param otherwise  The value of a variable that is not set; nullopt if it must be set.
  /// @param advice  Null for that of the launcher.
  int64_t number(const char* name, const Range& range, std::optional<int64_t> otherwise = {},
                 const char* advice = nullptr) const {
    const auto text = find(name);
    if (!text && otherwise) return *otherwise;
    const auto allowed = c10::str("; it must be an integer from ", range.least, " to ", range.most,
                                  range.reason, ". ", advice != nullptr ? advice : names_.advice);
    LINKBOY_CHECK(text, name, " is not set", allowed);
    const auto value = parse_number<int64_t>(*text);
    LINKBOY_CHECK(value && *value >= range.least && *value <= range.most, name, " is \"", *text,
                  "\"", allowed);
    return *value;
  }

  uint16_t port(std::optional<int64_t> otherwise = {}) const {
    return static_cast<uint16_t>(
        number("MASTER_PORT", {1, 65'535}, otherwise, "Set it to a free port of rank 0's host."));
  }

  /// How the launcher passes texts between processes.
  LauncherExchange exchange() const {
    if (has("PMIX_NAMESPACE") && has("PMIX_RANK")) return LauncherExchange::pmix;
    return has("PMI_FD") ? LauncherExchange::pmi : LauncherExchange::none;
  }

  void choose_exchange(LaunchEnvironment& launch) const {
    launch.exchange = exchange();
    launch.port_with_exchange = has("MASTER_PORT") ? port() : 0;
  }

  /// Reads what all launchers set in the same way.
  LaunchEnvironment read() const {
    LaunchEnvironment launch;
    launch.launcher = names_.launcher;
    launch.world_size = number(names_.world_size, {1, kMaxProcesses});
    launch.rank = number(names_.rank, below(names_.world_size, launch.world_size));
    for (const char* name : names_.job_id) {
      if (name != nullptr && launch.job_id.empty()) launch.job_id = find(name).value_or("");
    }
    launch.master_address = find("MASTER_ADDR").value_or("");
    return launch;
  }

 private:
  const EnvironmentLookup& lookup_;
  const LauncherVariables& names_;
};

bool is_loopback(const std::string& address) {
  return address == "localhost" || address == "::1" || address.starts_with("127.");
}

LaunchEnvironment read_torchrun(const EnvironmentLookup& lookup) {
  const Variables variables(lookup, kTorchrun);
  LaunchEnvironment launch = variables.read();
  LINKBOY_CHECK(!launch.master_address.empty(),
                "MASTER_ADDR is not set, although RANK and WORLD_SIZE are; it must be the host "
                "name or address of rank 0. ",
                kTorchrun.advice);
  launch.master_port = variables.port();

  // A PyTorchJob of Kubernetes sets no local variables, because each pod is a host of its own. In
  // the pod of rank 0, MASTER_ADDR may be localhost.
  const bool is_pod = variables.has("KUBERNETES_SERVICE_HOST") &&
                      !variables.has("LOCAL_WORLD_SIZE") && !variables.has("LOCAL_RANK");
  if (is_pod && (launch.rank == 0 || !is_loopback(launch.master_address))) return launch;
  // With several hosts, a guess could assign the wrong GPUs.
  const bool is_one_host = launch.world_size == 1 || is_loopback(launch.master_address);
  LINKBOY_CHECK(is_one_host || variables.has("LOCAL_WORLD_SIZE"),
                "LOCAL_WORLD_SIZE is not set, and with MASTER_ADDR \"", launch.master_address,
                "\" the processes may be on several hosts; it must be the number of processes on "
                "this host. ",
                kTorchrun.advice);
  launch.local_world_size = variables.number(
      "LOCAL_WORLD_SIZE", up_to("WORLD_SIZE", launch.world_size), launch.world_size);
  std::optional<int64_t> local_rank;
  if (launch.local_world_size == launch.world_size) local_rank = launch.rank;
  if (launch.local_world_size == 1) local_rank = 0;
  launch.local_rank = variables.number(
      "LOCAL_RANK", below("LOCAL_WORLD_SIZE", launch.local_world_size), local_rank);

  launch.uses_agent_store = variables.find("TORCHELASTIC_USE_AGENT_STORE") == "True";
  return launch;
}

LaunchEnvironment read_mpi(const EnvironmentLookup& lookup, const LauncherVariables& names) {
  const Variables variables(lookup, names);
  LaunchEnvironment launch = variables.read();
  const int64_t local =
      variables.number(names.local_world_size, up_to(names.world_size, launch.world_size));
  if (names.launcher == Launcher::flux) {
    // Flux may have put more tasks on this host than on the others.
    launch.local_rank =
        variables.number(names.local_rank, below(names.world_size, launch.world_size));
    launch.local_world_size = std::max(ceil_div(launch.world_size, local), launch.local_rank + 1);
  } else {
    launch.local_rank = variables.number(names.local_rank, below(names.local_world_size, local));
    launch.local_world_size = local;
  }
  launch.master_port = variables.port(port_of(launch.job_id));
  if (!launch.master_address.empty()) return launch;
  const bool is_one_host = launch.local_world_size == launch.world_size;
  if (is_one_host) launch.master_address = kLoopback;
  // Without the identity of the job, jobs on the same host would use the same port.
  const bool has_port = !launch.job_id.empty() || variables.has("MASTER_PORT");
  if (!is_one_host || (!has_port && launch.world_size > 1)) variables.choose_exchange(launch);
  LINKBOY_CHECK(is_one_host || launch.exchange != LauncherExchange::none,
                "MASTER_ADDR is not set, the launcher started only ", launch.local_world_size,
                " of ", launch.world_size,
                " processes on this host, and it has neither PMIx nor PMI_FD, through which rank 0 "
                "could tell the others its address; MASTER_ADDR must be the host of rank 0. Set it "
                "for all processes, as `mpirun -x MASTER_ADDR=<host of rank 0>` of Open MPI and "
                "`mpiexec -genv MASTER_ADDR <host of rank 0>` of MPICH do.");
  return launch;
}

/// Whether srun started this process. A batch script and the shell of salloc also have SLURM_PROCID
/// and SLURM_NTASKS.
bool is_slurm_task(const Variables& variables) {
  constexpr int64_t kFirstReservedStep = 0xfffffff0;  // batch script, salloc's shell, ...
  const auto step = variables.find("SLURM_STEP_ID");
  return step && parse_number<int64_t>(*step).value_or(0) < kFirstReservedStep &&
         variables.has(kSlurm.rank) && variables.has(kSlurm.world_size);
}

/// Parses a list such as "4(x2),3": two nodes with four tasks each, then one with three.
int64_t num_tasks_on_node(const std::string& tasks_per_node, int64_t node) {
  std::string_view rest = tasks_per_node;
  for (int64_t num_nodes_before = 0; !rest.empty();) {
    const std::string_view item = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), item.size() + 1));
    const std::size_t bracket = std::min(item.find("(x"), item.size());
    std::string_view times = item.substr(bracket);
    times = times.empty() ? "(x1)" : times;
    const int64_t num_tasks = parse_number<int64_t>(item.substr(0, bracket)).value_or(0);
    const int64_t num_nodes =
        times.ends_with(')') ? parse_number<int64_t>(times.substr(2, times.size() - 3)).value_or(0)
                             : 0;
    if (num_tasks < 1 || num_nodes < 1) break;
    if (node - num_nodes_before < num_nodes) return num_tasks;
    num_nodes_before += num_nodes;
  }
  throw Error(c10::str("SLURM_STEP_TASKS_PER_NODE is \"", tasks_per_node,
                       "\"; it must contain the number of tasks on node ", node,
                       " (SLURM_NODEID), as \"4(x2),3\" does for nodes 0 to 2. ", kSlurm.advice));
}

std::string slurm_master_address(const Variables& variables, int64_t world_size) {
  if (world_size == 1) return kLoopback;
  auto nodes = variables.find("SLURM_STEP_NODELIST");
  if (!nodes) nodes = variables.find("SLURM_JOB_NODELIST");
  LINKBOY_CHECK(nodes,
                "SLURM_STEP_NODELIST and SLURM_JOB_NODELIST are not set; one of them must name the "
                "host of rank 0. Set MASTER_ADDR to it, or: ",
                kSlurm.advice);
  return first_host(*nodes);
}

LaunchEnvironment read_slurm(const EnvironmentLookup& lookup) {
  const Variables variables(lookup, kSlurm);
  LaunchEnvironment launch = variables.read();
  if (launch.world_size > 1) {
    const int64_t node = variables.number("SLURM_NODEID", kAnyCount);
    const auto tasks_per_node = variables.find(kSlurm.local_world_size).value_or("");
    launch.local_world_size = num_tasks_on_node(tasks_per_node, node);
    LINKBOY_CHECK(launch.local_world_size <= launch.world_size, "SLURM_STEP_TASKS_PER_NODE is \"",
                  tasks_per_node, "\"; a node must not have more than the ", launch.world_size,
                  " tasks of the step (SLURM_STEP_NUM_TASKS). ", kSlurm.advice);
    const Range range{0, launch.local_world_size - 1, " (SLURM_STEP_TASKS_PER_NODE)"};
    launch.local_rank = variables.number(kSlurm.local_rank, range);
  }
  if (launch.master_address.empty()) {
    launch.master_address = slurm_master_address(variables, launch.world_size);
    const bool has_pmix = variables.exchange() == LauncherExchange::pmix;
    if (launch.world_size > 1 && has_pmix) variables.choose_exchange(launch);
  }
  const auto job = parse_number<int64_t>(launch.job_id);
  const auto step_id = variables.find("SLURM_STEP_ID").value_or("");
  const auto step = parse_number<int64_t>(step_id);
  launch.job_id += "." + step_id;
  launch.master_port =
      variables.port(job && step ? port_of_step(*job, *step) : port_of(launch.job_id));
  return launch;
}

/// Returns the value of a variable; -1 if it is not set or not an integer.
int64_t number_of(const Variables& variables, const std::string& name) {
  return parse_number<int64_t>(variables.find(name.c_str()).value_or("")).value_or(-1);
}

/// Many processes that each train alone would overwrite each other's files.
/// @throws Error if an unknown launcher has set its variables.
void check_no_unknown_launcher(const Variables& variables, const std::vector<std::string>& names) {
  constexpr std::string_view kRank = "_RANK";
  for (const std::string& name : names) {
    if (!name.ends_with(kRank)) continue;
    const std::string size_name = name.substr(0, name.size() - kRank.size()) + "_SIZE";
    const int64_t rank = number_of(variables, name), size = number_of(variables, size_name);
    LINKBOY_CHECK(rank < 0 || size < 2 || rank >= size, name, " is ", rank, " and ", size_name,
                  " is ", size,
                  ", so a launcher that linkboy does not know seems to have started several "
                  "processes, which would each train alone. Set RANK and WORLD_SIZE to these "
                  "values, and LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT, or call "
                  "linkboy::launch. To train alone, unset ",
                  size_name, ".");
  }
}

/// Processes that torchrun, or variables by hand, describe as single ones may be several of another
/// launcher.
void check_is_alone(const Variables& variables) {
  // Agents of torchrun that have found each other leave one process if the others are lost.
  if (variables.find("TORCHELASTIC_RUN_ID").value_or("none") != "none") return;
  std::vector<const char*> sizes{kOpenMpi.world_size, kMpich.world_size};
  if (is_slurm_task(variables)) sizes.push_back(kSlurm.world_size);
  for (const char* size : sizes) {
    LINKBOY_CHECK(number_of(variables, size) < 2, "WORLD_SIZE is 1, but ", size, " is ",
                  *variables.find(size),
                  ", so each of these processes would train alone. Unset RANK and WORLD_SIZE (or "
                  "do not start torchrun), so that the processes form a group; or, to train alone, "
                  "unset ",
                  size, ".");
  }
}

/// Whether srun would start several processes in this script or shell.
std::string warning_about_allocation(const Variables& variables) {
  if (number_of(variables, "SLURM_NTASKS") < 2) return {};
  return c10::str("this process trains alone, although its job has ",
                  *variables.find("SLURM_NTASKS"),
                  " tasks (SLURM_NTASKS). To train with all of them, start the program with srun.");
}

LaunchEnvironment read_launcher(const EnvironmentLookup& lookup,
                                const std::vector<std::string>& names) {
  const Variables variables(lookup);
  const bool has_rank = variables.has("RANK");
  const bool has_world_size = variables.has("WORLD_SIZE");
  if (has_rank && has_world_size) {
    LaunchEnvironment launch = read_torchrun(lookup);
    if (launch.world_size == 1) check_is_alone(variables);
    return launch;
  }
  // Batch scripts often export only WORLD_SIZE, and srun adds the rest.
  if (variables.has(kOpenMpi.rank)) return read_mpi(lookup, kOpenMpi);
  if (variables.has(kMpich.rank) && variables.has(kMpich.local_rank)) {
    return read_mpi(lookup, kMpich);
  }
  if (variables.has(kFlux.rank)) return read_mpi(lookup, kFlux);
  if (is_slurm_task(variables)) return read_slurm(lookup);
  LINKBOY_CHECK(number_of(variables, kSlurm.rank) < 1 || variables.has("SLURM_STEP_ID"),
                kSlurm.rank, " is ", *variables.find(kSlurm.rank),
                ", but SLURM_STEP_ID is not set, so this task would train alone. ", kSlurm.advice);
  LINKBOY_CHECK(number_of(variables, kSlurm.world_size) < 2 || variables.has(kSlurm.rank),
                kSlurm.world_size, " is ", *variables.find(kSlurm.world_size), ", but ",
                kSlurm.rank, " is not set, so this task would train alone. ", kSlurm.advice);
  for (const LauncherVariables& other : kOtherLaunchers) {
    if (variables.has(other.rank)) return read_mpi(lookup, other);
  }
  if (variables.exchange() == LauncherExchange::pmix) {
    LaunchEnvironment launch;
    launch.launcher = Launcher::pmix;
    variables.choose_exchange(launch);
    launch.job_id = *variables.find("PMIX_NAMESPACE");
    return launch;  // PMIx knows the rest
  }
  // Otherwise each of many processes would train alone and overwrite the files of the others.
  const char* found = has_rank ? "RANK" : "WORLD_SIZE";
  LINKBOY_CHECK(!has_rank && !has_world_size, found, " is \"", *variables.find(found), "\" but ",
                has_rank ? "WORLD_SIZE" : "RANK",
                " is not set; set both, or neither to run a single process. Unset ", found,
                ", or: ", kTorchrun.advice);
  check_no_unknown_launcher(variables, names);
  LaunchEnvironment alone;
  alone.warning = warning_about_allocation(variables);
  return alone;
}

/// Completes what only PMIx knows.
void complete(LaunchEnvironment& launch) {
  if (launch.launcher != Launcher::pmix) return;
  const auto job = pmix_job();
  LINKBOY_CHECK(
      job,
      "PMIX_RANK is set, but libpmix.so.2, which knows the number of processes, cannot be "
      "loaded. Install it (libpmix2 in Debian), or: ",
      kTorchrun.advice);
  launch.rank = job->rank;
  launch.world_size = job->world_size;
  launch.local_rank = job->local_rank;
  launch.local_world_size = job->local_world_size;
}

std::vector<std::string> names_of_variables() {
  std::vector<std::string> names;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    names.emplace_back(text.substr(0, text.find('=')));
  }
  return names;
}

bool sees_one_device(const EnvironmentLookup& lookup) {
  const auto visible = Variables(lookup).find("CUDA_VISIBLE_DEVICES");
  return visible && visible->find(',') == std::string::npos;
}

std::optional<std::string> environment_variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? std::optional<std::string>(value) : std::nullopt;
}

/// The identity that `launch` has set.
struct LaunchInCode {
  std::mutex mutex;
  std::optional<LaunchEnvironment> launch;
  bool is_read = false;  // whether an Accelerator has read it
};

LaunchInCode launch_in_code;

void check_in_range(const char* name, int64_t value, int64_t least, int64_t most) {
  LINKBOY_CHECK_OPTION(value >= least && value <= most, "the launch's ", name, " is ", value,
                       "; it must be from ", least, " to ", most, ".");
}

LaunchEnvironment environment_of(const LaunchOptions& options) {
  check_in_range("world_size", options.world_size, 1, kMaxProcesses);
  check_in_range("rank", options.rank, 0, options.world_size - 1);
  check_in_range("port", options.port, 1, 65'535);
  LINKBOY_CHECK_OPTION(!options.host.empty(),
                       "the launch's host is empty; it must be the name or address of the host of "
                       "rank 0.");
  const bool has_both = options.local_rank && options.local_world_size;
  LINKBOY_CHECK_OPTION(
      has_both || (!options.local_rank && !options.local_world_size),
      "only one of local_rank and local_world_size is set for the launch; set both "
      "or neither.");
  LINKBOY_CHECK_OPTION(has_both || options.world_size == 1 || is_loopback(options.host),
                       "the launch's host is \"", options.host,
                       "\", so the processes may run on several hosts; set local_rank and "
                       "local_world_size, too.");
  LaunchEnvironment launch;
  launch.launcher = Launcher::torchrun;
  launch.rank = options.rank;
  launch.world_size = options.world_size;
  launch.local_rank = options.local_rank.value_or(options.rank);
  launch.local_world_size = options.local_world_size.value_or(options.world_size);
  check_in_range("local_world_size", launch.local_world_size, 1, options.world_size);
  check_in_range("local_rank", launch.local_rank, 0, launch.local_world_size - 1);
  launch.master_address = options.host;
  launch.master_port = static_cast<uint16_t>(options.port);
  launch.sees_one_device = sees_one_device(environment_variable);
  return launch;
}

}  // namespace

void launch(const LaunchOptions& options) {
  LaunchEnvironment environment = environment_of(options);
  const std::lock_guard lock(launch_in_code.mutex);
  LINKBOY_CHECK(!launch_in_code.launch, "launch was called twice; call it once in each process.");
  LINKBOY_CHECK(!launch_in_code.is_read,
                "launch was called after an Accelerator had already connected to its processes. "
                "Call launch first.");
  launch_in_code.launch = std::move(environment);
}

LaunchEnvironment read_launch_environment(const EnvironmentLookup& lookup,
                                          const std::vector<std::string>& names) {
  LaunchEnvironment launch = read_launcher(lookup, names);
  launch.sees_one_device = sees_one_device(lookup);
  return launch;
}

std::optional<int64_t> device_index_of(const LaunchEnvironment& launch, int64_t num_devices) {
  if (launch.sees_one_device && num_devices == 1) return 0;
  if (launch.local_world_size > num_devices) return std::nullopt;
  return launch.local_rank;
}

LaunchEnvironment read_launch_environment() {
  const std::lock_guard lock(launch_in_code.mutex);
  launch_in_code.is_read = true;
  if (launch_in_code.launch) return *launch_in_code.launch;
  LaunchEnvironment launch = read_launch_environment(environment_variable, names_of_variables());
  complete(launch);
  return launch;
}

std::string first_host(std::string_view slurm_node_list) {
  const auto check = [slurm_node_list](bool is_good) {
    LINKBOY_CHECK(is_good, "the first host of Slurm's node list \"", slurm_node_list,
                  "\" is malformed; an example of a valid list is \"node[01-04,07],login1\". Set "
                  "MASTER_ADDR to the host of rank 0.");
  };
  std::string host;
  std::string_view rest = slurm_node_list;
  while (!rest.empty()) {
    const std::string_view letters = rest.substr(0, rest.find_first_of("[,"));
    check(letters.find_first_not_of(kHostCharacters) == std::string_view::npos);
    host += letters;
    rest.remove_prefix(letters.size());
    if (!rest.starts_with('[')) break;
    const std::size_t end = rest.find(']');
    check(end != std::string_view::npos);
    const std::string_view numbers = rest.substr(1, end - 1);
    check(numbers.find_first_not_of("0123456789-,") == std::string_view::npos);
    const std::string_view first = numbers.substr(0, numbers.find_first_of("-,"));
    check(!first.empty() && numbers.back() != '-' && numbers.back() != ',');
    host += first;
    rest.remove_prefix(end + 1);
  }
  check(!host.empty());
  return host;
}

}  // namespace linkboy
