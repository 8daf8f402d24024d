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
  return Trackers::entry<Options>(
      name, [](const Options& chosen) { return make<T>(*chosen.path, chosen.options); },
      Options{.path = ""});
}

template <class T>
Trackers::Entry folder_tracker(const char* name) {
  return Trackers::entry<typename T::Options>(
      name, [](const typename T::Options& chosen) { return make<T>(chosen); });
}

const Trackers& trackers() {
  static const Trackers all("tracker", {
                                           file_tracker<CsvTracker>("csv"),
                                           file_tracker<HtmlReport>("html-report"),
                                           file_tracker<JsonLinesTracker>("json-lines"),
                                           folder_tracker<TensorBoardTracker>("tensorboard"),
                                       });
  return all;
}

}  // namespace

std::shared_ptr<Tracker> make_tracker(const std::string& name, const TextSettings& settings) {
  return trackers().make(name, settings);
}

std::vector<std::string> tracker_names() { return trackers().names(); }

TextSettings tracker_options(const std::string& name) { return trackers().find(name).options; }

}  // namespace linkboy
