// Shows, converts and compares checkpoint files.

#include <optional>
#include <string>

#include <linkboy/cli.hpp>
#include <linkboy/error.hpp>
#include <linkboy/util/printable.hpp>

#include "commands.hpp"
#include "text.hpp"

namespace linkboy_checkpoint {
namespace {

namespace cli = linkboy::cli;
using Path = std::filesystem::path;

struct Options {
  std::optional<Path> list;
  bool values = false;
  std::optional<Path> convert;
  std::optional<Path> to;
  bool force = false;
  std::optional<Path> diff;
  std::optional<Path> with;
  std::optional<double> tolerance;
  std::string key;
  bool mmap = false;
};

void check(const Options& options) {
  const int num_commands =
      (options.list ? 1 : 0) + (options.convert ? 1 : 0) + (options.diff ? 1 : 0);
  if (num_commands != 1) {
    throw cli::UsageError(c10::str(num_commands,
                                   " of --list, --convert and --diff are set; set exactly one of "
                                   "them. --help explains them."));
  }
  const auto needs = [](bool is_given, const char* option, bool has_command, const char* command) {
    if (is_given && !has_command) {
      throw cli::UsageError(c10::str(option, " requires ", command, ". Remove it."));
    }
  };
  needs(options.values, "--values", options.list.has_value(), "--list");
  needs(options.to.has_value(), "--to", options.convert.has_value(), "--convert");
  needs(options.force, "--force", options.convert.has_value(), "--convert");
  needs(options.with.has_value(), "--with", options.diff.has_value(), "--diff");
  needs(options.tolerance.has_value(), "--tolerance", options.diff.has_value(), "--diff");
  if (options.diff && !options.with) {
    throw cli::UsageError("--diff needs a second file. Name it with --with.");
  }
  if (!options.convert) return;
  if (!options.to) {
    throw cli::UsageError("--convert needs a file to write. Name it with --to.");
  }
  const Path ending = options.to->extension();
  if (ending != ".pt" && ending != ".safetensors") {
    throw cli::UsageError("--to " + linkboy::quoted(options.to->string()) +
                          " does not determine a format; the name must end with .pt or "
                          ".safetensors.");
  }
}

std::optional<Options> parse_options(const cli::Arguments& arguments) {
  Options options;
  cli::CommandLine command_line(
      "linkboy-checkpoint",
      "Shows, converts and compares checkpoints: .pt files of linkboy or Python's torch.save, and "
      ".safetensors files.\n"
      "Exit status: 0 success, or the files are equal; 1 error; 2 usage error; 3 the files "
      "differ.");
  command_line.add_group("Show")
      .add("list", "FILE", &options.list,
           "Prints a line for each value in the file, and the totals.")
      .add_switch("values", &options.values,
                  "Adds min, max and mean (without NaNs) and the first 8 elements of each tensor.");
  command_line.add_group("Convert")
      .add("convert", "FROM", &options.convert,
           "Writes the contents to another file. In .safetensors, nested tensors get dotted names, "
           "and other values become text in the metadata. In .pt, the metadata is a dict "
           "\"metadata\" next to the tensors, which becomes metadata again in .safetensors.")
      .add("to", "TO", &options.to, "File to write; its name must end with .pt or .safetensors.")
      .add_switch("force", &options.force, "Replaces an existing file.");
  command_line.add_group("Compare")
      .add("diff", "A", &options.diff,
           "Prints the differences between two files, which may have different formats.")
      .add("with", "B", &options.with, "The second file.")
      .add("tolerance", "X", &options.tolerance,
           "Largest difference between numbers that count as equal. Default: 0.",
           cli::not_negative());
  command_line.add_group("Reading")
      .add(
          "key", "PATH", &options.key,
          "Uses only the part of each file under this dotted path: \"model\", \"optimizer.state\".")
      .add_switch(
          "mmap", &options.mmap,
          "Maps files instead of copying them, for large files. Do not change them in place "
          "during the command.");
  if (!command_line.parse(arguments)) return std::nullopt;
  check(options);
  return options;
}

void run(const Options& options) {
  const auto source = [&options](const Path& path) {
    return Source{.path = path, .key = options.key, .mmap = options.mmap};
  };
  bool is_equal = true;
  if (options.list) {
    list(source(*options.list), options.values);
  } else if (options.convert) {
    convert(source(*options.convert), *options.to, options.force);
  } else {
    is_equal = diff(source(*options.diff), source(*options.with), options.tolerance.value_or(0.0));
  }
  constexpr int kDifferent = 3;
  if (!is_equal) throw cli::ExitStatus{kDifferent};
}

}  // namespace
}  // namespace linkboy_checkpoint

int main(int argc, char** argv) {
  return linkboy::cli::run_main(argc, argv, [](const linkboy::cli::Arguments& arguments) {
    if (const auto options = linkboy_checkpoint::parse_options(arguments)) {
      linkboy_checkpoint::run(*options);
    }
  });
}
