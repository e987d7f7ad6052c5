// The golden cases of rules that few programs need.
#include "extensions/optimizers/optimizers.h"
#include "tests/golden_runner/golden.h"

namespace golden {

using namespace lockstep;
using namespace lockstep::optim;

namespace {

/// An optimizer whose options have our own names in the case.
template <class Opt, class Options>
std::unique_ptr<Optimizer> by_name(const Case& c, const std::vector<Variable>& p, Options o) {
  for (const auto& [key, value] : c.json().at("args").as_object()) {
    if (!value.is_bool()) *optim::by_name(o.table()).at(key) = value.as_number();
    else if (key == "maximize") o.maximize = value.as_bool();
    else if constexpr (requires { o.decoupled_weight_decay; }) o.decoupled_weight_decay = value.as_bool();
  }
  return grouped<Opt>(c, p, o);
}

template <class Opt, class Options> void add(Functions& functions, const char* name, const Options& defaults) {
  functions.optimizers[name] = [defaults](const Case& c, const std::vector<Variable>& p) {
    return by_name<Opt>(c, p, defaults);
  };
}

}  // namespace

void add_optimizers(Functions& functions) {
  add<NAdam>(functions, "NAdam", NAdamOptions{});
  add<RAdam>(functions, "RAdam", RAdamOptions{});
  add<Adamax>(functions, "Adamax", AdamaxOptions{});
  add<Adadelta>(functions, "Adadelta", AdadeltaOptions{});
  add<ASGD>(functions, "ASGD", ASGDOptions{});
  add<Rprop>(functions, "Rprop", RpropOptions{});
  add<Sophia>(functions, "Sophia", SophiaOptions{});
  add<AdamWScheduleFree>(functions, "AdamWScheduleFree", AdamWScheduleFreeOptions{});
  add<Adafactor>(functions, "Adafactor", AdafactorOptions{});
}

}  // namespace golden
