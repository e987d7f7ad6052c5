#!/usr/bin/env python3
"""tests/cudasim/ptxas.py, with a few lines of PTX and of ptxas's output in place of a build.

tests/cudasim/ptxas_test.py        ends with "N passed, N failed"
"""
import contextlib
import importlib.util
import io
import pathlib
import sys
import tempfile

spec = importlib.util.spec_from_file_location("ptxas", pathlib.Path(__file__).with_name("ptxas.py"))
ptxas = importlib.util.module_from_spec(spec)
spec.loader.exec_module(ptxas)

KERNEL = """
\t// .globl\tscale
.visible .entry scale(
\t.param .u64 scale_param_0
)
.maxntid {threads}, 1, 1
.minnctapersm 2
{{
\t.reg .b32 \t%r<9>;
\tld.param.b64 \t%rd1, [scale_param_0];
@%p1 bra \t$L__BB0_2;
\t{load} \t{{%r1, %r2}}, [%rd1+16];
\t{{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%r1], %r2; }}
\tst.shared.v4.b32 \t[%r3], {{%r1, %r1, %r1, %r1}};
\tld.v4.b32 \t{{%r1, %r2, %r3, %r4}}, [%rd2];
\tatom.global.add.f64 \t%fd1, [%rd1], %fd2;
\tst.global.u8 \t[%rd1], %rs1;
\tret;
}}
"""
COPIES = """
.visible .entry copies()
{
\tcp.async.cg.shared.global [%r1], [%rd1], 16, %r2;
\tcp.async.wait_all;
\tcp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r1], [%rd1, {%r2, %r3, %r4, %r5}], [%r6];
\tcp.async.bulk.commit_group;
}

.visible .entry idle()
.maxntid 1024
{
}
"""
SAID = """ptxas info    : Compiling entry function '{name}' for '{arch}'
ptxas info    : Function properties for {name}
    0 bytes stack frame, {spilled} bytes spill stores, 0 bytes spill loads
ptxas info    : Used {registers} registers, used 1 barriers, {shared} bytes smem
"""
passed, failed = 0, []


def check(what, condition, printed=""):
    global passed
    passed += bool(condition)
    if not condition:
        failed.append(f"{what}\n{printed}")


def run(folder, *options, load="ld.global.nc.L1::no_allocate.v2.b32", threads=256, registers=40, spilled=0, shared=4096, more="", ptx=True):
    def module(arch, kernels):
        return f"\n.version 9.0\n.target {arch}\n.address_size 64\n{kernels}".encode() + b"\0"
    body = KERNEL.format(load=load, threads=threads) + COPIES
    text = b"\x7fELF" + module("sm_80", body.replace(".v2.", ".v4.")) + (module("sm_90a", body) if ptx else b"") + b"\0\1\2"
    (folder / "a.cu.o").write_bytes(text)
    said = SAID.format(name="scale", arch="sm_80", registers=200, spilled=80, shared=1)
    for name, used in (("scale", registers), ("copies", 24), ("idle", 8)):
        said += SAID.format(name=name, arch="sm_90a", registers=used, spilled=spilled, shared=shared if name == "scale" else 0)
    (folder / "a.cu.o.ptxas").write_text(said + more)
    printed, sys.argv = io.StringIO(), ["ptxas.py", str(folder), *options]
    with contextlib.redirect_stdout(printed):
        try:
            code = ptxas.main()
        except SystemExit as end:
            code = end.code
    return code, printed.getvalue()


def table(folder):
    ptxas.GOLDEN = folder / "golden"
    code, printed = run(folder, "--update")
    lines = [line for line in ptxas.GOLDEN.read_text().splitlines() if not line.startswith("#")]
    check("three kernels of sm_90a", code == 0 and lines == ["copies | 24 | 0 | 0 | bulk | 16 | -", "idle | 8 | 0 | 0 | - | - | 2", "scale | 40 | 0 | 4096 | 8 | 1 | 6"], (printed, lines))
    check("nothing has changed", run(folder) == (0, "3 passed, 0 failed\n"), run(folder))
    for what, words, change in (
            ("a narrower access", "narrower access", {"load": "ld.global.b32"}),
            ("fewer blocks by registers", "fewer blocks", {"registers": 44}),
            ("fewer blocks by shared memory", "fewer blocks", {"shared": 40000}),
            ("fewer blocks by threads", "fewer blocks", {"threads": 512}),
            ("a fifth more registers", "takes 49 registers, 40 before", {"registers": 49}),
            ("a spill", "spills 4 bytes", {"spilled": 4}),
            ("serialised wgmma", "something", {"more": "ptxas info : (C7510) Potential Performance Loss: something in the function 'scale'"})):
        code, printed = run(folder, **change)
        check(what, code == 1 and words in printed, printed)
    for what, change in (("a wider access", {"load": "ld.global.v4.b32"}), ("more blocks", {"threads": 128}), ("some more registers, as many blocks", {"registers": 40, "shared": 0})):
        code, printed = run(folder, **change)
        check(what, code == 0, printed)
    code, printed = run(folder, ptx=False)
    check("a build without PTX says which option it needs", isinstance(code, str) and "-Dptx_text=true" in code, code)
    ptxas.GOLDEN.write_text(ptxas.GOLDEN.read_text().replace("idle |", "gone |"))
    code, printed = run(folder)
    check("a kernel missing in the file, and one missing in the build", code == 1 and "idle: is not in the golden file" in printed and "gone: is in the golden file" in printed, printed)


def blocks():
    for figures, expected in (((32, 0, 256), 8), ((64, 0, 512), 2), ((65, 0, 512), 1), ((128, 0, 128), 4), ((168, 0, 384), 1), ((255, 0, 32), 8), ((16, 0, 32), 32),
                              ((32, 100 * 1024, 256), 2), ((32, 0, 0), 0), ((40, 0, 33), 24)):
        check(f"blocks of {figures}", ptxas.blocks_of(*figures) == expected, ptxas.blocks_of(*figures))


with tempfile.TemporaryDirectory() as d:
    table(pathlib.Path(d))
blocks()
for text in failed:
    print("FAIL", text)
print(f"{passed} passed, {len(failed)} failed")
sys.exit(len(failed) > 0)
