#pragma once
// Writes TensorBoard's event files, with the names and defaults of torch.utils.tensorboard.SummaryWriter:
//
//   SummaryWriter writer("runs/1");
//   writer.add_scalar("train/loss", loss.item(), step);
//
// Then `tensorboard --logdir runs` shows the curves. In a job of several ranks, one rank has a writer.
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "extensions/summary/appender.h"
#include "tensor/tensor.h"

namespace lockstep {

/// Options of a SummaryWriter.
struct SummaryWriterOptions {
  std::string comment = {};  ///< ends the name of the default folder
  /// The first step of a run that was resumed. TensorBoard then hides older events from this step on.
  std::optional<int64_t> purge_step = {};
  std::string filename_suffix = {};  ///< ends the names of files
  Appender::Warn warn = {};          ///< receives the warning that writing failed; default: prints it on stderr
};

/// Values by name, in order.
using SummaryValues = std::vector<std::pair<std::string, double>>;
/// The value of a hyperparameter.
using HparamValue = std::variant<bool, int64_t, double, std::string>;

/// Writes events to LOG_DIR/events.out.tfevents.<time>.<host>.<process>.<number><suffix>. Events are not buffered, so a
/// killed process loses none. If the disk is full it warns once, and the program goes on without the file.
///
/// `step` is the x axis. `walltime`: seconds since 1970, default: now. Tags must be valid UTF-8 and not empty. A writer
/// must not be used by two threads at once.
class SummaryWriter {
 public:
  /// Creates the folder and the file. log_dir "": runs/<date>_<host><comment>. Error if that fails.
  explicit SummaryWriter(std::string log_dir = "", SummaryWriterOptions options = {});
  const std::string& log_dir() const { return log_dir_; }  ///< the folder

  /// Adds a point to the curve `tag`. TensorBoard keeps it as f32.
  void add_scalar(const std::string& tag, double value, int64_t step = 0, std::optional<double> walltime = {});
  /// Adds a point to several curves that TensorBoard draws in one chart. Each has a folder LOG_DIR/<main_tag>_<name>.
  void add_scalars(const std::string& main_tag, const SummaryValues& values, int64_t step = 0,
                   std::optional<double> walltime = {});
  /// Adds the histogram of a tensor's values (histogram.h). Error if the tensor has no finite value.
  void add_histogram(const std::string& tag, const Tensor& values, int64_t step = 0,
                     std::optional<double> walltime = {});
  /// Adds an image as PNG: u8, or floating-point numbers from 0 to 1, of 1 (gray), 2, 3 (RGB) or 4 channels.
  /// dataformats: order of the dimensions, CHW, HWC or HW.
  void add_image(const std::string& tag, const Tensor& image, int64_t step = 0, std::optional<double> walltime = {},
                 const std::string& dataformats = "CHW");
  /// Adds a text, which TensorBoard shows as Markdown. Bytes that are not UTF-8 become U+FFFD.
  void add_text(const std::string& tag, const std::string& text, int64_t step = 0, std::optional<double> walltime = {});
  /// Adds a row to TensorBoard's table of hyperparameters: settings of a run and the metrics that it reached. The row
  /// is a run of its own, in LOG_DIR/<run_name>. run_name "": the time.
  void add_hparams(const std::vector<std::pair<std::string, HparamValue>>& hparams, const SummaryValues& metrics,
                   const std::string& run_name = "", int64_t step = 0);
  /// Waits until the disk has all events (fsync), so that they survive a power cut.
  void flush();
  /// Closes the file. Later calls of add functions are Errors.
  void close();

 private:
  struct Point {  // x axis
    int64_t step;
    std::optional<double> walltime;
  };
  void check_open(const char* op, const std::string& tag) const;
  void add_event(const std::string& event);                      // writes a record
  void add_value(const std::string& value, const Point& where);  // writes an event with one value
  SummaryWriter& other(const std::string& folder);               // the writer of a folder below

  std::string log_dir_;
  SummaryWriterOptions options_;
  std::unique_ptr<Appender> file_;
  std::map<std::string, std::unique_ptr<SummaryWriter>> others_;
};

}  // namespace lockstep
