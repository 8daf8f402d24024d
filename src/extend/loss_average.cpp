// Adds up losses on their device, and reads the sum only when it is requested.

#include "linkboy/extend/loss_average.hpp"

#include <ATen/ATen.h>

#include <limits>
#include <utility>

namespace linkboy {

void LossAverage::update(const at::Tensor& loss, int64_t batch_size) {
  count_ += batch_size;
  if (loss.is_cpu() && loss.numel() == 1 && loss.scalar_type() == at::kFloat) {
    // The common case; reading the value directly avoids the dispatches below.
    host_total_ +=
        static_cast<double>(*loss.const_data_ptr<float>()) * static_cast<double>(batch_size);
    return;
  }
  const at::Tensor detached = loss.detach();
  const at::Tensor mean = detached.numel() == 1 ? detached.reshape({}) : detached.mean();
  if (mean.is_cpu()) {
    host_total_ += mean.item<double>() * static_cast<double>(batch_size);
    return;
  }
  if (!device_total_.defined()) {
    // The sum starts from the restored total, so that a resumed run rounds like an uninterrupted
    // one.
    device_total_ =
        at::full({}, std::exchange(host_total_, 0.0), mean.options().dtype(at::kDouble));
  }
  device_total_.add_(mean, batch_size);
}

void LossAverage::reset() { restore(0.0, 0); }

void LossAverage::restore(double total, int64_t count) {
  host_total_ = total;
  device_total_ = at::Tensor();
  count_ = count;
}

double LossAverage::total() const { return total_async().value(); }

AsyncScalar LossAverage::total_async() const {
  if (!device_total_.defined()) return AsyncScalar(host_total_);
  return AsyncScalar(host_total_ == 0.0 ? device_total_ : device_total_ + host_total_);
}

double LossAverage::average() const {
  if (count_ == 0) return std::numeric_limits<double>::quiet_NaN();
  return total() / static_cast<double>(count_);
}

}  // namespace linkboy
