// The checks that all image transforms have in common.

#include "data/image_batch.hpp"

#include <ATen/ops/empty.h>

#include <cstring>

#include "linkboy/error.hpp"

namespace linkboy {
namespace {

template <class T>
void copy_pixels(const at::Tensor& images, at::Tensor& copy) {
  const auto pixels = images.accessor<const T, 4>();
  T* next = copy.mutable_data_ptr<T>();
  for (int64_t i = 0; i < images.size(0); ++i) {
    for (int64_t c = 0; c < images.size(1); ++c) {
      for (int64_t y = 0; y < images.size(2); ++y) {
        for (int64_t x = 0; x < images.size(3); ++x) *next++ = pixels[i][c][y][x];
      }
    }
  }
}

}  // namespace

Images::Images(const at::Tensor& tensor, const TransformContext& context, uint64_t random_key,
               bool is_own)
    : is_own(is_own), indices(context.indices), key(random_key) {
  LINKBOY_CHECK(
      tensor.defined() && (tensor.dim() == 3 || tensor.dim() == 4), "the batch's first tensor is ",
      tensor.defined() ? "of shape " : "undefined",
      tensor.defined() ? c10::str(tensor.sizes()) : "",
      "; images must be [N, C, H, W] or [N, H, W]. Make the first tensor have this shape.");
  LINKBOY_CHECK(tensor.scalar_type() == at::kByte || tensor.scalar_type() == at::kFloat,
                "the images are ", tensor.scalar_type(),
                "; they must be Byte (uint8) or Float. Convert the dataset's tensor.");
  LINKBOY_CHECK(tensor.is_cpu() && tensor.layout() == at::kStrided, "the images are on ",
                tensor.device(), ", ", tensor.layout(),
                "; they must be strided, on the CPU. Keep the dataset's tensors there: complete "
                "batches are copied to the device.");
  pixels = tensor.dim() == 3 ? tensor.unsqueeze(1) : tensor;
  count = pixels.size(0);
  channels = pixels.size(1);
  height = pixels.size(2);
  width = pixels.size(3);
  LINKBOY_CHECK(height >= 1 && height <= kMaxSide && width >= 1 && width <= kMaxSide,
                "the images are ", height, " x ", width, "; both sides must be 1 to ", kMaxSide,
                " pixels long. Check the order of the dimensions: [N, C, H, W].");
  LINKBOY_CHECK(std::ssize(indices) == count, "there are ", count, " images, but the context has ",
                indices.size(),
                " indices; it must have one per image. Pass only the images of these indices.");
  if (!pixels.is_contiguous()) pixels = copy_of(pixels);
}

at::Tensor Images::own_pixels() const { return is_own ? pixels : copy_of(pixels); }

Batch ImageTransform::apply(Batch batch, const TransformContext& context, bool is_own) const {
  const Images images(batch.input(), context, random_key(context, kind, occurrence), is_own);
  at::Tensor changed = change(images, batch);
  if (batch.input().dim() == 3) changed = changed.squeeze(1);
  batch.set(batch.tensors()[0].first, std::move(changed));
  return batch;
}

at::Tensor copy_of(const at::Tensor& images) {
  at::Tensor copy = at::empty(images.sizes(), images.options());
  if (images.is_contiguous()) {
    std::memcpy(copy.mutable_data_ptr(), images.const_data_ptr(), images.nbytes());
  } else if (images.scalar_type() == at::kByte) {
    copy_pixels<uint8_t>(images, copy);
  } else {
    copy_pixels<float>(images, copy);
  }
  return copy;
}

}  // namespace linkboy
