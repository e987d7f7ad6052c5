// Tensors and Eigen matrices that share memory.
#include "extensions/linear_algebra/eigen.h"

#include <doctest/doctest.h>

#include "tensor/ops.h"
#include "tests/messages.h"

using namespace lockstep;

TEST_CASE("eigen: a tensor of any strides is a matrix on the same memory") {
  const Tensor x = arange(0, 24, 1, {.dtype = f64, .device = cpu}).view({4, 6});
  const auto m = eigen::map<double>(x);
  CHECK((m.rows() == 4 && m.cols() == 6 && m(1, 2) == 8));
  eigen::map<double>(x.t().slice(0, 1, 6, 2))(2, 3) = -1;  // row 5, column 3 of the transpose
  CHECK(x[3][5].item() == -1);
  CHECK(eigen::map<double>(x.select(1, 2)).sum() == 2 + 8 + 14 + 20);
  CHECK(eigen::map<double>(x[0][3]).value() == 3);
  CHECK(eigen::map<double>(x.slice(0, 0, 0)).size() == 0);
  CHECK(eigen::map<double>(x.slice(0, 0, 1).expand({3, 6}))(2, 5) == 5);
  CHECK_ERROR(eigen::map<float>(x), "[eigen] expected f32 on the CPU, got f64");
  CHECK_ERROR(eigen::map<double>(x.view({2, 2, 6})), "at most 2 dims");
}

TEST_CASE("eigen: a matrix becomes a tensor on its memory") {
  Eigen::MatrixXf by_columns = Eigen::MatrixXf::Random(3, 5);
  const float* const data = by_columns.data();
  const float value = by_columns(2, 4);
  const Tensor x = eigen::map(std::move(by_columns));
  CHECK((x.data<float>() == data && x.shape() == Shape({3, 5}) && x.strides() == Strides({1, 3})));
  CHECK(x[2][4].item<float>() == value);
  CHECK(eigen::map(eigen::Matrix<double>(eigen::Matrix<double>::Identity(4, 2))).is_contiguous());
  CHECK(eigen::map(Eigen::VectorXd(Eigen::VectorXd::Ones(7))).shape() == Shape({7}));
  CHECK(eigen::map(Eigen::MatrixXf(0, 3)).shape() == Shape({0, 3}));
}
