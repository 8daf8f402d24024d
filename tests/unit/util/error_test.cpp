#include <gtest/gtest.h>
#include <torch/torch.h>

#include <fstream>

#include "linkboy/callbacks/early_stopping.hpp"
#include "linkboy/checkpoint/checkpoint.hpp"
#include "linkboy/checkpoint/safetensors.hpp"
#include "support/temporary_folder.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::error_test {
namespace {

TEST(ErrorTest, HasAClassForEachKind) {
  const TemporaryFolder folder;
  EXPECT_THROW(make<EarlyStopping>({.patience = -1}), OptionError);
  EXPECT_THROW(read_checkpoint(folder / "absent.pt"), FileError);
  std::ofstream(folder / "broken.pt") << "no checkpoint";
  EXPECT_THROW(read_checkpoint(folder / "broken.pt"), CorruptFileError);
  std::ofstream(folder / "broken.safetensors") << "no safetensors file";
  EXPECT_THROW(read_safetensors(folder / "broken.safetensors"), CorruptFileError);
  EXPECT_THROW(read_safetensors(folder / "absent.safetensors"), FileError);
  EXPECT_THROW(write_checkpoint("/proc/no/folder/here.pt", {}), FileError);
  EXPECT_THROW(read_checkpoint(folder.path()), FileError);
  std::filesystem::create_directories(folder / "states/state-1");
  std::ofstream(folder / "states/state-1/training_state.pt") << "cut short";
  Toy toy;
  EXPECT_THROW(toy.trainer.load_training_state(folder / "states"), CorruptFileError);
}

}  // namespace
}  // namespace linkboy::testing::error_test
