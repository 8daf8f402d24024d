#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "line_file.hpp"
#include "protobuf_writer.hpp"

namespace linkboy {

/// Returns a TFRecord: the length and the bytes, each followed by its masked CRC-32C.
std::string tf_record(std::string_view bytes);

/// Whether `folder` contains an event file.
bool has_event_files(const std::filesystem::path& folder);

/// A file of TensorBoard events. Each event is appended with a single write(2). The name of the
/// file sorts after those of the existing event files in the folder.
class EventFile {
 public:
  /// @param start_step  TensorBoard ignores records of this and later steps in earlier files of the
  ///        folder.
  /// @throws Error if the file cannot be created.
  EventFile(const std::filesystem::path& folder, double seconds, int64_t start_step);

  /// Appends a Summary with one or more values.
  /// @throws Error if the file cannot be written; it stays readable.
  void add_summary(const ProtobufWriter& summary, double seconds, int64_t step);

 private:
  LineFile file_;
};

}  // namespace linkboy
