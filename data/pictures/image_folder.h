#pragma once
// Pictures in folders, one for each class:  train/cat/1.jpg, train/cat/2.png, train/dog/a/3.jpg ...
#include <string>
#include <utility>
#include <vector>

#include "data/pictures/image_files.h"
#include "data/pictures/transforms.h"

namespace lockstep::data {

struct ImageFolderOptions {
  ImageOptions image{.mode = ImageMode::rgb};
  bool allow_empty = false;  ///< classes without a picture
};

/// Sample i is (picture after `transform`, number of its class as an i64 scalar). Classes are the folders below `root`,
/// in the order of their names' bytes, and their pictures those in them and below, in the order of their paths. What is
/// no picture by its name is passed over; a kind of picture that is not read (.bmp ...) is an Error, as losing samples
/// in silence would be worse. Pictures are read when they are asked for.
class ImageFolder : public Dataset<Example> {
 public:
  explicit ImageFolder(const std::string& root, Transform transform = ToTensor(), ImageFolderOptions options = {});
  int64_t size() const override { return int64_t(samples_.size()); }
  Example get(int64_t index) const override;
  const std::vector<std::string>& classes() const { return classes_; }
  /// Path and class.
  const std::vector<std::pair<std::string, int64_t>>& samples() const { return samples_; }

 private:
  Transform transform_;
  ImageFolderOptions options_;
  std::vector<std::string> classes_;
  std::vector<std::pair<std::string, int64_t>> samples_;
};

}  // namespace lockstep::data
