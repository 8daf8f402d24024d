#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "curve.hpp"

namespace lr_curve {

/// Returns the curve as plain text. The plot has `height` lines and `width` columns; axes and
/// labels surround it.
/// @param width, height  Must be at least 2.
std::string terminal_chart(const Curve& curve, int64_t width, int64_t height);

/// Returns the curves, one below the other, as a self-contained SVG image.
std::string svg_chart(const std::vector<Curve>& curves, const std::string& title);

}  // namespace lr_curve
