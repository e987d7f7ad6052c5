#!/usr/bin/env python3
"""Golden files of npy.h and wav.h, made with NumPy (2.4.6) and soundfile (libsndfile 1.2.2).

files_golden.py FOLDER     writes FOLDER/npy and FOLDER/wav (FOLDER: extensions/files/tests/golden)

wav/expected.npz has what soundfile reads from each file, which torchaudio.load() returns as well. The C++ side of the
comparison is npy_test.cpp and wav_test.cpp. Needs `pip install numpy soundfile`.
"""
import pathlib
import sys

import numpy as np
import soundfile
from numpy.lib import format as npy


def make_npy(folder):
    numbers = np.array([[0, 1, 2], [3, 100, 5]])
    signs = np.array([[0, -1, 2], [3, -100, 5]])
    for name in ("f2", "f4", "f8", "i1", "i4", "i8"):
        np.save(folder / f"{name}.npy", signs.astype(name))
    np.save(folder / "u1.npy", numbers.astype("u1"))
    np.save(folder / "b1.npy", numbers % 2 == 1)
    for name in (">f2", ">f4", ">f8", ">i4", ">i8"):
        np.save(folder / f"big_{name[1:]}.npy", signs.astype(name))
    np.save(folder / "scalar.npy", np.float32(2.5))
    np.save(folder / "empty.npy", np.zeros((0, 3), "i4"))
    np.save(folder / "list.npy", np.arange(5, dtype="f4"))
    np.save(folder / "eight_dims.npy", np.arange(2, dtype="u1").reshape(1, 1, 2, 1, 1, 1, 1, 1))
    np.save(folder / "fortran.npy", np.asfortranarray(np.arange(24, dtype="i4").reshape(2, 3, 4)))
    np.save(folder / "fortran_big.npy", np.asfortranarray(np.arange(6, dtype=">f8").reshape(2, 3)))
    for major in (2, 3):
        with open(folder / f"version_{major}.npy", "wb") as file:
            npy.write_array(file, signs.astype("f4"), version=(major, 0))
    for name in ("c8", "c16"):
        np.save(folder / f"{name}.npy", (signs + 0.5j * numbers).astype(name))
        np.save(folder / f"big_{name}.npy", (signs + 0.5j * numbers).astype(">" + name))
    np.save(folder / "bad_complex.npy", np.array([1j], "c32"))
    np.save(folder / "bad_object.npy", np.array([None, {}], object), allow_pickle=True)
    np.save(folder / "bad_structure.npy", np.array([(1, 2.0)], [("a", "i4"), ("b", "f4")]))
    np.save(folder / "bad_text.npy", np.array(["text"]))
    np.save(folder / "bad_uint16.npy", np.array([1], "u2"))
    arrays = {"a": signs.astype("f4"), "b/c": np.int64(7), "é": np.zeros((2, 0), "f8")}
    np.savez(folder / "stored.npz", **arrays)
    arrays["a"] = np.arange(1000, dtype="f4") % 7
    np.savez_compressed(folder / "deflated.npz", **arrays)


def make_wav(folder):
    frames = np.array([[0, 0.5], [-1, 0.999], [0.25, -0.3], [1 / 3, 1e-3]])  # (frames, channels)
    kinds = {"u8": "PCM_U8", "i16": "PCM_16", "i24": "PCM_24", "i32": "PCM_32", "f32": "FLOAT", "f64": "DOUBLE"}
    expected = {}
    for channels, extensible in ((1, False), (2, False), (2, True)):
        for name, kind in kinds.items():
            name += f"_{channels}" + ("_extensible" if extensible else "")
            path = folder / f"{name}.wav"
            values = frames[:3, :1] if channels == 1 else frames  # an odd number of bytes if a sample has one byte
            soundfile.write(path, values, 8000, kind, format="WAVEX" if extensible else "WAV")
            expected[name] = soundfile.read(path, dtype="float32", always_2d=True)[0].T.copy()
    np.savez(folder / "expected.npz", **expected)
    soundfile.write(folder / "bad_mu_law.wav", frames, 8000, "ULAW")


if __name__ == "__main__":
    for made, make in (("npy", make_npy), ("wav", make_wav)):
        place = pathlib.Path(sys.argv[1]) / made
        place.mkdir(parents=True, exist_ok=True)
        make(place)
