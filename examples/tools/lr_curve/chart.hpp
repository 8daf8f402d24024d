#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "curve.hpp"

namespace lr_curve {

/// The curve in plain characters: `height` lines of `width` columns of it, with axes and labels.
/// @param width, height  At least 2.
std::string terminal_chart(const Curve& curve, int64_t width, int64_t height);

/// The curves one below the other as a self-contained SVG image.
std::string svg_chart(const std::vector<Curve>& curves, const std::string& title);

}  // namespace lr_curve
