// Writes the lines of json_lines.hpp into the page of html_page.hpp, whose script draws them.

#include "linkboy/tracking/html_report.hpp"

#include <c10/util/ScopeExit.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "checkpoint/atomic_file.hpp"
#include "html_page.hpp"
#include "json_lines.hpp"
#include "linkboy/error.hpp"

namespace linkboy {
namespace {

/// Prevents a record from ending the element that contains it. In JSON, only a string can contain
/// "<".
std::string html_line(std::string line) {
  c10::ReplaceAll(line, "<", "\\u003c");
  return line;
}

}  // namespace

HtmlReport::HtmlReport(std::filesystem::path path, HtmlReportOptions options)
    : path_(std::move(path)), options_(options) {
  LINKBOY_CHECK_OPTION(options_.seconds_between_writes >= 0.0, "seconds_between_writes is ",
                       options_.seconds_between_writes, "; it must not be negative.");
}

void HtmlReport::start(const TrackedRun& run) {
  lock_.reset();
  const OldFile file = lock_old_file(path_);
  lines_.clear();
  histograms_.clear();
  LINKBOY_CHECK(file.bytes.empty() || read_page(file.bytes, run), "\"", path_.string(),
                "\" is not a page that HtmlReport wrote. Choose another path, or move the file "
                "away.");
  TrackedRun named = run;
  if (named.name.empty()) named.name = path_.stem().string();
  run_ = html_line(run_line(named));
  end_.clear();
  write();  // also locks the new file
}

bool HtmlReport::read_page(std::string_view page, const TrackedRun& run) {
  const std::string_view element = kHtmlBegin.substr(kHtmlBegin.rfind("<script"));
  const std::size_t begin = page.find(element);
  const std::size_t end = page.find("</script>", begin);
  if (begin == page.npos || end == page.npos) return false;
  std::string_view text = page.substr(0, end).substr(begin + element.size());
  try {
    for (std::size_t size; (size = text.find('\n') + 1) != 0; text.remove_prefix(size)) {
      const auto json = nlohmann::json::parse(text.substr(0, size));
      const OldRecord record = old_record(json);
      if (!continues_records(run) || !keeps(run, record)) continue;
      std::string line = html_line(std::string(text.substr(0, size)));
      if (json.at("type") == "histogram") {
        histograms_.emplace_back(json.at("name"), std::move(line));
      } else {
        lines_ += line;
      }
    }
    return true;
  } catch (const nlohmann::json::exception&) {
    return false;
  }
}

void HtmlReport::log_scalars(std::span<const TrackedScalar> scalars, const TrackedTime& time) {
  lines_ += html_line(scalars_line(scalars, time));
}

void HtmlReport::log_histogram(std::string_view name, const at::Tensor& values,
                               const TrackedTime& time) {
  std::string line = html_line(histogram_line(name, values, time));
  std::erase_if(histograms_, [&](const auto& old) { return old.first == name; });
  histograms_.emplace_back(name, std::move(line));
}

void HtmlReport::log_text(std::string_view name, std::string_view text, const TrackedTime& time) {
  lines_ += html_line(text_line(name, text, time));
}

void HtmlReport::flush() {
  if (!last_write_ || now() - *last_write_ >= pause_) write();
}

void HtmlReport::finish(std::string_view outcome, std::span<const TrackedScalar> last) {
  end_ = html_line(end_line(outcome, last));
  const auto release = c10::make_scope_exit([this] { lock_.reset(); });
  write();
}

std::chrono::steady_clock::time_point HtmlReport::now() const {
  return std::chrono::steady_clock::now();
}

void HtmlReport::write() {
  // The page grows with the run. Writing takes at most about a twentieth of the time.
  constexpr int kTimesTheWrite = 20;
  const auto begin = now();
  AtomicFile file(path_);
  const auto add = [&file](std::string_view text) { file.write(text.data(), text.size()); };
  add(kHtmlBegin);
  add(run_);
  add(lines_);
  for (const auto& [name, line] : histograms_) add(line);
  add(end_);
  add(kHtmlEnd);
  lock_ = std::make_shared<FileDescriptor>(file.commit());
  last_write_ = now();
  pause_ = std::chrono::duration<double>(options_.seconds_between_writes);
  if (pause_.count() > 0.0) {
    pause_ =
        std::max<std::chrono::duration<double>>(pause_, kTimesTheWrite * (*last_write_ - begin));
  }
}

}  // namespace linkboy
