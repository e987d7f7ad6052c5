// Prints tensors like NumPy.
#include <cmath>
#include <ostream>

#include "base/check.h"
#include "base/classic_text.h"
#include "tensor/complex.h"
#include "tensor/ops.h"

namespace lockstep {
namespace {

constexpr int64_t summarise_above = 1000;  // more elements than this are abbreviated with ...
constexpr int64_t edge = 3;                // items shown at each end of a shortened dim
constexpr int precision = 4;
constexpr int line_width = 75;

// Formats one element; all elements get the width of the widest.
struct Format {
  DType dtype;
  bool scientific = false;
  int decimals = 0;
  int width = 0;

  std::string text(double value) const {
    if (dtype == boolean) return value != 0 ? "true" : "false";
    if (std::isnan(value)) return "nan";
    if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
    std::string result = format(scientific ? "%.*e" : "%.*f", decimals, value);
    if (decimals == 0 && is_floating(dtype) && !scientific) result += '.';
    return result;
  }
};

// The elements to print, row-major. In a large tensor, only the first and last `edge` positions of each long dim.
Tensor printed_part(const Tensor& tensor) {
  if (tensor.numel() <= summarise_above) return tensor;
  Tensor part = tensor;
  for (int d = 0; d < tensor.dim(); ++d) {
    if (tensor.shape()[d] <= 2 * edge) continue;
    Shape shape = part.shape();
    shape[d] = 2 * edge;
    const Tensor ends = empty(shape, {.dtype = tensor.dtype(), .device = tensor.device()});
    ends.narrow(d, 0, edge).copy_(part.narrow(d, 0, edge));
    ends.narrow(d, edge, edge).copy_(part.narrow(d, -edge, edge));
    part = ends;
  }
  return part;
}

Format make_format(DType dtype, const std::vector<double>& values) {
  Format format{.dtype = dtype};
  if (is_floating(dtype)) {
    double greatest = 0, least = HUGE_VAL;
    for (double value : values) {
      if (!std::isfinite(value) || value == 0) continue;
      greatest = std::max(greatest, std::abs(value));
      least = std::min(least, std::abs(value));
    }
    format.scientific = greatest >= 1e8 || (greatest > 0 && (least < 1e-4 || greatest / least > 1e3));
    // The fewest decimals that show all values exactly, at most `precision`.
    for (double value : values) {
      if (!std::isfinite(value)) continue;
      std::string text = lockstep::format(format.scientific ? "%.*e" : "%.*f", precision, value);
      text = text.substr(0, text.find('e'));
      const size_t last = text.find_last_not_of('0'), point = text.find('.');
      format.decimals = std::max(format.decimals, int(last - point));
    }
  }
  for (double value : values) format.width = std::max(format.width, int(format.text(value).size()));
  return format;
}

class Printer {
 public:
  Printer(std::ostream& out, const Tensor& tensor) : out_(out), tensor_(tensor), part_(printed_part(tensor)) {
    if (is_complex(tensor.dtype())) set_texts();
    if (is_complex(tensor.dtype())) return;
    values_ = part_.to_vector<double>();
    if (tensor.dtype() == i64) integers_ = part_.to_vector<int64_t>();
    format_ = make_format(tensor.dtype(), values_);
    for (int64_t value : integers_) format_.width = std::max(format_.width, int(std::to_string(value).size()));
  }

  void print() { print_dim(0); }

 private:
  // Formats complex numbers as 1.+2.j. The real parts share one format, the imaginary parts another.
  void set_texts() {
    const DType dtype = real_dtype(tensor_.dtype());
    const std::vector<double> re = complex_part(part_, 0).to_vector<double>(),
                              im = complex_part(part_, 1).to_vector<double>();
    const Format first = make_format(dtype, re), second = make_format(dtype, im);
    for (size_t i = 0; i < re.size(); ++i) {
      const std::string text = second.text(im[i]);
      texts_.push_back(first.text(re[i]) + (text[0] == '-' ? "" : "+") + text + "j");
      format_.width = std::max(format_.width, int(texts_.back().size()));
    }
  }

  void print_dim(int d) {
    if (d == tensor_.dim()) {
      const std::string text = !texts_.empty()     ? texts_[next_]
                               : integers_.empty() ? format_.text(values_[next_])
                                                   : std::to_string(integers_[next_]);
      ++next_;
      if (d > 0) out_ << std::string(size_t(format_.width) - text.size(), ' ');
      out_ << text;
      column_ += format_.width;
      return;
    }
    out_ << '[';
    column_ = d + 1;
    const int64_t items = part_.shape()[d];
    const bool cut = items < tensor_.shape()[d];
    for (int64_t i = 0; i < items; ++i) {
      if (i > 0) separate(d);
      if (cut && i == edge) {
        out_ << "...";
        column_ += 3;
        separate(d);
      }
      print_dim(d + 1);
    }
    out_ << ']';
  }

  // Separates neighbours along dim d: elements by a space (in long rows a line break), rows and blocks by line breaks.
  void separate(int d) {
    out_ << ',';
    const int below = tensor_.dim() - 1 - d;
    column_ += 2;
    if (below == 0 && column_ + format_.width < line_width) {
      out_ << ' ';
    } else if (below == 0) {
      out_ << '\n' << std::string(size_t(d + 1), ' ');
      column_ = d + 1;
    } else {
      out_ << std::string(size_t(below), '\n') << std::string(size_t(d + 1), ' ');
    }
  }

  std::ostream& out_;
  const Tensor& tensor_;
  Tensor part_;
  std::vector<double> values_;
  std::vector<std::string> texts_;  // complex
  std::vector<int64_t> integers_;   // i64, which does not fit a double
  Format format_{};
  size_t next_ = 0;
  int column_ = 0;
};

}  // namespace

std::ostream& operator<<(std::ostream& out, const Tensor& tensor) {
  if (!tensor.defined()) return out << "undefined";
  if (tensor.storage()->is_empty()) {
    out << "[released, shape=" << tensor.shape() << ']';
  } else {
    Printer(out, tensor).print();
    if (tensor.numel() == 0 && tensor.dim() != 1) out << ", shape=" << tensor.shape();
  }
  if (tensor.dtype() != f32) out << ", dtype=" << tensor.dtype();
  if (tensor.device() != cpu) out << ", device=" << tensor.device();
  return out;
}

std::string to_string(const Tensor& tensor) { return str(tensor); }

}  // namespace lockstep
