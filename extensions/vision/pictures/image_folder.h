#pragma once
// Images in folders, one folder per class:  train/cat/1.jpg, train/cat/2.png, train/dog/a/3.jpg ...
#include <string>
#include <utility>
#include <vector>

#include "extensions/vision/pictures/image_files.h"
#include "extensions/vision/pictures/transforms.h"

namespace lockstep::data {

/// Options of ImageFolder.
struct ImageFolderOptions {
  ImageOptions image{.mode = ImageMode::rgb};  ///< how to decode
  bool allow_empty = false;                    ///< true: allow classes without an image; false: Error
};

/// Sample i is (image after `transform`, class index as an i64 scalar). Classes are the folders in `root`, sorted by
/// name (as bytes); a class's images are those below its folder, sorted by path. Files without an image extension are
/// skipped. An unsupported image format (.bmp ...) is an Error, so that no samples are lost silently. Images are read
/// on demand.
class ImageFolder : public Dataset<Example> {
 public:
  /// Lists the files. Error if there is no class folder, or a class without an image.
  explicit ImageFolder(const std::string& root, Transform transform = ToTensor(), ImageFolderOptions options = {});
  int64_t size() const override { return int64_t(samples_.size()); }
  Example get(int64_t index) const override;
  const std::vector<std::string>& classes() const { return classes_; }  ///< names by class index
  /// Path and class index of each sample.
  const std::vector<std::pair<std::string, int64_t>>& samples() const { return samples_; }

 private:
  Transform transform_;
  ImageFolderOptions options_;
  std::vector<std::string> classes_;
  std::vector<std::pair<std::string, int64_t>> samples_;
};

}  // namespace lockstep::data
