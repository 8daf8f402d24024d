// Includes all of vision/: image datasets, image decoding and ResNets.

#pragma once

#include "linkboy/vision/cifar.hpp"
#include "linkboy/vision/image_folder.hpp"
#include "linkboy/vision/images.hpp"
#include "linkboy/vision/resnet.hpp"
