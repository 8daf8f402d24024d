// Passes a text between the processes of a launch before they have a connection of their own.

#include "distributed/launcher_exchange.hpp"

#include <dlfcn.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <future>
#include <map>
#include <sstream>
#include <string_view>
#include <thread>

#include "linkboy/error.hpp"
#include "util/parse_number.hpp"

namespace linkboy {
namespace {

constexpr const char* kKey = "linkboy.rank0";
constexpr const char* kAdvice =
    ". Set MASTER_ADDR to the host of rank 0 and MASTER_PORT to a free port there, the same on all "
    "ranks";

/// The functions of libpmix. The types are those of the PMIx standard, whose layout is the same in
/// all versions since 2, so that linkboy does not need PMIx to build.
class Pmix {
 public:
  struct Process {
    std::array<char, 256> job;
    uint32_t rank;
  };

  /// Null if the library cannot be loaded. It stays loaded, because it starts a thread.
  static const Pmix* find() {
    static const Pmix pmix;
    return pmix.get_ != nullptr ? &pmix : nullptr;
  }

  /// The connection to the launcher. It ends with the process: if it ended earlier, MPI_Init would
  /// fail afterwards.
  class Session {
   public:
    explicit Session(const Pmix& pmix) : pmix_(pmix), status_(pmix_.init_(&self_, nullptr, 0)) {}
    ~Session() {
      if (status_ == 0) pmix_.finalize_(nullptr, 0);
    }
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;

    bool is_connected() const { return status_ == 0; }
    /// @throws DistributedError if the launcher has refused.
    void check_connected() const { pmix_.check(status_, "connect"); }
    int64_t rank() const { return self_.rank; }

    void put(const char* key, std::string text) const {
      Value value{};
      value.type = kString;
      value.text = text.data();
      constexpr uint8_t kGlobal = 3;  // also for processes on other hosts
      pmix_.check(pmix_.put_(kGlobal, key, &value), "publish");
      pmix_.check(pmix_.commit_(), "publish");
    }
    /// Waits until all ranks have called it, and collects the values that were put before. Without
    /// it, a rank that asks early gets an error, immediately or after two seconds.
    void fence() const {
      Info collect{.key = "pmix.collect", .flags = 0, .value = {.type = kBool, .is_true = true}};
      pmix_.check(pmix_.fence_(nullptr, 0, &collect, 1), "fence");
    }
    std::string text_of_rank_0(const char* key) const {
      const Value* value = get(key, 0);
      LINKBOY_CHECK_AS(DistributedError, value->type == kString && value->text != nullptr,
                       "the launcher passed a value of type ", value->type,
                       " instead of the address of rank 0", kAdvice, ".");
      return value->text;
    }
    int64_t number(const char* key, uint32_t rank) const {
      const Value* value = get(key, rank);
      return value->type == kUint16 ? value->uint16 : value->uint32;
    }
    /// A number of the whole job.
    int64_t number(const char* key) const { return number(key, UINT32_MAX - 1); }

   private:
    friend class Pmix;
    static constexpr uint16_t kBool = 1;
    static constexpr uint16_t kString = 3;
    static constexpr uint16_t kUint16 = 13;

    struct Value {
      uint16_t type;
      union {
        char* text;
        bool is_true;
        uint16_t uint16;
        uint32_t uint32;
        std::array<char, 64> most;  // more than any member has
      };
    };

    struct Info {
      char key[512];
      uint32_t flags;
      Value value;
    };

    /// The value stays in memory; there are few, and only the library knows how to free it.
    const Value* get(const char* key, uint32_t rank) const {
      Process process = self_;
      process.rank = rank;
      Value* value = nullptr;
      pmix_.check(pmix_.get_(&process, key, nullptr, 0, &value), key);
      return value;
    }

    const Pmix& pmix_;
    Process self_{};
    int status_;
  };

  /// The connection of this process. Null if the library cannot be loaded.
  static const Session* session() {
    const Pmix* const pmix = find();
    if (pmix == nullptr) return nullptr;
    static const Session session(*pmix);
    return &session;
  }

 private:
  using Value = Session::Value;

  Pmix() {
    void* library = nullptr;
    for (const char* name : {"libpmix.so.2", "libpmix.so"}) {
      if (library == nullptr) library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
    }
    if (library == nullptr) return;
    const auto find = [&](auto& function, const char* name) {
      function =
          reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(library, name));
      return function != nullptr;
    };
    const bool has_all = find(init_, "PMIx_Init") && find(finalize_, "PMIx_Finalize") &&
                         find(put_, "PMIx_Put") && find(commit_, "PMIx_Commit") &&
                         find(fence_, "PMIx_Fence");
    if (has_all) find(get_, "PMIx_Get");
  }

  void check(int status, const char* what) const {
    LINKBOY_CHECK_AS(DistributedError, status == 0, "the launcher's PMIx failed (", what,
                     ", status ", status, ")", kAdvice, ".");
  }

  int (*init_)(Process*, void*, std::size_t) = nullptr;
  int (*finalize_)(const void*, std::size_t) = nullptr;
  int (*put_)(uint8_t scope, const char* key, Value*) = nullptr;
  int (*commit_)() = nullptr;
  int (*fence_)(const Process*, std::size_t, const void*, std::size_t) = nullptr;
  int (*get_)(const Process*, const char* key, const void*, std::size_t, Value**) = nullptr;
};

std::string pass_through_pmix(int64_t rank, const std::string& text) {
  const Pmix::Session& session = *Pmix::session();
  if (rank == 0) session.put(kKey, text);
  session.fence();
  return session.text_of_rank_0(kKey);
}

/// A process of Hydra: requests and answers are lines of words such as cmd=get.
class Pmi {
 public:
  using Clock = std::chrono::steady_clock;

  Pmi(int descriptor, std::chrono::milliseconds timeout)
      : descriptor_(descriptor), end_(Clock::now() + timeout) {
    request("cmd=init pmi_version=1 pmi_subversion=1", "response_to_init");
  }

  std::map<std::string, std::string> request(const std::string& line, const char* answer) {
    write(line + "\n");
    const std::string words = read_line();
    std::map<std::string, std::string> values;
    std::istringstream stream(words);
    for (std::string word; stream >> word;) {
      const std::size_t equals = word.find('=');
      if (equals != std::string::npos) values[word.substr(0, equals)] = word.substr(equals + 1);
    }
    const auto status = values.find("rc");
    LINKBOY_CHECK_AS(DistributedError,
                     values["cmd"] == answer && (status == values.end() || status->second == "0"),
                     "the launcher answered \"", words, "\" to \"", line, "\"", kAdvice, ".");
    return values;
  }

 private:
  void write(std::string_view text) {
    while (!text.empty()) {
      // Unlike write, send never writes into a file that another program has opened at this number.
      const ssize_t size = ::send(descriptor_, text.data(), text.size(), MSG_NOSIGNAL);
      if (size < 0 && errno == EINTR) continue;
      LINKBOY_CHECK_AS(DistributedError, size > 0 || errno != ENOTSOCK, "PMI_FD is ", descriptor_,
                       ", which is not a connection to the launcher in this process", kAdvice, ".");
      LINKBOY_CHECK_AS(DistributedError, size > 0, "the launcher closed the connection of PMI_FD",
                       kAdvice, ".");
      text.remove_prefix(static_cast<std::size_t>(size));
    }
  }

  std::string read_line() {
    std::string line;
    for (char c = 0; c != '\n';) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(end_ - Clock::now()).count();
      pollfd ready{.fd = descriptor_, .events = POLLIN, .revents = 0};
      const int num_ready =
          ::poll(&ready, 1, static_cast<int>(std::clamp<int64_t>(left, 0, INT_MAX)));
      if (num_ready < 0 && errno == EINTR) continue;
      LINKBOY_CHECK_AS(DistributedError, num_ready == 1,
                       "the launcher did not answer in time. Check whether all ranks have started, "
                       "and see their output.");
      LINKBOY_CHECK_AS(DistributedError, ::read(descriptor_, &c, 1) == 1,
                       "the launcher closed the connection of PMI_FD", kAdvice, ".");
      line += c;
    }
    line.pop_back();
    return line;
  }

  int descriptor_;
  Clock::time_point end_;
};

std::string pass_through_pmi(int64_t rank, const std::string& text,
                             std::chrono::milliseconds timeout) {
  const char* variable = std::getenv("PMI_FD");
  const auto descriptor = parse_number<int>(variable != nullptr ? variable : "");
  LINKBOY_CHECK_AS(DistributedError, descriptor, "PMI_FD is \"",
                   variable != nullptr ? variable : "", "\"; it must be a number", kAdvice, ".");
  Pmi pmi(*descriptor, timeout);
  const std::string space = "kvsname=" + pmi.request("cmd=get_my_kvsname", "my_kvsname")["kvsname"];
  const std::string key = c10::str(space, " key=", kKey);
  if (rank == 0) pmi.request(c10::str("cmd=put ", key, " value=", text), "put_result");
  pmi.request("cmd=barrier_in", "barrier_out");
  std::string passed = pmi.request("cmd=get " + key, "get_result")["value"];
  pmi.request("cmd=finalize", "finalize_ack");
  return passed;
}

}  // namespace

bool is_available(LauncherExchange exchange) {
  if (exchange != LauncherExchange::pmix) return exchange == LauncherExchange::pmi;
  const Pmix::Session* const session = Pmix::session();
  return session != nullptr && session->is_connected();
}

std::string pass_from_rank_0(LauncherExchange exchange, int64_t rank, const std::string& text,
                             std::chrono::milliseconds timeout) {
  if (exchange == LauncherExchange::pmi) return pass_through_pmi(rank, text, timeout);
  // PMIx waits without a timeout.
  std::packaged_task<std::string()> pass([rank, text] { return pass_through_pmix(rank, text); });
  auto passed = pass.get_future();
  std::thread(std::move(pass)).detach();
  LINKBOY_CHECK_AS(DistributedError, passed.wait_for(timeout) == std::future_status::ready,
                   "the launcher did not pass the address of rank 0 on in time. Check whether all "
                   "ranks have started, and see their output.");
  return passed.get();
}

std::optional<PmixJob> pmix_job() {
  const Pmix::Session* const session = Pmix::session();
  if (session == nullptr) return std::nullopt;
  session->check_connected();
  const auto rank = static_cast<uint32_t>(session->rank());
  return PmixJob{.rank = session->rank(),
                 .world_size = session->number("pmix.job.size"),
                 .local_rank = session->number("pmix.lrank", rank),
                 .local_world_size = session->number("pmix.local.size")};
}

}  // namespace linkboy
