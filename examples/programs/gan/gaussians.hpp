#pragma once

#include <linkboy/data/dataset.hpp>
#include <string>

namespace gan {

/// Points [N, 2] of eight Gaussians on a circle, named "points".
linkboy::TensorDataset make_points();

/// How well `points` [N, 2] cover the Gaussians, as a line of text.
std::string measure(const at::Tensor& points);

}  // namespace gan
