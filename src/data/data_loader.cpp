// The options of loaders and the loader of a dataset, which makes any batch of an epoch directly.

#include "linkboy/data/data_loader.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "data/batch_fetcher.hpp"
#include "data/hash_pair.hpp"
#include "linkboy/error.hpp"

namespace linkboy {
namespace {

std::shared_ptr<const Sampler> make_sampler(const DataLoaderOptions& options, int64_t size) {
  if (*options.shuffle) return std::make_shared<RandomSampler>(size, *options.seed);
  return std::make_shared<SequentialSampler>(size);
}

/// Checks that no option that a batch sampler replaces is set.
void check_alone(const DataLoaderOptions& options) {
  const char* const other = options.batch_size                  ? "batch_size"
                            : options.shuffle.value_or(false)   ? "shuffle"
                            : options.drop_last.value_or(false) ? "drop_last"
                            : options.sampler                   ? "a sampler"
                                                                : nullptr;
  LINKBOY_CHECK_OPTION(other == nullptr, "both ", other,
                       " and a batch_sampler are set; the batch_sampler alone determines the "
                       "batches. Set only one of them.");
}

DataLoaderOptions with_defaults(const Dataset& dataset, DataLoaderOptions options) {
  LINKBOY_CHECK_OPTION(!(options.sampler && options.shuffle.value_or(false)),
                       "both shuffle and a sampler are set; the sampler alone determines the "
                       "order. Set only one of them.");
  if (options.batch_sampler) {
    check_alone(options);
    LINKBOY_CHECK_OPTION(options.batch_sampler->size() > 0,
                         "the batch_sampler returns no batches; it must return at least one.");
    options.batch_size = options.batch_sampler->batch_size();
  }
  options.shuffle = options.shuffle.value_or(false);
  set_common_defaults(options);
  const int64_t size = dataset.size();
  LINKBOY_CHECK(size > 0, "the dataset is empty; it must have at least one sample.");
  if (options.batch_sampler) return options;
  if (!options.sampler) options.sampler = make_sampler(options, size);
  LINKBOY_CHECK_OPTION(options.sampler->size() > 0,
                       "the sampler returns no samples; it must return at least one.");
  return options;
}

}  // namespace

at::Generator TransformContext::generator(std::size_t i) const {
  const uint64_t sample = static_cast<uint64_t>(indices[i]);
  return at::detail::createCPUGenerator(mix(mix(seed, static_cast<uint64_t>(epoch)), sample));
}

DataLoaderOptions DataLoaderOptions::merged_with(const DataLoaderOptions& user) const {
  using Options = DataLoaderOptions;
  Options result = *this;
  const auto replace = [&](auto... members) {
    ((result.*members = user.*members ? user.*members : result.*members), ...);
  };
  if (user.sampler || user.batch_sampler) result.shuffle.reset();
  if (user.batch_sampler) {
    result.batch_size.reset();
    result.drop_last.reset();
    result.sampler.reset();
  }
  replace(&Options::batch_size, &Options::shuffle, &Options::drop_last, &Options::num_workers,
          &Options::prefetch_factor, &Options::pin_memory, &Options::timeout, &Options::seed,
          &Options::shard, &Options::even_batches, &Options::sampler, &Options::batch_sampler,
          &Options::collate_fn, &Options::transform, &Options::worker_init_fn);
  return result;
}

void set_common_defaults(DataLoaderOptions& options) {
  options.batch_size = options.batch_size.value_or(8);
  options.drop_last = options.drop_last.value_or(false);
  options.num_workers = options.num_workers.value_or(0);
  options.prefetch_factor = options.prefetch_factor.value_or(2);
  // Ignored without a device, so that a program runs on any machine.
  options.pin_memory = options.pin_memory.value_or(false) && at::accelerator::deviceCount() > 0;
  options.timeout = options.timeout.value_or(0.0);
  options.shard = options.shard.value_or(DataLoaderShard());
  options.even_batches = options.even_batches.value_or(true);
  options.seed = options.seed.value_or(seed_of_default_generator());
  check_at_least("batch_size", *options.batch_size, 1);
  check_at_least("num_workers", *options.num_workers, 0);
  check_at_least("prefetch_factor", *options.prefetch_factor, 1);
  LINKBOY_CHECK_OPTION(*options.timeout >= 0.0, "timeout is ", *options.timeout,
                       " seconds; it must be at least 0. 0 waits indefinitely.");
}

BatchShard shard_of(const DataLoaderOptions& options) {
  using Tail = BatchShard::Tail;
  const auto [rank, num_ranks] = *options.shard;
  // A single process does not need the same number of batches as others.
  const bool wraps = *options.even_batches && num_ranks > 1;
  const Tail tail = *options.drop_last ? Tail::drop : wraps ? Tail::wrap : Tail::uneven;
  if (options.batch_sampler) {
    return {options.batch_sampler->size(), /*batch_size=*/1, rank, num_ranks, tail};
  }
  return {options.sampler->size(), *options.batch_size, rank, num_ranks, tail};
}

std::vector<std::vector<int64_t>> places_of_batches(const DataLoaderOptions& options,
                                                    int64_t epoch) {
  const BatchShard shard = shard_of(options);
  std::vector<int64_t> begins{0};  // of the batch sampler's batches
  for (int64_t b = 0; options.batch_sampler && b < options.batch_sampler->size(); ++b) {
    begins.push_back(begins.back() + std::ssize(options.batch_sampler->sample(epoch, b)));
  }
  std::vector<std::vector<int64_t>> all;
  for (int64_t k = 0; k < shard.num_batches(); ++k) {
    std::vector<int64_t> places;
    if (options.batch_sampler) {
      const int64_t b = shard.position(k, 0);
      places.resize(begins[b + 1] - begins[b]);
      std::iota(places.begin(), places.end(), begins[b]);
    } else {
      for (int64_t i = 0; i < shard.size_of_batch(k); ++i) places.push_back(shard.position(k, i));
    }
    all.push_back(std::move(places));
  }
  return all;
}

std::vector<int64_t> BatchFetcher::indices_of(int64_t batch_index) const {
  if (options_.batch_sampler) {
    const int64_t batch = shard_.position(batch_index, 0);
    std::vector<int64_t> indices = options_.batch_sampler->sample(epoch_, batch);
    LINKBOY_CHECK(!indices.empty(), "the batch_sampler returns no sample for batch ", batch,
                  " of epoch ", epoch_, "; a batch must have at least one.");
    return indices;
  }
  const Sampler& sampler = *options_.sampler;
  std::vector<int64_t> indices(shard_.size_of_batch(batch_index));
  const auto count = static_cast<int64_t>(indices.size());
  // One call, except for a batch that continues with the first samples of the epoch.
  for (int64_t i = 0, length = 0; i < count; i += length) {
    const int64_t begin = shard_.position(batch_index, i);
    length = std::min(count - i, sampler.size() - begin);
    sampler.sample(epoch_, begin, length, indices.data() + i);
  }
  return indices;
}

Batch BatchFetcher::make(int64_t batch_index) {
  const std::vector<int64_t> indices = indices_of(batch_index);
  // A collate_fn or transform creates new tensors, which are pinned afterwards.
  const bool is_last = !options_.collate_fn && !options_.transform;
  const bool before = std::exchange(gathers_in_pinned_memory, *options_.pin_memory && is_last);
  const auto restore = c10::make_scope_exit([&] { gathers_in_pinned_memory = before; });
  const TransformContext context{*options_.seed, epoch_, indices};
  Batch batch = options_.collate_fn ? options_.collate_fn(dataset_.get_epoch_samples(context))
                                    : dataset_.get_epoch_batch(context);
  if (options_.transform) batch = options_.transform(std::move(batch), context);
  return *options_.pin_memory ? batch.pin_memory() : batch;
}

DatasetLoader::DatasetLoader(Dataset dataset, const DataLoaderOptions& options)
    : dataset_(std::move(dataset)),
      for_workers_(std::make_shared<WorkerDatasets>(dataset_)),
      given_options_(options),
      options_(with_defaults(dataset_, options)) {
  // Some ranks may have no batches, but not all of them.
  LINKBOY_CHECK(shard_of(options_).num_rounds() > 0,
                "drop_last leaves no batch: ", options_.sampler->size(),
                " samples do not fill a batch of batch_size ", batch_size(), " on each of ",
                options_.shard->num_ranks, " ranks. Reduce batch_size, or do not set drop_last.");
}

int64_t DatasetLoader::size() const { return shard_of(options_).num_batches(); }

std::unique_ptr<BatchIterator> DatasetLoader::iterate(int64_t epoch, int64_t first_batch) {
  LINKBOY_CHECK(first_batch >= 0 && first_batch <= size(), "batch ", first_batch,
                " was requested; an epoch has batches 0 to ", size() - 1, ".");
  std::vector<Dataset> datasets{dataset_};
  if (*options_.num_workers > 0) {
    datasets = for_workers_->take(num_makers_for(options_, size() - first_batch));
  }
  BatchWork work;
  // A copy may have a state (a random engine). With fixed stripes, each run returns the same
  // batches, regardless of which worker is faster.
  work.is_striped = datasets.size() > 1 && !datasets[0].is_same_as(datasets[1]);
  for (const Dataset& dataset : datasets) {
    work.makers.push_back(std::make_unique<BatchFetcher>(dataset, options_, epoch));
  }
  work.on_end = [source = for_workers_, datasets = std::move(datasets)] {
    source->give_back(datasets);
  };
  return make_batches(std::move(work), options_, epoch, first_batch, size());
}

StateDict DatasetLoader::state_dict() const {
  return {{"seed", static_cast<int64_t>(*options_.seed)}};
}

void DatasetLoader::load_state_dict(const StateDict& state) {
  options_.seed = static_cast<uint64_t>(state.get_int("seed"));
  if (!given_options_.sampler && !options_.batch_sampler)
    options_.sampler = make_sampler(options_, dataset_.size());
}

std::shared_ptr<DataLoader> DatasetLoader::shared(const DataLoaderOptions& defaults) const {
  if (given_options_.shard) return nullptr;
  return std::make_shared<DatasetLoader>(dataset_, defaults.merged_with(given_options_));
}

std::shared_ptr<DataLoader> make_data_loader(Dataset dataset, const DataLoaderOptions& options) {
  return std::make_shared<DatasetLoader>(std::move(dataset), options);
}

}  // namespace linkboy
