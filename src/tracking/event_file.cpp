// Writes TensorBoard's event files: records with checksums, in a file whose name sorts last.

#include "event_file.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/crc.hpp>
#include <charconv>
#include <limits>
#include <system_error>

#include "checkpoint/file_bytes.hpp"
#include "linkboy/error.hpp"

namespace linkboy {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "events.out.tfevents.";

// Fields of Event and SessionLog in TensorFlow's event.proto.
constexpr int kWallTime = 1;
constexpr int kStep = 2;
constexpr int kFileVersion = 3;
constexpr int kSummary = 5;
constexpr int kSessionLog = 7;
constexpr int kStatus = 1;
constexpr int64_t kSessionStart = 1;

using Crc32c = boost::crc_optimal<32, 0x1EDC6F41, 0xFFFFFFFF, 0xFFFFFFFF, true, true>;

/// A record can contain records. The mask prevents the CRC of data that includes its own CRC from
/// being a constant.
uint32_t masked_crc(std::string_view bytes) {
  Crc32c crc;
  crc.process_bytes(bytes.data(), bytes.size());
  const uint32_t value = crc.checksum();
  return (value >> 15 | value << 17) + 0xa282ead8U;
}

int64_t seconds_in_name(const std::string& name) {
  int64_t seconds = -1;
  if (name.starts_with(kPrefix)) {
    std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), seconds);
  }
  return seconds;
}

/// Returns the timestamp in the name of the newest event file, or -1.
int64_t newest_seconds(const fs::path& folder) {
  int64_t newest = -1;
  std::error_code error;  // ignored: a missing folder has no files
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    newest = std::max(newest, seconds_in_name(entry->path().filename().string()));
  }
  return newest;
}

/// Returns the path of a new event file. Its name sorts last, because TensorBoard reads the files
/// of a folder in the order of their names.
fs::path next_file(const fs::path& folder, double seconds) {
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host[0] = '\0';
  const int64_t newest = newest_seconds(folder);
  LINKBOY_CHECK(newest < std::numeric_limits<int64_t>::max(), "\"", folder.string(),
                "\" has an event file with the timestamp ", newest,
                ", and the timestamp of a new file cannot be larger. Move that file away.");
  const int64_t name_seconds = std::max(static_cast<int64_t>(seconds), newest + 1);
  return folder / fmt::format("{}{:010}.{}.{}", kPrefix, name_seconds,
                              host[0] == '\0' ? "localhost" : host.data(), ::getpid());
}

ProtobufWriter event(double seconds, int64_t step) {
  return ProtobufWriter().add_double(kWallTime, seconds).add_int(kStep, step);
}

}  // namespace

std::string tf_record(std::string_view bytes) {
  std::string record;
  record.reserve(bytes.size() + 16);
  record += little_endian(uint64_t{bytes.size()});
  record += little_endian(masked_crc(record));
  record += bytes;
  record += little_endian(masked_crc(bytes));
  return record;
}

bool has_event_files(const fs::path& folder) { return newest_seconds(folder) >= 0; }

EventFile::EventFile(const fs::path& folder, double seconds, int64_t start_step)
    : file_(next_file(folder, seconds)) {
  const auto start = ProtobufWriter().add_int(kStatus, kSessionStart);
  file_.open({}, "",
             tf_record(event(seconds, 0).add_bytes(kFileVersion, "brain.Event:2").bytes()) +
                 tf_record(event(seconds, start_step).add_message(kSessionLog, start).bytes()));
}

void EventFile::add_summary(const ProtobufWriter& summary, double seconds, int64_t step) {
  file_.append(tf_record(event(seconds, step).add_message(kSummary, summary).bytes()));
}

}  // namespace linkboy
