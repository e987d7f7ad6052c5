// PNG, JPEG and image operations: golden files of Pillow and torchvision, damaged files, and folders of pictures.
#include <zlib.h>

#include <cmath>
#include <fstream>
#include <map>

#include "data/files.h"
#include "data/loader.h"
#include "data/safetensors.h"
#include "extensions/vision/pictures/image_files.h"
#include "extensions/vision/pictures/image_folder.h"
#include "extensions/vision/pictures/pictures.h"
#include "tensor/ops.h"
#include "tests/data/util.h"
#include "tests/devices.h"

using namespace lockstep;
using namespace lockstep::data;

namespace {

std::map<std::string, Tensor> arrays_of(const std::string& name) {
  std::map<std::string, Tensor> all;
  const SafeTensors file = SafeTensors::open(golden("pictures/" + name));
  for (const auto& entry : file.entries()) all[entry.name] = file.tensor(entry);
  return all;
}

std::string text_of(const std::string& path) { return read_file(path, 1 << 20); }

/// The largest difference; infinity if shapes or dtypes differ.
double picture_difference(const Tensor& a, const Tensor& b) {
  if (!(a.shape() == b.shape()) || a.dtype() != b.dtype()) return INFINITY;
  return max(abs(sub(a.to(f64), b.to(f64)))).item();
}
Tensor ramp(int64_t channels, int64_t height, int64_t width) {
  return arange(channels * height * width).to(u8).reshape({channels, height, width});
}

std::string big_endian(uint32_t value, int bytes) {
  std::string text;
  for (int i = bytes - 1; i >= 0; --i) text += char(value >> (8 * i));
  return text;
}

/// An arithmetic-coded JPEG whose scans contain no data; decoders fill in zeros.
std::string arithmetic_jpeg(uint32_t height, uint32_t width, int colours, int scans) {
  std::string text("\xff\xd8\xff\xdb\0\x43\0", 7);
  text += std::string(64, 1) + "\xff\xca" + big_endian(uint32_t(8 + 3 * colours), 2) + "\x08" + big_endian(height, 2) +
          big_endian(width, 2) + char(colours);
  for (int c = 0; c < colours; ++c) text += std::string{char(c), '\x11', '\0'};
  for (int scan = 0; scan < scans; ++scan) {
    text += "\xff\xda" + big_endian(uint32_t(6 + 2 * colours), 2) + char(colours);
    for (int c = 0; c < colours; ++c) text += std::string{char(c), '\0'};
    text += std::string(3, '\0');
  }
  return text + "\xff\xd9";
}

/// The peak memory of this process since reset(), in bytes.
struct PeakMemory {
  static void reset() { std::ofstream("/proc/self/clear_refs") << "5"; }
  static int64_t now() {
    std::ifstream in("/proc/self/status");
    for (std::string line; std::getline(in, line);)
      if (line.starts_with("VmHWM:")) return std::stoll(line.substr(6)) << 10;
    return 0;
  }
};

}  // namespace

TEST_CASE_FIXTURE(OnCpu, "pictures: files are read as Pillow reads them") {
  const auto expected = arrays_of("files.safetensors");
  int read = 0;
  for (const auto& entry : expected) {
    const std::string& name = entry.first;
    CAPTURE(name);
    const bool gray = name == "as_gray";
    const Tensor ours = read_image(golden("pictures/" + (gray ? "rgb.png" : name)),
                                   {.mode = gray ? ImageMode::gray : ImageMode::unchanged});
    // The conversion from CMYK is approximate; everything else is exact.
    CHECK(picture_difference(ours, entry.second) <= (name == "cmyk.jpg" ? 1 : 0));
    ++read;
  }
  CHECK(read == 16);
}

TEST_CASE_FIXTURE(OnCpu, "pictures: modes") {
  const auto of = [](const char* name, ImageMode mode) {
    return read_image(golden(str("pictures/", name)), {.mode = mode});
  };
  const Tensor rgba = of("rgba.png", ImageMode::unchanged), la = of("gray_alpha.png", ImageMode::unchanged);
  CHECK(picture_difference(of("rgba.png", ImageMode::rgb), rgba.narrow(0, 0, 3)) == 0);
  CHECK(picture_difference(of("rgba.png", ImageMode::gray_alpha).narrow(0, 1, 1), rgba.narrow(0, 3, 1)) == 0);
  CHECK(picture_difference(of("gray_alpha.png", ImageMode::rgb_alpha),
                           cat({la.narrow(0, 0, 1), la.narrow(0, 0, 1), la})) == 0);
  CHECK(picture_difference(of("gray.jpg", ImageMode::rgb).narrow(0, 2, 1), of("gray.jpg", ImageMode::unchanged)) == 0);
  CHECK(min(of("rgb.jpg", ImageMode::rgb_alpha).narrow(0, 3, 1)).item() == 255);
  CHECK(of("rgb.jpg", ImageMode::gray).shape() == Shape{1, 33, 35});
  CHECK(of("palette.png", ImageMode::gray_alpha).size(0) == 2);
}

TEST_CASE_FIXTURE(OnCpu, "pictures: PNG comes back as it was written") {
  TempDir dir;
  for (int64_t channels = 1; channels <= 4; ++channels)
    for (const auto& [h, w] : {std::pair<int64_t, int64_t>{1, 1}, {7, 5}, {64, 33}}) {
      const Tensor image = ramp(channels, h, w);
      save_png(dir / "a.png", image, int(channels));
      CHECK(picture_difference(read_image(dir / "a.png"), image) == 0);
      CHECK(picture_difference(read_image(dir.write("b.png", encode_png(image.transpose(1, 2)))),
                               image.transpose(1, 2)) == 0);
    }
  CHECK(dir.files() == 2);
  CHECK_REJECTED(encode_png, (ramp(5, 1, 1)), "1 to 4 channels, got 5");
  CHECK_REJECTED(encode_png, (zeros({1, 2, 2})), "a u8 picture (channels, height, width) on the cpu");
  CHECK_REJECTED(encode_png, (ramp(1, 0, 2)), "1 to 1000000 pixels");
  CHECK_REJECTED(encode_png, (ramp(1, 1, 1), 10), "a compression from 0 to 9, got 10");
}

TEST_CASE_FIXTURE(OnCpu,
                  "pictures: JPEG files are byte for byte those of Pillow, and decode to nearly the same picture") {
  const auto expected = arrays_of("written.safetensors");
  int written = 0;
  for (const std::string kind : {"gray", "rgb"})
    for (const int quality : {1, 30, 75, 100}) {
      CAPTURE(kind);
      CAPTURE(quality);
      const Tensor& bytes = expected.at(str(kind, "_", quality));
      const std::string theirs(reinterpret_cast<const char*>(bytes.data<uint8_t>()), size_t(bytes.numel()));
      const bool same = encode_jpeg(expected.at(kind), quality) == theirs;
      CHECK(same);
      ++written;
    }
  CHECK(written == 8);

  TempDir dir;
  // Smooth waves, longer than the blocks of 8 x 8 pixels. Quality is measured by the peak signal-to-noise ratio in dB.
  const auto waves = [](int64_t channels, int64_t h, int64_t w) {
    const Tensor y = arange(h, {.dtype = f64}).reshape({1, h, 1}) * 0.05,
                 x = arange(w, {.dtype = f64}).reshape({1, 1, w}) * 0.07,
                 c = arange(channels, {.dtype = f64}).reshape({channels, 1, 1});
    return ((sin(y + c) + cos(x - c)) * 60.0 + 128.0).to(u8);
  };
  for (const int64_t channels : {1, 3})
    for (const auto& [h, w] : {std::pair<int64_t, int64_t>{1, 1}, {7, 5}, {64, 33}}) {
      const Tensor image = waves(channels, h, w);
      double before = 0;
      for (const int quality : {10, 75, 100}) {
        save_jpeg(dir / "a.jpg", image, quality);
        const Tensor back = read_image(dir / "a.jpg");
        REQUIRE(back.shape() == image.shape());
        const double noise = mean(square(sub(back.to(f64), image.to(f64)))).item();
        const double ratio = 10 * std::log10(255 * 255 / std::max(noise, 1e-3));
        CAPTURE(quality);
        CHECK(ratio > (quality == 10 ? 25 : quality == 75 ? 35 : 45));
        CHECK(ratio >= before - 1);
        before = ratio;
      }
    }
  // Noise, so that the encoded file needs several output buffers.
  const Tensor noise = randint(0, 256, {1, 300, 290}).to(u8);
  const std::string large = encode_jpeg(noise, 100);
  CHECK(large.size() > 3 << 14);
  CHECK(picture_difference(decode_image(as_bytes(large), "large"), noise) <= 3);
  CHECK(encode_jpeg(waves(3, 9, 5).transpose(1, 2)) == encode_jpeg(waves(3, 9, 5).transpose(1, 2).contiguous(), 75));
  CHECK(dir.files() == 1);
  CHECK_REJECTED(encode_jpeg, (ramp(2, 1, 1)), "1 or 3 channels, got 2");
  CHECK_REJECTED(encode_jpeg, (ramp(4, 1, 1)), "1 or 3 channels, got 4");
  CHECK_REJECTED(encode_jpeg, (zeros({1, 2, 2})), "a u8 picture (channels, height, width) on the cpu, got f32");
  CHECK_ERROR(encode_jpeg({}), "(channels, height, width) on the cpu, got none");
  CHECK_REJECTED(encode_jpeg, (ramp(1, 2, 0)), "1 to 65500 pixels in each direction, got 2 x 0");
  CHECK_REJECTED(encode_jpeg, (ramp(1, 65501, 1)), "1 to 65500 pixels");
  for (const int quality : {0, 101})
    CHECK_ERROR(encode_jpeg(ramp(1, 1, 1), quality),
                str("[encode_jpeg] expected a quality from 1 to 100, got ", quality));
  CHECK_ERROR(save_jpeg(dir / "a.jpg", ramp(2, 1, 1)), "expected 1 or 3 channels");
  CHECK(read_image(dir / "a.jpg").shape() == Shape{3, 64, 33});  // the old file is kept
}

TEST_CASE_FIXTURE(OnCpu, "pictures: with any byte damaged, decoding gives an Error of one line, or a picture") {
  int rejected = 0, all = 0;
  for (const char* name : {"gray.png", "palette_alpha.png", "rgba.png", "interlaced.png", "gray.jpg", "exif.jpg",
                           "progressive.jpg", "cmyk.jpg"}) {
    const std::string entire = text_of(golden(str("pictures/", name)));
    const auto read = [&](const std::string& text) {
      const std::string error =
          error_of([&] { decode_image(as_bytes(text), name, {.mode = ImageMode::rgb, .max_pixels = 1 << 20}); });
      CAPTURE(error);
      const bool one_line = error.find('\n') == error.npos;
      const bool named = error.empty() || error.find(name) != error.npos;
      CHECK(one_line);
      CHECK(named);
      ++all;
      rejected += !error.empty();
      return error;
    };
    for (size_t at = 0; at < entire.size(); ++at) {
      std::string text = entire;
      for (const int bits : {1, 0x80, 0xff}) {
        text[at] = char(entire[at] ^ bits);
        read(text);
      }
      const bool cut_is_rejected = !read(entire.substr(0, at)).empty();
      // The last two bytes of a JPEG file are the end marker; a file without them is still read.
      CHECK((cut_is_rejected || at + 2 >= entire.size()));
    }
    CHECK(read(entire).empty());
  }
  CHECK(rejected > all / 2);
  CHECK_ERROR(read_image(golden("pictures/bad_cut.jpg")), "bad_cut.jpg: ");
}

TEST_CASE_FIXTURE(OnCpu, "pictures: limits are checked before memory is allocated") {
  const std::string png = text_of(golden("pictures/rgb.png"));
  CHECK_ERROR(decode_image(as_bytes(png), "f", {.max_pixels = 142}),
              "[png] f: expected at most 142 pixels, got 11 x 13; shrink it, or raise ImageOptions::max_pixels");
  CHECK_NOTHROW(decode_image(as_bytes(png), "f", {.max_pixels = 143}));
  CHECK_ERROR(decode_image(as_bytes(text_of(golden("pictures/rgb.jpg"))), "f", {.max_pixels = 1154}),
              "[jpeg] f: expected at most 1154 pixels, got 33 x 35");
  // A header with a valid checksum that announces more pixels than the file can hold.
  const std::string huge = std::string("\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\x20\0\0\0\x20\0\x08\x02\0\0\0", 29) +
                           std::string("\x31\x14\x20\x5d", 4) + png.substr(33);
  CHECK(error_of([&] { decode_image(as_bytes(huge), "f"); }).starts_with("[png] f: "));
  CHECK_ERROR(decode_image({}, "f"), "[image] f: expected a PNG or JPEG file, got an empty file");
  CHECK_ERROR(decode_image(as_bytes("GIF89a"), "f"),
              "[image] f: expected a PNG or JPEG file, got one that starts with \"GIF8\"");
  CHECK_ERROR(read_image("/nowhere.png"), "[file] cannot open /nowhere.png");
}

TEST_CASE_FIXTURE(OnCpu, "pictures: text chunks of a PNG are skipped, not decompressed") {
  const std::string png = text_of(golden("pictures/rgb.png"));
  std::string content("a\0\0", 3), chunks;
  const std::string long_text(7900000, 'a');
  uLongf size = compressBound(long_text.size());
  std::string packed(size, '\0');
  REQUIRE(compress(reinterpret_cast<Bytef*>(packed.data()), &size, reinterpret_cast<const Bytef*>(long_text.data()),
                   long_text.size()) == Z_OK);
  content = "zTXt" + content + packed.substr(0, size);
  const auto sum = uint32_t(crc32(0, reinterpret_cast<const Bytef*>(content.data()), uInt(content.size())));
  for (int i = 0; i < 30; ++i) chunks += big_endian(uint32_t(content.size() - 4), 4) + content + big_endian(sum, 4);
  const size_t after_header = 33;
  const std::string file = png.substr(0, after_header) + chunks + png.substr(after_header);
  PeakMemory::reset();
  const int64_t before = PeakMemory::now();
  CHECK(picture_difference(decode_image(as_bytes(file), "f"), read_image(golden("pictures/rgb.png"))) == 0);
  CHECK(PeakMemory::now() - before < 64 << 20);  // the 30 texts would take 237 MB
}

TEST_CASE_FIXTURE(OnCpu, "pictures: a JPEG has limits of pixels, memory and scans") {
  const auto error = [](const std::string& file) { return error_of([&] { decode_image(as_bytes(file), "f"); }); };
  CHECK(error(arithmetic_jpeg(10000, 10000, 1, 1)) ==
        "[jpeg] f: expected at most 89478485 pixels, got 10000 x 10000; shrink it, or raise ImageOptions::max_pixels");
  CHECK(error(arithmetic_jpeg(9400, 9400, 4, 1)) ==
        "[jpeg] f: its scans need more than 512 MB of memory; save the picture again");
  CHECK(error(arithmetic_jpeg(2900, 2900, 1, 300)) == "[jpeg] f: more than 256 scans; save the picture again");
  CHECK(error(arithmetic_jpeg(29, 29, 1, 300)).empty());
}

TEST_CASE_FIXTURE(OnCpu, "pictures: transforms match torchvision") {
  const auto expected = arrays_of("transforms.safetensors");
  const auto crop_to = [](int64_t h, int64_t w) { return [=](const Tensor& x) { return CenterCrop{h, w}(x); }; };
  const auto resized = [](int64_t h, int64_t w) { return [=](const Tensor& x) { return resize(x, h, w); }; };
  const std::map<std::string, Transform> rows{
      {"resize_8_9", resized(8, 9)},
      {"resize_17_9", resized(17, 9)},
      {"resize_40_31", resized(40, 31)},
      {"resize_5_60", resized(5, 60)},
      {"resize_1_1", resized(1, 1)},
      {"grayscale", [](auto& x) { return grayscale(x); }},
      {"grayscale_3", [](auto& x) { return grayscale(x, 3); }},
      {"brightness_0.3", [](auto& x) { return adjust_brightness(x, 0.3); }},
      {"brightness_1.7", [](auto& x) { return adjust_brightness(x, 1.7); }},
      {"contrast_0.4", [](auto& x) { return adjust_contrast(x, 0.4); }},
      {"contrast_1.6", [](auto& x) { return adjust_contrast(x, 1.6); }},
      {"saturation_0", [](auto& x) { return adjust_saturation(x, 0); }},
      {"saturation_1.8", [](auto& x) { return adjust_saturation(x, 1.8); }},
      {"hue_0.2", [](auto& x) { return adjust_hue(x, 0.2); }},
      {"hue_-0.4", [](auto& x) { return adjust_hue(x, -0.4); }},
      {"sharpness_0.5", [](auto& x) { return adjust_sharpness(x, 0.5); }},
      {"sharpness_1.9", [](auto& x) { return adjust_sharpness(x, 1.9); }},
      {"autocontrast", [](auto& x) { return autocontrast(x); }},
      {"solarize", [](auto& x) { return solarize(x, x.dtype() == u8 ? 100 : 0.4); }},
      {"rotate_33", [](auto& x) { return rotate(x, 33); }},
      {"rotate_-71.5", [](auto& x) { return rotate(x, -71.5, true, x.dtype() == u8 ? 77 : 0.5); }},
      {"shear", [](auto& x) { return affine(x, {.b = 0.29, .c = 0.29 * double(x.size(1)) / 2}); }},
      {"move", [](auto& x) { return affine(x, {.c = -4, .f = 3}); }},
      {"center_crop_6_7", crop_to(6, 7)},
      {"center_crop_20_10", crop_to(20, 10)},
      {"center_crop_30_40", crop_to(30, 40)},
      {"hflip", [](auto& x) { return flip_horizontally(x); }},
      {"vflip", [](auto& x) { return flip_vertically(x); }},
      {"posterize_3", [](auto& x) { return posterize(x, 3); }},
      {"equalize", [](auto& x) { return equalize(x); }},
      {"normalize", Normalize{{0.4, 0.5, 0.6}, {0.2, 0.25, 0.3}}},
  };
  int compared = 0;
  for (const auto& [name, transform] : rows)
    for (const char* kind : {"u8", "f32"}) {
      const auto wanted = expected.find(name + "_" + kind);
      if (wanted == expected.end()) continue;
      CAPTURE(wanted->first);
      const Tensor ours = transform(expected.at(kind));
      CHECK(picture_difference(ours, wanted->second) <= (ours.dtype() == u8 ? 0 : 2e-6));
      ++compared;
    }
  CHECK(compared == 2 * 28 + 3);
  CHECK(picture_difference(equalize(expected.at("dark")), expected.at("equalize_dark_u8")) == 0);
  CHECK(picture_difference(ToTensor()(expected.at("u8")), expected.at("to_tensor")) == 0);
  CHECK(Resize{8}(expected.at("u8")).shape() == Shape{3, 8, 10});
  CHECK(expected.at("shorter_8_u8").to_vector<int64_t>() == std::vector<int64_t>{3, 8, 10});
}

TEST_CASE_FIXTURE(OnCpu, "pictures: edge cases and rejected files") {
  const Tensor u = ramp(3, 4, 6), flat = full({3, 4, 6}, 9, {.dtype = u8});
  CHECK(picture_difference(rotate(u, 0), u) == 0);
  CHECK(picture_difference(autocontrast(flat), flat) == 0);
  CHECK(picture_difference(equalize(flat), flat) == 0);
  CHECK(picture_difference(adjust_hue(u, 0), u) <= 1);
  CHECK(picture_difference(resize(flat, 9, 2), full({3, 9, 2}, 9, {.dtype = u8})) == 0);
  CHECK(picture_difference(crop(u, 50, 0, 2, 2, 7), full({3, 2, 2}, 7, {.dtype = u8})) == 0);
  CHECK(picture_difference(posterize(u, 8), u) == 0);
  CHECK_REJECTED(resize, (u, 0, 2), "at least 1 x 1 pixels, got 0 x 2");
  CHECK_REJECTED(resize, (zeros({2, 2}), 2, 2), "a picture (channels, height, width), u8 or f32, on the cpu");
  CHECK_REJECTED(grayscale, (ramp(2, 4, 4)), "1 or 3 channels, got (2, 4, 4)");
  CHECK_REJECTED(adjust_hue, (u, 0.6), "a hue shift in [-0.5, 0.5] turns, got 0.6");
  CHECK_REJECTED(adjust_contrast, (u, -1), "a factor >= 0, got -1");
  CHECK_REJECTED(equalize, (zeros({1, 2, 2})), "a u8 picture, got f32");
  CHECK_REJECTED(posterize, (u, 9), "0 to 8 bits, got 9");
  CHECK_REJECTED(solarize, (u, NAN), "a threshold other than NaN, got nan");
  CHECK_REJECTED(affine, (u, {.c = NAN}), "finite coefficients, got nan");
  CHECK_ERROR(rotate(u, INFINITY), "[affine] expected finite coefficients");
}

TEST_CASE_FIXTURE(OnCpu, "ImageFolder: classes and pictures in order") {
  TempDir dir;
  const auto put = [&](const std::string& name, int value) {
    std::filesystem::create_directories(std::filesystem::path(dir / name).parent_path());
    save_png(dir / name, full({1, 2, 2}, value, {.dtype = u8}));
  };
  put("b/2.PNG", 2), put("b/1.png", 1), put("a/z/9.png", 9), put("a/8.png", 8), put("c d/3.png", 3);
  put("b/x/z/5.png", 5), put("b/x-y/4.png", 4);  // '-' sorts before '/'
  dir.write("b/notes.txt", "no picture");
  dir.write("readme.md", "no class");
  const ImageFolder images(dir.str());
  CHECK(images.classes() == std::vector<std::string>{"a", "b", "c d"});
  std::vector<std::pair<int64_t, int64_t>> observed;
  for (auto& [x, y] : DataLoader(images, {.batch_size = 1, .workers = 2})) {
    CHECK(x.shape() == Shape{1, 3, 2, 2});
    observed.emplace_back(std::lround(max(x).item() * 255), y.item<int64_t>());
  }
  CHECK(observed == std::vector<std::pair<int64_t, int64_t>>{{8, 0}, {9, 0}, {1, 1}, {2, 1}, {4, 1}, {5, 1}, {3, 2}});
  CHECK(images.get(1).target.shape() == Shape{});
  CHECK(ImageFolder(dir.str(), nullptr, {.image = {.mode = ImageMode::gray}}).get(0).input.shape() == Shape{1, 2, 2});
  CHECK_ERROR(images.get(7), "[ImageFolder] index 7 is outside the dataset of 7 samples");

  std::filesystem::create_directories(dir / "empty");
  CHECK_ERROR(ImageFolder(dir.str()), "found none for: empty");
  CHECK(ImageFolder(dir.str(), nullptr, {.allow_empty = true}).classes().size() == 4);
  dir.write("empty/x.bmp", "");
  CHECK_ERROR(ImageFolder(dir.str()), "x.bmp (convert it, or move it elsewhere)");
  CHECK_ERROR(ImageFolder(dir / "empty"), "[ImageFolder] expected");
  CHECK_REJECTED(ImageFolder, (dir / "nowhere"), "a folder with a folder for each class, found none");
  dir.write("b/0.png", "\x89PNG\r\n\x1a\nrubbish");
  std::filesystem::remove_all(dir / "empty");
  DataLoader broken(ImageFolder(dir.str()), {.batch_size = 7, .workers = 1});
  CHECK_ERROR(broken.begin(), "0.png: ");
}
