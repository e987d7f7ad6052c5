#pragma once
// Images: files, transforms, and layers of networks: #include <lockstep/vision.h>.
#include "extensions/vision/conv.h"
#include "extensions/vision/pictures/image_files.h"
#include "extensions/vision/pictures/image_folder.h"
#include "extensions/vision/pictures/pictures.h"
#include "extensions/vision/pictures/transforms.h"
#include "extensions/vision/pool.h"
#include "extensions/vision/resample.h"
#include "extensions/vision/sync_batch_norm.h"
