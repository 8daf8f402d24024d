// A launcher with PMI passes the text of rank 0 on. tests/clusters runs real launchers.

#include "distributed/launcher_exchange.hpp"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <map>
#include <optional>
#include <string>
#include <thread>

#include "linkboy/error.hpp"
#include "support/environment_variable.hpp"
#include "support/expect_error.hpp"

namespace linkboy::testing::launcher_exchange_test {
namespace {

using namespace std::chrono_literals;

/// Answers the requests of a process as MPICH's Hydra does: `answers` maps the begin of a request
/// to the answer.
class Launcher {
 public:
  explicit Launcher(std::map<std::string, std::string> answers) : answers_(std::move(answers)) {
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, sockets_.data()), 0);
    variable_.emplace("PMI_FD", std::to_string(sockets_[1]).c_str());
    thread_ = std::thread([this] { serve(); });
  }
  ~Launcher() {
    ::close(sockets_[1]);
    thread_.join();
    ::close(sockets_[0]);
  }
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;

  std::string requests() const { return requests_; }

 private:
  void serve() {
    std::string line;
    for (char c = 0; ::read(sockets_[0], &c, 1) == 1;) {
      line += c;
      if (c != '\n') continue;
      requests_ += line;
      for (const auto& [request, answer] : answers_) {
        if (!line.starts_with(request)) continue;
        if (answer == "close") ::shutdown(sockets_[0], SHUT_RDWR);
        EXPECT_GE(::send(sockets_[0], answer.data(), answer.size(), MSG_NOSIGNAL), -1);
      }
      line.clear();
    }
  }

  std::map<std::string, std::string> answers_;
  std::array<int, 2> sockets_{};
  std::optional<EnvironmentVariable> variable_;
  std::string requests_;
  std::thread thread_;
};

/// The answers of MPICH 4.0.2.
std::map<std::string, std::string> answers(const std::string& value) {
  return {{"cmd=init", "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n"},
          {"cmd=get_my_kvsname", "cmd=my_kvsname kvsname=kvs_1_0\n"},
          {"cmd=put", "cmd=put_result rc=0 msg=success\n"},
          {"cmd=barrier_in", "cmd=barrier_out\n"},
          {"cmd=get kvsname", "cmd=get_result rc=0 msg=success value=" + value + "\n"},
          {"cmd=finalize", "cmd=finalize_ack\n"}};
}

std::string pass(int64_t rank, const std::string& text, std::chrono::milliseconds timeout = 30s) {
  return pass_from_rank_0(LauncherExchange::pmi, rank, text, timeout);
}

TEST(LauncherExchangeTest, PassesTheTextOfRank0) {
  const std::string text = "41213@10.77.0.1,fd00::2";
  for (const int64_t rank : {0, 2}) {
    std::string requests;
    {
      const Launcher launcher(answers(text));
      EXPECT_EQ(pass(rank, rank == 0 ? text : ""), text);
      requests = launcher.requests();
    }
    const std::string put = "cmd=put kvsname=kvs_1_0 key=linkboy.rank0 value=" + text + "\n";
    EXPECT_EQ(requests.find(put) != std::string::npos, rank == 0) << requests;
  }
}

TEST(LauncherExchangeTest, ALauncherThatRefusesClosesOrIsSilentIsAnError) {
  auto refuses = answers("x");
  refuses["cmd=get kvsname"] = "cmd=get_result rc=-1 msg=key_not_found\n";
  {
    const Launcher launcher(refuses);
    EXPECT_ERROR_AS(DistributedError, pass(1, ""),
                    "the launcher answered \"cmd=get_result rc=-1 msg=key_not_found\" to \"cmd=get "
                    "kvsname=kvs_1_0 key=linkboy.rank0\". Set MASTER_ADDR to the host of rank 0");
  }
  auto closes = answers("x");
  closes["cmd=barrier_in"] = "close";
  {
    const Launcher launcher(closes);
    EXPECT_ERROR_AS(DistributedError, pass(1, ""), "the launcher closed the connection of PMI_FD");
    // Without SIGPIPE.
    EXPECT_ERROR_AS(DistributedError, pass(1, ""), "the launcher closed the connection of PMI_FD");
  }
  auto silent = answers("x");
  silent.erase("cmd=barrier_in");
  {
    const Launcher launcher(silent);
    EXPECT_ERROR_AS(DistributedError, pass(1, "", 50ms), "the launcher did not answer in time");
  }
  std::FILE* const file = std::tmpfile();
  {
    const EnvironmentVariable of_file("PMI_FD", std::to_string(::fileno(file)).c_str());
    EXPECT_ERROR_AS(DistributedError, pass(1, ""), "which is not a connection to the launcher");
  }
  EXPECT_EQ(std::fseek(file, 0, SEEK_END), 0);
  EXPECT_EQ(std::ftell(file), 0) << "a file that has the number by chance stays as it is";
  std::fclose(file);
  const EnvironmentVariable wrong("PMI_FD", "x");
  EXPECT_ERROR_AS(DistributedError, pass(1, ""), "PMI_FD is \"x\"; it must be a number");
}

}  // namespace
}  // namespace linkboy::testing::launcher_exchange_test
