// Includes all of tracking/: recording runs in files and experiment trackers.

#pragma once

#include "linkboy/tracking/csv_tracker.hpp"
#include "linkboy/tracking/describe_run.hpp"
#include "linkboy/tracking/html_report.hpp"
#include "linkboy/tracking/json_lines_tracker.hpp"
#include "linkboy/tracking/tensorboard_tracker.hpp"
#include "linkboy/tracking/track_run.hpp"
#include "linkboy/tracking/tracker.hpp"
#include "linkboy/tracking/tracker_factory.hpp"
