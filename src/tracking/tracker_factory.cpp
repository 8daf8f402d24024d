// The table of trackers that command lines and config files can create by name.

#include "linkboy/tracking/tracker_factory.hpp"

#include <filesystem>

#include "linkboy/tracking/csv_tracker.hpp"
#include "linkboy/tracking/html_report.hpp"
#include "linkboy/tracking/json_lines_tracker.hpp"
#include "linkboy/tracking/tensorboard_tracker.hpp"
#include "linkboy/util/make.hpp"
#include "linkboy/util/required.hpp"

namespace linkboy {
namespace {

using Trackers = NamedFactory<std::shared_ptr<Tracker>>;

template <class Options>
struct FileOptions {
  /// The file. In code, the first argument of the constructor.
  Required<std::filesystem::path> path;
  /// The options of the class.
  Options options{};
  LINKBOY_FIELDS(path, options);
};

template <class T>
Trackers::Entry file_tracker(const char* name) {
  using Options = FileOptions<typename T::Options>;
  return Trackers::entry<T>(
      name, [](const Options& chosen) { return make<T>(chosen.path, chosen.options); },
      Options{.path = ""});
}

}  // namespace

const Trackers& tracker_factory() {
  static const Trackers all("tracker", {
                                           file_tracker<CsvTracker>("csv"),
                                           file_tracker<HtmlReport>("html-report"),
                                           file_tracker<JsonLinesTracker>("json-lines"),
                                           Trackers::of<TensorBoardTracker>("tensorboard"),
                                       });
  return all;
}

}  // namespace linkboy
