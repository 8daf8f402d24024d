#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <filesystem>
#include <functional>
#include <string>

#include "linkboy/export.hpp"
#include "linkboy/model.hpp"
#include "linkboy/util/text_options.hpp"

namespace linkboy {

/// Which programs can run an exported model. None of them needs the model's code.
enum class ExportFormat {
  /// Machine code and weights: `load_exported_model`, LibTorch's AOTIModelPackageLoader, and
  /// Python's `torch._inductor.aoti_load_package`. The file's name ends with `.pt2`.
  package,
  /// Calls and weights: Python's `torch.export.load`. The file's name ends with `.pt2`.
  exported_program,
  /// ONNX, with the weights: ONNX Runtime and others. The file's name ends with `.onnx`.
  onnx,
};
LINKBOY_ENUM_NAMES(ExportFormat, package, exported_program, onnx)

/// Options of `export_model`.
struct ExportOptions {
  /// The format of the file.
  ExportFormat format = ExportFormat::package;

  /// Whether the exported model accepts any number of samples, which is the size of the inputs'
  /// dimension 0. Otherwise, it accepts as many as the example has.
  bool has_any_batch_size = true;

  /// Receives a line about every ten seconds while the compiler works. If it throws, the export
  /// ends.
  std::function<void(const std::string&)> tell_fn{};

  LINKBOY_FIELDS(format, has_any_batch_size);
};

/// Writes a model with its weights to a file that programs without the model's code can run.
///
/// Calls `forward` up to three times, in evaluation mode and without gradients, and records the
/// ATen calls that it makes. What it does besides them is frozen: a branch keeps the direction that
/// it took. The outputs are the tensors of what `forward` returns, in their order. Afterwards, the
/// model is as before. Writes another file first and renames it, so `path` contains either its
/// previous contents or the whole model. Creates missing parent folders.
///
/// This needs the Python with which LibTorch was installed, or LINKBOY_PYTHON. A package also needs
/// a C++ compiler, and takes 10 to 60 seconds; it runs on each CPU with the vector instructions
/// that this process uses (for older CPUs, export it with `ATEN_CPU_CAPABILITY=avx2`). ONNX needs
/// the Python package `onnxscript`. `check_can_export` tells whether all of that is there.
///
/// @param example  The inputs of `forward`; only their shapes and dtypes matter. All tensors, also
///                 those of the model, must be on the CPU.
/// @throws Error that says what cannot be exported, what is missing, or that the file cannot be
///         written; `path` is then unchanged.
LINKBOY_API void export_model(const Model& model, c10::ArrayRef<at::Tensor> example,
                              const std::filesystem::path& path, ExportOptions options = {});

/// Checks what `export_model` needs besides a model: that it can write next to `path`, whose
/// missing parent folders are created, and that there are Python with its packages and a C++
/// compiler. Takes some seconds. Call it before a long training.
/// @throws Error that says what is missing.
LINKBOY_API void check_can_export(const std::filesystem::path& path,
                                  ExportFormat format = ExportFormat::package);

/// Loads a package of `export_model` as a model, which cannot be trained. Its `forward` checks the
/// shapes and dtypes of the inputs, and returns a tensor, or a list if there are several outputs.
/// Several threads may call it.
///
/// A package contains machine code, so load only those that you trust.
/// @throws Error if the file is not such a package, or if this CPU lacks instructions that it
/// needs.
[[nodiscard]] LINKBOY_API Model load_exported_model(const std::filesystem::path& path);

}  // namespace linkboy
