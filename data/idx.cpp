// Reads IDX files and MNIST. See images.h.
#include <zlib.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <filesystem>

#include "data/files.h"
#include "data/images.h"
#include "tensor/ops.h"

namespace lockstep::data {
namespace {

/// Reads a file's bytes in order; inflates them if the file is gzip.
class Source {
 public:
  Source(Bytes file, const std::string& origin) : rest_(file), origin_(origin) {
    zipped_ = file.size() >= 2 && file[0] == std::byte{0x1f} && file[1] == std::byte{0x8b};
    if (zipped_) LOCKSTEP_CHECK(inflateInit2(&stream_, 15 + 16) == Z_OK, origin_, ": zlib cannot start; free memory");
  }
  ~Source() {
    if (zipped_) inflateEnd(&stream_);
  }
  Source(const Source&) = delete;

  /// Upper bound on the bytes still to come: deflate makes at most 1032 bytes from one, and zlib may hold a few bytes
  /// of unprocessed input.
  int64_t limit() const { return zipped_ ? (int64_t(rest_.size()) + 16) * 1032 : int64_t(rest_.size()); }

  /// Fills `out` as far as possible. Returns the number of bytes written.
  int64_t read(std::byte* out, int64_t wanted) {
    if (!zipped_) {
      const size_t count = std::min(rest_.size(), size_t(wanted));
      if (count) std::memcpy(out, rest_.data(), count);
      rest_ = rest_.subspan(count);
      return int64_t(count);
    }
    int64_t done = 0;
    while (done < wanted && !ended_) {
      const uInt in = uInt(std::min<size_t>(rest_.size(), 1u << 30)),
                 room = uInt(std::min<int64_t>(wanted - done, 1 << 30));
      stream_.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(rest_.data()));
      stream_.avail_in = in;
      stream_.next_out = reinterpret_cast<Bytef*>(out + done);
      stream_.avail_out = room;
      const int status = inflate(&stream_, Z_NO_FLUSH);
      rest_ = rest_.subspan(in - stream_.avail_in);
      done += room - stream_.avail_out;
      if (status == Z_STREAM_END) {
        ended_ = true;
        LOCKSTEP_CHECK(rest_.empty(), origin_, ": expected the end of the file after its gzip data, got ", rest_.size(),
                       " more bytes; fetch the file again");
      } else if (status == Z_BUF_ERROR || (status == Z_OK && in == 0 && stream_.avail_out == room)) {
        return done;  // truncated
      } else {
        LOCKSTEP_CHECK(status == Z_OK, origin_,
                       ": gzip data is corrupt: ", stream_.msg ? stream_.msg : "unknown reason",
                       "; fetch the file again");
      }
    }
    return done;
  }

  /// Error unless everything has been read and gzip's checksum is right.
  void expect_end(int64_t size) {
    std::byte more;
    const int64_t got = read(&more, 1);
    LOCKSTEP_CHECK(got == 0, origin_, ": expected ", size, " bytes as the header says, got more",
                   zipped_ ? "" : str(": ", size + 1 + int64_t(rest_.size())), "; fetch the file again");
    LOCKSTEP_CHECK(!zipped_ || ended_, origin_,
                   ": expected gzip's checksum at the end, got a truncated file; fetch it again");
  }

 private:
  Bytes rest_;
  const std::string& origin_;
  bool zipped_ = false, ended_ = false;
  z_stream stream_{};
};

struct Kind {
  int code;
  DType dtype;
};
constexpr Kind kinds[] = {{0x08, u8}, {0x09, i8}, {0x0c, i32}, {0x0d, f32}, {0x0e, f64}};

void swap_bytes(std::byte* data, int64_t count, int64_t size) {
  for (int64_t i = 0; i < count; ++i) std::reverse(data + i * size, data + (i + 1) * size);
}

}  // namespace

Tensor parse_idx(Bytes file, const std::string& origin, int64_t max_bytes) {
  const std::string where = "[idx] " + origin;
  Source source(file, where);
  std::byte magic[4];
  LOCKSTEP_CHECK(source.read(magic, 4) == 4, where, ": expected a header, got fewer than 4 bytes; fetch it again");
  const int code = int(magic[2]), rank = int(magic[3]);
  const auto kind = std::find_if(std::begin(kinds), std::end(kinds), [&](Kind k) { return k.code == code; });
  LOCKSTEP_CHECK(magic[0] == std::byte{0} && magic[1] == std::byte{0}, where,
                 ": expected a file that starts with 0 0, got ", int(magic[0]), " ", int(magic[1]),
                 "; is it an IDX file? Check the path, or download it again");
  LOCKSTEP_CHECK(kind != std::end(kinds), where,
                 ": expected dtype 8 (u8), 9 (i8), 12 (i32), 13 (f32) or 14 (f64), got ", code,
                 "; is it an IDX file? Check the path, or download it again");
  LOCKSTEP_CHECK(rank >= 1 && rank <= Dims::max_rank, where, ": expected 1 to ", Dims::max_rank, " dims, got ", rank,
                 "; fetch the file again");

  Shape shape;
  int64_t bytes = size_of(kind->dtype);
  bool fits = true;
  for (int i = 0; i < rank; ++i) {
    std::byte size[4];
    LOCKSTEP_CHECK(source.read(size, 4) == 4, where, ": expected a header with ", rank, " sizes, got ", i,
                   " (is the file truncated?); copy or download it again");
    shape.push_back(int64_t(size[0]) << 24 | int64_t(size[1]) << 16 | int64_t(size[2]) << 8 | int64_t(size[3]));
    fits = !__builtin_mul_overflow(bytes, shape.back(), &bytes) && fits;
  }
  LOCKSTEP_CHECK(fits && bytes <= max_bytes, where, ": expected at most ", max_bytes, " bytes of elements, got shape ",
                 shape, fits ? "; raise max_bytes of read_idx()" : "; fetch the file again");
  LOCKSTEP_CHECK(bytes <= source.limit(), where, ": expected ", bytes, " bytes for shape ", shape, ", got at most ",
                 source.limit(), " (is the file truncated?); copy or download it again");

  Tensor out = empty(shape, {.dtype = kind->dtype, .device = cpu});
  auto* data = bytes ? static_cast<std::byte*>(out.raw_data()) : nullptr;
  const int64_t got = source.read(data, bytes);
  LOCKSTEP_CHECK(got == bytes, where, ": expected ", bytes, " bytes for shape ", shape, ", got ", got,
                 " (is the file truncated?); copy or download it again");
  source.expect_end(4 + 4 * rank + bytes);
  if (std::endian::native == std::endian::little && size_of(kind->dtype) > 1)
    swap_bytes(data, out.numel(), size_of(kind->dtype));
  return out;
}

Tensor read_idx(const std::string& path, int64_t max_bytes) { return parse_file(path, parse_idx, max_bytes); }

TensorDataset load_mnist(const std::string& folder, bool train) {
  const auto find = [&](const std::string& name) {
    for (const char* ending : {"", ".gz"})
      if (const auto path = std::filesystem::path(folder) / (name + ending); std::filesystem::exists(path))
        return path.string();
    fail(str("[mnist] expected ", name, " or ", name, ".gz in ", folder,
             ", found neither; download the dataset and put its files there"));
  };
  const std::string start = train ? "train-" : "t10k-";
  const std::string image_path = find(start + "images-idx3-ubyte"), label_path = find(start + "labels-idx1-ubyte");
  const Tensor images = read_idx(image_path), labels = read_idx(label_path);
  LOCKSTEP_CHECK(images.dtype() == u8 && images.dim() == 3, "[mnist] ", image_path,
                 ": expected u8 images (N, H, W), got ", images.dtype(), images.shape(), "; fetch the file again");
  LOCKSTEP_CHECK(labels.dtype() == u8 && labels.dim() == 1, "[mnist] ", label_path, ": expected u8 labels (N), got ",
                 labels.dtype(), labels.shape(), "; fetch the file again");
  LOCKSTEP_CHECK(images.size(0) == labels.size(0), "[mnist] ", label_path, ": expected ", images.size(0),
                 " labels, one for each image, got ", labels.size(0), "; take both files from one dataset");
  return {images_from_bytes(images).unsqueeze(1), labels_from_bytes(labels, 10, label_path)};
}

}  // namespace lockstep::data
