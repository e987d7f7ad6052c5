#!/usr/bin/env python3
"""Golden files of the pictures in extensions/vision/, made with Pillow (13.0.0) and torchvision (0.29.2).

pictures_golden.py FOLDER     writes FOLDER/pictures (FOLDER: extensions/vision/tests/golden)

files.safetensors has what Pillow reads from each file; transforms.safetensors has a picture and torchvision's results
(Pillow's, if u8 is resized); written.safetensors has two pictures and the bytes of the JPEG files that Pillow writes, by
quality. The C++ side of the comparison is extensions/vision/tests/pictures_test.cpp. Needs `pip install torch
torchvision numpy pillow safetensors`.
"""
import io
import pathlib
import struct
import sys
import zlib

import numpy as np
import torch
import torchvision.transforms.functional as F
from PIL import Image
from safetensors.numpy import save_file
from torchvision.transforms import InterpolationMode


def smooth(height, width, channels, seed):
    """A picture with edges and gradients."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    planes = [(a * x + b * y + 60 * ((x * (c + 1) // 5 + y // 4) % 2) + rng.integers(0, 9, (height, width))) % 256 for c, (a, b) in enumerate([(7, 3), (2, 9), (11, -5), (-4, 6)][:channels])]
    return np.stack(planes, -1).astype(np.uint8)


def png(width, height, bits, colour, rows, interlaced=False, chunks=b""):
    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, int(interlaced))) + chunks + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def adam7(pixels):
    rows = b""
    for y0, x0, dy, dx in ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1)):
        for row in pixels[y0::dy, x0::dx]:
            if row.size:
                rows += b"\0" + row.tobytes()
    return rows


def planes(image):
    pixels = np.asarray(image)
    return np.ascontiguousarray(pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1))


def save(folder, name, arrays):
    save_file(arrays, folder / f"{name}.safetensors", {"made_with": "Pillow 13.0.0, torchvision 0.29.2, tests/interop/pictures_golden.py"})


def make_files(folder):
    expected = {}

    def add(name, image, read=None, **options):
        image.save(folder / name, **options)
        again = Image.open(folder / name)
        expected[name] = planes(read(again) if read else again)
    rgb, rgba = Image.fromarray(smooth(11, 13, 3, 1)), Image.fromarray(smooth(7, 5, 4, 2), "RGBA")
    gray = Image.fromarray(smooth(9, 10, 1, 3)[..., 0])
    add("gray.png", gray)
    add("rgb.png", rgb)
    add("rgba.png", rgba)
    add("gray_alpha.png", Image.fromarray(smooth(6, 7, 2, 4), "LA"))
    add("palette.png", rgb.quantize(7), lambda i: i.convert("RGB"))
    clear = rgb.quantize(5)
    add("palette_alpha.png", clear, lambda i: i.convert("RGBA"), transparency=bytes([0, 90, 255]))
    add("one_bit.png", gray.convert("1"), lambda i: i.convert("L"))
    deep = (np.arange(8 * 9).reshape(8, 9) * 911 % 65536).astype(np.uint16)
    (folder / "gray_16.png").write_bytes(png(9, 8, 16, 0, b"".join(b"\0" + row.astype(">u2").tobytes() for row in deep)))
    expected["gray_16.png"] = np.rint(deep[None] / 257).astype(np.uint8)
    (folder / "interlaced.png").write_bytes(png(13, 11, 8, 2, adam7(np.asarray(rgb)), True))
    expected["interlaced.png"] = planes(Image.open(folder / "interlaced.png"))
    add("gray.jpg", gray, quality=90)
    add("rgb.jpg", Image.fromarray(smooth(33, 35, 3, 5)), quality=85)
    add("progressive.jpg", Image.fromarray(smooth(24, 17, 3, 6)), quality=70, progressive=True)
    add("full_colour.jpg", rgb, quality=95, subsampling=0)
    exif = Image.Exif()
    exif[0x0112] = 6  # rotated
    add("exif.jpg", rgb, exif=exif)
    inks = Image.fromarray(smooth(12, 14, 4, 7), "CMYK")
    add("cmyk.jpg", inks, lambda i: Image.fromarray(lights(np.asarray(i))), quality=95)
    (folder / "bad_cut.jpg").write_bytes((folder / "rgb.jpg").read_bytes()[:-200])
    expected["as_gray"] = planes(rgb.convert("L"))
    save(folder, "files", expected)


def lights(inks):
    c = 255 - inks.astype(int)  # Pillow uses 255 for full ink
    return ((c[..., :3] * c[..., 3:] + 127) // 255).astype(np.uint8)


def make_written(folder):
    made = {}
    for kind, channels in (("gray", 1), ("rgb", 3)):
        pixels = smooth(33, 21, channels, 9)
        made[kind] = np.ascontiguousarray(pixels.transpose(2, 0, 1))
        for quality in (1, 30, 75, 100):
            file = io.BytesIO()
            Image.fromarray(pixels[..., 0] if channels == 1 else pixels).save(file, "JPEG", quality=quality)
            made[f"{kind}_{quality}"] = np.frombuffer(file.getvalue(), np.uint8)
    save(folder, "written", made)


def make_transforms(folder):
    u8 = torch.from_numpy(smooth(17, 23, 3, 8).transpose(2, 0, 1).copy())
    f32 = (u8.float() / 255 * 0.9 + 0.05)
    made = {"u8": u8, "f32": f32}
    for height, width in ((8, 9), (17, 9), (40, 31), (5, 60), (1, 1)):
        # otherwise Pillow might resize columns first
        narrow = Image.fromarray(u8.numpy().transpose(1, 2, 0)).resize((width, 17), Image.Resampling.BILINEAR)
        made[f"resize_{height}_{width}_u8"] = torch.from_numpy(planes(narrow.resize((width, height), Image.Resampling.BILINEAR)))
        made[f"resize_{height}_{width}_f32"] = F.resize(f32, [height, width], antialias=True)
    near, linear = InterpolationMode.NEAREST, InterpolationMode.BILINEAR
    both = {
        "grayscale": lambda x: F.rgb_to_grayscale(x, 1), "grayscale_3": lambda x: F.rgb_to_grayscale(x, 3),
        "brightness_0.3": lambda x: F.adjust_brightness(x, 0.3), "brightness_1.7": lambda x: F.adjust_brightness(x, 1.7),
        "contrast_0.4": lambda x: F.adjust_contrast(x, 0.4), "contrast_1.6": lambda x: F.adjust_contrast(x, 1.6),
        "saturation_0": lambda x: F.adjust_saturation(x, 0), "saturation_1.8": lambda x: F.adjust_saturation(x, 1.8),
        "hue_0.2": lambda x: F.adjust_hue(x, 0.2), "hue_-0.4": lambda x: F.adjust_hue(x, -0.4),
        "sharpness_0.5": lambda x: F.adjust_sharpness(x, 0.5), "sharpness_1.9": lambda x: F.adjust_sharpness(x, 1.9),
        "autocontrast": F.autocontrast, "solarize": lambda x: F.solarize(x, 100 if x.dtype == torch.uint8 else 0.4),
        "rotate_33": lambda x: F.rotate(x, 33.0, near), "rotate_-71.5": lambda x: F.rotate(x, -71.5, linear, fill=[0.5] if x.is_floating_point() else [77]),
        "shear": lambda x: F.affine(x, 0.0, [0, 0], 1.0, [float(np.degrees(np.arctan(0.29))), 0.0], near, center=[0, 0]),
        "move": lambda x: F.affine(x, 0.0, [4, -3], 1.0, [0.0, 0.0], near),
        "center_crop_6_7": lambda x: F.center_crop(x, [6, 7]), "center_crop_20_10": lambda x: F.center_crop(x, [20, 10]), "center_crop_30_40": lambda x: F.center_crop(x, [30, 40]),
        "hflip": F.hflip, "vflip": F.vflip, "shorter_8": lambda x: torch.tensor(F.resize(x, [8], antialias=True).shape),
    }
    for name, change in both.items():
        for kind, x in (("u8", u8), ("f32", f32)):
            made[f"{name}_{kind}"] = change(x)
    made["posterize_3_u8"] = F.posterize(u8, 3)
    made["equalize_u8"] = F.equalize(u8)
    dark = (u8 // 9) * 2
    made["dark"], made["equalize_dark_u8"] = dark, F.equalize(dark)
    made["normalize_f32"] = F.normalize(f32, [0.4, 0.5, 0.6], [0.2, 0.25, 0.3])
    made["to_tensor"] = F.convert_image_dtype(u8, torch.float32)
    save(folder, "transforms", {name: np.ascontiguousarray(x.numpy()) for name, x in made.items()})


if __name__ == "__main__":
    place = pathlib.Path(sys.argv[1]) / "pictures"
    place.mkdir(parents=True, exist_ok=True)
    make_files(place)
    make_written(place)
    make_transforms(place)
