#include "linkboy/tracking/html_report.hpp"

#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <exception>
#include <new>
#include <string>
#include <utility>

#include "checkpoint/atomic_file.hpp"
#include "html_page.hpp"
#include "html_records.hpp"
#include "json_lines_histogram.hpp"
#include "line_file.hpp"
#include "linkboy/error.hpp"

namespace linkboy {

HtmlReport::HtmlReport(std::filesystem::path path, HtmlReportOptions options)
    : path_(std::move(path)), options_(options), records_(std::make_unique<HtmlRecords>()) {
  LINKBOY_CHECK_OPTION(options_.seconds_between_writes >= 0.0, "seconds_between_writes is ",
                       options_.seconds_between_writes, "; it must not be negative.");
}

HtmlReport::~HtmlReport() = default;

void HtmlReport::start(const TrackedRun& run) {
  lock_.reset();
  const OldFile file = lock_old_file(path_);
  HtmlRecords old;
  if (!file.bytes.empty()) {
    try {
      old = records_of_page(file.bytes);
    } catch (const std::bad_alloc&) {
      throw;
    } catch (const std::exception&) {
      throw Error(c10::str("\"", path_.string(),
                           "\" is not a page that HtmlReport wrote. Choose another path, or move "
                           "the file away."));
    }
  }
  *records_ = HtmlRecords{};
  if (ResumePoint(run).is_resumed()) *records_ = std::move(old);
  records_->resume(run);
  write();  // also locks the new file
}

void HtmlReport::log_scalars(std::span<const TrackedScalar> scalars, const TrackedTime& time) {
  for (const TrackedScalar& scalar : scalars) records_->add(scalar, time);
}

void HtmlReport::log_histogram(std::string_view name, const at::Tensor& values,
                               const TrackedTime& time) {
  records_->add(
      {.name = std::string(name), .histogram = make_linear_histogram(values), .time = time});
}

void HtmlReport::log_text(std::string_view name, std::string_view text, const TrackedTime& time) {
  records_->texts.push_back({.name = std::string(name), .text = std::string(text), .time = time});
}

void HtmlReport::flush() {
  if (!last_write_ || now() - *last_write_ >= pause_) write();
}

void HtmlReport::finish(std::string_view outcome, std::span<const TrackedScalar>) {
  records_->outcome = outcome;
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
  const std::string page = html_page(*records_, path_.stem().string());
  AtomicFile file(path_);
  file.write(page.data(), page.size());
  lock_ = std::make_shared<Descriptor>(file.commit());
  last_write_ = now();
  pause_ = std::chrono::duration<double>(options_.seconds_between_writes);
  if (pause_.count() > 0.0) {
    pause_ =
        std::max<std::chrono::duration<double>>(pause_, kTimesTheWrite * (*last_write_ - begin));
  }
}

}  // namespace linkboy
