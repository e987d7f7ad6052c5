// Convolution by oneDNN. Its blocked layouts differ from ours, so a call converts pieces that fit in the cache: one
// thread takes a chunk of images through x -> blocked x -> convolution -> blocked y -> y. Chunks depend on the shape
// alone, and partial weight gradients are added in chunk order, so the bits do not depend on the number of threads.
#include <omp.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <oneapi/dnnl/dnnl.hpp>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/classic_text.h"
#include "extensions/onednn_convolutions/onednn_convolutions.h"
#include "tensor/cpu/parallel.h"
#include "tensor/layout.h"
#include "tensor/ops.h"

namespace lockstep::on_cpu {
namespace {

using dnnl::memory;
using Desc = memory::desc;
constexpr auto type = memory::data_type::f32;
enum class ConvKind : int64_t { forward, grad_input, grad_weight };

const dnnl::engine& engine() {
  static const dnnl::engine one(dnnl::engine::kind::cpu, 0);
  return one;
}

/// While it lives, oneDNN runs on one thread when this thread calls it. By itself oneDNN would start threads, and its
/// results would depend on their number. Instead Lockstep's own threads call oneDNN for each chunk. Costs a few
/// nanoseconds.
class SingleThread {
 public:
  SingleThread() { omp_set_num_threads(1); }
  ~SingleThread() { omp_set_num_threads(previous_); }
  SingleThread(const SingleThread&) = delete;

 private:
  const int previous_ = omp_get_max_threads();
};

/// The parameters that determine a primitive: sizes for a chunk of n images, options and layout.
struct Problem {
  ConvKind kind;
  int64_t n, c, h, w, k, r, s, p, q, groups;
  bool bias, channels_last;
  memory::dims stride = {}, padding = {}, dilation = {};
  auto operator<=>(const Problem&) const = default;

  memory::dims weight_dims() const {
    return groups == 1 ? memory::dims{k, c, r, s} : memory::dims{groups, k / groups, c / groups, r, s};
  }
  Desc weight() const {
    return {weight_dims(), type, groups == 1 ? memory::format_tag::oihw : memory::format_tag::goihw};
  }
};

/// A oneDNN primitive and the layouts that it expects. `primitive` is empty if oneDNN has no fast kernel.
struct Primitive {
  dnnl::primitive primitive;
  Desc x, w, y, scratch;
};

/// The descriptor of the kernel that oneDNN selects for `arguments`. For gradients, `forward` is the descriptor of the
/// forward convolution. oneDNN 2 takes the arguments as one operation descriptor, oneDNN 3 takes them one by one.
template <class Convolution, class... Forward>
auto choose(const auto& arguments, const dnnl::primitive_attr& attributes, const Forward&... forward) {
  const auto make = [&](const auto&... parts) {
#if DNNL_VERSION_MAJOR == 2
    return typename Convolution::primitive_desc({parts...}, attributes, engine(), forward...);
#else
    return typename Convolution::primitive_desc(engine(), parts..., forward..., attributes);
#endif
  };
  return std::apply(make, arguments);
}

Primitive make_plan(const Problem& t) {
  using dnnl::algorithm, dnnl::prop_kind;
  const auto tag = t.channels_last ? memory::format_tag::nhwc : memory::format_tag::any;
  const Desc x({t.n, t.c, t.h, t.w}, type, tag), y({t.n, t.k, t.p, t.q}, type, tag);
  const Desc w(t.weight_dims(), type, memory::format_tag::any);
  const Desc b = t.bias ? Desc({t.k}, type, memory::format_tag::a) : Desc();
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);  // lets threads share the primitive
  constexpr auto direct = algorithm::convolution_direct;
  const auto forward = choose<dnnl::convolution_forward>(
      std::tuple(prop_kind::forward_training, direct, x, w, b, y, t.stride, t.dilation, t.padding, t.padding),
      attributes);
  const auto plan = [](const auto& pd, const Desc& input, const Desc& weight, const Desc& output) -> Primitive {
    if (std::string(pd.impl_info_str()).find("ref") != std::string::npos) return {};  // slow
    return {dnnl::primitive(pd), input, weight, output, pd.scratchpad_desc()};
  };
  if (t.kind == ConvKind::forward) return plan(forward, forward.src_desc(), forward.weights_desc(), forward.dst_desc());
  if (t.kind == ConvKind::grad_input) {
    const auto pd = choose<dnnl::convolution_backward_data>(
        std::tuple(direct, x, w, y, t.stride, t.dilation, t.padding, t.padding), attributes, forward);
    return plan(pd, pd.diff_src_desc(), pd.weights_desc(), pd.diff_dst_desc());
  }
  const auto pd = choose<dnnl::convolution_backward_weights>(
      std::tuple(direct, x, w, b, y, t.stride, t.dilation, t.padding, t.padding), attributes, forward);
  return plan(pd, pd.src_desc(), pd.diff_weights_desc(), pd.diff_dst_desc());
}

/// Returns the plan for a problem. The 256 most recently used plans are cached, because making a plan takes as long as
/// a small convolution.
std::shared_ptr<const Primitive> plan_for(const Problem& problem) {
  struct Cache {
    std::mutex mutex;
    std::list<std::pair<Problem, std::shared_ptr<const Primitive>>> order;
    std::map<Problem, decltype(order)::iterator> places;
  };
  static Cache& cache = *new Cache;  // never destroyed: threads may outlive main
  const std::lock_guard lock(cache.mutex);
  if (const auto found = cache.places.find(problem); found != cache.places.end()) {
    cache.order.splice(cache.order.begin(), cache.order, found->second);
    return found->second->second;
  }
  const SingleThread single;
  std::shared_ptr<const Primitive> plan;
  try {
    plan = std::make_shared<const Primitive>(make_plan(problem));
  } catch (const dnnl::error&) {
    // oneDNN has no kernel for this problem: cache an empty plan, for which conv.cpp computes the convolution itself.
    plan = std::make_shared<const Primitive>();
  }
  cache.order.emplace_front(problem, plan);
  cache.places[problem] = cache.order.begin();
  if (cache.order.size() > 256) {
    cache.places.erase(cache.order.back().first);
    cache.order.pop_back();
  }
  return plan;
}

Desc layout(const Tensor& x, int64_t images) {
  const Shape& s = x.shape();
  // dims of size 1 may have any stride
  const Strides strides = x.is_contiguous() ? contiguous_strides(s) : x.strides();
  return {{images, s[1], s[2], s[3]}, type, memory::dims(strides.begin(), strides.end())};
}

memory over(const Desc& desc, const void* data) { return memory(desc, engine(), const_cast<void*>(data)); }
size_t full_lines(size_t bytes) { return (bytes + 63) / 64 * 64; }
void reorder(dnnl::stream& stream, const memory& from, const memory& to) {
  auto a = from, b = to;
  dnnl::reorder(a, b).execute(stream, a, b);
}

/// The arguments of a primitive by their numbers.
using Arguments = std::unordered_map<int, memory>;

/// One convolution, computed in chunks of images. Plan 0 is for full chunks. Plan 1 is for the last chunk, which may
/// have fewer images.
class Call {
 public:
  Call(ConvKind kind, const Tensor& x, const Tensor& y, const Shape& weight, bool bias, const ConvArgs& args)
      : x_(x), y_(y) {
    const Shape &s = x.shape(), &o = y.shape();
    const bool last = is_channels_last(x) && is_channels_last(y);
    problem_ = {kind, 0, s[1], s[2], s[3], o[1], weight[2], weight[3], o[2], o[3], args.groups, bias, last};
    problem_.stride.assign(args.stride.begin(), args.stride.end());
    problem_.padding.assign(args.padding.begin(), args.padding.end());
    problem_.dilation = {args.dilation[0] - 1, args.dilation[1] - 1};  // oneDNN counts from 0
    size_ = (s[0] + 7) / 8;
    count_ = (s[0] + size_ - 1) / size_;
    for (int i = 0; i < 2; ++i) {
      problem_.n = i == 0 ? size_ : s[0] - (count_ - 1) * size_;
      plans_[i] = plan_for(problem_);
    }
  }

  bool usable() const { return plans_[0]->primitive && plans_[1]->primitive; }
  int64_t count() const { return count_; }
  const Problem& problem() const { return problem_; }
  const Primitive& plan(int64_t chunk) const { return *plans_[chunk == count_ - 1]; }

  /// Executes the primitives for all chunks. fn(chunk, arguments) adds the arguments other than x, y and scratch
  /// memory. x and y have the layout that oneDNN expects: inputs are converted before the call, outputs after it.
  template <class Fn> void run(Fn&& fn) {
    const bool write_x = problem_.kind == ConvKind::grad_input, write_y = problem_.kind == ConvKind::forward;
    size_t bytes = 0;
    for (const auto& plan : plans_)
      bytes = std::max(bytes, full_lines(plan->x.get_size()) + full_lines(plan->y.get_size()) +
                                  full_lines(plan->scratch.get_size()));
    const int64_t slots = std::min<int64_t>(get_threads(), count_);
    const Tensor buffers = empty({slots, int64_t(bytes)}, {.dtype = u8});
    std::atomic<int64_t> taken{0};
    std::atomic<bool> failed{false};
    parallel_for(count_, 1, [&](int64_t begin, int64_t end) {
      uint8_t* const buffer = static_cast<uint8_t*>(buffers.raw_data()) + taken++ * int64_t(bytes);
      try {
        const SingleThread single;
        dnnl::stream stream(engine());
        for (int64_t chunk = begin; chunk < end; ++chunk) {
          const Primitive& plan = this->plan(chunk);
          const int64_t images = std::min(size_, x_.size(0) - chunk * size_);
          uint8_t* free = buffer;
          const auto place = [&](const Tensor& tensor, const Desc& wanted) {
            const memory user =
                over(layout(tensor, images), tensor.data<float>() + chunk * size_ * tensor.strides()[0]);
            if (user.get_desc() == wanted) return std::pair(user, user);
            const memory own = over(wanted, free);
            free += full_lines(wanted.get_size());
            return std::pair(user, own);
          };
          const auto [user_x, x] = place(x_, plan.x);
          const auto [user_y, y] = place(y_, plan.y);
          if (!write_x && x != user_x) reorder(stream, user_x, x);
          if (!write_y && y != user_y) reorder(stream, user_y, y);
          Arguments arguments{{write_x ? DNNL_ARG_DIFF_SRC : DNNL_ARG_SRC, x},
                              {write_y ? DNNL_ARG_DST : DNNL_ARG_DIFF_DST, y},
                              {DNNL_ARG_SCRATCHPAD, over(plan.scratch, free)}};
          fn(chunk, arguments);
          plan.primitive.execute(stream, arguments);
          if (write_x && x != user_x) reorder(stream, x, user_x);
          if (write_y && y != user_y) reorder(stream, y, user_y);
        }
      } catch (const dnnl::error&) { failed = true; }
    });
    LOCKSTEP_CHECK(!failed, "[conv2d] oneDNN failed for input ", x_.shape(), " and output ", y_.shape(),
                   "; build with -Donednn=disabled and please report it");
  }

  /// The weights in two layouts: for full chunks, and for the last chunk. This Call holds the converted copies.
  std::array<memory, 2> weights(const Tensor& w) {
    std::array<memory, 2> result;
    const SingleThread single;
    dnnl::stream stream(engine());
    for (int i = 0; i < 2; ++i) {
      const memory plain = over(problem_.weight(), w.raw_data());
      if (i == 1 && plans_[1]->w == plans_[0]->w) {
        result[1] = result[0];
      } else if (plans_[i]->w == problem_.weight()) {
        result[i] = plain;
      } else {
        converted_[i] = empty({int64_t(plans_[i]->w.get_size())}, {.dtype = u8});
        result[i] = over(plans_[i]->w, converted_[i].raw_data());
        reorder(stream, plain, result[i]);
      }
    }
    return result;
  }

 private:
  Tensor x_, y_, converted_[2];
  Problem problem_;
  int64_t size_, count_;
  std::shared_ptr<const Primitive> plans_[2];
};

/// Computes y from x and w, or for ConvKind::grad_input the gradient x from the gradient y and w.
bool by_weights(ConvKind kind, const Tensor& x, const Tensor& w, const Tensor& bias, const Tensor& y,
                const ConvArgs& args) {
  if (x.dtype() != f32) return false;
  Call call(kind, x, y, w.shape(), bias.defined(), args);
  if (!call.usable()) return false;
  const auto weights = call.weights(w);
  call.run([&](int64_t chunk, Arguments& list) {
    list[DNNL_ARG_WEIGHTS] = weights[chunk == call.count() - 1];
    if (bias.defined()) list[DNNL_ARG_BIAS] = over({{bias.numel()}, type, memory::format_tag::a}, bias.raw_data());
  });
  return true;
}

bool forward(const Tensor& x, const Tensor& w, const Tensor& bias, const ConvArgs& args, Tensor& out) {
  return by_weights(ConvKind::forward, x, w, bias, out, args);
}
bool grad_input(const Tensor& grad, const Tensor& w, const ConvArgs& args, Tensor& grad_x) {
  return by_weights(ConvKind::grad_input, grad_x, w, {}, grad, args);
}

bool grad_weight(const Tensor& grad, const Tensor& x, const ConvArgs& args, Tensor& grad_w, Tensor& grad_bias) {
  if (grad.dtype() != f32) return false;
  Call call(ConvKind::grad_weight, x, grad, grad_w.shape(), grad_bias.defined(), args);
  // The chunks' weight gradients are added, so all must have the same layout. The last chunk's layout rarely differs.
  if (!call.usable() || !(call.plan(0).w == call.plan(call.count() - 1).w)) return false;
  const Desc w = call.plan(0).w;
  const int64_t k = grad.size(1), floats = int64_t(full_lines(w.get_size()) / 4), each = floats + (k + 15) / 16 * 16;
  const Tensor partial = empty({call.count(), each});
  float* const parts = partial.data<float>();
  call.run([&](int64_t chunk, Arguments& list) {
    float* const part = parts + chunk * each;
    list[DNNL_ARG_DIFF_WEIGHTS] = over(w, part);
    if (grad_bias.defined()) list[DNNL_ARG_DIFF_BIAS] = over({{k}, type, memory::format_tag::a}, part + floats);
  });
  parallel_for(each, 1 << 14, [&](int64_t begin, int64_t end) {
    for (int64_t chunk = 1; chunk < call.count(); ++chunk)
      for (int64_t i = begin; i < end; ++i) parts[i] += parts[chunk * each + i];
  });
  const SingleThread single;
  dnnl::stream stream(engine());
  reorder(stream, over(w, parts), over(call.problem().weight(), grad_w.raw_data()));
  if (grad_bias.defined()) std::copy_n(parts + floats, k, grad_bias.data<float>());
  return true;
}

/// The instruction set that oneDNN uses on this processor. ONEDNN_MAX_CPU_ISA may lower it.
std::string instructions() {
  const auto isa = dnnl_get_effective_cpu_isa();
  const std::pair<dnnl_cpu_isa_t, const char*> names[] = {{dnnl_cpu_isa_sse41, "sse4.1"},
                                                          {dnnl_cpu_isa_avx, "avx"},
                                                          {dnnl_cpu_isa_avx2, "avx2"},
                                                          {dnnl_cpu_isa_avx2_vnni, "avx2 with vnni"},
                                                          {dnnl_cpu_isa_avx512_core, "avx512"},
                                                          {dnnl_cpu_isa_avx512_core_vnni, "avx512 with vnni"},
                                                          {dnnl_cpu_isa_avx512_core_bf16, "avx512 with bf16"},
                                                          {dnnl_cpu_isa_avx512_core_amx, "avx512 with amx"}};
  for (const auto& [value, name] : names)
    if (value == isa) return name;
  return format("code %#x", unsigned(isa));
}

std::vector<std::pair<std::string, std::string>> facts() {
  const dnnl_version_t* v = dnnl_version();
  return {{"oneDNN", str(v->major, ".", v->minor, ".", v->patch)}, {"oneDNN_instructions", instructions()}};
}

}  // namespace
}  // namespace lockstep::on_cpu

std::vector<lockstep::ConvBackend> lockstep::onednn_convolutions() {
  return {{Device::Type::cpu, on_cpu::forward, on_cpu::grad_input, on_cpu::grad_weight, on_cpu::facts}};
}
