// Segments digits in noise with a small U-Net (Ronneberger et al., 2015).
//   build/examples/unet --steps 100
#include <lockstep/operations.h>
#include <lockstep/vision.h>

#include "examples/ports/port.h"

namespace ls = lockstep;
using ls::Tensor, ls::Variable;

struct UNet : ls::nn::Layer<UNet> {
  /// images (B, 1, H, W); returns scores (B, 1, H, W), positive for pixels of the digit. H and W are multiples of 4.
  Variable forward(const Variable& images) {
    const Variable fine = ls::relu(down1(images)), middle = ls::relu(down2(pool(fine)));
    const Variable coarse = ls::relu(bottom(pool(middle)));
    const Variable up = ls::relu(merge2(ls::cat({up2(coarse), middle}, 1)));
    return head(ls::relu(merge1(ls::cat({up1(up), fine}, 1))));
  }
  void fields(ls::nn::Fields& f) override {
    f("down1", down1)("down2", down2)("bottom", bottom)("up2", up2)("merge2", merge2)("up1", up1)("merge1", merge1)(
        "head", head);
  }

  ls::nn::Conv2d down1{{.in = 1, .out = 8, .kernel = 3, .padding = 1}},
      down2{{.in = 8, .out = 16, .kernel = 3, .padding = 1}}, bottom{{.in = 16, .out = 32, .kernel = 3, .padding = 1}};
  ls::nn::ConvTranspose2d up2{{.in = 32, .out = 16, .kernel = 2, .stride = 2}},
      up1{{.in = 16, .out = 8, .kernel = 2, .stride = 2}};
  ls::nn::Conv2d merge2{{.in = 32, .out = 16, .kernel = 3, .padding = 1}},
      merge1{{.in = 16, .out = 8, .kernel = 3, .padding = 1}}, head{{.in = 8, .out = 1, .kernel = 1}};
  ls::nn::MaxPool2d pool{{.kernel = 2}};
};

int main(int argc, char** argv) {
  return ports::run(argc, argv, "segmentation of digits by a U-Net", {.steps = 60, .batch = 8, .lr = 3e-3},
                    [](ports::Run& run) {
                      UNet model;
                      run.start(model);
                      ls::optim::Adam optimizer(model.parameters(), {.lr = run.lr});
                      while (run.next()) {
                        const Tensor clean = run.digits(run.batch).images;
                        const Variable noisy(clean + run.normal(clean.shape()) * 0.3),
                            wanted(ls::gt(clean, ls::full({}, 0.5)).to(ls::f32));
                        const Variable loss = ls::bce_with_logits(model(noisy), wanted);
                        optimizer.zero_grad();
                        loss.backward();
                        optimizer.step();
                        run.report(loss);
                      }
                    });
}
