#pragma once

#include <string>

#include <linkboy/data/dataset.hpp>

namespace gan {

/// Returns points [N, 2] of eight Gaussians on a circle. Their name in a batch is "points".
linkboy::TensorDataset make_points();

/// Returns a line of text that describes how well `points` [N, 2] cover the Gaussians.
std::string measure(const at::Tensor& points);

}  // namespace gan
