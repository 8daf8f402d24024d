#include "save_optimizer.hpp"

#include <torch/torch.h>

#include <iterator>
#include <sstream>
#include <string>

namespace gan {

linkboy::StateDict SaveOptimizer::state_dict() const {
  torch::serialize::OutputArchive archive;
  optimizer_->save(archive);
  std::ostringstream stream;
  archive.save_to(stream);
  std::string bytes = stream.str();
  return {{"archive", at::from_blob(bytes.data(), {std::ssize(bytes)}, at::kByte).clone()}};
}

void SaveOptimizer::load_state_dict(const linkboy::StateDict& state) {
  const at::Tensor bytes = state.get_tensor("archive").contiguous();
  torch::serialize::InputArchive archive;
  archive.load_from(static_cast<const char*>(bytes.const_data_ptr()), bytes.nbytes());
  optimizer_->load(archive);
}

}  // namespace gan
