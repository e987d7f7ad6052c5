#pragma once
// Discrete Fourier transforms, as in torch.fft, of any length, for f32, f64, c64 and c128. On the CPU only. Each takes
// a Tensor, or a Variable, which has gradients, and returns the same. Before the transform, x is shortened or padded
// with zeros to the size n (or s, a size for each dim). A size of -1 keeps that of x. If dims is empty, the transform
// covers as many of the last dims as s has sizes, or all dims if s is empty, too.
#include <optional>

#include "autograd/ops.h"

namespace lockstep::fft {

/// Scaling of transforms of n elements: `backward` divides the inverse transform by n, `ortho` divides both transforms
/// by sqrt(n), `forward` divides the forward transform by n.
enum class FftNorm { backward, ortho, forward };

/// A transform maps complex numbers to complex numbers, real numbers to the half of their spectrum with frequencies
/// >= 0 (the rest are conjugates), or such a half to real numbers.
enum class FftKind { complex, to_half, from_half };

/// A transform along one dim, called like a function. T is Tensor or Variable.
struct OneDim {
  const char* name;
  FftKind kind;
  bool inverse;
  /// Error for other dtypes, and for an empty length.
  template <class T>
  T operator()(const T& x, std::optional<int64_t> n = {}, int64_t dim = -1, FftNorm norm = FftNorm::backward) const;
};
/// A transform along several dims, called like a function; to_half and from_half apply to the last of them.
struct ManyDims {
  const char* name;
  FftKind kind;
  bool inverse;
  /// Error also for a dim that occurs twice.
  template <class T>
  T operator()(const T& x, const Dims& s = {}, const Dims& dims = {}, FftNorm norm = FftNorm::backward) const;
};
/// ManyDims of the last two dims, unless others are given.
struct TwoDims : ManyDims {
  /// Calls ManyDims.
  template <class T>
  T operator()(const T& x, const Dims& s = {}, const Dims& dims = {-2, -1}, FftNorm norm = FftNorm::backward) const {
    return ManyDims::operator()(x, s, dims, norm);
  }
};
/// A cyclic shift by half the size of each dim (default: all dims), called like a function.
struct Shift {
  const char* name;
  bool back;
  /// Error for a dim that x lacks.
  template <class T> T operator()(const T& x, const Dims& dims = {}) const;
};

/// Transform along one dim; gives complex numbers.
inline constexpr OneDim fft{"fft", FftKind::complex, false};
/// Inverse of fft.
inline constexpr OneDim ifft{"ifft", FftKind::complex, true};
/// Transform of a real x: the n / 2 + 1 non-negative frequencies; the rest are their conjugates.
inline constexpr OneDim rfft{"rfft", FftKind::to_half, false};
/// Inverse of rfft, giving n real numbers. n defaults to 2 * (x.size(dim) - 1).
inline constexpr OneDim irfft{"irfft", FftKind::from_half, true};
/// Transform of a signal s with s[-k] = conj(s[k]); x is its half with k >= 0. The result is real.
inline constexpr OneDim hfft{"hfft", FftKind::from_half, false};
/// Inverse of hfft.
inline constexpr OneDim ihfft{"ihfft", FftKind::to_half, true};
/// fft along several dims.
inline constexpr ManyDims fftn{"fftn", FftKind::complex, false};
/// ifft along several dims.
inline constexpr ManyDims ifftn{"ifftn", FftKind::complex, true};
/// rfft along the last of the dims, fft along the others.
inline constexpr ManyDims rfftn{"rfftn", FftKind::to_half, false};
/// Inverse of rfftn.
inline constexpr ManyDims irfftn{"irfftn", FftKind::from_half, true};
/// fft along two dims.
inline constexpr TwoDims fft2{{"fft2", FftKind::complex, false}};
/// ifft along two dims.
inline constexpr TwoDims ifft2{{"ifft2", FftKind::complex, true}};
/// rfftn along two dims.
inline constexpr TwoDims rfft2{{"rfft2", FftKind::to_half, false}};
/// irfftn along two dims.
inline constexpr TwoDims irfft2{{"irfft2", FftKind::from_half, true}};
/// Moves frequency 0 to the middle of the dims.
inline constexpr Shift fftshift{"fftshift", false};
/// Inverse of fftshift.
inline constexpr Shift ifftshift{"ifftshift", true};

/// The frequency of each output of fft() in cycles per unit of d, for n samples that are d apart:
/// [0, 1, ..., -2, -1] / (n d).
Tensor fftfreq(int64_t n, double d = 1, TensorOptions options = {});
/// The frequency of each output of rfft(): [0, 1, ..., n / 2] / (n d).
Tensor rfftfreq(int64_t n, double d = 1, TensorOptions options = {});

}  // namespace lockstep::fft
