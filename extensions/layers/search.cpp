// Searching and counting on the CPU. See search.h.
#include "extensions/layers/search.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "autograd/loss_common.h"
#include "tensor/convert.h"
#include "tensor/ops_common.h"

namespace lockstep {
namespace {

/// x on the CPU, row-major.
Tensor at_hand(const Tensor& x) { return x.to(cpu).contiguous(); }
TensorOptions counted_here() { return {.dtype = i64, .device = cpu}; }

template <class T> auto comparable(T value) {
  if constexpr (is_half<T>) return float(value);
  else return value;
}

/// Binary search: the index at which to insert `value` into a sorted row of n elements (NaN is last), after equal
/// elements if `right`, else before them. If `order` is not null, element i of the sorted row is row[order[i]].
template <class T>
int64_t place_in(const T* row, const int64_t* order, int64_t n, decltype(comparable(T())) value, bool right) {
  int64_t first = 0, last = n;
  while (first < last) {
    const int64_t middle = first + (last - first) / 2;
    const auto there = comparable(row[order ? order[middle] : middle]);
    if (right ? !(there > value) : !(there >= value)) first = middle + 1;
    else last = middle;
  }
  return first;
}

}  // namespace

Tensor searchsorted(const Tensor& sequence, const Tensor& values, const SearchOptions& options) {
  const char* op = "searchsorted";
  check_defined(op, sequence), check_defined(op, values);
  check_same_dtype(op, sequence, values), check_same_device(op, sequence, values);
  LOCKSTEP_CHECK(sequence.dim() >= 1, "[", op, "] expected a sequence of 1 dim or more, got a scalar; unsqueeze(0) it");
  const bool fits = sequence.dim() == 1 ||
                    (sequence.dim() == values.dim() && without_last(sequence.shape()) == without_last(values.shape()));
  LOCKSTEP_CHECK(fits, "[", op, "] expected a sequence of one dim, or with the sizes of the values ", values.shape(),
                 " in all dims but the last, got ", sequence.shape(), "; reshape the sequence");
  const int64_t n = sequence.size(-1);
  Tensor order;
  if (options.sorter.defined()) {
    LOCKSTEP_CHECK(options.sorter.dtype() == i64 && options.sorter.shape() == sequence.shape(), "[", op,
                   "] expected a sorter of i64 ", sequence.shape(), ", got ", options.sorter.dtype(), " ",
                   options.sorter.shape(), "; sort() gives one");
    order = at_hand(options.sorter);
    for (int64_t i = 0; i < order.numel(); ++i)
      LOCKSTEP_CHECK(order.data<int64_t>()[i] >= 0 && order.data<int64_t>()[i] < n, "[", op,
                     "] expected a sorter with indices in [0, ", n, "), got ", order.data<int64_t>()[i]);
  }
  const Tensor rows = at_hand(sequence), wanted = at_hand(values), out = empty(values.shape(), counted_here());
  if (wanted.numel() == 0) return out.to(values.device());
  const int64_t of_row = sequence.dim() == 1 ? wanted.numel() : wanted.size(-1);
  dispatch_numbers(rows.dtype(), op, [&]<class T> {
    const T *all = n > 0 ? rows.data<T>() : nullptr, *value = wanted.data<T>();
    for (int64_t i = 0; i < wanted.numel(); ++i) {
      const int64_t start = i / of_row * n;
      out.data<int64_t>()[i] = place_in(all + start, order.defined() && n > 0 ? order.data<int64_t>() + start : nullptr,
                                        n, comparable(value[i]), options.right);
    }
  });
  return out.to(values.device());
}

Tensor bucketize(const Tensor& values, const Tensor& boundaries, bool right) {
  check_defined("bucketize", boundaries);
  LOCKSTEP_CHECK(boundaries.dim() == 1, "[bucketize] expected boundaries of one dim, got ", boundaries.shape());
  return searchsorted(boundaries, values, {.right = right});
}

Tensor bincount(const Tensor& x, const Tensor& weights, int64_t minlength) {
  check_defined("bincount", x);
  LOCKSTEP_CHECK(x.dim() == 1 && !is_floating(x.dtype()) && !is_complex(x.dtype()) && x.dtype() != boolean,
                 "[bincount] expected a list of whole numbers, got ", x.dtype(), " ", x.shape(),
                 "; use .to(i64).flatten()");
  LOCKSTEP_CHECK(minlength >= 0, "[bincount] expected minlength >= 0, got ", minlength);
  const bool weighted = weights.defined();
  if (weighted) {
    check_same_device("bincount", x, weights);
    LOCKSTEP_CHECK(weights.shape() == x.shape(), "[bincount] expected a weight for each element, ", x.shape(), ", got ",
                   weights.shape(), "; reshape the weights");
  }
  const Tensor list = at_hand(x).to(i64);
  int64_t bins = minlength;
  for (int64_t i = 0; i < list.numel(); ++i) {
    const int64_t value = list.data<int64_t>()[i];
    LOCKSTEP_CHECK(value >= 0, "[bincount] expected elements >= 0, got ", value, " at position ", i, "; leave it out");
    bins = std::max(bins, value + 1);
  }
  if (!weighted || list.numel() == 0) {
    const Tensor out = zeros({bins}, counted_here());
    for (int64_t i = 0; i < list.numel(); ++i) ++out.data<int64_t>()[list.data<int64_t>()[i]];
    return out.to(x.device());
  }
  const Tensor added = at_hand(weights.dtype() == f32 ? weights : weights.to(f64));
  const Tensor out = zeros({bins}, {.dtype = added.dtype(), .device = cpu});
  dispatch<float, double>(added.dtype(), "bincount", [&]<class T> {
    for (int64_t i = 0; i < list.numel(); ++i) out.data<T>()[list.data<int64_t>()[i]] += added.data<T>()[i];
  });
  return out.to(x.device());
}

Tensor histc(const Tensor& x, int64_t bins, double low, double high) {
  check_defined("histc", x);
  LOCKSTEP_CHECK(x.dtype() == f32 || x.dtype() == f64, "[histc] expected f32 or f64, got ", x.dtype(),
                 "; convert with .to(f32)");
  LOCKSTEP_CHECK(bins >= 1, "[histc] expected bins >= 1, got ", bins);
  LOCKSTEP_CHECK(low <= high, "[histc] expected low <= high, got ", low, " and ", high);
  const Tensor all = at_hand(x), out = zeros({bins}, {.dtype = x.dtype(), .device = cpu});
  const int64_t n = all.numel();
  if (n == 0) return out.to(x.device());
  dispatch<float, double>(x.dtype(), "histc", [&]<class T> {
    const T* p = all.data<T>();
    T first = T(low), last = T(high);
    if (first == last) {
      first = last = p[0];
      for (int64_t i = 0; i < n; ++i) {  // a NaN stays in first or last, and is refused below
        first = p[i] >= first ? first : p[i];
        last = p[i] <= last ? last : p[i];
      }
    }
    LOCKSTEP_CHECK(std::isfinite(first) && std::isfinite(last), "[histc] expected a finite range, got ", first, " to ",
                   last, "; give finite low < high");
    if (first == last) first -= 1, last += 1;
    for (int64_t i = 0; i < n; ++i) {
      if (!(p[i] >= first && p[i] <= last)) continue;
      const int64_t bin = int64_t((p[i] - first) / (last - first) * T(bins));
      out.data<T>()[std::min(bin, bins - 1)] += 1;
    }
  });
  return out.to(x.device());
}

namespace {

/// First index where two rows of k elements differ, or k; NaN differs from everything.
template <class T> int64_t differs_at(const T* a, const T* b, int64_t k) {
  int64_t i = 0;
  while (i < k && comparable(a[i]) == comparable(b[i])) ++i;
  return i;
}

/// True if row a comes before row b: NaN is larger than all numbers and equal to NaN.
template <class T> bool row_before(const T* a, const T* b, int64_t k) {
  for (int64_t i = 0; i < k; ++i) {
    i += differs_at(a + i, b + i, k - i);
    if (i == k) return false;
    const auto x = comparable(a[i]), y = comparable(b[i]);
    const bool x_is_number = x == x, y_is_number = y == y;
    if (x_is_number || y_is_number) return x_is_number && (!y_is_number || x < y);
  }
  return false;
}

/// The distinct slices of x along d. x and rows, its slices as rows, are on the CPU. order (i64) lists all slices so
/// that equal ones are neighbours.
Unique distinct(const char* op, const Tensor& x, int d, const Tensor& rows, const Tensor& order) {
  const int64_t n = x.size(d), k = n > 0 ? rows.numel() / n : 0;
  const Tensor inverse = empty({n}, counted_here());
  const int64_t* const items = n > 0 ? order.data<int64_t>() : nullptr;
  std::vector<int64_t> firsts, counts;  // of each run of equal slices
  dispatch_all(x.dtype(), op, [&]<class T> {
    const T* const p = n > 0 ? rows.data<T>() : nullptr;
    for (int64_t i = 0; i < n; ++i) {
      if (i == 0 || differs_at(p + items[i] * k, p + items[i - 1] * k, k) < k)
        firsts.push_back(items[i]), counts.push_back(0);
      ++counts.back();
      inverse.data<int64_t>()[items[i]] = int64_t(firsts.size()) - 1;
    }
  });
  const auto list = [](const std::vector<int64_t>& all) { return Tensor::from(all, {int64_t(all.size())}).to(cpu); };
  return {index_select(x, d, list(firsts)), inverse, list(counts)};
}

Unique moved_to(Device device, const Unique& made) {
  return {made.values.to(device), made.inverse.to(device), made.counts.to(device)};
}

Unique unique_elements(const char* op, const Tensor& x, bool sorted) {
  check_defined(op, x);
  const Tensor list = at_hand(x).reshape({x.numel()});
  Unique made = distinct(op, list, 0, list, sorted ? sort(list, 0).indices : arange(x.numel(), counted_here()));
  made.inverse = made.inverse.reshape(x.shape());
  return moved_to(x.device(), made);
}

Unique unique_slices(const char* op, const Tensor& x, int64_t dim, bool sorted) {
  check_defined(op, x);
  LOCKSTEP_CHECK(x.dim() >= 1 && dim >= -x.dim() && dim < x.dim(), "[", op, "] expected one dim or more, and dim in [",
                 -x.dim(), ", ", x.dim(), "), got shape ", x.shape(), " and dim ", dim);
  const int d = int(dim < 0 ? dim + x.dim() : dim);
  Dims to_front{d};
  for (int other = 0; other < x.dim(); ++other) {
    LOCKSTEP_CHECK(other == d || x.size(other) > 0, "[", op, "] expected slices with elements, got dim ", dim, " of ",
                   x.shape(), "; choose another dim");
    if (other != d) to_front.push_back(other);
  }
  const int64_t n = x.size(d);
  const Tensor here = x.to(cpu), rows = here.permute(to_front).contiguous(), order = arange(n, counted_here());
  if (sorted && n > 0)
    dispatch_all(x.dtype(), op, [&]<class T> {
      const int64_t k = rows.numel() / n;
      const auto row = [p = rows.data<T>(), k](int64_t i) { return p + i * k; };
      std::stable_sort(order.data<int64_t>(), order.data<int64_t>() + n,
                       [&](int64_t a, int64_t b) { return row_before(row(a), row(b), k); });
    });
  return moved_to(x.device(), distinct(op, here, d, rows, order));
}

}  // namespace

Unique unique(const Tensor& x) { return unique_elements("unique", x, true); }
Unique unique(const Tensor& x, int64_t dim) { return unique_slices("unique", x, dim, true); }
Unique unique_consecutive(const Tensor& x) { return unique_elements("unique_consecutive", x, false); }
Unique unique_consecutive(const Tensor& x, int64_t dim) { return unique_slices("unique_consecutive", x, dim, false); }

Tensor nonzero(const Tensor& x) {
  check_defined("nonzero", x);
  const Tensor all = at_hand(x);
  std::vector<int64_t> found;
  dispatch_all(x.dtype(), "nonzero", [&]<class T> {
    const T* p = all.numel() > 0 ? all.data<T>() : nullptr;
    for (int64_t i = 0; i < all.numel(); ++i)
      if (!(comparable(p[i]) == decltype(comparable(p[i]))(0))) found.push_back(i);
  });
  const int64_t count = int64_t(found.size()), dims = x.dim();
  const Tensor out = empty({count, dims}, counted_here());
  for (int64_t k = 0; k < count; ++k) {
    int64_t rest = found[size_t(k)];
    for (int64_t d = dims; d-- > 0; rest /= x.shape()[int(d)])
      out.data<int64_t>()[k * dims + d] = rest % x.shape()[int(d)];
  }
  return out.to(x.device());
}

std::vector<Tensor> nonzero_places(const Tensor& x) {
  check_defined("nonzero_places", x);
  const Tensor all = nonzero(x.dim() == 0 ? x.reshape({1}) : x);
  std::vector<Tensor> places;
  for (int64_t d = 0; d < all.size(1); ++d) places.push_back(all.select(1, d).contiguous());
  return places;
}

namespace {

/// Returns one index per dim of `shape`. A bool mask over several dims becomes a list of positions for each of them.
/// An undefined index selects the whole dim, and so do dims without an index.
std::vector<Tensor> by_dims(const char* op, const Shape& shape, const std::vector<Tensor>& indices) {
  std::vector<Tensor> all;
  for (const Tensor& given : indices) {
    const int d = int(all.size());
    if (!given.defined()) {
      all.emplace_back();
    } else if (given.dtype() == boolean) {
      bool fits = d + given.dim() <= shape.rank();
      for (int i = 0; fits && i < given.dim(); ++i) fits = given.shape()[i] == shape[d + i];
      LOCKSTEP_CHECK(fits && given.dim() >= 1, "[", op, "] expected a mask whose sizes equal those of ", shape,
                     " from dim ", d, " on, got ", given.shape(), "; reshape the mask");
      for (const Tensor& places : nonzero_places(given.to(cpu))) all.push_back(places);
    } else {
      LOCKSTEP_CHECK(given.dtype() == i64, "[", op, "] expected indices of i64 or bool, got ", given.dtype(),
                     "; convert with .to(i64)");
      all.push_back(at_hand(given));
    }
  }
  LOCKSTEP_CHECK(int(all.size()) <= shape.rank(), "[", op, "] expected indices for at most ", shape.rank(),
                 " dims, got ", all.size(), "; give fewer");
  all.resize(size_t(shape.rank()));
  return all;
}

/// The index with negative values counted from the end. Error for values out of range.
Tensor wrapped(const char* op, const Tensor& index, int64_t size, int d) {
  const Tensor out = empty(index.shape(), counted_here());
  for (int64_t i = 0; i < index.numel(); ++i) {
    const int64_t value = index.data<int64_t>()[i];
    LOCKSTEP_CHECK(value >= -size && value < size, "[", op, "] expected indices in [", -size, ", ", size, ") for dim ",
                   d, ", got ", value, " at position ", i, "; correct the indices");
    out.data<int64_t>()[i] = value < 0 ? value + size : value;
  }
  return out;
}

}  // namespace

Tensor indexed_places(const char* op, const Shape& shape, const std::vector<Tensor>& indices) {
  const std::vector<Tensor> all = by_dims(op, shape, indices);
  // NumPy's rule: the indices' common shape replaces the indexed dims if these are neighbours, else it comes first.
  Shape common;
  int first = -1, last = -1, count = 0;
  for (int d = 0; d < shape.rank(); ++d)
    if (const Tensor& index = all[size_t(d)]; index.defined()) {
      common = count == 0 ? index.shape() : broadcast_shapes(op, common, index.shape());
      first = first < 0 ? d : first, last = d, ++count;
    }
  // The number of dims that precede the indices' common shape in the result.
  const int before = count > 0 && last - first + 1 == count ? first : 0;
  LOCKSTEP_CHECK(common.rank() + shape.rank() - count <= 8, "[", op, "] expected a result of at most 8 dims, got ",
                 common.rank() + shape.rank() - count, "; give indices of fewer dims");
  Shape result;
  for (int d = 0; d < shape.rank(); ++d)
    if (!all[size_t(d)].defined()) result.push_back(shape[d]);
  for (int i = 0; i < common.rank(); ++i) result.insert(before + i, common[i]);
  Tensor places = zeros(result, counted_here());
  int64_t stride = 1;
  int rest = shape.rank() - count;  // the number of dims without an index that come before dim d
  for (int d = shape.rank() - 1; d >= 0; stride *= shape[d], --d) {
    const Tensor& index = all[size_t(d)];
    Shape own = Shape::filled(result.rank(), 1);
    if (index.defined()) {
      std::copy(index.shape().begin(), index.shape().end(), own.begin() + before + common.rank() - index.dim());
    } else {
      --rest;
      own[rest < before ? rest : rest + common.rank()] = shape[d];
    }
    const Tensor part = index.defined() ? wrapped(op, index, shape[d], d) : arange(shape[d], counted_here());
    places = add(places, mul_scalar(part.reshape(own), stride).expand(result));
  }
  return places;
}

}  // namespace lockstep
