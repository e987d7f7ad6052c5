// The compressed all-reduce: its loops, its bits against a plain model of the algorithm, error feedback that loses
// nothing, and its bytes.
#include <doctest/doctest.h>

#include <cmath>
#include <numeric>

#include "extensions/deepspeed/onebit/compressed.h"
#include "extensions/deepspeed/onebit/signs.h"
#include "tests/parallel/util.h"
#include "tests/threads.h"

using namespace lockstep;
using namespace testing;
using onebit::CompressedAllReduce;
using onebit::Scale;

namespace {

std::vector<float> values(int64_t n, uint64_t seed) {
  manual_seed(seed);
  return randn({n}).to(cpu).to_vector<float>();
}

/// The input of rank r in call k: tensors of the given sizes, of different magnitudes.
std::vector<Tensor> inputs(const std::vector<int64_t>& sizes, int rank, int call) {
  std::vector<Tensor> all;
  for (size_t i = 0; i < sizes.size(); ++i) {
    manual_seed(1 + uint64_t(rank) + 100 * uint64_t(call) + 10000 * i);
    all.push_back(mul_scalar(randn({sizes[i]}, {.device = cpu}), std::pow(10., -double(i % 3))));
  }
  return all;
}

struct List {
  const char* name;
  std::vector<int64_t> sizes;
};
const std::vector<List> lists{
    {"empty", {}},     {"nothing in it", {0, 0}}, {"one", {1}}, {"small", {3, 1, 0, 8, 5}}, {"prime", {1009, 17, 4099}},
    {"large", {70001}}};

double max_abs(const Tensor& x) { return x.numel() == 0 ? 0 : max(abs(x)).item(); }

/// A direct implementation of the algorithm. Each call returns the result that every rank gets; errors are kept from
/// call to call.
struct Model {
  std::vector<int64_t> offsets;
  std::vector<std::pair<size_t, int64_t>> places;  // tensor and index of each padded element; {SIZE_MAX, 0} for padding
  int64_t chunk = 0;
  std::vector<std::vector<float>> worker, server;

  Model(const std::vector<int64_t>& sizes, int n) {
    for (size_t i = 0; i < sizes.size(); ++i) {
      for (int64_t k = 0; k < sizes[i]; ++k) places.emplace_back(i, k);
      while (places.size() % 8) places.emplace_back(SIZE_MAX, 0);
    }
    while (places.size() % size_t(n * std::lcm(n, 8))) places.emplace_back(SIZE_MAX, 0);
    chunk = int64_t(places.size()) / n;
    worker.assign(size_t(n), std::vector<float>(places.size()));
    server.assign(size_t(n), std::vector<float>(size_t(chunk)));
  }
  /// Replaces `value` by signs times scales, and puts the difference into `error`. `at`: position of the first element.
  void compress(std::vector<float>& value, std::vector<float>& error, size_t at,
                const CompressedAllReduce::Options& o) const {
    for (size_t tensor = 0; tensor < 100; ++tensor) {
      const auto mine = [&](size_t k) {
        return places[at + k].first == tensor ||
               (!o.scale_per_tensor && tensor == 0 && places[at + k].first != SIZE_MAX);
      };
      double sum = 0;
      int64_t count = 0;
      for (size_t k = 0; k < value.size(); ++k)
        if (mine(k)) sum += o.scale == Scale::rms ? double(value[k]) * value[k] : std::fabs(double(value[k])), ++count;
      if (count == 0) continue;
      const float scale = float(o.scale == Scale::rms ? std::sqrt(sum / double(count)) : sum / double(count));
      for (size_t k = 0; k < value.size(); ++k) {
        if (!mine(k)) continue;
        const float sent = value[k] >= 0 ? scale : -scale;
        error[k] = value[k] - sent;
        value[k] = sent;
      }
      if (!o.scale_per_tensor) break;
    }
  }
  std::vector<float> operator()(const std::vector<std::vector<Tensor>>& of_rank,
                                const CompressedAllReduce::Options& o) {
    const size_t n = of_rank.size();
    std::vector<float> result(places.size());
    for (size_t owner = 0; owner < n; ++owner) {
      const size_t at = owner * size_t(chunk);
      std::vector<float> sum = server[owner];
      for (size_t rank = 0; rank < n; ++rank) {
        std::vector<float> value(static_cast<size_t>(chunk)), error(value);
        for (size_t k = 0; k < value.size(); ++k) {
          const auto [tensor, index] = places[at + k];
          if (tensor != SIZE_MAX) value[k] = of_rank[rank][tensor].data<float>()[index] + worker[rank][at + k];
        }
        compress(value, error, at, o);
        for (size_t k = 0; k < value.size(); ++k)
          if (places[at + k].first != SIZE_MAX) worker[rank][at + k] = error[k], sum[k] += value[k] / float(n);
      }
      compress(sum, server[owner], at, o);
      std::copy(sum.begin(), sum.end(), result.begin() + int64_t(at));
    }
    return result;
  }
};

}  // namespace

TEST_CASE("onebit: the vectorised loops over signs match plain loops, for any length and number of threads") {
  for (const int64_t n : {0, 1, 7, 8, 9, 15, 16, 17, 31, 1000, 4097, 100003}) {
    for (const Scale kind : {Scale::rms, Scale::magnitude}) {
      CAPTURE(n);
      std::vector<float> x = values(n, 3), start = values(n, 4);
      if (n > 8) x[3] = -start[3], x[5] = 0, start[5] = -0.f, x[6] = -1e-30f, start[6] = 0;
      std::vector<std::vector<float>> errors, read, added;
      std::vector<std::vector<uint8_t>> bits;
      std::vector<float> scales;
      for (const int number : {1, 4}) {
        const Threads threads(number);
        errors.push_back(start);
        bits.emplace_back(size_t((n + 7) / 8), uint8_t(0xee));
        read.emplace_back(size_t(n), 7.f);
        added.push_back(x);
        scales.push_back(onebit::scale_of(onebit::add_error(x.data(), errors.back().data(), n, kind), n, kind));
        onebit::take_signs(errors.back().data(), scales.back(), n, bits.back().data());
        onebit::put_signs(bits.back().data(), 2, n, read.back().data());
        onebit::add_signs(bits.back().data(), 2, n, added.back().data());
      }
      CHECK(errors[0] == errors[1]);
      CHECK(bits[0] == bits[1]);
      CHECK(read[0] == read[1]);
      CHECK(scales[0] == scales[1]);
      double sum = 0;
      for (size_t i = 0; i < size_t(n); ++i)
        sum += kind == Scale::rms ? std::pow(double(x[i] + start[i]), 2) : std::fabs(double(x[i] + start[i]));
      CHECK(scales[0] == doctest::Approx(n == 0               ? 0
                                         : kind == Scale::rms ? std::sqrt(sum / double(n))
                                                              : sum / double(n))
                             .epsilon(1e-5));
      int64_t wrong = 0;
      for (size_t i = 0; i < size_t(n); ++i) {
        const float value = start[i] + x[i];
        const bool positive = value >= 0;
        wrong += (bits[0][i / 8] >> (i % 8) & 1) != positive || read[0][i] != (positive ? 2.f : -2.f) ||
                 added[0][i] != x[i] + read[0][i] || errors[0][i] != value - (positive ? scales[0] : -scales[0]);
      }
      CHECK(wrong == 0);
      if (n % 8) CHECK((bits[0].back() >> (n % 8)) == 0);
    }
  }
}

TEST_CASE(
    "onebit: the compressed all-reduce matches a plain model of it bit for bit on every rank, and loses nothing for "
    "good") {
  for (const int ranks : {1, 2, 3, 4, 5, 8}) {
    for (const List& list : lists) {
      for (const CompressedAllReduce::Options& options :
           {CompressedAllReduce::Options{}, {.scale = Scale::magnitude}, {.scale_per_tensor = false}}) {
        if (ranks > 4 && list.sizes.size() == 1 && options.scale == Scale::magnitude) continue;
        CAPTURE(ranks);
        CAPTURE(list.name);
        constexpr int calls = 4;
        struct Result {
          std::vector<std::vector<Tensor>> calls;
          Tensor worker, server;
        };
        const auto all = on_ranks<Result>(ranks, [&](int rank) {
          CompressedAllReduce reduce(list.sizes, dist::world(), options);
          Result result;
          for (int call = 0; call < calls; ++call) {
            result.calls.push_back(inputs(list.sizes, rank, call));
            reduce(result.calls.back());
          }
          result.worker = reduce.worker_errors();
          result.server = reduce.server_errors();
          return result;
        });
        Model model(list.sizes, ranks);
        int64_t different = 0;
        std::vector<Tensor> lost;  // the sum of all results, with what is owed at the end, less the true sum
        for (const int64_t size : list.sizes) lost.push_back(zeros({size}, {.dtype = f64}));
        for (int call = 0; call < calls; ++call) {
          std::vector<std::vector<Tensor>> given;
          for (int rank = 0; rank < ranks; ++rank) given.push_back(inputs(list.sizes, rank, call));
          const std::vector<float> expected = ranks > 1 ? model(given, options) : std::vector<float>();
          for (size_t at = 0; at < expected.size(); ++at) {
            const auto [tensor, index] = model.places[at];
            if (tensor == SIZE_MAX) continue;
            const float got = all[0].calls[size_t(call)][tensor].data<float>()[index];
            different += std::fabs(got - expected[at]) > 1e-5f * std::fabs(expected[at]) + 1e-7f;
          }
          for (size_t i = 0; i < list.sizes.size(); ++i) {
            for (const Result& other : all) CHECK(equal(all[0].calls[size_t(call)][i], other.calls[size_t(call)][i]));
            add_(lost[i], all[0].calls[size_t(call)][i].to(f64));
            for (const auto& of_rank : given) add_(lost[i], of_rank[i].to(f64), -1. / ranks);
          }
        }
        // A sum near 0 may round to the other sign, which also changes a few of the later sums.
        CHECK(double(different) <= 0.002 * double(model.places.size()));
        for (size_t at = 0; ranks > 1 && at < model.places.size(); ++at) {
          const auto [tensor, index] = model.places[at];
          if (tensor == SIZE_MAX) continue;
          double& sum = lost[tensor].data<double>()[index];
          for (const Result& r : all) sum += double(r.worker.data<float>()[at]) / ranks;
          sum += all[at / size_t(model.chunk)].server.data<float>()[at % size_t(model.chunk)];
        }
        for (const Tensor& one : lost) CHECK(max_abs(one) < 1e-5);
      }
    }
  }
}

TEST_CASE("onebit: bytes are those counted by the group, a thirtieth of an f32 all-reduce") {
  for (const int ranks : {2, 3, 4, 8}) {
    CAPTURE(ranks);
    const std::vector<int64_t> sizes{30000, 300, 65536};
    struct Sent {
      int64_t exact, compressed, said;
    };
    for (const Sent& sent : on_ranks<Sent>(ranks, [&](int rank) {
           dist::ProcessGroup& group = dist::world();
           const Tensor flat = ones({std::accumulate(sizes.begin(), sizes.end(), int64_t(0))});
           const int64_t start = group.traffic().sent;
           group.all_reduce(flat, {.algorithm = dist::Algorithm::ring});
           const int64_t between = group.traffic().sent;
           CompressedAllReduce reduce(sizes, group);
           reduce(inputs(sizes, rank, 0));
           return Sent{between - start, group.traffic().sent - between, reduce.bytes_sent()};
         })) {
      CHECK(sent.compressed == sent.said);
      CHECK(sent.compressed * 30 <= sent.exact);
      CHECK(sent.compressed * 33 >= sent.exact);
    }
  }
}

TEST_CASE("onebit: padding is to a multiple of n lcm(n, 8)") {
  for (const int ranks : {1, 3, 5, 6, 8}) {
    for (const int64_t padded : on_ranks<int64_t>(ranks, [](int) {
           return CompressedAllReduce({1001, 3}, dist::world()).padded();
         })) {
      CHECK(padded % (ranks * std::lcm(ranks, 8)) == 0);
      CHECK(padded >= 1008);
      CHECK(padded < 1016 + ranks * std::lcm(ranks, 8));
    }
  }
}

TEST_CASE("onebit: NaN and infinity reach every rank") {
  for (const float bad : {NAN, INFINITY}) {
    on_ranks(3, [&](int rank) {
      CompressedAllReduce reduce({40, 10}, dist::world());
      std::vector<Tensor> x = inputs({40, 10}, rank, 0);
      if (rank == 1) x[0].data<float>()[5] = bad;
      reduce(x);
      CHECK((!std::isfinite(x[0].data<float>()[5]) && std::isfinite(x[1].data<float>()[3])));
    });
  }
}

TEST_CASE("onebit: mismatched sizes are rejected") {
  on_ranks(1, [](int) {
    CompressedAllReduce reduce({4}, dist::world());
    CHECK_ERROR(reduce({}), "[onebit] expected 1 tensors, got 0");
    CHECK_ERROR(reduce({ones({5})}), "expected a row-major f32 tensor of 4 elements, got f32 (5)");
    CHECK_ERROR(reduce({ones({4}, {.dtype = f64})}), "got f64 (4)");
    CHECK_ERROR(reduce({ones({8}).slice(0, 0, 8, 2)}), "not row-major");
    CHECK_ERROR(reduce({Tensor()}), "got an undefined one");
    CHECK_ERROR(CompressedAllReduce({-1}, dist::world()), "expected sizes of tensors, got -1");
  });
  CHECK_ERROR(on_ranks(2,
                       [](int rank) {
                         CompressedAllReduce reduce({rank == 0 ? 64 : 512}, dist::world());
                         reduce({ones({rank == 0 ? 64 : 512})});
                       }),
              "all_to_all");
}
