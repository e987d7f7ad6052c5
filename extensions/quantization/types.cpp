// The names of the optimizers in configuration files, with the defaults of DeepSpeed's options.
#include <limits>

#include "engine/params.h"
#include "extensions/quantization/eight_bit.h"

namespace lockstep::engine {

namespace {

/// Returns the reasons why an optimizer whose update reads other elements of a block cannot run under the plan.
std::vector<std::string> reasons(const Config& c, const parallel::Plan& plan, const std::string& called) {
  std::vector<std::string> all;
  const std::string kind = called.substr(called.rfind(' ') + 1), wide = kind.substr(0, kind.size() - 4);
  if (plan.tp > 1)
    all.push_back(str(called, " quantizes blocks of 256 elements of the whole parameter, and tp", plan.tp,
                      " cuts across them; leave tp out, or use ", wide));
  if (c.zero_optimization.offload_optimizer.device == zero::Offload::nvme)
    all.push_back(str(called, " keeps 8-bit state, but offload to nvme stores f32; offload to cpu, or use ", wide));
  return all;
}

/// Describes a type. Token embeddings keep f32 state, since most of their rows have no gradient in most steps.
template <class Class, class O> NamedType eight_bit(const char* name, const char* doc) {
  return {name, doc,
          [name](Params& p) -> Make {
            O o;
            o.lr = 1e-3;
            p("lr", &o.lr)("betas", Pair{&o.beta1, &o.beta2})("weight_decay", &o.weight_decay);
            if constexpr (requires { o.eps; }) {
              p("eps", &o.eps)("bias_correction", &o.bias_correction);
              p.fixed("amsgrad", false, "its largest second moments have no form in 8 bits");
            }
            p("min_8bit_size", &o.min_8bit_size, least(0))("maximize", &o.maximize);
            p.fixed("optim_bits", 8, "its state always has 8 bits");
            p.fixed("block_wise", true, "scales are of blocks of 256");
            p.fixed("percentile_clipping", 100, "gradients are clipped by gradient_clipping");
            p.without_effect("is_paged", false, "use offload_optimizer");
            p.check([&] { optim::check_options(name, o); });
            return [o](const NamedParameters& parameters, dist::ProcessGroup*) {
              std::vector<typename Class::Group> groups{{{}, o}, {{}, o}};
              groups[1].options.min_8bit_size = std::numeric_limits<int64_t>::max();
              for (const auto& one : parameters) groups[one.is_table].parameters.push_back(one.variable);
              Optimizers made;
              made.push_back(std::make_unique<Class>(groups));
              return made;
            };
          },
          reasons};
}

}  // namespace

std::vector<NamedType> eight_bit_optimizers() {
  return {
      eight_bit<optim::AdamW8bit, optim::AdamW8bitOptions>("AdamW8bit", "AdamW with moments in 8 bits"),
      eight_bit<optim::Adam8bit, optim::Adam8bitOptions>("Adam8bit", "Adam with moments in 8 bits"),
      eight_bit<optim::Lion8bit, optim::Lion8bitOptions>("Lion8bit", "Lion with its moment in 8 bits"),
  };
}

}  // namespace lockstep::engine
