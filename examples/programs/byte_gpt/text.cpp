#include "text.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <utility>

#include <linkboy/error.hpp>

namespace byte_gpt {
namespace {

/// Returns the paragraphs of a text file, each with its line ends and the blank line after it.
std::vector<std::string> read_paragraphs(const std::filesystem::path& path) {
  LINKBOY_CHECK(std::filesystem::is_regular_file(path), path,
                " is not a file. Name a text file with --text.");
  std::ifstream file(path);
  std::vector<std::string> paragraphs(1);
  for (std::string line; std::getline(file, line);) {
    if (line.ends_with('\r')) line.pop_back();
    if (line.find_first_not_of(" \t") != std::string::npos) {
      paragraphs.back() += line + '\n';
    } else if (!paragraphs.back().empty()) {
      paragraphs.back() += '\n';
      paragraphs.emplace_back();
    }
  }
  LINKBOY_CHECK(file.eof(), path, " cannot be read. Name another text file with --text.");
  if (paragraphs.back().empty()) paragraphs.pop_back();
  return paragraphs;
}

}  // namespace

std::vector<linkboy::Batch> Pieces::get_batch(at::ArrayRef<std::size_t> indices) const {
  std::vector<linkboy::Batch> samples;
  for (const std::size_t index : indices) {
    const auto& [begin, length] = pieces[index];
    samples.push_back({{"tokens", text.narrow(0, begin, length)},
                       {"targets", text.narrow(0, begin + 1, length)},
                       {"mask", at::ones({length}, at::kBool)}});
  }
  return samples;
}

linkboy::Batch pad(const std::vector<linkboy::Batch>& samples) {
  linkboy::NamedTensors padded;
  for (const auto& named : samples.front().tensors()) {
    std::vector<at::Tensor> rows;
    for (const linkboy::Batch& sample : samples) rows.push_back(sample[named.first]);
    padded.emplace_back(named.first, at::pad_sequence(rows, /*batch_first=*/true));
  }
  return linkboy::Batch(std::move(padded));
}

Corpus load_corpus(const std::filesystem::path& path, int64_t length) {
  constexpr std::size_t kHeldOut = 10;
  const std::vector<std::string> paragraphs = read_paragraphs(path);
  LINKBOY_CHECK(paragraphs.size() >= kHeldOut, path, " has ", paragraphs.size(),
                " paragraphs (a blank line ends one); there must be at least ", kHeldOut,
                ", of which one is held out. Name a longer text with --text.");
  Corpus corpus;
  std::string text = "\n";  // a paragraph's first byte is predicted from the line end before it
  for (std::size_t i = 0; i < paragraphs.size(); ++i) {
    const bool is_held_out = i % kHeldOut == kHeldOut - 1;
    const int64_t stride = is_held_out ? length : std::max<int64_t>(length / 8, 1);
    auto& pieces = (is_held_out ? corpus.eval : corpus.train).pieces;
    int64_t begin = std::ssize(text) - 1;
    text += paragraphs[i];
    const int64_t last = std::ssize(text) - 1;
    for (; begin + length < last; begin += stride) pieces.push_back({begin, length});
    pieces.push_back({begin, last - begin});
  }
  corpus.train.text = at::from_blob(text.data(), {std::ssize(text)}, at::kByte).to(at::kLong);
  corpus.eval.text = corpus.train.text;
  return corpus;
}

}  // namespace byte_gpt
