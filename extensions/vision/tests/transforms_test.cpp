// Random image transforms: draws depend only on (seed, epoch, sample); ranges, shapes and mixed batches.
#include <cmath>
#include <set>

#include "data/loader.h"
#include "extensions/vision/pictures/pictures.h"
#include "extensions/vision/pictures/transforms.h"
#include "tensor/ops.h"
#include "tests/data/util.h"
#include "tests/devices.h"

using namespace lockstep;
using namespace lockstep::data;

namespace {

/// Image number i has pixel values that count up from 7 i, and is then transformed; its target is i.
struct Changed : Dataset<Example> {
  Transform transform;
  int64_t n;
  Changed(Transform t, int64_t n) : transform(std::move(t)), n(n) {}
  int64_t size() const override { return n; }
  Example get(int64_t index) const override {
    const Tensor picture = arange(double(index * 7), double(index * 7 + 3 * 12 * 15)).to(u8).reshape({3, 12, 15});
    return {transform(picture), Tensor::from<int64_t>({index}, {})};
  }
};

std::vector<float> pixels_of(auto&& loader) {
  std::vector<float> all;
  for (auto& [x, y] : loader) {
    const auto some = x.template to_vector<float>();
    all.insert(all.end(), some.begin(), some.end());
    const auto targets = y.template to_vector<float>();
    all.insert(all.end(), targets.begin(), targets.end());
  }
  return all;
}

Compose everything() {
  return Compose({RandomCrop{.height = 11, .width = 13, .padding = 2}, RandomHorizontalFlip{}, RandomVerticalFlip{},
                  RandomRotation{.degrees = 20}, ColorJitter{0.4, 0.4, 0.4, 0.2}, RandAugment{},
                  RandomResizedCrop{.height = 8, .width = 9}, ToTensor{}, Normalize{{0.5}, {0.25}},
                  RandomErasing{.noise = true}});
}

}  // namespace

TEST_CASE_FIXTURE(OnCpu, "transforms: the same bits for any workers, and after a resume in the middle of an epoch") {
  const auto mixed = [](std::vector<Example> samples) { return MixUp{.classes = 23}(collate(samples)); };
  const auto pasted = [](std::vector<Example> samples) { return CutMix{.classes = 23}(collate(samples)); };
  for (const std::function<Example(std::vector<Example>)>& joined :
       {std::function<Example(std::vector<Example>)>(), {mixed}, {pasted}}) {
    const auto make = [&](int workers) {
      return DataLoader(Changed(everything(), 23),
                        {.batch_size = 4, .shuffle = true, .workers = workers, .collate = joined, .seed = 5});
    };
    auto single = make(0);
    const auto first = pixels_of(single), second = pixels_of(single);
    CHECK(first != second);  // each epoch has its own draws
    for (const int workers : {1, 4}) {
      auto loader = make(workers);
      manual_seed(uint64_t(workers));  // the global generator does not matter
      CHECK(pixels_of(loader) == first);
      CHECK(pixels_of(loader) == second);
      // Two batches of the second epoch from one loader, the rest from another one.
      auto begun = make(workers);
      pixels_of(begun);
      LoaderState state;
      std::vector<float> observed;
      int64_t batches = 0;
      for (auto& [x, y] : begun) {
        for (const Tensor& part : {x, y})
          for (const float value : part.to_vector<float>()) observed.push_back(value);
        state = begun.state();
        if (++batches == 2) break;
      }
      auto rest = make(4 - workers);
      rest.load_state(state);
      const auto more = pixels_of(rest);
      observed.insert(observed.end(), more.begin(), more.end());
      CHECK(observed == second);
    }
  }
}

TEST_CASE_FIXTURE(OnCpu, "transforms: a transform does not change the numbers that the next one draws") {
  const Tensor u = arange(3 * 8 * 8).to(u8).reshape({3, 8, 8});
  manual_seed(3);
  RandomHorizontalFlip{.p = 0}(u);
  const auto first = random_state();
  manual_seed(3);
  RandAugment{}(u);
  CHECK(random_state() == first);
}

TEST_CASE_FIXTURE(OnCpu, "transforms: random numbers lie in their ranges") {
  manual_seed(11);
  const Tensor u = arange(1 * 9 * 10).to(u8).reshape({1, 9, 10});
  std::set<int64_t> corners;
  int flipped = 0, erased = 0;
  for (int i = 0; i < 2000; ++i) {
    const Tensor part = RandomCrop{.height = 8, .width = 8}(u);
    corners.insert(part[0][0][0].item<int64_t>());
    flipped += RandomHorizontalFlip{.p = 0.3}(u)[0][0][0].item<int64_t>() == 9;
    const Tensor hole = RandomErasing{.p = 0.25, .value = 200}(u);
    const int64_t size = sum(eq(hole, full_like(hole, 200)).to(i64)).item<int64_t>();
    erased += size > 0;
    CHECK(size <= int64_t(0.33 * 90) + 12);
  }
  CHECK(corners == std::set<int64_t>{0, 1, 2, 10, 11, 12});
  CHECK(std::abs(flipped - 600) < 90);
  CHECK(std::abs(erased - 500) < 90);
  CHECK(equal(RandomHorizontalFlip{.p = 1}(u), flip_horizontally(u)));
  CHECK(equal(RandomVerticalFlip{.p = 0}(u), u));
  CHECK(equal(RandomVerticalFlip{.p = 1}(u), flip_vertically(u)));
  CHECK(RandomCrop{.height = 20, .width = 3, .pad_if_needed = true}(u).shape() == Shape{1, 20, 3});
  // the picture has no crop of such a ratio: a central crop is taken
  CHECK(RandomResizedCrop{.height = 3, .width = 4, .ratio = {100, 200}}(u).shape() == Shape{1, 3, 4});
  CHECK(equal(ColorJitter{}(u), u));
  for (int64_t magnitude = 0; magnitude < 31; ++magnitude)
    CHECK(RandAugment{.operations = 20, .magnitude = magnitude}(u).shape() == u.shape());
  CHECK_REJECTED(RandomCrop, ({.height = 10, .width = 3})(u),
                 "a picture of at least 10 pixels in height, got 9 and padding 0");
  CHECK_ERROR(RandomHorizontalFlip{.p = 1.5}(u), "[RandomHorizontalFlip] expected a probability in [0, 1], got 1.5");
  CHECK_ERROR(RandAugment{.magnitude = 31}(u), "[RandAugment] expected");
  CHECK_ERROR(RandAugment{}(ToTensor()(u)),
              "[RandAugment] expected u8 (before ToTensor) with 1 or 3 channels, got f32(1, 9, 10)");
  CHECK_ERROR((Normalize{{0.5}, {0}}(ToTensor()(u))), "[Normalize] expected deviations other than 0");
  CHECK_ERROR((Normalize{{0.5}, {1}}(u)), "[Normalize] expected an f32 picture (ToTensor makes one), got u8");
  CHECK_ERROR((Normalize{{0.5, 1}, {1, 1}}(ToTensor()(u))),
              "[Normalize] expected a mean and a deviation for each of 1");
  CHECK_ERROR((ColorJitter{.hue = 0.7}(u)), "[ColorJitter] expected hue in [0, 0.5], got 0.7");
  CHECK_ERROR(RandomErasing{.noise = true}(u), "[RandomErasing] expected f32 (use ToTensor) for noise, got u8");
  CHECK_REJECTED(Compose, ({nullptr}), "transforms, got none as number 0");
}

TEST_CASE_FIXTURE(OnCpu, "transforms: mixed batches") {
  manual_seed(4);
  const Tensor x = arange(4 * 2 * 6 * 5).to(f32).reshape({4, 2, 6, 5}), y = Tensor::from<int64_t>({2, 0, 2, 1});
  const Tensor rolled = cat({x.narrow(0, 3, 1), x.narrow(0, 0, 3)}, 0);  // each sample's partner
  double total = 0;
  for (int i = 0; i < 200; ++i) {
    const Example up = MixUp{.classes = 3, .alpha = 0.4}({x, y}), cut = CutMix{.classes = 3}({x, y});
    const double part = up.target[0][2].item();  // it is mixed with a sample of class 1
    total += part / 200;
    CHECK(allclose(up.input, x * part + rolled * (1 - part), 1e-4, 1e-3));
    CHECK(allclose(sum(up.target, {1}), ones({4})));
    CHECK(up.target[2][0].item() == doctest::Approx(1 - part));
    const double same = mean(eq(cut.input, x).to(f32)).item();  // fraction of unchanged pixels
    CHECK(cut.target[0][2].item() == doctest::Approx(same));
    const Tensor either = mul(sub(cut.input, x), sub(cut.input, rolled));
    CHECK(max(abs(either)).item() == 0);
  }
  CHECK(std::abs(total - 0.5) < 0.12);
  CHECK_ERROR((MixUp{.classes = 2}({x, y})), "[MixUp] expected targets from 0 to 1, got 2 for sample 0");
  CHECK_ERROR((MixUp{.classes = 3, .alpha = 0}({x, y})), "[MixUp] expected alpha > 0, got 0");
  CHECK_ERROR((CutMix{.classes = 3}({x[0], y})), "[CutMix] expected");
  CHECK_ERROR((MixUp{.classes = 3}({x, y, {x}})), "[MixUp] expected one input and one target, got 2 and 1");
  CHECK_ERROR((MixUp{.classes = 3}({x, y.to(f32)})),
              "[MixUp] expected a batch (N, ...) on the cpu with i64 targets (N)");
}
