// What must hold for every Combination, in one process and on several ranks.

#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "support/combination_run.hpp"
#include "support/run_folder.hpp"
#include "support/state_difference.hpp"

namespace linkboy::testing {

/// Returns the sorted lines of a tracker's file, without measurements and without the lines that
/// each process adds. An interruption can change the order of the lines of an update.
inline std::vector<std::string> tracked_lines(const std::filesystem::path& path) {
  std::vector<std::string> lines;
  // A run that resumes at its end evaluates the average again.
  const auto is_ignored = [](const std::string& name) {
    return is_measurement(name) || name.find("swa_model_") != std::string::npos;
  };
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (path.extension() == ".csv") {
      const auto place = line.substr(line.find(',') + 1);  // after the time
      const auto end_of_name = place.rfind(',');
      if (!is_ignored(place.substr(0, end_of_name))) lines.push_back(place);
      continue;
    }
    auto record = nlohmann::json::parse(line);
    if (record.at("type") == "run") continue;
    record.erase("time");
    for (const char* values : {"values", "last"}) {
      if (!record.contains(values)) continue;
      auto& scalars = record[values];
      for (auto entry = scalars.begin(); entry != scalars.end();) {
        entry = is_ignored(entry.key()) ? scalars.erase(entry) : std::next(entry);
      }
      if (scalars.empty() && record["type"] == "scalars") record.clear();
    }
    if (!record.empty()) lines.push_back(record.dump());
  }
  std::sort(lines.begin(), lines.end());
  return lines;
}

/// Returns how the files of two runs differ, apart from their training states.
inline std::string file_difference(const std::filesystem::path& left,
                                   const std::filesystem::path& right) {
  const auto names_in = [](const std::filesystem::path& folder) {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
      const auto name = entry.path().lexically_relative(folder);
      const bool is_state = *name.begin() == "states" || *name.begin() == "end";
      if (entry.is_regular_file() && !is_state) names.insert(name.string());
    }
    return names;
  };
  const auto names = names_in(left);
  if (const auto others = names_in(right); names != others) {
    return c10::str("files ", c10::Join(" ", names), "; and ", c10::Join(" ", others), "; ");
  }
  std::string text;
  for (const std::string& name : names) {
    if (name.ends_with(".pt")) {
      add_differences(text, name, read_checkpoint(left / name).to_ivalue(),
                      read_checkpoint(right / name).to_ivalue());
      continue;
    }
    const auto lines = tracked_lines(left / name);
    const auto others = tracked_lines(right / name);
    const auto [line, other] =
        std::mismatch(lines.begin(), lines.end(), others.begin(), others.end());
    if (line == lines.end() && other == others.end()) continue;
    text += c10::str(name, " line ", line - lines.begin() + 1, ": ",
                     line == lines.end() ? "the end" : *line, " and ",
                     other == others.end() ? "the end" : *other, "; ");
  }
  return text;
}

/// Checks combinations in one process. A subclass does so on several ranks.
class CombinationChecks {
 public:
  virtual ~CombinationChecks() = default;

  /// Checks a combination. If it fails, reports the smallest combination that still fails.
  void check(const Combination& combination, const std::string& name) {
    const std::string failure = failure_of(combination);
    if (failure.empty()) return;
    const auto counts = std::pair(resumed_from_a_state, left_no_trace);
    const Combination smallest = combination.shrunk(
        [this](const Combination& smaller) { return !failure_of(smaller).empty(); });
    ADD_FAILURE() << name << ": " << failure.substr(0, 400) << "\n  " << combination.text()
                  << "\n  smallest: " << smallest.text() << "\n  "
                  << failure_of(smallest).substr(0, 600);
    std::tie(resumed_from_a_state, left_no_trace) = counts;
  }

  // The numbers of checks, so that a test notices if combinations are not really tried.
  int64_t resumed_from_a_state = 0;
  int64_t left_no_trace = 0;

 protected:
  virtual AcceleratorOptions accelerator() const { return {.device = "cpu"}; }
  /// Returns an empty folder that always has the same name.
  virtual std::filesystem::path fresh() { return folder_->fresh(); }
  /// Waits until all ranks have written their files.
  virtual void wait() const {}
  /// Returns the text of the first rank whose text is not empty.
  virtual std::string agree(const std::string& text) const { return text; }
  /// Returns the number of rank 0.
  virtual int64_t agree(int64_t number) const { return number; }
  /// Whether this rank compares the files.
  virtual bool compares_files() const { return true; }

 private:
  using Check = std::string (CombinationChecks::*)(const Combination&);

  /// Returns what is wrong, or "". Options that a run rejects are not wrong.
  std::string failure_of(const Combination& combination) {
    for (const Check check :
         {&CombinationChecks::trace_of_what_was_before, &CombinationChecks::effect_of_resuming}) {
      std::string text;
      bool is_rejected = false;
      folder_ = std::make_unique<RunFolder>();
      try {
        text = (this->*check)(combination);
      } catch (const OptionError&) {
        is_rejected = true;
      } catch (const std::exception& error) {
        // Batch norm does not accept one sample, and a rank may have one sample of a batch.
        text = error.what();
        // Some ranks may be without a batch. A sampler's last batch may be shorter than the others.
        for (const char* reason : {"Expected more than 1 value per channel", "leaves no batch",
                                   "In graph mode, all batches must have the same shapes"}) {
          is_rejected = is_rejected || text.find(reason) != std::string::npos;
        }
      }
      if (is_rejected) return "";
      text = agree(text);
      if (!text.empty()) return text;
    }
    return "";
  }

  std::unique_ptr<CombinationRun> make_run(const Combination& combination,
                                           const std::filesystem::path& folder) const {
    return std::make_unique<CombinationRun>(combination, folder, accelerator());
  }

  static std::string text_of(const TrainResult& result) {
    return c10::str(to_string(result.reason), " after ", result.num_updates, " updates and ",
                    result.num_epochs, " epochs: ", result.message);
  }

  /// Returns how the second run differs from the first one, or "". The first run's end is saved.
  std::string difference(CombinationRun& first, const TrainResult& first_result,
                         CombinationRun& second, const TrainResult& second_result) const {
    if (text_of(first_result) != text_of(second_result)) {
      return "results: " + text_of(first_result) + "; and " + text_of(second_result);
    }
    second.save_end();
    wait();
    const bool has_equal_weights = same_values(first.tensors(), second.tensors());
    return (has_equal_weights ? "" : "weights; ") +
           (compares_files() ? state_difference(folder_->first_end(), folder_->end()) : "");
  }

  /// Evaluations, predictions and searches before a run do not change it.
  std::string trace_of_what_was_before(const Combination& combination) {
    if (!combination.has("before")) return "";
    const auto without = make_run(combination, fresh());
    without->train_earlier_run();
    const TrainResult result = without->train();
    without->save_end();
    const auto with = make_run(combination, fresh());
    with->train_earlier_run();
    with->do_before();
    const TrainResult result_with = with->train();
    ++left_no_trace;
    const std::string text = difference(*without, result, *with, result_with);
    return text.empty() ? "" : "after what was before: " + text;
  }

  /// A run that is cut and resumed equals the whole run.
  std::string effect_of_resuming(const Combination& combination) {
    if (combination.is("cut", "fewer_epochs") && combination.number("num_epochs") == 1) return "";
    const auto whole = make_run(combination, fresh());
    whole->train_earlier_run();
    whole->do_before();
    const TrainResult result = whole->train();
    whole->save_end();

    const auto folder = fresh();
    const auto cut = make_run(combination, folder);
    cut->train_earlier_run();
    cut->do_before();
    const int64_t cut_at = combination.number("cut_at");
    if (combination.is("cut", "fewer_epochs")) {
      cut->options.num_epochs = combination.number("num_epochs") - 1;
    } else if (combination.is("cut", "fewer_updates")) {
      cut->options.max_num_updates = 1 + cut_at % std::max<int64_t>(result.num_updates - 1, 1);
    } else {
      const int64_t num_places = agree(whole->cut->num_places);
      if (num_places == 0) return "";
      cut->cut->at = 1 + cut_at % num_places;
    }
    cut->train_until_cut();
    wait();

    bool has_resumed = false;
    const auto resume = [&] {
      auto resumed = make_run(combination, folder);
      if (resumed->has_state()) {
        resumed->spoil();
        resumed->options.resume_from = resumed->saved_state();
        has_resumed = true;
        ++resumed_from_a_state;
      } else {
        resumed->train_earlier_run();
        resumed->do_before();
      }
      return resumed;
    };
    if (combination.has("cut_again")) {
      const auto again = resume();
      again->cut->at = 1 + cut_at / 2;
      again->train_until_cut();
      wait();
    }
    const auto resumed = resume();
    const TrainResult resumed_result = resumed->train();
    std::string text = difference(*whole, result, *resumed, resumed_result);
    // A run that starts again leaves the files of the first attempt.
    if (has_resumed && compares_files()) {
      text += file_difference(folder_->first(), folder_->path());
    }
    if (text.empty()) return "";
    for (const std::string& line : resumed->trainer->lines) {
      if (line.starts_with("WARNING") || line.starts_with("ERROR")) text += line + "; ";
    }
    return "resumed: " + text;
  }

 protected:
  std::unique_ptr<RunFolder> folder_;
};

}  // namespace linkboy::testing
