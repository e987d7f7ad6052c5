// The golden cases of rules that few programs need.
#include "extensions/optimizers/optimizers.h"
#include "tests/golden_runner/golden.h"

namespace golden {

using namespace lockstep;
using namespace lockstep::optim;

namespace {

template <class Opt, class Options> void add(Functions& functions, const char* name) {
  functions.optimizers[name] = [](const Case& c, const std::vector<Variable>& p) {
    return optimizer_of<Opt, Options>(c, p);
  };
}

}  // namespace

void add_optimizers(Functions& functions) {
  add<NAdam, NAdamOptions>(functions, "NAdam");
  add<RAdam, RAdamOptions>(functions, "RAdam");
  add<Adamax, AdamaxOptions>(functions, "Adamax");
  add<Adadelta, AdadeltaOptions>(functions, "Adadelta");
  add<ASGD, ASGDOptions>(functions, "ASGD");
  add<Rprop, RpropOptions>(functions, "Rprop");
  add<Sophia, SophiaOptions>(functions, "Sophia");
  add<AdamWScheduleFree, AdamWScheduleFreeOptions>(functions, "AdamWScheduleFree");
  add<RMSprop, RMSpropOptions>(functions, "RMSprop");
  for (const char* name : {"Adagrad", "DeepSpeedCPUAdagrad"}) add<Adagrad, AdagradOptions>(functions, name);
  for (const char* name : {"Lion", "DeepSpeedCPULion"}) add<Lion, LionOptions>(functions, name);
  add<Adafactor, AdafactorOptions>(functions, "Adafactor");
}

}  // namespace golden
