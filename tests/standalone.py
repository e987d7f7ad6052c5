#!/usr/bin/env python3
"""Installs the build into a fresh prefix, and builds and runs examples/standalone/ against it: with one g++ line that
uses pkg-config, and with its own meson project. Nothing of the repository is on the include path.

Usage: standalone.py BUILD
"""
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time

from programs import attempt, finish, output_of as run

ROOT = pathlib.Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples" / "standalone"


def check_trained(output):
    loss = re.search(r"loss ([0-9.e+-]+)\s*$", output.strip())
    if not loss or not float(loss.group(1)) < 1e-2:
        raise RuntimeError(f"expected the example to end with a loss below 0.01, got:\n{output}")


def main(build):
    compiler = shlex.split(os.environ.get("CXX", "g++"))
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        configured = {o["name"]: o["value"] for o in json.loads(run(["meson", "introspect", "--buildoptions", build]))}
        prefix = work / "root" / configured["prefix"].lstrip("/")
        run(["meson", "install", "-C", build, "--no-rebuild", "--quiet", "--destdir", str(work / "root")])
        pc_file = next(prefix.rglob("lockstep.pc"))
        env = dict(os.environ, PKG_CONFIG_PATH=str(pc_file.parent))
        flags = shlex.split(run(["pkg-config", "--cflags", "--libs", "lockstep"], env=env))
        setup = ["meson", "setup", "-Doptimization=0", "-Ddebug=false"]  # compiling takes longer than running

        def standalone_headers():
            """Every installed header compiles by itself, with only -I, but those for nvcc."""
            include = prefix / "include" / "lockstep"
            eigen = include / "extensions" / "linear_algebra" / "eigen.h"  # needs Eigen, which its users have
            for_nvcc = [include / "tensor" / "cuda" / name for name in ("device_math.h", "element.h", "images.h", "nest.h", "simt.h", "vector.h", "warp.h")]
            for_nvcc += (include / "optim" / "cuda").glob("*.h")
            text = "".join(f'#include "{h.relative_to(include)}"\n' for h in sorted(include.rglob("*.h")) if h not in [eigen, *for_nvcc] and "cudasim" not in h.parts)
            (work / "all.cpp").write_text(text)
            if configured["cuda"] == "disabled":  # this machine may have CUDA's headers, another one does not
                needing = [str(h.relative_to(include)) for h in include.rglob("*.h") if re.search(r"^ *#include <(cu|nccl)", h.read_text(), re.M)]
                if needing:
                    raise RuntimeError(f"expected no installed header to need CUDA in a build without it, got {', '.join(needing)}")
            (work / "eigen.cpp").write_text('#include "extensions/linear_algebra/eigen.h"\n')
            flags = subprocess.run(["pkg-config", "--cflags", "eigen3"], capture_output=True, text=True, check=True).stdout.split()
            run(compiler + ["-std=c++20", "-fsyntax-only", "-I", str(include), *flags, str(work / "eigen.cpp")])
            run(compiler + ["-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-Wno-missing-field-initializers", "-I", str(include), str(work / "all.cpp")])

        def mistakes():
            """Compiler messages for common mistakes, one per line."""
            rows = {
                "void a(Net& m) { m(3, 4); }": "a layer is called with what its forward() takes",
                "void b(Net& m) { Net n = m; }": "not copyable: move it, or pass it by reference",
                "void c(Net& m) { ls::optim::AdamW o(m.parameters(), {.learning_rate = 1}); }": "AdamWOptions",
                "void d() { ls::nn::Linear l{{.in = 3, .outt = 4}}; }": "Linear::Options",
                "ls::Tensor e(const ls::Variable& v) { return ls::add(v, v); }": "from ‘lockstep::Variable’ to ‘lockstep::Tensor’",
            }
            text = ("#include <lockstep.h>\nnamespace ls = lockstep;\nstruct Net : ls::nn::Layer<Net> {\n  ls::Variable forward(const ls::Variable& x) { return head(x); }\n"
                    "  void fields(ls::nn::Fields& f) override { f(\"head\", head); }\n  ls::nn::Linear head{{.in = 2, .out = 3}};\n};\n")
            first = text.count("\n") + 1
            (work / "mistakes.cpp").write_text(text + "\n".join(rows) + "\n")
            said = subprocess.run(compiler + ["-std=c++20", "-fsyntax-only", str(work / "mistakes.cpp")] + flags, capture_output=True, text=True, env=dict(os.environ, LC_ALL="C.UTF-8")).stderr
            for i, (line, expected) in enumerate(rows.items()):
                if f"mistakes.cpp:{first + i}:" not in said or expected not in said:
                    raise RuntimeError(f"{line}\nexpected {expected}, got:\n{said}")

        def one_line():
            run(compiler + ["-std=c++20", "-O0", str(EXAMPLE / "main.cpp"), "-o", str(work / "example")] + flags)
            check_trained(run([str(work / "example")]))

        def meson_project():
            run([*setup, str(work / "build"), str(EXAMPLE)], env=env)
            run(["ninja", "-C", str(work / "build")], env=env)
            check_trained(run([str(work / "build" / "example")]))

        def own_models():
            """A user's project: two models, each under several plans, a kill -9, and the same bits."""
            run([*setup, str(work / "models"), str(ROOT / "examples" / "my_model")], env=env)
            run(["ninja", "-C", str(work / "models")], env=env)
            lockstep, vit, characters = str(prefix / "bin" / "lockstep"), str(work / "models" / "vit"), str(work / "models" / "characters")
            for program in ([vit, "--batch", "8"], [characters]):
                said = run([lockstep, "verify", "--plans", "ddp:1x4,ddp:4x1,zero3:2x2,pp2:2x4", "--steps", "3", "--", *program])
                if "identical" not in said:
                    raise RuntimeError(said)
            run([vit, "--ranks", "2", "--plan", "tp2", "--steps", "2"])
            for program, plan in ((vit, "dp2+pp2+tp2+zero1"), (characters, "dp4+pp2")):
                # Bytes and traffic of the planned training, before ranks start.
                said = json.loads(run([lockstep, "plan", "--json", "--flops", "1e12", "--bandwidth", "1e10", "--memory-bandwidth", "1e10", "--", program, "--batch", "8", "--plan", plan]))
                if said["plan"] != plan or len(said["stages"]) != 2 or min(stage["traffic"]["gradients"] for stage in said["stages"]) <= 0:
                    raise RuntimeError(f"plan: {said}")
                said = json.loads(run([lockstep, "simulate", "--json", "--micro-batches", "4", "--", program, "--batch", "8", "--plan", plan]))
                if not 0 < said["step"] < 10 or said["bubble"] <= 0 or "measured here" not in said["costs"]["origin"]:
                    raise RuntimeError(f"simulate: {said}")
            run([vit, "--batch", "8", "--steps", "6", "--ranks", "2", "--out", str(work / "seen"), "--trace", str(work / "seen")])
            run([lockstep, "report", str(work / "seen"), "--out", str(work / "seen.html")])
            said = json.loads(run([lockstep, "simulate", "--json", "--plan", "dp8", "--measure", str(work / "seen"), "--", vit, "--batch", "8"]))
            if said["costs"]["origin"] != "trace of 2 ranks":
                raise RuntimeError(f"simulate: {said}")
            common = [vit, "--batch", "8", "--accumulate", "2", "--steps", "40", "--save-every", "2", "--json"]
            run([*common, "--out", str(work / "calm"), "--trace-bits", str(work / "calm.bits")])
            killed = subprocess.Popen([*common, "--out", str(work / "killed")], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            while not (work / "killed/checkpoints/latest").exists() and killed.poll() is None:
                time.sleep(0.001)
            killed.kill()
            killed.wait()
            run([lockstep, "run", "-n", "2", "--", vit, "--batch", "8", "--steps", "40", "--plan", "dp2+zero3", "--out", str(work / "killed"), "--resume", "--trace-bits", str(work / "killed.bits")])
            if (work / "calm.bits").read_text().splitlines()[-1] != (work / "killed.bits").read_text().splitlines()[-1]:
                raise RuntimeError("a killed run ended with other bits")

        def new_project():
            """What `lockstep new` writes builds with meson and, if installed, with CMake; it trains, also on ranks."""
            project, lockstep = work / "shapes", str(prefix / "bin" / "lockstep")
            run([lockstep, "new", str(project)])
            run([*setup, str(work / "made"), str(project)], env=env)
            run(["ninja", "-C", str(work / "made")])
            programs = [work / "made" / "shapes"]
            if shutil.which("cmake"):
                run(["cmake", "-S", str(project), "-B", str(work / "cmade"), f"-DCMAKE_PREFIX_PATH={prefix}", "-DCMAKE_BUILD_TYPE=Debug"])
                run(["cmake", "--build", str(work / "cmade")])
                programs.append(work / "cmade" / "shapes")
            for program in programs:
                said = run([str(program), "--epochs", "1", "--json"]).strip().split("\n")[-1]
                if json.loads(said)["test_accuracy"] < 0.5:
                    raise RuntimeError(said)
            if "identical" not in run([lockstep, "verify", "--plans", "ddp:1x2,zero3:2x1", "--steps", "3", "--", str(programs[0])]):
                raise RuntimeError("ranks train to other bits")
            for name, expected, code in ((project, "exists already", 1), (work / "2nd", "begins with a letter", 2)):
                said = subprocess.run([lockstep, "new", str(name)], capture_output=True, text=True)
                if said.returncode != code or expected not in said.stderr:
                    raise RuntimeError(f"new {name}: exit code {said.returncode}, {said.stderr}")

        def completion_and_manual():
            script = prefix / "share" / "bash-completion" / "completions" / "lockstep"
            ask = 'PATH=$1:$PATH; source "$2"; COMP_WORDS=(lockstep checkpoint ins); COMP_CWORD=2; _lockstep; echo "${COMPREPLY[0]}"; COMP_WORDS=(lockstep run --max); _lockstep; echo "${COMPREPLY[@]}"'
            said = run(["bash", "-c", ask, "bash", str(prefix / "bin"), str(script)]).split("\n")
            if said[0] != "inspect" or "--max-restarts" not in said[1]:
                raise RuntimeError(f"completion: {said}")
            manual = (prefix / "share" / "man" / "man1" / "lockstep.1").read_text()
            if '.SH "LOCKSTEP RUN"' not in manual or "max\\-restarts" not in manual or not (prefix / "share" / "doc" / "lockstep" / "LICENSE").exists():
                raise RuntimeError("the manual page or the licence is not whole")

        def programs_run():
            run([str(prefix / "bin" / "lockstep"), "env", "--json"])
            for name in ("mlp", "cnn", "gpt"):
                run([str(prefix / "bin" / name), "--help"])

        for step in (standalone_headers, mistakes, one_line, meson_project, own_models, new_project, completion_and_manual, programs_run):
            attempt(step)
    finish()


if __name__ == "__main__":
    main(sys.argv[1])
