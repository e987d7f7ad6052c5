#!/usr/bin/env python3
"""Golden cases of linalg::, distributions:: and the gamma function, made with PyTorch in f64: linalg_golden.py FOLDER
writes linalg.safetensors, distributions.safetensors and gamma_functions.safetensors there. They are kept in tests/golden
and, of extensions, in extensions/NAME/tests/golden. Exit code 77 without PyTorch.

Vectors of svd and eigh are compared up to their signs, as absolute values.
"""
import json
import pathlib
import sys

from checks import need

need("torch", "numpy", "safetensors")
import torch  # noqa: E402
from safetensors.torch import save_file  # noqa: E402
from torch import distributions as D  # noqa: E402
from torch import linalg as L  # noqa: E402

torch.manual_seed(31)
torch.set_default_dtype(torch.float64)
INF = float("inf")


def draw(*shape):
    return torch.randn(*shape)


def regular(*shape):
    return draw(*shape) + 3 * torch.eye(shape[-1])


def positive(*shape):
    x = draw(*shape)
    return x @ x.mT + 0.5 * torch.eye(shape[-1])


def symmetric(*shape):
    x = draw(*shape)
    return x + x.mT


def low_rank(m, n, rank):
    return draw(m, rank) @ draw(rank, n)


def between(low, high, *shape):
    return low + (high - low) * torch.rand(*shape)


def svd(full):
    def run(a):
        k = min(a.shape[-2:])
        u, s, vh = L.svd(a, full_matrices=full)
        return s, u[..., :k].abs(), vh[..., :k, :].abs()
    return run


def eigh(uplo):
    return lambda a: (lambda made: (made[0], made[1].abs()))(L.eigh(a, UPLO=uplo))


def lstsq(rcond=None):
    def run(a, b):
        made = L.lstsq(a, b, rcond=rcond, driver="gelsd")  # uses singular values, as we do
        return made.solution, made.rank
    return run


def linalg_cases():
    for a, b in (((3, 3), (3,)), ((3, 3), (3, 2)), ((2, 3, 3), (2, 3)), ((2, 3, 3), (3, 4)), ((4, 1, 2, 2), (3, 2, 5)), ((17, 17), (17, 3))):
        yield "solve", {}, [regular(*a), draw(*b)], L.solve
    yield "solve", {"left": False}, [regular(2, 3, 3), draw(4, 3)], lambda a, b: L.solve(a, b, left=False)
    for upper in (False, True):
        for left in (False, True):
            for unit in (False, True):
                b = draw(2, 3, 4) if left else draw(4, 3)
                yield ("solve_triangular", {"upper": upper, "left": left, "unit": unit}, [regular(2, 3, 3), b],
                       lambda a, b, upper=upper, left=left, unit=unit: L.solve_triangular(a.triu() if upper else a.tril(), b, upper=upper, left=left, unitriangular=unit))
    for shape in ((1, 1), (3, 3), (2, 3, 5, 5), (7, 7), (0, 3, 3), (2, 0, 0)):
        a = regular(*shape)
        yield "inv", {}, [a], L.inv
        yield "det", {}, [a], L.det
        yield "slogdet", {}, [a], L.slogdet
        yield "matrix_exp", {}, [draw(*shape)], L.matrix_exp
        for n in (0, 1, 3, -2):
            yield "matrix_power", {"n": n}, [a * 0.7], lambda a, n=n: L.matrix_power(a, n)
        for upper in (False, True):
            yield "cholesky", {"upper": upper}, [positive(*shape)], lambda a, upper=upper: L.cholesky(a, upper=upper)
            yield "eigh", {"upper": upper}, [symmetric(*shape)], eigh("U" if upper else "L")
            yield "eigvalsh", {"upper": upper}, [symmetric(*shape)], lambda a, upper=upper: L.eigvalsh(a, UPLO="U" if upper else "L")
    yield "matrix_exp", {}, [draw(4, 4) * 30], L.matrix_exp
    yield "det", {}, [low_rank(4, 4, 3)], L.det
    for shape in ((1, 1), (5, 3), (3, 5), (4, 4), (2, 3, 7, 2), (2, 2, 7), (9, 6), (0, 3), (3, 0)):
        a = draw(*shape)
        m, n = shape[-2:]
        yield "qr", {}, [a], L.qr
        yield "qr", {"mode": "r"}, [a], lambda a: (L.qr(a.detach(), mode="r").R,)
        yield "qr", {"mode": "complete"}, [a], (lambda a: L.qr(a, mode="complete")) if m <= n else lambda a: L.qr(a.detach(), mode="complete")
        for full in (False, True):
            yield "svd", {"full": full}, [a], svd(full)
        yield "svdvals", {}, [a], L.svdvals
        yield "pinv", {}, [a], L.pinv
        if m:
            yield "lstsq", {}, [a, draw(*shape[:-1], 3)], lstsq()
    yield "lstsq", {}, [draw(5, 2), draw(5)], lstsq()
    yield "lstsq", {"rcond": 0.5}, [torch.diag(torch.tensor([4.0, 3.0, 1.0])) + 0.01 * draw(3, 3), draw(3, 2)], lambda a, b: tuple(x.detach() for x in lstsq(0.5)(a, b))
    yield "residuals", {}, [draw(2, 5, 2), draw(2, 5, 3)], lambda a, b: (L.lstsq(a, b, driver="gelsd").residuals.detach(),)
    yield "residuals", {}, [draw(5, 2), draw(5)], lambda a, b: (L.lstsq(a, b, driver="gelsd").residuals.detach(),)
    yield "residuals", {}, [draw(2, 5), draw(2, 3)], lambda a, b: (L.lstsq(a, b, driver="gelsd").residuals.detach(),)
    for args in ({"rtol": 0.3}, {"atol": 1.5}, {"atol": 0.5, "rtol": 0.3}):
        yield "pinv", args, [draw(5, 4)], lambda a, args=args: L.pinv(a, **args)
        yield "matrix_rank", args, [draw(2, 5, 4)], lambda a, args=args: (L.matrix_rank(a, **args),)
    yield "pinv", {"hermitian": True}, [symmetric(2, 4, 4)], lambda a: L.pinv(0.5 * (a + a.mT), hermitian=True)
    yield "matrix_rank", {}, [low_rank(6, 5, 3)], lambda a: (L.matrix_rank(a),)
    yield "matrix_rank", {"hermitian": True}, [positive(4, 4)], lambda a: (L.matrix_rank(a, hermitian=True),)
    for order in (1, -1, 2, -2, INF, -INF, "fro", "nuc"):
        args = {"kind": order} if isinstance(order, str) else {"order": order}
        for shape, dims, keep in (((3, 4), (-2, -1), False), ((2, 4, 3), (-2, -1), True), ((3, 2, 4), (2, 0), False)):
            yield ("matrix_norm", {**args, "dim": list(dims), "keepdim": keep}, [draw(*shape)],
                   lambda a, order=order, dims=dims, keep=keep: L.matrix_norm(a, order, dim=dims, keepdim=keep))
        # torch.linalg.cond overwrites what its own gradient needs in these norms.
        product = order not in (2, -2)
        yield ("cond", args, [regular(2, 3, 3)],
               lambda a, order=order, product=product: L.matrix_norm(a, order) * L.matrix_norm(L.inv(a), order) if product else L.cond(a, order))
    yield "cond", {}, [draw(2, 5, 3)], L.cond
    yield "cond", {"order": 1}, [torch.zeros(2, 2)], lambda a: (L.cond(a.detach(), 1),)
    for order in (0, 0.5, 1, 2, 3.5, -1, -2, INF, -INF):
        for dims, keep in ((None, False), ((1,), True), ((0, 2), False)):
            args = {"order": order, "dim": list(dims) if dims else None, "keepdim": keep}
            x = draw(2, 3, 4)
            yield "vector_norm", args, [x], (lambda a, order=order, dims=dims, keep=keep: (L.vector_norm(a.detach() if order == 0 else a, order, dim=dims, keepdim=keep),))
    yield "vector_norm", {"order": 3}, [torch.tensor([[0.0, 0, 0], [1, 0, -2]])], lambda a: L.vector_norm(a, 3)


def outputs_of(make, entropy=True):
    def run(*inputs):
        d, value = make(*inputs[:-1]), inputs[-1]
        return (d.log_prob(value), d.mean, d.variance) + ((d.entropy(),) if entropy else ())
    return run


def kl(make_p, make_q, count):
    return lambda *inputs: D.kl_divergence(make_p(*inputs[:count]), make_q(*inputs[count:]))


def tril(x):
    return x.tril(-1) + torch.diag_embed(x.diagonal(dim1=-2, dim2=-1).abs() + 0.5)


def distribution_cases():
    loc, scale = draw(3, 1), between(0.3, 3, 4)
    loc2, scale2 = draw(4), between(0.3, 3, 3, 1)
    small, large = between(-2, -1, 3), between(2, 4, 3)
    a, b, c, d = (between(0.2, 6, 3) for _ in range(4))
    p, q = between(0.05, 0.95, 4), between(0.05, 0.95, 4)
    probs, others = between(0.1, 2, 2, 5), between(0.1, 2, 5)
    tril_a, tril_b = tril(draw(2, 3, 3)), tril(draw(3, 3))
    two = {"Normal": (D.Normal, [loc, scale], [loc2, scale2], draw(2, 3, 4)), "Laplace": (D.Laplace, [loc, scale], [loc2, scale2], draw(3, 4)),
           "LogNormal": (D.LogNormal, [loc, scale * 0.3], [loc2, scale2 * 0.3], between(0.1, 4, 3, 4)),
           "Uniform": (D.Uniform, [small, large], [small - 1, large + 1], between(-0.9, 1.9, 5, 3)),
           "Gamma": (D.Gamma, [a, b], [c, d], between(0.1, 5, 4, 3)), "Beta": (D.Beta, [a, b], [c, d], between(0.05, 0.95, 4, 3)),
           "MultivariateNormal": (lambda m, l: D.MultivariateNormal(m, scale_tril=l), [draw(3), tril_a], [draw(2, 3), tril_b], draw(4, 1, 3))}
    one = {"Bernoulli": (D.Bernoulli, p, q, torch.tensor([[0.0], [1.0]])), "Exponential": (D.Exponential, a, b, between(0, 4, 2, 3)),
           "Poisson": (D.Poisson, a, b, torch.tensor([[0.0], [1], [7]])), "Dirichlet": (D.Dirichlet, torch.stack([a, b]), torch.stack([c, d]), torch.softmax(draw(4, 2, 3), -1))}
    for name, (make, first, second, value) in two.items():
        yield f"dist_{name}", {}, [*first, value], outputs_of(make)
        yield f"kl_{name}", {}, [*first, *second], kl(make, make, 2)
    for name, (make, first, second, value) in one.items():
        yield f"dist_{name}", {}, [first, value], outputs_of(make, name != "Poisson")
        yield f"kl_{name}", {}, [first, second], kl(make, make, 1)
    yield "dist_Bernoulli_logits", {}, [draw(5) * 3, (torch.rand(2, 5) < 0.5).double()], outputs_of(lambda l: D.Bernoulli(logits=l))
    yield "dist_StudentT", {}, [between(2.5, 9, 3), draw(4, 3), between(0.5, 2, 3), draw(4, 3)], outputs_of(D.StudentT)
    for logits in (False, True):
        args = {"logits": logits}

        def make(x, logits=logits):
            return D.Categorical(logits=x) if logits else D.Categorical(x)
        yield "dist_Categorical", args, [probs, torch.tensor([[0], [4], [2]])], lambda x, v, make=make: (make(x).log_prob(v), make(x).entropy())
        yield "kl_Categorical", args, [probs, others], kl(make, make, 1)
    yield "kl_Exponential_Gamma", {}, [a, b, c], kl(D.Exponential, D.Gamma, 1)
    yield "kl_Gamma_Exponential", {}, [a, b, c], kl(D.Gamma, D.Exponential, 2)
    yield "kl_Uniform_Normal", {}, [small, large, draw(3), a], kl(D.Uniform, D.Normal, 2)
    yield "kl_Laplace_Normal", {}, [draw(3), a, draw(3), b], kl(D.Laplace, D.Normal, 2)


def gamma_cases():
    for name, x in (("lgamma", between(0.01, 30, 40)), ("lgamma", between(-5, 0, 20)), ("digamma", between(0.01, 30, 40)), ("digamma", between(-5, 0, 20))):
        yield name, {}, [x], getattr(torch, name)
    yield "trigamma", {}, [between(0.01, 30, 40)], lambda x: torch.polygamma(1, x)
    yield "trigamma", {}, [between(-5, 0, 20)], lambda x: torch.polygamma(1, x)


def write(path, about, prefix, cases):
    tensors, listed = {}, []
    for number, (op, args, inputs, run) in enumerate(cases):
        name = f"{op}_{number}"
        given = [x.clone().requires_grad_() if x.is_floating_point() else x for x in inputs]
        out = run(*given)
        out = list(out) if isinstance(out, (tuple, list)) or hasattr(out, "_fields") else [out]
        if op == "qr" and args.get("mode") == "r":
            out = out[-1:]
        mine = {f"in{i}": x for i, x in enumerate(inputs)} | {f"out{i}": x for i, x in enumerate(out)}
        loss = 0
        for i, x in enumerate(out):
            if x.is_floating_point() and x.requires_grad:
                mine[f"gout{i}"] = torch.randn(x.shape)
                loss = loss + (mine[f"gout{i}"] * x.clone()).sum()
        if isinstance(loss, torch.Tensor):
            loss.backward()
            mine |= {f"grad{i}": torch.zeros_like(x) if x.grad is None else x.grad for i, x in enumerate(given) if x.is_floating_point()}
        listed.append({"name": name, "op": prefix + op, "args": args_of(args), "tolerance": 1e-9, "reach": 1.0, "grad_reach": 1.0})
        tensors |= {f"{name}/{what}": t.detach().contiguous().clone() for what, t in mine.items()}
    meta = {"format": "golden-1", "about": about, "made_with": f"torch {torch.__version__}, tests/interop/linalg_golden.py"}
    save_file(tensors, path, {**meta, "cases": json.dumps(listed)})
    print(f"{path.name}: {len(listed)} cases, {len(tensors)} tensors")


def args_of(args):
    return {k: {INF: "inf", -INF: "-inf"}.get(v, v) if isinstance(v, float) else v for k, v in args.items()}


if __name__ == "__main__":
    folder = pathlib.Path(sys.argv[1])
    write(folder / "linalg.safetensors", "torch.linalg", "linalg_", linalg_cases())
    write(folder / "distributions.safetensors", "torch.distributions", "", distribution_cases())
    write(folder / "gamma_functions.safetensors", "the gamma function", "", gamma_cases())
