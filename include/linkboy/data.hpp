// Includes all of data/: batches, datasets, samplers, loaders and image transforms.

#pragma once

#include "linkboy/data/batch.hpp"
#include "linkboy/data/data_loader.hpp"
#include "linkboy/data/dataset.hpp"
#include "linkboy/data/image_transforms.hpp"
#include "linkboy/data/sampler.hpp"
#include "linkboy/data/stream.hpp"
