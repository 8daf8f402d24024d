// Reads the identity of this process from the variables of torchrun, mpirun or srun.

#include "distributed/launch_environment.hpp"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <mutex>

#include "linkboy/distributed/launch.hpp"
#include "linkboy/error.hpp"
#include "util/parse_number.hpp"

namespace linkboy {
namespace {

using Launcher = LaunchEnvironment::Launcher;

constexpr int64_t kMaxProcesses = 131'072;  // most keys for which c10d's store waits
constexpr const char* kLoopback = "127.0.0.1";

constexpr const char* kTorchrunAdvice =
    "Launch with torchrun, or set RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and "
    "MASTER_PORT for each process.";
constexpr const char* kOpenMpiAdvice = "Do not change the OMPI_COMM_WORLD_ variables of mpirun.";
constexpr const char* kSlurmAdvice =
    "Do not change the SLURM_ variables of srun, and pass them into containers.";

bool is_digit(char c) { return c >= '0' && c <= '9'; }

bool is_host_character(char c) {
  const bool is_letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  return is_letter || is_digit(c) || c == '-' || c == '_' || c == '.';
}

struct Range {
  int64_t least;
  int64_t most;
  std::string reason = "";
};

const Range kAnyCount{0, std::numeric_limits<int>::max()};
const Range kWorldSizes{1, kMaxProcesses};

Range below(const char* name, int64_t count) {
  return {0, count - 1, c10::str(" (", name, " is ", count, ")")};
}

Range up_to(const char* name, int64_t count) {
  return {1, count, c10::str(" (", name, " is ", count, ")")};
}

class Variables {
 public:
  explicit Variables(const EnvironmentLookup& lookup) : lookup_(lookup) {}

  std::optional<std::string> find(const char* name) const {
    auto value = lookup_(name);
    if (value && value->empty()) return std::nullopt;
    return value;
  }

  bool has(const char* name) const { return find(name).has_value(); }

  int64_t number(const char* name, const Range& range, const char* advice) const {
    const auto text = find(name);
    const auto allowed = c10::str("; it must be an integer from ", range.least, " to ", range.most,
                                  range.reason, ". ", advice);
    LINKBOY_CHECK(text, name, " is not set", allowed);
    const auto value = parse_number<int64_t>(*text);
    LINKBOY_CHECK(value && *value >= range.least && *value <= range.most, name, " is \"", *text,
                  "\"", allowed);
    return *value;
  }

  uint16_t port() const {
    return static_cast<uint16_t>(
        number("MASTER_PORT", {1, 65'535}, "Set it to a free port of rank 0's host."));
  }

 private:
  const EnvironmentLookup& lookup_;
};

/// Returns a port that is the same on all ranks and unlikely to be used by another job on the host.
/// It is below 32768, where Linux's automatically assigned ports begin.
uint16_t port_of(std::string_view job_id) {
  constexpr uint64_t kFirstPort = 15'000;
  constexpr uint64_t kNumPorts = 15'000;
  uint64_t hash = 14695981039346656037u;  // FNV-1a: std::hash may differ between builds
  for (const char c : job_id) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return static_cast<uint16_t>(kFirstPort + hash % kNumPorts);
}

uint16_t port_for(const Variables& variables, std::string_view job_id) {
  return variables.has("MASTER_PORT") ? variables.port() : port_of(job_id);
}

bool is_loopback(const std::string& address) {
  return address == "localhost" || address == "::1" || address.starts_with("127.");
}

LaunchEnvironment read_torchrun(const Variables& variables) {
  LaunchEnvironment launch;
  launch.launcher = Launcher::torchrun;
  launch.world_size = variables.number("WORLD_SIZE", kWorldSizes, kTorchrunAdvice);
  launch.rank = variables.number("RANK", below("WORLD_SIZE", launch.world_size), kTorchrunAdvice);

  const auto address = variables.find("MASTER_ADDR");
  LINKBOY_CHECK(address,
                "MASTER_ADDR is not set, although RANK and WORLD_SIZE are; it must be the host "
                "name or address of rank 0. ",
                kTorchrunAdvice);
  launch.master_address = *address;
  launch.master_port = variables.port();

  // With several hosts, a guess could assign the wrong GPUs.
  const bool is_one_host = launch.world_size == 1 || is_loopback(*address);
  LINKBOY_CHECK(is_one_host || variables.has("LOCAL_WORLD_SIZE"),
                "LOCAL_WORLD_SIZE is not set, and with MASTER_ADDR \"", *address,
                "\" the processes may be on several hosts; it must be the number of processes on "
                "this host. ",
                kTorchrunAdvice);
  launch.local_world_size =
      variables.has("LOCAL_WORLD_SIZE")
          ? variables.number("LOCAL_WORLD_SIZE", up_to("WORLD_SIZE", launch.world_size),
                             kTorchrunAdvice)
          : launch.world_size;
  if (variables.has("LOCAL_RANK") ||
      (launch.local_world_size != 1 && launch.local_world_size != launch.world_size)) {
    launch.local_rank = variables.number(
        "LOCAL_RANK", below("LOCAL_WORLD_SIZE", launch.local_world_size), kTorchrunAdvice);
  } else {
    launch.local_rank = launch.local_world_size == 1 ? 0 : launch.rank;
  }

  launch.uses_agent_store = variables.find("TORCHELASTIC_USE_AGENT_STORE") == "True";
  if (variables.has("TORCHELASTIC_RESTART_COUNT")) {
    launch.restart_count =
        variables.number("TORCHELASTIC_RESTART_COUNT", kAnyCount, kTorchrunAdvice);
  }
  launch.job_id = variables.find("TORCHELASTIC_RUN_ID").value_or("");
  return launch;
}

LaunchEnvironment read_open_mpi(const Variables& variables) {
  LaunchEnvironment launch;
  launch.launcher = Launcher::open_mpi;
  launch.world_size = variables.number("OMPI_COMM_WORLD_SIZE", kWorldSizes, kOpenMpiAdvice);
  launch.rank = variables.number("OMPI_COMM_WORLD_RANK",
                                 below("OMPI_COMM_WORLD_SIZE", launch.world_size), kOpenMpiAdvice);
  launch.local_world_size =
      variables.number("OMPI_COMM_WORLD_LOCAL_SIZE",
                       up_to("OMPI_COMM_WORLD_SIZE", launch.world_size), kOpenMpiAdvice);
  launch.local_rank = variables.number("OMPI_COMM_WORLD_LOCAL_RANK",
                                       below("OMPI_COMM_WORLD_LOCAL_SIZE", launch.local_world_size),
                                       kOpenMpiAdvice);

  const auto address = variables.find("MASTER_ADDR");
  LINKBOY_CHECK(address || launch.local_world_size == launch.world_size,
                "MASTER_ADDR is not set, and mpirun started only ", launch.local_world_size, " of ",
                launch.world_size,
                " processes on this host; on several hosts it must be the host of rank 0. Pass "
                "`-x MASTER_ADDR=<host of rank 0>` to mpirun.");
  launch.master_address = address.value_or(kLoopback);
  // Open MPI without PMIx uses the second name.
  for (const char* name : {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"}) {
    if (launch.job_id.empty()) launch.job_id = variables.find(name).value_or("");
  }
  launch.master_port = port_for(variables, launch.job_id);
  return launch;
}

/// Whether srun started this process. A batch script and the shell of salloc also have SLURM_PROCID
/// and SLURM_NTASKS.
bool is_slurm_task(const Variables& variables) {
  constexpr int64_t kFirstReservedStep = 0xfffffff0;  // batch script, salloc's shell, ...
  const auto step = variables.find("SLURM_STEP_ID");
  return step && parse_number<int64_t>(*step).value_or(0) < kFirstReservedStep &&
         variables.has("SLURM_PROCID") && variables.has("SLURM_STEP_NUM_TASKS");
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
                       " (SLURM_NODEID), as \"4(x2),3\" does for nodes 0 to 2. ", kSlurmAdvice));
}

std::string slurm_master_address(const Variables& variables, int64_t world_size) {
  if (const auto address = variables.find("MASTER_ADDR")) return *address;
  if (world_size == 1) return kLoopback;
  auto nodes = variables.find("SLURM_STEP_NODELIST");
  if (!nodes) nodes = variables.find("SLURM_JOB_NODELIST");
  LINKBOY_CHECK(nodes,
                "SLURM_STEP_NODELIST and SLURM_JOB_NODELIST are not set; one of them must name the "
                "host of rank 0. Set MASTER_ADDR to it, or: ",
                kSlurmAdvice);
  return first_host(*nodes);
}

LaunchEnvironment read_slurm(const Variables& variables) {
  LaunchEnvironment launch;
  launch.launcher = Launcher::slurm;
  launch.world_size = variables.number("SLURM_STEP_NUM_TASKS", kWorldSizes, kSlurmAdvice);
  launch.rank = variables.number("SLURM_PROCID", below("SLURM_STEP_NUM_TASKS", launch.world_size),
                                 kSlurmAdvice);
  if (launch.world_size > 1) {
    const int64_t node = variables.number("SLURM_NODEID", kAnyCount, kSlurmAdvice);
    const auto tasks_per_node = variables.find("SLURM_STEP_TASKS_PER_NODE").value_or("");
    launch.local_world_size = num_tasks_on_node(tasks_per_node, node);
    LINKBOY_CHECK(launch.local_world_size <= launch.world_size, "SLURM_STEP_TASKS_PER_NODE is \"",
                  tasks_per_node, "\"; a node must not have more than the ", launch.world_size,
                  " tasks of the step (SLURM_STEP_NUM_TASKS). ", kSlurmAdvice);
    const Range range{0, launch.local_world_size - 1, " (SLURM_STEP_TASKS_PER_NODE)"};
    launch.local_rank = variables.number("SLURM_LOCALID", range, kSlurmAdvice);
  }
  launch.master_address = slurm_master_address(variables, launch.world_size);
  launch.job_id = variables.find("SLURM_JOB_ID").value_or("") + "." +
                  variables.find("SLURM_STEP_ID").value_or("");
  launch.master_port = port_for(variables, launch.job_id);
  return launch;
}

LaunchEnvironment read_launcher(const Variables& variables) {
  const bool has_rank = variables.has("RANK");
  const bool has_world_size = variables.has("WORLD_SIZE");
  if (has_rank && has_world_size) return read_torchrun(variables);
  // Batch scripts often export only WORLD_SIZE, and srun adds the rest.
  if (variables.has("OMPI_COMM_WORLD_RANK")) return read_open_mpi(variables);
  if (is_slurm_task(variables)) return read_slurm(variables);
  // Otherwise each of many processes would train alone and overwrite the files of the others.
  const char* found = has_rank ? "RANK" : "WORLD_SIZE";
  LINKBOY_CHECK(!has_rank && !has_world_size, found, " is \"", *variables.find(found), "\" but ",
                has_rank ? "WORLD_SIZE" : "RANK",
                " is not set; set both, or neither to run a single process. Unset ", found,
                ", or: ", kTorchrunAdvice);
  return {};
}

void see_devices(const Variables& variables, LaunchEnvironment& launch) {
  const auto visible = variables.find("CUDA_VISIBLE_DEVICES");
  launch.sees_one_device = visible && visible->find(',') == std::string::npos;
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

LaunchInCode& launch_in_code() {
  static LaunchInCode instance;
  return instance;
}

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
  see_devices(Variables(environment_variable), launch);
  return launch;
}

}  // namespace

void launch(const LaunchOptions& options) {
  LaunchEnvironment environment = environment_of(options);
  LaunchInCode& in_code = launch_in_code();
  const std::lock_guard lock(in_code.mutex);
  LINKBOY_CHECK(!in_code.launch, "launch was called twice; call it once in each process.");
  LINKBOY_CHECK(!in_code.is_read,
                "launch was called after an Accelerator had already connected to its processes. "
                "Call launch first.");
  in_code.launch = std::move(environment);
}

LaunchEnvironment read_launch_environment(const EnvironmentLookup& lookup) {
  const Variables variables(lookup);
  LaunchEnvironment launch = read_launcher(variables);
  see_devices(variables, launch);
  return launch;
}

std::optional<int64_t> device_index_of(const LaunchEnvironment& launch, int64_t num_devices) {
  if (launch.sees_one_device && num_devices == 1) return 0;
  if (launch.local_world_size > num_devices) return std::nullopt;
  return launch.local_rank;
}

LaunchEnvironment read_launch_environment() {
  LaunchInCode& in_code = launch_in_code();
  const std::lock_guard lock(in_code.mutex);
  in_code.is_read = true;
  return in_code.launch ? *in_code.launch : read_launch_environment(environment_variable);
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
    check(std::all_of(letters.begin(), letters.end(), is_host_character));
    host += letters;
    rest.remove_prefix(letters.size());
    if (!rest.starts_with('[')) break;
    const std::size_t end = rest.find(']');
    check(end != std::string_view::npos);
    const std::string_view numbers = rest.substr(1, end - 1);
    const auto is_part = [](char c) { return is_digit(c) || c == '-' || c == ','; };
    check(std::all_of(numbers.begin(), numbers.end(), is_part));
    const std::string_view first = numbers.substr(0, numbers.find_first_of("-,"));
    check(!first.empty() && is_digit(numbers.back()));
    host += first;
    rest.remove_prefix(end + 1);
  }
  check(!host.empty());
  return host;
}

}  // namespace linkboy
