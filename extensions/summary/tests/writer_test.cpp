// TensorBoard's event files: every kind of value, read back by a reader of its own and by TensorBoard's.
#include "extensions/summary/writer.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <tuple>

#include "extensions/summary/histogram.h"
#include "extensions/summary/tests/events.h"
#include "extensions/vision/pictures/image_files.h"
#include "tensor/ops.h"
#include "tests/devices.h"
#include "tests/file_limit.h"
#include "tests/messages.h"

using namespace lockstep;
using namespace testing;

TEST_CASE("summary: scalars, with steps, times and a file's head") {
  const TempDir dir;
  SummaryWriter writer(dir / "run/a");
  CHECK(writer.log_dir() == dir / "run/a");
  writer.add_scalar("train/loss", 2.5, 7);
  writer.add_scalar("train/loss", 0.1, 8, 1234.5);
  writer.add_scalar("no step", std::numeric_limits<double>::infinity());
  writer.add_scalar("negative", -1, -3);
  // Without flush() or close(): a killed process leaves all of it.
  const auto events = events_in(dir, "run/a");
  REQUIRE(events.size() == 5);
  CHECK(events[0].text(3) == "brain.Event:2");
  CHECK(events[0].real(1) > 1.7e9);
  CHECK(events[1].integer(2) == 7);
  CHECK(events[2].real(1) == 1234.5);
  const auto values = values_in(dir, "run/a");
  REQUIRE(values.size() == 4);
  CHECK((values[0].tag == "train/loss" && values[0].value.single(2) == 2.5f));
  CHECK((values[1].step == 8 && values[1].value.single(2) == 0.1f));
  CHECK((values[2].step == 0 && std::isinf(values[2].value.single(2))));
  CHECK((values[3].step == -3 && values[3].value.single(2) == -1));
}

TEST_CASE("summary: a resumed run hides older events, and writers of one second do not share a file") {
  const TempDir dir;
  SummaryWriter first(dir / "run", {.filename_suffix = ".x"}), second(dir / "run", {.purge_step = 40});
  first.add_scalar("a", 1);
  CHECK(dir.list("run").find(".x") != std::string::npos);
  int files = 0, starts = 0;
  for (const auto& entry : std::filesystem::directory_iterator(dir / "run")) files += entry.is_regular_file();
  for (const ProtoMessage& event : events_in(dir, "run"))
    if (event.has(7)) starts += event.integer(2) == 40 && event.at(7).integer(1) == 1;
  CHECK(files == 2);
  CHECK(starts == 1);
}

TEST_CASE("summary: add_scalars writes a run for each curve") {
  const TempDir dir;
  SummaryWriter writer(dir / "run");
  for (const int64_t step : {1, 2}) writer.add_scalars("a/loss", {{"train", 1.0 * double(step)}, {"val", 0.5}}, step);
  for (const auto& [folder, last] :
       std::vector<std::pair<std::string, float>>{{"run/a_loss_train", 2.f}, {"run/a_loss_val", 0.5f}}) {
    const auto values = values_in(dir, folder);
    REQUIRE(values.size() == 2);
    CHECK((values[1].tag == "a/loss" && values[1].step == 2 && values[1].value.single(2) == last));
  }
  CHECK(values_in(dir, "run").empty());
}

TEST_CASE("summary: histograms count each value once, in PyTorch's bins") {
  struct Row {
    std::vector<double> values;
    double min, max, count, sum, squares;
  };
  const double inf = std::numeric_limits<double>::infinity();
  for (const Row& row : std::vector<Row>{{{0}, 0, 0, 1, 0, 0},
                                         {{1, 2, 3, 4}, 1, 4, 4, 10, 30},
                                         {{-1, 1}, -1, 1, 2, 0, 2},
                                         {{-1e-13, 1e-13}, -1e-13, 1e-13, 2, 0, 2e-26},
                                         {{5, NAN, inf, -inf, 1e30}, 5, 5, 1, 5, 25}}) {
    const Histogram h = histogram_of(Tensor::from(row.values, {int64_t(row.values.size())}));
    CHECK((h.min == row.min && h.max == row.max && h.count == row.count && h.sum == row.sum));
    CHECK(h.sum_squares == doctest::Approx(row.squares));
    REQUIRE(h.limits.size() == h.counts.size());
    CHECK(std::is_sorted(h.limits.begin(), h.limits.end()));
    CHECK(std::accumulate(h.counts.begin(), h.counts.end(), 0.) == row.count);
    CHECK((h.counts.front() == 0 && h.counts.back() > 0));
    // All values are between the first and the last limit, and bins have the numbers that a direct count gives.
    CHECK((h.limits.front() <= h.min && h.max <= h.limits.back()));
    for (size_t i = 1; i < h.limits.size(); ++i) {
      double count = 0;
      for (const double x : row.values) count += x >= h.limits[i - 1] && x < h.limits[i];
      CHECK(h.counts[i] == count);
    }
  }
  // numpy.histogram([1, 2, 3, 4], bins=_get_default_bins()): 1 lies in the bin that ends at 1e-12 * 1.1^290.
  const Histogram h = histogram_of(Tensor::from<float>({1, 2, 3, 4}));
  double limit = 1e-12;
  while (limit <= 1) limit *= 1.1;
  CHECK(h.limits[1] == limit);
  CHECK(h.limits[0] == doctest::Approx(limit / 1.1));
  CHECK_ERROR(histogram_of(Tensor::from<float>({NAN})), "[add_histogram] expected at least one value");
  CHECK_ERROR(histogram_of(empty({0})), "[add_histogram] expected at least one value");

  const TempDir dir;
  SummaryWriter writer(dir / "run");
  for (const DType dtype : {f32, f64, f16, bf16, i64, u8}) writer.add_histogram("h", ones({3, 2}).to(dtype), 4);
  for (const EventValue& value : values_in(dir, "run")) {
    const ProtoMessage histo = value.value.at(5);
    CHECK((value.step == 4 && histo.real(1) == 1 && histo.real(2) == 1 && histo.real(3) == 6 && histo.real(4) == 6));
    CHECK(histo.real(5) == 6);
    CHECK(histo.reals(7) == std::vector<double>{0, 6});
    CHECK(histo.reals(6).size() == 2);
  }
}

TEST_CASE("summary: images are PNG files, in any order of dimensions") {
  const OnCpu cpu_only;
  const TempDir dir;
  SummaryWriter writer(dir / "run");
  const Tensor rgb =
      Tensor::from<uint8_t>({0, 50, 100, 150, 200, 250, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, {3, 2, 3});
  const Tensor gray = Tensor::from<float>({0, 0.5, 1, 2, -1, NAN}, {2, 3});
  writer.add_image("rgb", rgb, 1);
  writer.add_image("hwc", rgb.permute({1, 2, 0}), 1, {}, "HWC");
  writer.add_image("gray", gray, 1, {}, "HW");
  writer.add_image("bf16", gray.to(bf16), 1, {}, "HW");
  const auto values = values_in(dir, "run");
  REQUIRE(values.size() == 4);
  for (const EventValue& value : values) {
    const bool is_rgb = value.tag == "rgb" || value.tag == "hwc";
    const ProtoMessage image = value.value.at(4);
    CHECK((image.integer(1) == 2 && image.integer(2) == 3 && image.integer(3) == (is_rgb ? 3 : 1)));
    const std::string png = image.text(4);
    const Tensor back = data::decode_image(data::as_bytes(png), value.tag);
    const std::vector<uint8_t> expected =
        is_rgb ? rgb.to_vector<uint8_t>() : std::vector<uint8_t>{0, 127, 255, 255, 0, 0};
    CHECK(back.to_vector<uint8_t>() == expected);
  }
  const std::vector<std::tuple<Tensor, std::string, std::string>> rows{
      {ones({2, 3, 4, 5}), "CHW", "expected 3 dimensions (CHW), got (2, 3, 4, 5)"},
      {ones({5, 3, 4}), "CHW", "expected 1 to 4 channels"},
      {ones({3, 4, 5}), "HW", "expected 2 dimensions"},
      {ones({3, 4, 5}), "WHC", "expected dataformats CHW, HWC or HW, got 'WHC'"},
      {ones({3, 4, 5}).to(i64), "CHW", "expected u8, or floating-point numbers from 0 to 1"}};
  for (const auto& [image, order, said] : rows) CHECK_ERROR(writer.add_image("x", image, 0, {}, order), said);
}

TEST_CASE("summary: texts and hyperparameters") {
  const TempDir dir;
  SummaryWriter writer(dir / "run");
  writer.add_text("sample", "a **word** \xff", 3);
  const auto texts = values_in(dir, "run");
  REQUIRE(texts.size() == 1);
  CHECK((texts[0].tag == "sample/text_summary" && texts[0].step == 3));
  CHECK(texts[0].value.at(9).at(1).text(1) == "text");
  const ProtoMessage tensor = texts[0].value.at(8);
  CHECK((tensor.integer(1) == 7 && tensor.text(8) == "a **word** \xef\xbf\xbd"));
  CHECK(tensor.at(2).at(2).integer(1) == 1);

  writer.add_hparams({{"lr", 1e-3}, {"layers", 12}, {"optimizer", "adamw"}, {"tied", true}}, {{"val/loss", 2.25}},
                     "one");
  const auto values = values_in(dir, "run/one");
  REQUIRE(values.size() == 4);
  CHECK((values[3].tag == "val/loss" && values[3].value.single(2) == 2.25f));
  const auto content = [&](size_t i) {
    CHECK(values[i].value.at(9).at(1).text(1) == "hparams");
    return values[i].value.at(9).at(1).at(2);
  };
  CHECK(values[0].tag == "_hparams_/experiment");
  const ProtoMessage experiment = content(0).at(2);
  std::vector<std::pair<std::string, int64_t>> types;
  for (const ProtoMessage& one : experiment.all(4)) types.emplace_back(one.text(1), one.integer(4));
  CHECK(types == std::vector<std::pair<std::string, int64_t>>{{"lr", 3}, {"layers", 3}, {"optimizer", 1}, {"tied", 2}});
  CHECK(experiment.at(5).at(1).text(2) == "val/loss");
  CHECK(values[1].tag == "_hparams_/session_start_info");
  const auto started = content(1).at(3).all(1);
  REQUIRE(started.size() == 4);
  CHECK((started[0].text(1) == "lr" && started[0].at(2).real(2) == 1e-3));
  CHECK((started[1].text(1) == "layers" && started[1].at(2).real(2) == 12));
  CHECK((started[2].text(1) == "optimizer" && started[2].at(2).text(3) == "adamw"));
  CHECK((started[3].text(1) == "tied" && started[3].at(2).integer(4) == 1));
  CHECK(values[2].tag == "_hparams_/session_end_info");
  CHECK(content(2).at(4).integer(1) == 1);
}

TEST_CASE("summary: what a writer refuses") {
  const TempDir dir;
  CHECK_ERROR(SummaryWriter(dir.write("file", "") + "/below"), "[SummaryWriter] ");
  SummaryWriter writer(dir / "run");
  CHECK_ERROR(writer.add_scalar("", 1), "[add_scalar] expected a tag in UTF-8, got an empty one");
  CHECK_ERROR(writer.add_text("\xff", "x"), "[add_text] expected a tag in UTF-8");
  CHECK_ERROR(writer.add_scalars("a", {{"", 1}}), "[add_scalars] expected a tag");
  writer.flush();
  writer.close();
  writer.close();
  CHECK_ERROR(writer.add_scalar("a", 1), "expected a writer that is open, got one after close()");
  CHECK(events_in(dir, "run").size() == 1);
}

TEST_CASE("summary: a full disk ends the events with one warning, not the program") {
  const TempDir dir;
  int warnings = 0;
  SummaryWriter writer(dir / "run", {.warn = [&](const std::string& text) {
                         warnings += contains(text, "writing failed: File too large");
                       }});
  {
    const FileLimit full(1 << 12);
    for (int64_t step = 0; step < 1000; ++step) writer.add_scalar("a", 1, step);
  }
  writer.flush();
  CHECK(warnings == 1);
}

TEST_CASE("summary: TensorBoard reads the files") {
  const char* const named = std::getenv("PYTHON");
  const std::string python = named ? named : "python3";
  if (std::system((python + " -c 'import tensorboard' 2> /dev/null").c_str()) != 0) {
    MESSAGE("skipped: ", python, " has no tensorboard");
    return;
  }
  const TempDir dir;
  SummaryWriter writer(dir / "run");
  for (const int64_t step : {1, 2, 3}) writer.add_scalar("loss", 1.0 / double(step), step);
  writer.add_histogram("h", Tensor::from<float>({1, 2, 3, 4}), 2);
  writer.add_histogram("h", zeros({5}), 6);
  writer.add_image("picture", arange(60).to(u8).reshape({3, 4, 5}), 2);
  writer.add_text("text", "words", 2);
  writer.add_text("text", "others", 5);
  writer.add_scalars("both", {{"a", 1}, {"b", 2}}, 9);
  writer.add_hparams({{"lr", 0.5}, {"name", "a"}, {"tied", false}}, {{"val", 3}}, "hparams");
  writer.close();
  dir.write("check.py", R"(
import io
import sys
import PIL.Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
kept = {"tensors": 0, "histograms": 0, "images": 0, "scalars": 0}
run = EventAccumulator(sys.argv[1] + "/run", size_guidance=kept).Reload()
tags = {kind: found for kind, found in run.Tags().items() if found and kind != "distributions"}
assert tags == {"scalars": ["loss"], "histograms": ["h"], "images": ["picture"], "tensors": ["text/text_summary"]}, tags
assert [(e.step, round(e.value, 4)) for e in run.Scalars("loss")] == [(1, 1.0), (2, 0.5), (3, 0.3333)]
assert [e.step for e in run.Histograms("h")] == [2, 6]
h, zeros = (e.histogram_value for e in run.Histograms("h"))
assert (h.min, h.max, h.num, h.sum, h.sum_squares) == (1, 4, 4, 10, 30), h
limits = [-1e308, *h.bucket_limit]
for low, high, count in zip(limits, h.bucket_limit, h.bucket):
    assert count == sum(low <= x < high for x in (1, 2, 3, 4)), (low, high, count)
assert (zeros.min, zeros.max, zeros.num, sum(zeros.bucket)) == (0, 0, 5, 5), zeros
image = run.Images("picture")[0]
assert (image.step, image.height, image.width) == (2, 4, 5), image
pixels = list(PIL.Image.open(io.BytesIO(image.encoded_image_string)).convert("RGB").tobytes())
assert pixels == [20 * channel + at for at in range(20) for channel in range(3)], pixels
texts = [(e.step, e.tensor_proto.string_val[0]) for e in run.Tensors("text/text_summary")]
assert texts == [(2, b"words"), (5, b"others")], texts
for name, value in (("a", 1), ("b", 2)):
    (point,) = EventAccumulator(sys.argv[1] + "/run/both_" + name).Reload().Scalars("both")
    assert (point.step, point.value) == (9, value), point
content = EventAccumulator(sys.argv[1] + "/run/hparams").Reload().PluginTagToContent("hparams")
start = HParamsPluginData.FromString(content["_hparams_/session_start_info"]).session_start_info.hparams
assert (start["lr"].number_value, start["name"].string_value, start["tied"].bool_value) == (0.5, "a", False), start
(metric,) = EventAccumulator(sys.argv[1] + "/run/hparams").Reload().Scalars("val")
assert metric.value == 3, metric
)");
  CHECK(std::system((python + " " + (dir / "check.py") + " " + dir.str()).c_str()) == 0);
}
