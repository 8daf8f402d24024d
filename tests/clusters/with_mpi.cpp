// Adds the ranks of a launch, before or after MPI_Init of Open MPI:
//
//   mpirun -np 2 with_mpi before|after

#include <dlfcn.h>
#include <torch/torch.h>

#include <iostream>
#include <stdexcept>
#include <string>

#include "linkboy/accelerator.hpp"

namespace {

/// Calls a function of Open MPI's library, which need not be installed for a build.
template <class... Arguments>
void call(const char* name, Arguments... arguments) {
  static void* const library = ::dlopen("libmpi.so.40", RTLD_NOW | RTLD_GLOBAL);
  void* const function = library != nullptr ? ::dlsym(library, name) : nullptr;
  if (function == nullptr) throw std::runtime_error(::dlerror());
  if (reinterpret_cast<int (*)(Arguments...)>(function)(arguments...) != 0) {
    throw std::runtime_error(name);
  }
}

void start_mpi() { call<int*, char***>("MPI_Init", nullptr, nullptr); }

}  // namespace

int main(int, char** argv) {
  const bool mpi_is_first = std::string(argv[1]) == "before";
  if (mpi_is_first) start_mpi();
  const linkboy::Accelerator accelerator({.device = "cpu"});
  if (!mpi_is_first) start_mpi();
  const auto rank = torch::tensor(accelerator.process_index());
  const auto sum = accelerator.reduce(rank, linkboy::ReduceOp::sum).item<int64_t>();
  if (accelerator.is_main_process()) std::cout << "sum of the ranks: " << sum << '\n';
  call("MPI_Finalize");
}
