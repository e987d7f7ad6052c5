// The plans that the real cuDNN chooses for our convolutions on an H200, without such a device. cuDNN gets a
// description of a device, and answers what it would run there. Nothing is computed.
//
//   cudnn_plans [--update]   compares with golden/cudnn_plans.txt, or writes it
//
// Ends with "N passed, N failed".
//
// For each shape, layout, dtype and direction it checks that the plan's engine claims to be deterministic and as exact
// as requested, that a second plan is identical to the letter, and that cuDNN has a plan where the golden file says so.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>

#include "extensions/cudnn_convolutions/graph.h"

using namespace lockstep;
using namespace lockstep::cuda;

namespace {

/// Images and kernels are square, except one of a single row.
struct Case {
  const char* name;
  int64_t n, c, h, w, k, r, s, stride, padding, dilation, groups;
};
constexpr Case cases[] = {
    {"LeNet 5x5, 1 to 6", 64, 1, 28, 28, 6, 5, 5, 1, 2, 1, 1},
    {"LeNet 5x5, 6 to 16", 64, 6, 14, 14, 16, 5, 5, 1, 0, 1, 1},
    {"CIFAR 3x3, 3 to 16", 128, 3, 32, 32, 16, 3, 3, 1, 1, 1, 1},
    {"ResNet 7x7 / 2, 3 to 64", 32, 3, 224, 224, 64, 7, 7, 2, 3, 1, 1},
    {"ResNet 3x3, 64", 32, 64, 56, 56, 64, 3, 3, 1, 1, 1, 1},
    {"ResNet 3x3 / 2, 128", 32, 128, 56, 56, 128, 3, 3, 2, 1, 1, 1},
    {"ResNet 3x3, 512", 32, 512, 7, 7, 512, 3, 3, 1, 1, 1, 1},
    {"ResNet 1x1, 64 to 256", 32, 64, 56, 56, 256, 1, 1, 1, 0, 1, 1},
    {"ResNet 1x1 / 2, 256 to 512", 32, 256, 56, 56, 512, 1, 1, 2, 0, 1, 1},
    {"dilation 2", 8, 64, 28, 28, 64, 3, 3, 1, 2, 2, 1},
    {"4 groups of 16", 8, 64, 28, 28, 64, 3, 3, 1, 1, 1, 4},
    {"32 groups of 4", 8, 128, 28, 28, 128, 3, 3, 1, 1, 1, 32},
    {"depthwise 3x3", 8, 32, 28, 28, 32, 3, 3, 1, 1, 1, 32},
    {"odd channels, 7 to 11", 5, 7, 13, 13, 11, 3, 3, 1, 1, 1, 1},
    {"one row, 1x5", 8, 16, 1, 100, 16, 1, 5, 1, 0, 1, 1},
    {"padding beyond the kernel", 4, 8, 5, 5, 8, 1, 1, 1, 3, 1, 1},
    {"one number", 1, 1, 1, 1, 1, 1, 1, 1, 0, 1, 1},
    {"2^32 numbers", 1024, 64, 256, 256, 64, 3, 3, 1, 1, 1, 1},
    {"no images", 0, 8, 5, 5, 8, 3, 3, 1, 1, 1, 1},
};
struct Precision {
  const char* name;
  DType dtype;
  bool tf32;
};
constexpr Precision precisions[] = {
    {"f32", f32, false}, {"tf32", f32, true}, {"f16", f16, false}, {"bf16", bf16, false}};
constexpr ConvDirection directions[] = {ConvDirection::forward, ConvDirection::grad_input, ConvDirection::grad_weight};

/// The layout of images; weights are always row-major, as in the framework. Mixed: channels-last input, row-major
/// output.
enum class Layout : uint8_t { row_major, channels_last, mixed };
constexpr const char* layout_names[] = {"row-major", "channels last", "mixed"};

ConvProblem problem(const Case& t, const Precision& precision, ConvDirection direction, Layout layout) {
  const auto operand = [](int64_t a, int64_t b, int64_t c, int64_t d, bool last) {
    ConvProblem::Operand made{{a, b, c, d}, {b * c * d, c * d, d, 1}, 16};
    if (last) made.stride = {b * c * d, 1, d * b, b};
    return made;
  };
  const auto out = [&](int64_t size, int64_t kernel, int64_t padding) {
    return (size + 2 * padding - t.dilation * (kernel - 1) - 1) / t.stride + 1;
  };
  const std::array<int64_t, 2> padding{t.h == 1 ? 0 : t.padding, t.padding};
  return {direction,
          precision.dtype,
          precision.tf32,
          operand(t.n, t.c, t.h, t.w, layout != Layout::row_major),
          operand(t.k, t.c / t.groups, t.r, t.s, false),
          operand(t.n, t.k, out(t.h, t.r, padding[0]), out(t.w, t.s, padding[1]), layout == Layout::channels_last),
          {t.stride, t.stride},
          padding,
          {t.dilation, t.dilation}};
}

int passed = 0, failed = 0;
void expect(bool condition, const std::string& what) {
  ++(condition ? passed : failed);
  if (!condition) std::printf("FAIL %s\n", what.c_str());
}

/// All that cuDNN says of a plan: engine, knobs, tensors, and the kernels that it compiled. Their launch parameters are
/// left out, because padding in them is not initialized.
std::string json_of(EnginePlan& plan) {
  std::string text(1 << 16, '\0');
  text.resize(size_t(plan.plan.get(CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, int64_t(text.size()),
                                   text.data())));
  const std::string key = "\"rawData\":\"";
  for (size_t at = 0; (at = text.find(key, at)) != std::string::npos; at += key.size())
    text.erase(at + key.size(), text.find('"', at + key.size()) - at - key.size());
  return text;
}

/// True if the plan has the note. Reads it from the finished plan, not from the heuristic that chose it.
bool has_note(EnginePlan& plan, cudnnBackendNumericalNote_t wanted) {
  Descriptor configuration(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR), engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  cudnnBackendDescriptor_t handle = configuration.get();
  plan.plan.get(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &handle);
  handle = engine.get();
  configuration.get(CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &handle);
  cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
  const int64_t count =
      engine.get(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE, CUDNN_NUMERICAL_NOTE_TYPE_COUNT, notes);
  expect(plan.plan.ok() && configuration.ok() && engine.ok(),
         str("the plan does not name its engine: ", plan.plan.why(), configuration.why(), engine.why()));
  return std::find(notes, notes + count, wanted) != notes + count;
}

/// Checks a plan and returns its kind: T with tensor cores, + without, - if there is none (then our kernel runs).
char check_plan(const ConvProblem& p, const PlanTarget& target, const std::string& what) {
  const int64_t limit = workspace_limit(p);
  EnginePlan plan = plan_convolution(p, target, limit), again = plan_convolution(p, target, limit);
  expect(plan.supported() == again.supported(), what + ": another answer when asked again");
  if (!plan.supported()) {
    expect(plan.refusal.find("CUDNN_STATUS") != std::string::npos ||
               plan.refusal.find("cuDNN proposed") != std::string::npos,
           what + ": refused without a reason");
    return '-';
  }
  const std::string json = json_of(plan);
  expect(!json.empty() && json == json_of(again) && plan.workspace == again.workspace,
         what + ": another plan when asked again");
  const bool tensor_cores = has_note(plan, CUDNN_NUMERICAL_NOTE_TENSOR_CORE);
  expect(!has_note(plan, CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC), what + ": not the same bits each time");
  expect(!has_note(plan, CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION), what + ": sums in less than f32");
  if (p.dtype == f32 && !p.tf32)
    expect(!tensor_cores && !has_note(plan, CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS),
           what + ": exact f32 rounded to tf32");
  if (plan.workspace > 0) {  // with one byte less: a plan that needs less workspace, or none
    const EnginePlan smaller = plan_convolution(p, target, plan.workspace - 1);
    expect(!smaller.supported() || smaller.workspace < plan.workspace, what + ": takes more workspace than allowed");
  }
  return tensor_cores ? 'T' : '+';
}

std::string read(const char* path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

int main(int argc, char** argv) {
  const std::string json = read(LOCKSTEP_H200);
  Descriptor h200(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
  h200.set(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, int64_t(json.size()), json.data()).finalize();
  expect(h200.ok(), str(LOCKSTEP_H200, " is no device to cuDNN: ", h200.why()));
  const PlanTarget target{.description = h200.get()};

  const size_t version = cudnnGetVersion();
  const std::string first =
      str("# cuDNN ", version / 10000, ".", version / 100 % 100, ".", version % 100,
          " on an H200: forward, gradient of input, gradient of weight. T on tensor cores, + without, - our kernel\n");
  std::string table = first;
  for (const Case& t : cases) {
    for (const Layout layout : {Layout::row_major, Layout::channels_last, Layout::mixed}) {
      char line[128];
      std::snprintf(line, sizeof line, "%-27s %-13s", t.name, layout_names[int(layout)]);
      table += line;
      for (const Precision& precision : precisions) {
        table += str("  ", precision.name, " ");
        for (const ConvDirection d : directions)
          table +=
              check_plan(problem(t, precision, d, layout), target,
                         str(t.name, ", ", layout_names[int(layout)], ", ", precision.name, ", direction ", int(d)));
      }
      table += '\n';
    }
  }
  ConvProblem wrong = problem(cases[0], precisions[0], ConvDirection::forward, Layout::row_major);
  ++wrong.y.size[2];
  expect(plan_convolution(wrong, target, 0).refusal.find("CUDNN_STATUS_BAD_PARAM") != std::string::npos,
         "an output of the wrong size is refused with cuDNN's status");

  if (argc > 1 && !std::strcmp(argv[1], "--update")) {
    std::ofstream(LOCKSTEP_PLANS) << table;
  } else if (const std::string golden = read(LOCKSTEP_PLANS);
             golden.compare(0, golden.find(" on"), first, 0, first.find(" on")) != 0) {
    // Another version of cuDNN may have other engines; only the checks above apply to it.
    std::printf("The golden file is of %s; what this version says is not compared:\n%s",
                golden.substr(2, golden.find(" on") - 2).c_str(), table.c_str());
  } else {
    expect(table == golden, str("differs from ", LOCKSTEP_PLANS, "; if this is intended: --update\n", table));
  }
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed > 0;
}
