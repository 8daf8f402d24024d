#include "fuzz_support.hpp"
#include "vision/decoder.hpp"
#include "vision/resampler.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  using namespace linkboy;
  using namespace linkboy::vision;
  constexpr int64_t kMostPixels = 1 << 16;  // a few bytes can describe far more
  for (const int64_t divisor : {1, 3}) {
    fuzz::run([&] {
      ResizePlan plan;
      const Pixels pixels = decode({data, size}, "it", [&](ImageSize image) {
        LINKBOY_CHECK(image.height * image.width <= kMostPixels, "the image is too large");
        plan = whole_image(image);
        plan.source.top = image.height - (image.height + divisor - 1) / divisor;
        plan.source.left = image.width - (image.width + divisor - 1) / divisor;
        plan.source.height -= plan.source.top;
        plan.source.width -= plan.source.left;
        plan.size = {7, 5};
        plan.part = {0, 0, 7, 5};
        return needed_region(plan);
      });
      uint8_t planes[3 * 7 * 5];
      resize_pixels(pixels, plan, planes);
      for (const uint8_t value : planes) fuzz::sink = value;
    });
  }
  return 0;
}
