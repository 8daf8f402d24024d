#include "mlflow_store.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <chrono>
#include <nlohmann/json.hpp>
#include <random>
#include <system_error>

#include "checkpoint/atomic_file.hpp"
#include "checkpoint/file_lock.hpp"
#include "line_file.hpp"
#include "linkboy/error.hpp"

namespace linkboy {
namespace {

namespace fs = std::filesystem;

constexpr const char* kMeta = "meta.yaml";

/// Returns a JSON string, which is also a YAML string.
std::string yaml_text(const std::string& text) {
  using nlohmann::json;
  return json(text).dump(-1, ' ', /*ensure_ascii=*/true, json::error_handler_t::replace);
}

/// Returns the text after `key: ` without quotation marks; empty if the key is missing.
std::string yaml_field(const std::string& yaml, std::string_view key) {
  const std::string start = fmt::format("\n{}: ", key);
  const std::string text = "\n" + yaml;
  const std::size_t found = text.find(start);
  if (found == std::string::npos) return "";
  const std::size_t begin = found + start.size();
  const std::string value = text.substr(begin, text.find('\n', begin) - begin);
  if (value.starts_with('"')) {
    const auto parsed = nlohmann::json::parse(value, nullptr, /*allow_exceptions=*/false);
    return parsed.is_string() ? parsed.get<std::string>() : value;
  }
  const bool is_quoted = value.size() >= 2 && value.front() == '\'' && value.back() == '\'';
  return is_quoted ? value.substr(1, value.size() - 2) : value;
}

void set_yaml_field(std::string& yaml, std::string_view key, const std::string& value) {
  const std::string line = fmt::format("{}: {}\n", key, value);
  const std::size_t found = ("\n" + yaml).find(fmt::format("\n{}: ", key));
  if (found == std::string::npos) {
    yaml += line;
  } else {
    yaml.replace(found, yaml.find('\n', found) + 1 - found, line);
  }
}

int64_t milliseconds_now() {
  using std::chrono::milliseconds;
  const auto since_1970 = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<milliseconds>(since_1970).count();
}

std::string random_digits(std::size_t count, std::string_view digits) {
  std::random_device source;
  std::uniform_int_distribution<std::size_t> choose(0, digits.size() - 1);
  std::string result;
  while (result.size() < count) result += digits[choose(source)];
  return result;
}

std::string uri_of(const fs::path& path) { return "file://" + fs::absolute(path).string(); }

std::optional<fs::path> find_experiment(const fs::path& root, const std::string& name) {
  std::error_code error;
  for (fs::directory_iterator entry(root, error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code unreadable;
    if (!fs::exists(entry->path() / kMeta, unreadable)) continue;
    try {
      if (yaml_field(read_old_file(entry->path() / kMeta), "name") == name) return entry->path();
    } catch (const Error&) {
      continue;  // for example, another user's experiment
    }
  }
  return std::nullopt;
}

bool is_cut(const std::string& line, int64_t last_step) {
  int64_t step = 0;
  const std::size_t place = line.rfind(' ') + 1;
  const char* end = line.data() + line.size();
  const auto [stop, error] = std::from_chars(line.data() + place, end, step);
  return error != std::errc() || *stop != '\n' || step > last_step;
}

std::string keep_lines(const std::string& text, int64_t last_step) {
  std::string kept;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\n', begin);
    if (end == std::string::npos) break;
    const std::string line = text.substr(begin, end + 1 - begin);
    if (!is_cut(line, last_step)) kept += line;
    begin = end + 1;
  }
  return kept;
}

}  // namespace

void write_whole_file(const fs::path& path, std::string_view content) {
  AtomicFile file(path);
  file.write(content.data(), content.size());
  file.commit();
}

std::string mlflow_name(std::string_view name) {
  constexpr std::size_t kMaxSize = 250;
  std::string result;
  for (std::size_t begin = 0; begin <= name.size();) {
    const std::size_t end = std::min(name.find('/', begin), name.size());
    std::string part(name.substr(begin, end - begin));
    for (char& letter : part) {
      const auto byte = static_cast<unsigned char>(letter);
      const bool is_taken =
          byte < 128 && (std::isalnum(byte) != 0 ||
                         std::string_view("_-. :").find(letter) != std::string_view::npos);
      if (!is_taken) letter = '_';
    }
    if (part == "." || part == "..") part.assign(part.size(), '_');
    if (!part.empty()) result += (result.empty() ? "" : "/") + part;
    begin = end + 1;
  }
  if (result.size() > kMaxSize) {
    result.resize(kMaxSize);
    if (result.back() == '/') result.back() = '_';
  }
  return result.empty() ? "_" : result;
}

fs::path find_or_make_experiment(const fs::path& root, const std::string& name) {
  if (const auto found = find_experiment(root, name)) return *found;
  // Two runs that start at the same time must not create two experiments with the same name.
  // Creating one takes only a moment.
  const Descriptor lock = lock_folder(root, std::chrono::seconds(10));
  if (const auto found = find_experiment(root, name)) return *found;
  std::error_code error;
  // MLflow's default experiment has this number, so that MLflow does not create another one.
  const bool is_default = name == "Default" && !fs::exists(root / "0", error);
  const std::string id = is_default ? "0" : fmt::format("1{}", random_digits(17, "0123456789"));
  const int64_t now = milliseconds_now();
  write_whole_file(root / id / kMeta,
                   fmt::format("artifact_location: {}\n"
                               "creation_time: {}\n"
                               "experiment_id: '{}'\n"
                               "last_update_time: {}\n"
                               "lifecycle_stage: active\n"
                               "name: {}\n",
                               yaml_text(uri_of(root / id)), now, id, now, yaml_text(name)));
  return root / id;
}

fs::path make_mlflow_run(const fs::path& experiment, const std::string& name,
                         const std::string& user) {
  const std::string id = random_digits(32, "0123456789abcdef");
  fs::path run = experiment / id;
  std::error_code error;
  for (const char* part : {"metrics", "params", "tags", "artifacts"}) {
    fs::create_directories(run / part, error);
    LINKBOY_CHECK(!error, "cannot create \"", (run / part).string(), "\" (", error.message(),
                  "). Choose a folder that this process may write to.");
  }
  write_whole_file(run / kMeta,
                   fmt::format("artifact_uri: {}\n"
                               "end_time: null\n"
                               "entry_point_name: ''\n"
                               "experiment_id: '{}'\n"
                               "lifecycle_stage: active\n"
                               "run_id: {}\n"
                               "run_name: {}\n"
                               "run_uuid: {}\n"
                               "source_name: ''\n"
                               "source_type: 4\n"
                               "source_version: ''\n"
                               "start_time: {}\n"
                               "status: {}\n"
                               "tags: []\n"
                               "user_id: {}\n",
                               yaml_text(uri_of(run / "artifacts")), experiment.filename().string(),
                               yaml_text(id), yaml_text(name), yaml_text(id), milliseconds_now(),
                               static_cast<int>(MlflowStatus::running), yaml_text(user)));
  return run;
}

std::optional<fs::path> find_mlflow_run(const fs::path& experiment, const std::string& id) {
  std::error_code error;
  const bool is_there = fs::is_regular_file(experiment / id / kMeta, error);
  return is_there ? std::optional(experiment / id) : std::nullopt;
}

bool is_mlflow_run_deleted(const fs::path& run) {
  return yaml_field(read_old_file(run / kMeta), "lifecycle_stage") == "deleted";
}

void set_mlflow_status(const fs::path& run, MlflowStatus status) {
  std::string meta = read_old_file(run / kMeta);
  const bool is_running = status == MlflowStatus::running;
  set_yaml_field(meta, "status", std::to_string(static_cast<int>(status)));
  set_yaml_field(meta, "end_time", is_running ? "null" : std::to_string(milliseconds_now()));
  write_whole_file(run / kMeta, meta);
}

void cut_mlflow_metrics(const fs::path& run, int64_t last_step) {
  std::vector<fs::path> files;
  std::error_code error;
  for (fs::recursive_directory_iterator entry(run / "metrics", error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code gone;
    if (entry->is_regular_file(gone)) files.push_back(entry->path());
  }
  // Otherwise, values of the previous attempt would remain among those of this one.
  LINKBOY_CHECK(!error || error == std::errc::no_such_file_or_directory, "cannot read \"",
                (run / "metrics").string(), "\" (", error.message(),
                "). Check its permissions and the disk, or record a new run.");
  for (const fs::path& file : files) {
    const std::string old = read_old_file(file);
    const std::string kept = keep_lines(old, last_step);
    if (kept.size() == old.size()) continue;
    // MLflow cannot read a metric without values.
    if (kept.empty()) {
      fs::remove(file, error);
    } else {
      write_whole_file(file, kept);
    }
  }
}

}  // namespace linkboy
