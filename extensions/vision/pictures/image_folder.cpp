// Lists and reads the images of class folders. See image_folder.h.
#include "extensions/vision/pictures/image_folder.h"

#include <algorithm>
#include <filesystem>
#include <map>

#include "data/excerpt.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;

/// The file extension in lower case, with the dot.
std::string extension_of(const fs::path& path) {
  std::string text = path.extension().string();
  for (char& c : text) c = c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c;
  return text;
}

bool is_one_of(const std::string& word, std::initializer_list<const char*> list) {
  return std::find(list.begin(), list.end(), word) != list.end();
}

/// Subfolders and images of a folder, sorted by name. Links to folders count as folders.
struct Listed {
  std::vector<std::string> folders, pictures;
};
Listed list_folder(const std::string& folder) {
  Listed listed;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string(), extension = extension_of(it->path());
    std::error_code ignored;  // is_directory() fails for dangling links
    if (it->is_directory(ignored)) listed.folders.push_back(name);
    else if (is_one_of(extension, {".jpg", ".jpeg", ".png"})) listed.pictures.push_back(name);
    else
      LOCKSTEP_CHECK(!is_one_of(extension, {".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp"}),
                     "[ImageFolder] expected .png, .jpg and .jpeg, got ", it->path().string(),
                     " (convert it, or move it elsewhere)");
  }
  LOCKSTEP_CHECK(!error, "[ImageFolder] cannot list ", folder, ": ", error.message(), "; check its permissions");
  std::sort(listed.folders.begin(), listed.folders.end());
  std::sort(listed.pictures.begin(), listed.pictures.end());
  return listed;
}

/// The names of the images in each folder.
using Found = std::map<std::string, std::vector<std::string>>;
void find_pictures(const std::string& folder, int depth, Found& found) {
  LOCKSTEP_CHECK(depth < 100,
                 "[ImageFolder] expected folders less than 100 deep, remove links that lead upwards: ", folder);
  Listed listed = list_folder(folder);
  found[folder] = std::move(listed.pictures);
  for (const auto& name : listed.folders) find_pictures(folder + "/" + name, depth + 1, found);
}

/// All images below a folder, sorted by folder path, then by name.
std::vector<std::string> pictures_below(const std::string& folder) {
  Found found;
  find_pictures(folder, 0, found);
  std::vector<std::string> paths;
  for (const auto& [place, names] : found)
    for (const auto& name : names) paths.push_back(place + "/" + name);
  return paths;
}

}  // namespace

ImageFolder::ImageFolder(const std::string& root, Transform transform, ImageFolderOptions options)
    : transform_(std::move(transform)), options_(options) {
  LOCKSTEP_CHECK(fs::is_directory(root),
                 "[ImageFolder] expected a folder with a folder for each class, found none: ", root);
  classes_ = list_folder(root).folders;
  LOCKSTEP_CHECK(!classes_.empty(), "[ImageFolder] expected a folder for each class in ", root, ", found none");
  std::string empty;
  for (size_t i = 0; i < classes_.size(); ++i) {
    std::vector<std::string> paths = pictures_below(root + "/" + classes_[i]);
    if (paths.empty()) empty += (empty.empty() ? "" : ", ") + classes_[i];
    for (auto& path : paths) samples_.emplace_back(std::move(path), int64_t(i));
  }
  LOCKSTEP_CHECK(empty.empty() || options_.allow_empty,
                 "[ImageFolder] expected a .png, .jpg or .jpeg file for each class in ", root,
                 ", found none for: ", excerpt(empty), "; add images, or set allow_empty");
}

Example ImageFolder::get(int64_t index) const {
  check_index("ImageFolder", index, size());
  const auto& [path, number] = samples_[size_t(index)];
  Tensor image = read_image(path, options_.image);
  if (transform_) image = transform_(image);
  return {image, Tensor::from<int64_t>({number}, {}).to(cpu)};
}

}  // namespace lockstep::data
