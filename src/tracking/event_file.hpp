#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "line_file.hpp"
#include "protobuf_writer.hpp"

namespace linkboy {

/// A TFRecord: the length and the bytes, each with its masked CRC-32C.
std::string tf_record(std::string_view bytes);

/// Whether `folder` holds an event file.
bool has_event_files(const std::filesystem::path& folder);

/// A file of TensorBoard events, each appended by one write(2); named such that it comes after
/// those that its folder has.
class EventFile {
 public:
  /// @param start_step  TensorBoard passes over what earlier files of the folder hold of this and
  ///                    later steps.
  /// @throws Error if the file cannot be made.
  EventFile(const std::filesystem::path& folder, double seconds, int64_t start_step);

  /// Appends a Summary with one or more values. @throws Error; the file stays readable.
  void add_summary(const ProtobufWriter& summary, double seconds, int64_t step);

 private:
  LineFile file_;
};

}  // namespace linkboy
