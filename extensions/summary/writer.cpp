// Writes TensorBoard's event files. See writer.h.
//
// A file is a list of TFRecords: length (8 bytes), its checksum (4), the event (length bytes), its checksum (4). An
// event is a protocol buffer; of tensorboard/compat/proto and the plugins' own files, these messages are written:
//
//   Event       { double wall_time = 1; int64 step = 2; string file_version = 3; Summary summary = 5;
//                 SessionLog session_log = 7 { status = 1 (START: 1) } }
//   Summary     { repeated Value value = 1; }
//   Value       { string tag = 1; float simple_value = 2; Image image = 4; HistogramProto histo = 5;
//                 TensorProto tensor = 8; SummaryMetadata metadata = 9 { plugin_data = 1 { name = 1; content = 2 } } }
//   Image       { int32 height = 1; width = 2; colorspace = 3 (number of channels); bytes encoded_image_string = 4; }
//   HistogramProto { double min = 1; max = 2; num = 3; sum = 4; sum_squares = 5;
//                    repeated double bucket_limit = 6, bucket = 7; }
//   TensorProto { dtype = 1 (DT_STRING: 7); tensor_shape = 2 { repeated dim = 2 { size = 1 } }; bytes string_val = 8; }
//
// add_hparams() has three values without a number, whose metadata say everything (plugins/hparams/api.proto):
//
//   HParamsPluginData { Experiment = 2; SessionStartInfo = 3; SessionEndInfo = 4 }
//   Experiment        { repeated HParamInfo = 4 { name = 1; type = 4 };
//                       repeated MetricInfo = 5 { name = 1 { tag = 2 } } }
//   SessionStartInfo  { map hparams = 1 { key = 1; value = 2 { number = 2; string = 3; bool = 4 } } }
//   SessionEndInfo    { status = 1 (SUCCESS: 1) }
#include "extensions/summary/writer.h"

#include <fmt/chrono.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <ctime>
#include <iostream>

#include "base/check.h"
#include "base/printable.h"
#include "dist/fingerprint.h"
#include "dist/net.h"
#include "extensions/summary/histogram.h"
#include "extensions/summary/protobuf.h"
#include "extensions/vision/pictures/image_files.h"
#include "tensor/ops.h"

namespace lockstep {

using protobuf::field;
using protobuf::little_endian;

namespace {

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

/// The masked CRC-32C (Castagnoli) of TFRecord files.
uint32_t masked_crc32c(std::string_view bytes) {
  const uint32_t crc = dist::crc32c(bytes.data(), bytes.size());
  return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

/// The default folder, as PyTorch's: runs/Nov30_20-15-00_host.
std::string default_folder(const std::string& comment) {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  ::localtime_r(&now, &local);
  return fmt::format("runs/{:%b%d_%H-%M-%S}_{}{}", local, dist::host_name(), comment);
}

/// The name of a new file. The counter tells apart writers of one process.
std::string new_file_name(const std::string& suffix) {
  static std::atomic<int> writers{0};
  return fmt::format("events.out.tfevents.{:010}.{}.{}.{}{}", int64_t(seconds_now()), dist::host_name(), ::getpid(),
                     writers++, suffix);
}

bool is_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const size_t length = utf8_length(text, at);
    if (length == 0) return false;
    at += length;
  }
  return true;
}

std::string replaced_invalid(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t length = utf8_length(text, at);
    out += length == 0 ? std::string_view("\xef\xbf\xbd") : text.substr(at, length);
    at += std::max<size_t>(length, 1);
  }
  return out;
}

/// The field `metadata` of a value: the plugin that shows it, and data for the plugin.
std::string of_plugin(const char* name, const std::string& content = "") {
  return field(9, field(1, field(1, name) + (content.empty() ? "" : field(2, content))));
}

/// The image as u8 (channels, height, width).
Tensor pixels_in_order(const Tensor& image, const std::string& dataformats) {
  const bool flat = dataformats == "HW";
  LOCKSTEP_CHECK(flat || dataformats == "CHW" || dataformats == "HWC",
                 "[add_image] expected dataformats CHW, HWC or HW, got '", dataformats, "'");
  LOCKSTEP_CHECK(image.dim() == (flat ? 2 : 3), "[add_image] expected ", flat ? 2 : 3, " dimensions (", dataformats,
                 "), got ", image.shape(), "; select one image, or give its dataformats");
  LOCKSTEP_CHECK(image.dtype() == u8 || is_floating(image.dtype()),
                 "[add_image] expected u8, or floating-point numbers from 0 to 1, got ", image.dtype(),
                 "; convert it with .to(u8)");
  Tensor x = image.to(cpu);
  if (flat) x = x.unsqueeze(0);
  else if (dataformats == "HWC") x = x.permute({2, 0, 1});
  LOCKSTEP_CHECK(x.numel() > 0 && x.size(0) <= 4, "[add_image] expected 1 to 4 channels and at least one pixel, got ",
                 image.shape(), " in the order ", dataformats);
  if (x.dtype() == u8) return x.contiguous();
  std::vector<uint8_t> bytes;
  for (const float value : x.to_vector<float>())  // NaN becomes 0
    bytes.push_back(value > 0 ? uint8_t(std::min(value * 255, 255.f)) : uint8_t(0));
  return Tensor::from(bytes, x.shape());
}

}  // namespace

SummaryWriter::SummaryWriter(std::string log_dir, SummaryWriterOptions options)
    : log_dir_(log_dir.empty() ? default_folder(options.comment) : std::move(log_dir)), options_(std::move(options)) {
  if (!options_.warn) options_.warn = [](const std::string& text) { std::cerr << text << std::endl; };
  constexpr std::string_view prefix = "[SummaryWriter] ";
  make_log_folder(log_dir_, prefix);
  file_ = std::make_unique<Appender>(log_dir_ + "/" + new_file_name(options_.filename_suffix), options_.warn, prefix);
  add_event(field(1, seconds_now()) + field(3, "brain.Event:2"));
  if (options_.purge_step)
    add_event(field(1, seconds_now()) + field(2, *options_.purge_step) + field(7, field(1, int64_t(1))));
}

void SummaryWriter::check_open(const char* op, const std::string& tag) const {
  LOCKSTEP_CHECK(file_, "[", op, "] expected a writer that is open, got one after close(); make a new one");
  LOCKSTEP_CHECK(!tag.empty() && is_utf8(tag), "[", op, "] expected a tag in UTF-8, got ",
                 tag.empty() ? "an empty one" : tag, "; give the curve a name such as train/loss");
}

void SummaryWriter::add_event(const std::string& event) {
  const std::string length = little_endian(uint64_t(event.size()));
  file_->add(length + little_endian(masked_crc32c(length)) + event + little_endian(masked_crc32c(event)));
}

void SummaryWriter::add_value(const std::string& value, const Point& where) {
  add_event(field(1, where.walltime.value_or(seconds_now())) + field(2, where.step) + field(5, field(1, value)));
}

SummaryWriter& SummaryWriter::other(const std::string& folder) {
  std::unique_ptr<SummaryWriter>& writer = others_[folder];
  if (!writer) writer = std::make_unique<SummaryWriter>(log_dir_ + "/" + folder, options_);
  return *writer;
}

void SummaryWriter::add_scalar(const std::string& tag, double value, int64_t step, std::optional<double> walltime) {
  check_open("add_scalar", tag);
  add_value(field(1, tag) + field(2, float(value)), {step, walltime});
}

void SummaryWriter::add_scalars(const std::string& main_tag, const SummaryValues& values, int64_t step,
                                std::optional<double> walltime) {
  check_open("add_scalars", main_tag);
  for (const auto& [name, value] : values) {
    check_open("add_scalars", name);
    std::string folder = main_tag + "_" + name;
    std::replace(folder.begin(), folder.end(), '/', '_');
    other(folder).add_scalar(main_tag, value, step, walltime);
  }
}

void SummaryWriter::add_histogram(const std::string& tag, const Tensor& values, int64_t step,
                                  std::optional<double> walltime) {
  check_open("add_histogram", tag);
  const Histogram h = histogram_of(values);
  const std::string histo = field(1, h.min) + field(2, h.max) + field(3, h.count) + field(4, h.sum) +
                            field(5, h.sum_squares) + field(6, h.limits) + field(7, h.counts);
  add_value(field(1, tag) + field(5, histo), {step, walltime});
}

void SummaryWriter::add_image(const std::string& tag, const Tensor& image, int64_t step, std::optional<double> walltime,
                              const std::string& dataformats) {
  check_open("add_image", tag);
  const Tensor pixels = pixels_in_order(image, dataformats);
  const std::string picture = field(1, pixels.size(1)) + field(2, pixels.size(2)) + field(3, pixels.size(0)) +
                              field(4, data::encode_png(pixels));
  add_value(field(1, tag) + field(4, picture), {step, walltime});
}

void SummaryWriter::add_text(const std::string& tag, const std::string& text, int64_t step,
                             std::optional<double> walltime) {
  check_open("add_text", tag);
  const std::string one_element = field(2, field(1, int64_t(1)));
  const std::string tensor = field(1, int64_t(7)) + field(2, one_element) + field(8, replaced_invalid(text));
  add_value(field(1, tag + "/text_summary") + field(8, tensor) + of_plugin("text"), {step, walltime});
}

void SummaryWriter::add_hparams(const std::vector<std::pair<std::string, HparamValue>>& hparams,
                                const SummaryValues& metrics, const std::string& run_name, int64_t step) {
  std::string experiment, start;
  for (const auto& [name, value] : hparams) {
    check_open("add_hparams", name);
    // A value of google.protobuf.Value, and the number of its type in HParamInfo.
    std::string stored;
    int64_t type = 3;
    if (const auto* truth = std::get_if<bool>(&value)) stored = field(4, int64_t(*truth)), type = 2;
    else if (const auto* text = std::get_if<std::string>(&value)) stored = field(3, replaced_invalid(*text)), type = 1;
    else if (const auto* integer = std::get_if<int64_t>(&value)) stored = field(2, double(*integer));
    else stored = field(2, std::get<double>(value));
    start += field(1, field(1, name) + field(2, stored));
    experiment += field(4, field(1, name) + field(4, type));
  }
  for (const auto& [name, value] : metrics) {
    check_open("add_hparams", name);
    experiment += field(5, field(1, field(2, name)));
  }
  check_open("add_hparams", run_name.empty() ? "run" : run_name);
  SummaryWriter& run = other(run_name.empty() ? fmt::format("{:.6f}", seconds_now()) : run_name);
  const auto add = [&](const char* tag, int number, const std::string& content) {
    run.add_value(field(1, tag) + of_plugin("hparams", field(number, content)), {0, {}});
  };
  add("_hparams_/experiment", 2, experiment);
  add("_hparams_/session_start_info", 3, start);
  add("_hparams_/session_end_info", 4, field(1, int64_t(1)));
  for (const auto& [name, value] : metrics) run.add_scalar(name, value, step);
}

void SummaryWriter::flush() {
  if (file_) file_->sync();
  for (const auto& [folder, writer] : others_) writer->flush();
}

void SummaryWriter::close() {
  file_.reset();
  for (const auto& [folder, writer] : others_) writer->close();
}

}  // namespace lockstep
