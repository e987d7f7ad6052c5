// Scores of a language model come from the device in one copy, with their padding.
#include <doctest/doctest.h>

#include <map>
#include <string>

#include "extensions/generation/sampling.h"
#include "nn/linear.h"
#include "tensor/random.h"
#include "tensor/stream.h"
#include "tests/cudasim/fake.h"

using namespace lockstep;

TEST_CASE("cuda head: scores of any vocabulary are copied to the host at once") {
  const Device gpu{Device::Type::cuda, 0};
  constexpr int64_t tokens = 8, width = 16;
  const NoGrad no_grad;
  for (const DType dtype : {bf16, f16, f32})
    for (const int64_t vocab : {64, 1, 63, 65, 1003, 32003, 50257, 128256}) {
      if (vocab > 2000 && dtype != bf16) continue;  // the emulator is slow
      CAPTURE(dtype);
      CAPTURE(vocab);
      manual_seed(uint64_t(vocab));
      nn::Head here({.num = vocab, .dim = width}), there({.num = vocab, .dim = width});
      there.load_state(here.state());
      here.to(dtype), there.to(dtype).to(gpu);
      const Tensor values = randn({tokens, width}).to(dtype);
      for (const int64_t rows : {int64_t(1), tokens}) {
        const Tensor some = values.narrow(0, 0, rows).contiguous().view({1, rows, width});
        const Tensor single = there(Variable(some.to(gpu))).tensor().view({rows, vocab}),
                     plain = here(Variable(some)).tensor().view({rows, vocab}).to(f64);
        synchronize(gpu);
        fake::take_launches();
        const Tensor host = nn::scores_on_host(single);
        CHECK(fake::take_launches() == std::map<std::string, int64_t>{{"memcpy", 1}});
        CHECK(host.dtype() == f32);
        CHECK(equal(host, single.to(cpu).to(f32)));
        CHECK(max(abs(sub(host.to(f64), plain))).item() <=
              std::max(max(abs(plain)).item(), 1e-3) * (dtype == f32 ? 1e-5 : 2e-2));
        const std::span<const float> last = nn::row_of(host, size_t(rows - 1));
        CHECK(last.size() == size_t(vocab));
        CHECK(last.back() == host[rows - 1][vocab - 1].item<float>());
      }
    }
}
