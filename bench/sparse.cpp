// Speed-up by sparse attention: forward and backward of one layer's attention, dense and with layouts, alternating
// within one process. Prints a JSON line per case: time, ratio to dense, peak of memory, the layout's density (the
// share of the 64 x 64 tiles of causal attention that the layout needs), and the ratio divided by the density.
//
//   bench_sparse --turns 5
#include <fmt/core.h>

#include <optional>
#include <set>

#include "autograd/ops.h"
#include "bench/program.h"
#include "extensions/sparse_attention/layouts.h"
#include "tensor/block_layout.h"
#include "tensor/random.h"

using namespace lockstep;

namespace {

using Mode = nn::SparsityConfig::Mode;

struct Case {
  const char* name;
  int64_t tokens;
  std::optional<nn::SparsityConfig> sparse;
  std::vector<double> seconds = {};
  int64_t peak = 0;
};

/// Share of the 64 x 64 tiles up to the diagonal that contain an attended block.
double density(const nn::SparsityConfig& config, int64_t tokens) {
  const BlockLayout layout = nn::make_layout(config, 1, tokens);
  std::set<std::pair<int64_t, int64_t>> tiles;
  for (int64_t r = 0; r < layout.blocks; ++r)
    for (int32_t at = layout.row_start.data<int32_t>()[r]; at < layout.row_start.data<int32_t>()[r + 1]; ++at) {
      const int64_t c = layout.columns.data<int32_t>()[at], last = tokens - 1;
      for (int64_t i = r * layout.block / 64; i <= std::min(last, (r + 1) * layout.block - 1) / 64; ++i)
        for (int64_t j = c * layout.block / 64; j <= std::min({last, (c + 1) * layout.block - 1, i * 64 + 63}) / 64;
             ++j)
          tiles.emplace(i, j);
    }
  const int64_t side = (tokens + 63) / 64;
  return double(tiles.size()) / (double(side) * double(side + 1) / 2);
}

}  // namespace

int main(int argc, char** argv) {
  bench::Program app("forward and backward of sparse attention against dense");
  int rounds = 5;
  int64_t heads = 8, width = 64;
  app.add_option("--turns", rounds, "repetitions of all cases");
  app.add_option("--heads", heads, "heads of the layer");
  app.add_option("--width", width, "features of a head");
  return app.run(argc, argv, [&] {
    const nn::SparsityConfig fixed{.mode = Mode::fixed, .block = 64, .unidirectional = true},
        fixed16{
            .mode = Mode::fixed, .block = 16, .unidirectional = true, .num_local_blocks = 16, .num_global_blocks = 4},
        local{.mode = Mode::local, .block = 64, .unidirectional = true},
        bigbird{.mode = Mode::bigbird, .block = 64, .unidirectional = true, .num_random_blocks = 2};
    std::vector<Case> cases{{"dense_4096", 4096, {}},         {"fixed_64_4096", 4096, fixed},
                            {"fixed_16_4096", 4096, fixed16}, {"bigbird_64_4096", 4096, bigbird},
                            {"dense_8192", 8192, {}},         {"local_64_8192", 8192, local}};
    for (int round = 0; round <= rounds; ++round)  // round 0 warms up
      for (Case& c : cases) {
        manual_seed(1);
        const Variable q(randn({1, heads, c.tokens, width}), true), k(randn({1, heads, c.tokens, width}), true),
            v(randn({1, heads, c.tokens, width}), true);
        const Tensor grad = randn(q.shape());
        AttentionArgs args{.scale = 0, .causal = true};
        if (c.sparse) args.layout = std::make_shared<BlockLayout>(nn::make_layout(*c.sparse, heads, c.tokens));
        const int64_t before = memory_report().total.current;
        reset_peak_memory();
        const double seconds = bench::seconds_of([&] { attention(q, k, v, {}, args).backward(grad); });
        if (round > 0) c.seconds.push_back(seconds);
        c.peak = memory_report().total.peak - before;
      }
    double dense = 0;
    for (const Case& c : cases) {
      const double seconds = bench::median(c.seconds);
      if (!c.sparse) dense = seconds;
      const double part = c.sparse ? density(*c.sparse, c.tokens) : 1;
      fmt::print(
          "{{\"bench\": \"sparse\", \"case\": \"{}\", \"ms\": {:.2f}, \"least_ms\": {:.2f}, \"of_dense\": {:.4f}, "
          "\"density\": {:.4f}, \"of_density\": {:.3f}, \"peak_mib\": {:.1f}}}\n",
          c.name, seconds * 1e3, *std::min_element(c.seconds.begin(), c.seconds.end()) * 1e3, seconds / dense, part,
          seconds / dense / part, double(c.peak) / 1048576);
    }
  });
}
