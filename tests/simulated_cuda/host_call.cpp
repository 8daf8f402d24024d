#include "host_call.hpp"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <mutex>
#include <sstream>
#include <string>
#include <unordered_map>
#include <utility>

namespace linkboy::simulated_cuda {

void launch_kernel(c10::Device device, Work work) {
  Machine::instance().launch(current_stream(device), std::move(work));
}

at::Tensor view_on_host(const at::Tensor& tensor) {
  if (tensor.device().type() != device_type()) return tensor;
  const auto options = at::TensorOptions(at::kCPU).dtype(tensor.dtype());
  if (tensor.numel() == 0) return at::empty_strided(tensor.sizes(), tensor.strides(), options);
  return at::from_blob(Machine::instance().bytes_of(tensor.const_data_ptr()), tensor.sizes(),
                       tensor.strides(), options);
}

Range range_of(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return {nullptr, 0};
  std::size_t last = 0;
  for (int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
  return {tensor.const_data_ptr(), (last + 1) * tensor.element_size()};
}

namespace {

const c10::DispatchKeySet kCpu(c10::DispatchKey::CPU);

/// The properties of a tensor that the host needs before the tensor is computed.
struct Look {
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  at::ScalarType dtype;
};

/// The results of one kind of call.
struct Plan {
  std::vector<std::vector<std::optional<Look>>> results;          // by return; null if undefined
  std::unordered_map<std::size_t, std::vector<int64_t>> resized;  // sizes by argument
};

std::vector<at::Tensor> tensors_of(const c10::IValue& value) {
  return value.isTensorList() ? value.toTensorVector() : std::vector{value.toTensor()};
}

bool is_on_device(const at::Tensor& tensor) { return tensor.device().type() == device_type(); }

/// Returns a copy that behaves like the original number in the promotion of dtypes.
at::Tensor copy_of_number(const at::Tensor& tensor) {
  at::Tensor copy = tensor.clone();
  copy.unsafeGetTensorImpl()->set_wrapped_number(tensor.unsafeGetTensorImpl()->is_wrapped_number());
  return copy;
}

at::Tensor filled_like(const at::Tensor& tensor, double value) {
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kCPU))
      .fill_(value);
}

bool is_mask(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kBool || tensor.scalar_type() == at::kByte;
}

/// One call of an operator with tensors of a simulated device.
class HostCall {
 public:
  HostCall(const c10::OperatorHandle& op, torch::jit::Stack& stack)
      : op_(op),
        schema_(op.schema()),
        stack_(stack),
        arguments_(torch::jit::last(stack, schema_.arguments().size()).vec()) {}

  void run() {
    find_device();
    const c10::DeviceGuard on_device(*device_);
    Machine::instance().count(&Counts::kernels);
    find_generator();
    const OnlyKernels only_kernels;
    // Scalars on the CPU are read at the launch, as on a device.
    on_host_ = replace_arguments([](const at::Tensor& tensor) {
      return is_on_device(tensor) ? view_on_host(tensor) : copy_of_number(tensor);
    });
    if (waits()) {
      run_while_waiting();
    } else {
      run_later();
    }
  }

 private:
  bool is_written(std::size_t argument) const {
    const auto* alias = schema_.arguments()[argument].alias_info();
    return alias != nullptr && alias->isWrite();
  }
  void find_generator() {
    const auto& all = schema_.arguments();
    const auto found = std::find_if(all.begin(), all.end(), [](const auto& argument) {
      return argument.type()->str() == "Generator?";
    });
    generator_index_ = static_cast<std::size_t>(found - all.begin());
    TORCH_CHECK_NOT_IMPLEMENTED(found != all.end() || !op_.hasTag(at::Tag::nondeterministic_seeded),
                                "simulated device: ", op_.operator_name(),
                                " takes no generator and needs a kernel here");
    if (found == all.end()) return;
    generator_ =
        generator_of_kernel(arguments_[generator_index_].toOptional<at::Generator>(), *device_);
  }

  void find_device() {
    // Indices and scalars may also be on the CPU.
    const bool takes_indices = schema_.name().find("index") != std::string::npos;
    for (const auto& argument : arguments_) {
      visit_tensors(argument, [&](const at::Tensor& tensor) {
        if (is_on_device(tensor) && !device_) device_ = tensor.device();
      });
    }
    for (const auto& argument : arguments_) {
      if (argument.isDevice() && !device_) device_ = argument.toDevice();
    }
    if (!device_ || !device_->has_index()) {
      device_ = c10::impl::VirtualGuardImpl(device_type()).getDevice();
    }
    for (const auto& argument : arguments_) {
      visit_tensors(argument, [&](const at::Tensor& tensor) {
        if (tensor.is_cpu() && (tensor.dim() == 0 || takes_indices)) return;
        TORCH_CHECK(
            tensor.device() == *device_,
            "Expected all tensors to be on the same device, but found at least two devices, ",
            *device_, " and ", tensor.device(), "! (", op_.operator_name(), ")");
      });
    }
  }

  /// Returns the arguments for the CPU's kernel, with each tensor replaced by `function(tensor)`.
  template <class Function>
  torch::jit::Stack replace_arguments(const Function& function) const {
    torch::jit::Stack replaced;
    for (std::size_t i = 0; i < arguments_.size(); ++i) {
      if (i == generator_index_) {
        replaced.emplace_back();
      } else if (arguments_[i].isDevice()) {
        replaced.emplace_back(c10::Device(at::kCPU));
      } else {
        replaced.push_back(map_tensors(arguments_[i], function));
      }
    }
    return replaced;
  }

  /// Returns the index of the argument that is returned as the r-th result, if any.
  std::optional<std::size_t> argument_returned(std::size_t r) const {
    const auto* returned = schema_.returns()[r].alias_info();
    if (returned == nullptr) return std::nullopt;
    for (std::size_t i = 0; i < arguments_.size(); ++i) {
      if (is_written(i) &&
          schema_.arguments()[i].alias_info()->beforeSets() == returned->beforeSets()) {
        return i;
      }
    }
    TORCH_CHECK_NOT_IMPLEMENTED(false, "simulated device: ", op_.operator_name(),
                                " returns a view and needs a kernel here");
  }

  bool returns_numbers() const {
    return std::any_of(schema_.returns().begin(), schema_.returns().end(), [](const auto& result) {
      const std::string type = result.type()->str();
      return type != "Tensor" && type != "Tensor[]";
    });
  }

  /// Whether the host must wait for the stream, as with a device's kernel.
  bool waits() const {
    const bool takes_indices = schema_.name().starts_with("aten::index") ||
                               schema_.name().starts_with("aten::_index_put_impl_");
    if (takes_indices && arguments_.size() > 1 && arguments_[1].isOptionalTensorList()) {
      // Only the device knows how many elements a mask selects. Filling them does not require this
      // number.
      const bool fills = arguments_.size() > 2 && arguments_[2].isTensor() &&
                         arguments_[2].toTensor().numel() == 1;
      bool has_mask = false;
      visit_tensors(arguments_[1], [&](const at::Tensor& index) { has_mask |= is_mask(index); });
      return has_mask && !fills;
    }
    return op_.hasTag(at::Tag::dynamic_output_shape) ||
           op_.hasTag(at::Tag::data_dependent_output) || returns_numbers();
  }

  void run_while_waiting() {
    const c10::impl::VirtualGuardImpl devices(device_type());
    devices.synchronizeStream(devices.getStream(*device_));
    torch::jit::Stack results = on_host_;
    if (generator_) results[generator_index_] = generator_->make();
    op_.redispatchBoxed(kCpu, &results);
    if (returns_numbers()) {
      torch::jit::drop(stack_, arguments_.size());
      std::move(results.begin(), results.end(), std::back_inserter(stack_));
      return;
    }
    Work work = make_work();
    std::vector<std::vector<at::Tensor>> on_device(results.size());
    std::vector<std::pair<at::Tensor, at::Tensor>> copies;
    for (std::size_t r = 0; r < results.size(); ++r) {
      if (argument_returned(r)) continue;
      for (const at::Tensor& result : tensors_of(results[r])) {
        on_device[r].push_back(
            at::empty_strided(result.sizes(), result.strides(), result.options().device(*device_)));
        copies.emplace_back(view_on_host(on_device[r].back()), result);
        work.writes.push_back(range_of(on_device[r].back()));
      }
    }
    work.run = [copies] {
      const OnlyKernels only_kernels_there;
      for (const auto& [target, source] : copies) target.copy_(source);
    };
    launch_kernel(*device_, std::move(work));
    replace_stack(on_device);
  }

  void run_later() {
    const Plan known = plan();
    for (const auto& [argument, sizes] : known.resized) {
      arguments_[argument].toTensor().resize_(sizes);
      on_host_[argument] = view_on_host(arguments_[argument].toTensor());
    }
    Work work = make_work();
    std::vector<std::vector<at::Tensor>> results(known.results.size());
    std::vector<std::vector<at::Tensor>> targets(known.results.size());  // host views of `results`
    for (std::size_t r = 0; r < results.size(); ++r) {
      for (const auto& look : known.results[r]) {
        at::Tensor result;
        if (look) {
          result = at::empty_strided(look->sizes, look->strides,
                                     at::TensorOptions(*device_).dtype(look->dtype));
          work.writes.push_back(range_of(result));
        }
        results[r].push_back(result);
        targets[r].push_back(look ? view_on_host(result) : result);
      }
    }
    work.run = [op = op_, on_host = on_host_, targets, generator = generator_,
                index = generator_index_] {
      const OnlyKernels only_kernels_there;
      torch::jit::Stack computed = on_host;  // copied, because a graph runs this several times
      if (generator) computed[index] = generator->make();
      op.redispatchBoxed(kCpu, &computed);
      for (std::size_t r = 0; r < targets.size(); ++r) {
        if (targets[r].empty()) continue;
        const auto sources = tensors_of(computed[r]);
        for (std::size_t k = 0; k < sources.size(); ++k) {
          if (sources[k].defined()) targets[r][k].copy_(sources[k]);
        }
      }
    };
    launch_kernel(*device_, std::move(work));
    replace_stack(results);
  }

  Plan plan() {
    static std::mutex mutex;
    static std::unordered_map<std::string, Plan> plans;
    const std::string key = kind();
    {
      const std::lock_guard lock(mutex);
      if (const auto known = plans.find(key); known != plans.end()) return known->second;
    }
    Plan made = make_plan();
    const std::lock_guard lock(mutex);
    return plans[key] = std::move(made);
  }

  Plan make_plan() const {
    const auto fill = [&](double value) {
      auto filled = replace_arguments([&](const at::Tensor& tensor) {
        return is_on_device(tensor) ? filled_like(tensor, value) : copy_of_number(tensor);
      });
      if (generator_) filled[generator_index_] = at::detail::createCPUGenerator(0);
      return filled;
    };
    torch::jit::Stack filled = fill(0);
    torch::jit::Stack computed = filled;
    try {
      op_.redispatchBoxed(kCpu, &computed);
    } catch (const c10::NotImplementedError& error) {
      TORCH_CHECK_NOT_IMPLEMENTED(
          false, "simulated device: ", op_.operator_name(),
          " has no kernel for the CPU and needs one here: ", error.what_without_backtrace());
    } catch (const c10::Error&) {
      // Some arguments, such as probabilities, must not all be zero. If the call itself is wrong,
      // the second run throws, too.
      computed = filled = fill(1);
      op_.redispatchBoxed(kCpu, &computed);
    }
    Plan made;
    for (std::size_t r = 0; r < schema_.returns().size(); ++r) {
      auto& looks = made.results.emplace_back();
      if (argument_returned(r)) continue;
      for (const at::Tensor& result : tensors_of(computed[r])) {
        looks.emplace_back();
        if (result.defined()) {
          looks.back() = {result.sizes().vec(), result.strides().vec(), result.scalar_type()};
        }
      }
    }
    for (std::size_t i = 0; i < arguments_.size(); ++i) {
      if (!is_written(i) || !arguments_[i].isTensor()) continue;
      const auto sizes = filled[i].toTensor().sizes();
      if (sizes != arguments_[i].toTensor().sizes()) made.resized[i] = sizes.vec();
    }
    return made;
  }

  std::string kind() const {
    std::ostringstream text;
    text << op_.operator_name();
    for (const auto& argument : arguments_) {
      text << '|';
      if (argument.isTensor() || argument.isTensorList() || argument.isOptionalTensorList()) {
        visit_tensors(argument, [&](const at::Tensor& tensor) {
          text << tensor.scalar_type() << tensor.sizes() << tensor.strides() << is_on_device(tensor)
               << tensor.unsafeGetTensorImpl()->is_wrapped_number() << ';';
        });
      } else if (!argument.isGenerator()) {
        text << argument;
      }
    }
    return text.str();
  }

  /// Returns work that accesses the arguments.
  Work make_work() const {
    Work work{.name = c10::toString(op_.operator_name()), .reads = {}, .writes = {}, .run = {}};
    for (std::size_t i = 0; i < arguments_.size(); ++i) {
      visit_tensors(arguments_[i], [&](const at::Tensor& tensor) {
        if (is_on_device(tensor))
          (is_written(i) ? work.writes : work.reads).push_back(range_of(tensor));
      });
    }
    if (generator_) {
      work.reads.insert(work.reads.end(), generator_->reads.begin(), generator_->reads.end());
    }
    return work;
  }

  void replace_stack(const std::vector<std::vector<at::Tensor>>& results) {
    torch::jit::drop(stack_, arguments_.size());
    for (std::size_t r = 0; r < results.size(); ++r) {
      if (const auto argument = argument_returned(r)) {
        stack_.push_back(arguments_[*argument]);
      } else if (schema_.returns()[r].type()->kind() == c10::TypeKind::ListType) {
        stack_.emplace_back(results[r]);
      } else {
        stack_.emplace_back(results[r].at(0));
      }
    }
  }

  const c10::OperatorHandle& op_;
  const c10::FunctionSchema& schema_;
  torch::jit::Stack& stack_;
  torch::jit::Stack arguments_;
  std::optional<c10::Device> device_;
  std::optional<KernelGenerator> generator_;
  std::size_t generator_index_ = 0;  // among the arguments
  torch::jit::Stack on_host_;
};

}  // namespace

void run_on_stream(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  HostCall(op, *stack).run();
}

}  // namespace linkboy::simulated_cuda
