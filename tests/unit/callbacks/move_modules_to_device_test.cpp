#include "linkboy/callbacks/move_modules_to_device.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "support/expect_error.hpp"
#include "support/given_scores.hpp"
#include "support/matchers.hpp"

namespace linkboy::testing::move_modules_to_device_test {
namespace {

/// Records its name when it is moved.
class Movable : public torch::nn::Module {
 public:
  Movable(std::string name, std::vector<std::string>* moved)
      : name_(std::move(name)), moved_(moved) {}
  void to(torch::Device, bool) override { moved_->push_back(name_); }

 private:
  std::string name_;
  std::vector<std::string>* moved_;
};

TEST(RegisterModuleTest, ModulesAreOnTheDeviceBeforeTheModelIsPrepared) {
  std::vector<std::string> moved;
  class Net : public torch::nn::Module {
   public:
    explicit Net(std::vector<std::string>* moved) : moved_(moved) {}
    torch::Tensor forward(const torch::Tensor& x) { return scores->forward(x); }
    void to(torch::Device, bool) override { moved_->push_back("model"); }
    torch::nn::Linear scores = register_module("scores", torch::nn::Linear(4, 3));

   private:
    std::vector<std::string>* moved_;
  };
  auto net = std::make_shared<Net>(&moved);
  QuietTrainer trainer(net, torch::nn::CrossEntropyLoss(),
                       std::make_shared<torch::optim::SGD>(net->parameters(), 0.1),
                       {.default_callbacks = {}, .accelerator = {.device = "cpu"}});
  trainer.register_module(std::make_shared<Movable>("extra", &moved));
  EXPECT_EQ(trainer.registered_modules().size(), 2U);
  trainer.train(epochs_of_one_update(1));
  trainer.evaluate({.dataset = toy_data(4)});
  EXPECT_THAT(moved, ElementsAre("extra", "model", "extra", "model"));
  EXPECT_ERROR(trainer.register_module(nullptr), "the module to register is null");
}

TEST(MoveModulesToDeviceTest, MovesModulesThatCallbacksHaveRegistered) {
  std::vector<std::string> moved;
  const auto registering = make<LambdaCallback>({.on_training_run_start = [&](Trainer& trainer) {
    trainer.register_module(std::make_shared<Movable>("late", &moved));
  }});
  Toy toy({registering, std::make_shared<MoveModulesToDevice>()});
  toy.trainer.train(epochs_of_one_update(1));
  EXPECT_THAT(moved, ElementsAre("late"));
}

}  // namespace
}  // namespace linkboy::testing::move_modules_to_device_test
