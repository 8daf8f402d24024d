// A program that passes its rank to linkboy in code. The script `launch` in tests/distributed
// starts it, and it removes the launcher's variables from its environment. The exit status is 0 if
// the ranks are correct.

#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "linkboy/accelerator.hpp"
#include "linkboy/distributed/launch.hpp"
#include "linkboy/error.hpp"

namespace {

int64_t take(const char* name) {
  const int64_t value = std::stoll(std::getenv(name));
  ::unsetenv(name);
  return value;
}

}  // namespace

int main() {
  using linkboy::Accelerator;
  const int64_t rank = take("RANK");
  const int64_t size = take("WORLD_SIZE");
  const int64_t port = take("MASTER_PORT");
  for (const char* name : {"LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR"}) ::unsetenv(name);
  linkboy::launch({.rank = rank, .world_size = size, .port = port});
  try {
    linkboy::launch({.rank = rank, .world_size = size, .port = port});
    std::fputs("a second launch was not refused\n", stderr);
    return 1;
  } catch (const linkboy::Error&) {  // expected
  }
  const Accelerator accelerator({.device = "cpu"});
  const auto sum = accelerator.reduce(torch::tensor({rank + 1})).item<int64_t>();
  const bool is_right = accelerator.process_index() == rank &&
                        accelerator.local_process_index() == rank &&
                        accelerator.num_processes() == size && sum == size * (size + 1) / 2;
  if (!is_right) std::fputs("the ranks are not those that launch was told\n", stderr);
  return is_right ? 0 : 1;
}
