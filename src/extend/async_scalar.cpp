// Copies a number to page-locked memory, with an event that tells when it has arrived.

#include "linkboy/extend/async_scalar.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace linkboy {

AsyncScalar::AsyncScalar(const at::Tensor& scalar) {
  const at::NoGradGuard no_grad;
  if (scalar.is_cpu()) {
    value_ = scalar.item<double>();
    return;
  }
  on_host_ = at::empty({}, at::TensorOptions(scalar.scalar_type()).pinned_memory(true));
  on_host_.copy_(scalar.detach().reshape({}), /*non_blocking=*/true);
  const c10::impl::VirtualGuardImpl guard(scalar.device().type());
  arrival_ = std::make_shared<c10::Event>(scalar.device().type());
  arrival_->record(guard.getStream(scalar.device()));
}

bool AsyncScalar::is_ready() const { return !arrival_ || arrival_->query(); }

double AsyncScalar::value() const {
  if (!arrival_) return value_;
  arrival_->synchronize();
  return on_host_.item<double>();
}

}  // namespace linkboy
