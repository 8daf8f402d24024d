// linkboy's sides of compare_peers.py's rows on inference. peers/inference.py contains the Python
// sides.
//
//     linkboy_inference FOLDER --make [--batch N]
//     linkboy_inference FOLDER --side exported|eager --steps N [--batch N] [--threads N]
//
// With --make, the program writes the CNN of cnn.hpp into FOLDER: its weights (weights.pt) and the
// files of export_model (package.pt2, model.onnx), for which it needs LINKBOY_PYTHON. Otherwise it
// loads the package (exported) or the weights (eager), and has the protocol of workloads.cpp. A run
// is N forward passes of one batch; the check value is the mean of the last outputs.

#include <ATen/Parallel.h>
#include <ATen/ops/randn.h>
#include <torch/utils.h>

#include <cstdio>
#include <exception>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "cnn.hpp"
#include "linkboy/checkpoint/checkpoint.hpp"
#include "linkboy/compile/export_model.hpp"
#include "turns.hpp"

namespace linkboy::benchmarks {
namespace {

struct Arguments {
  std::filesystem::path folder;
  std::string side;
  int64_t num_steps = 0;
  int64_t batch_size = 64;
  int64_t num_threads = 1;
  bool make = false;
};

at::Tensor make_images(int64_t batch_size) {
  torch::manual_seed(1);
  return at::randn({batch_size, 1, 28, 28});
}

void make_files(const Arguments& arguments) {
  torch::manual_seed(0);
  const Model model = std::make_shared<Cnn>();
  const at::Tensor images = make_images(arguments.batch_size);
  write_checkpoint(arguments.folder / "weights.pt", model.state_dict());
  export_model(model, images, arguments.folder / "package.pt2");
  export_model(model, images, arguments.folder / "model.onnx", {.format = ExportFormat::onnx});
}

Model load(const Arguments& arguments) {
  if (arguments.side == "exported") return load_exported_model(arguments.folder / "package.pt2");
  Model model = std::make_shared<Cnn>();
  model.load_state_dict(read_checkpoint(arguments.folder / "weights.pt"));
  model.eval();
  return model;
}

void serve(const Arguments& arguments) {
  const Turns turns;
  try {
    const at::NoGradGuard no_grad;
    const Model model = load(arguments);
    const at::Tensor images = make_images(arguments.batch_size);
    at::Tensor output;
    const auto run = [&] {
      for (int64_t i = 0; i < arguments.num_steps; ++i) output = model(images);
    };
    turns.serve(arguments.num_steps, run, [&] { return output.mean().item<double>(); });
  } catch (const std::exception& error) {
    turns.reply_error(error);
  }
}

bool parse(int argc, char** argv, Arguments& arguments) {
  if (argc < 2) return false;
  arguments.folder = argv[1];
  for (int i = 2; i < argc; ++i) {
    const std::string_view name = argv[i];
    if (name == "--make") {
      arguments.make = true;
      continue;
    }
    if (++i == argc) return false;
    if (name == "--side") {
      arguments.side = argv[i];
      continue;
    }
    int64_t* value = name == "--steps"     ? &arguments.num_steps
                     : name == "--batch"   ? &arguments.batch_size
                     : name == "--threads" ? &arguments.num_threads
                                           : nullptr;
    if (!value || !parse_number(argv[i], *value)) return false;
  }
  const bool has_side = arguments.side == "exported" || arguments.side == "eager";
  return arguments.make || (has_side && arguments.num_steps > 0);
}

}  // namespace
}  // namespace linkboy::benchmarks

int main(int argc, char** argv) {
  linkboy::benchmarks::Arguments arguments;
  if (!linkboy::benchmarks::parse(argc, argv, arguments)) {
    std::fprintf(stderr,
                 "usage: linkboy_inference FOLDER --make [--batch N]\n"
                 "       linkboy_inference FOLDER --side exported|eager --steps N [--batch N] "
                 "[--threads N]\n");
    return 2;
  }
  at::set_num_threads(static_cast<int>(arguments.num_threads));
  try {
    if (arguments.make) {
      linkboy::benchmarks::make_files(arguments);
    } else {
      linkboy::benchmarks::serve(arguments);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "linkboy_inference: %s\n", error.what());
    return 1;
  }
}
