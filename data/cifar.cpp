// Reads CIFAR-10's binary files. See images.h.
#include <filesystem>

#include "data/files.h"
#include "data/images.h"
#include "tensor/ops.h"

namespace lockstep::data {
namespace {

constexpr int64_t pixels = 3 * 32 * 32, record = 1 + pixels, max_bytes = int64_t(1) << 30;

/// Concatenates the records of all files.
TensorDataset read_all(const std::vector<std::string>& paths) {
  std::vector<std::shared_ptr<MappedFile>> files;
  int64_t count = 0;
  for (const auto& path : paths) {
    const int64_t size = files.emplace_back(MappedFile::open(path, max_bytes))->size();
    LOCKSTEP_CHECK(size > 0 && size % record == 0, "[cifar10] ", path, ": expected records of ", record,
                   " bytes (label, 3 x 32 x 32 pixels), at least one, got ", size, " bytes; fetch the file again");
    count += size / record;
    for (int64_t at = 0; at < size; at += record)
      LOCKSTEP_CHECK(int(files.back()->data()[at]) < 10, "[cifar10] ", path, ": expected labels from 0 to 9, got ",
                     int(files.back()->data()[at]), " for record ", at / record, "; fetch the binary version");
  }
  Tensor images = empty({count, 3, 32, 32}, {.device = cpu}), labels = empty({count}, {.dtype = i64, .device = cpu});
  float* image = images.data<float>();
  int64_t* label = labels.data<int64_t>();
  for (const auto& file : files) {
    for (const std::byte *at = file->data(), *end = at + file->size(); at < end; at += record) {
      *label++ = int64_t(at[0]);
      for (int64_t i = 1; i < record; ++i) *image++ = float(int(at[i])) / 255;
    }
    file->check();
  }
  return {images, labels};
}

}  // namespace

TensorDataset read_cifar10(const std::string& path) { return read_all({path}); }

TensorDataset load_cifar10(const std::string& folder, bool train) {
  std::vector<std::string> names{"test_batch.bin"}, paths;
  if (train)
    names = {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin", "data_batch_5.bin"};
  for (const auto& name : names) {
    paths.push_back((std::filesystem::path(folder) / name).string());
    LOCKSTEP_CHECK(std::filesystem::exists(paths.back()), "[cifar10] expected ", name, " in ", folder,
                   ", found none; download cifar-10-binary.tar.gz and unpack it there");
  }
  return read_all(paths);
}

}  // namespace lockstep::data
