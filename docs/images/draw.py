#!/usr/bin/env python3
"""Draws tape.svg, tensor.svg and ddp.svg. Run it after a change here: python3 docs/images/draw.py"""
import pathlib

HERE = pathlib.Path(__file__).resolve().parent
INK, SOFT, BLUE, ORANGE, GREEN = "#24292f", "#8c959f", "#ddf4ff", "#fff1e5", "#dafbe1"


class Drawing:
    def __init__(self, width, height):
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            'font-family="Helvetica,Arial,sans-serif" font-size="14">',
            f'<defs><marker id="a" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" fill="{INK}"/></marker>'
            f'<marker id="b" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" fill="#bc4c00"/></marker></defs>',
            f'<rect width="{width}" height="{height}" fill="white"/>',
        ]

    def box(self, x, y, w, h, lines, fill=BLUE, mono=False):
        self.parts.append(f'<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="5" fill="{fill}" stroke="{INK}"/>')
        for i, line in enumerate(lines):
            self.text(x + w / 2, y + h / 2 + 5 + 17 * (i - (len(lines) - 1) / 2), line, "middle", mono=mono)

    def text(self, x, y, line, anchor="start", color=INK, mono=False, size=14):
        line = line.replace("&", "&amp;").replace("<", "&lt;")
        font = ' font-family="Menlo,Consolas,monospace"' if mono else ""
        self.parts.append(f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="{color}" font-size="{size}"{font}>{line}</text>')

    def arrow(self, x1, y1, x2, y2, back=False):
        style = 'stroke="#bc4c00" stroke-dasharray="5 4" marker-end="url(#b)"' if back else f'stroke="{INK}" marker-end="url(#a)"'
        self.parts.append(f'<path d="M{x1} {y1}L{x2} {y2}" fill="none" stroke-width="1.4" {style}/>')

    def save(self, name):
        (HERE / name).write_text("\n".join(self.parts + ["</svg>"]) + "\n")


def tape():
    d = Drawing(780, 330)
    d.text(20, 26, "Forward (solid) records: a result holds its node, a node points at the makers of its inputs.")
    d.text(20, 46, "Backward (dashed) walks: nodes by descending number; each is freed as soon as it has run.", color="#bc4c00")
    d.box(20, 80, 90, 44, ["x", "no grad"], "white")
    d.box(20, 160, 90, 44, ["w", "leaf #0"], GREEN)
    d.box(20, 240, 90, 44, ["b", "leaf #0"], GREEN)
    nodes = [(200, 120, ["matmul #1", "saved: x"]), (350, 120, ["add #2", "saved: nothing"]), (500, 120, ["relu #3", "saved: output"]), (640, 120, ["sum #4", "saved: shape"])]
    for x, y, lines in nodes:
        d.box(x, y, 110, 50, lines)
    d.arrow(110, 102, 200, 138)
    d.arrow(110, 176, 200, 152)
    d.arrow(310, 139, 350, 139)
    d.arrow(460, 139, 500, 139)
    d.arrow(610, 139, 640, 139)
    d.arrow(110, 250, 352, 170)
    for a, b in ((640, 610), (500, 460), (350, 310)):
        d.arrow(a, 156, b, 156, back=True)
    d.arrow(200, 166, 110, 192, back=True)
    d.arrow(372, 170, 110, 266, back=True)
    d.box(640, 60, 110, 34, ["loss"], ORANGE)
    d.arrow(695, 94, 695, 120)
    d.text(20, 312, "w.grad += d loss / d w, then the leaf's listeners are told: its gradient is complete.", color=INK)
    d.save("tape.svg")


def tensor():
    d = Drawing(840, 360)
    d.text(20, 26, "Tensors are handles; the bytes are in a Storage. Three tensors on one storage of 12 numbers:")
    for i in range(12):
        d.box(20 + 44 * i, 44, 44, 34, [str(i)], ORANGE, mono=True)
    d.text(560, 66, "storage, version 0", color=SOFT)
    views = [
        (20, "x", "shape (3, 4)  strides (4, 1)  offset 0", [[4 * r + c for c in range(4)] for r in range(3)], "row-major, contiguous"),
        (290, "x.t()", "shape (4, 3)  strides (1, 4)  offset 0", [[4 * c + r for c in range(3)] for r in range(4)], "same bytes, other order"),
        (565, "x.slice(1, 1, 4, 2)", "shape (3, 2)  strides (4, 2)  offset 1", [[4 * r + 1 + 2 * c for c in range(2)] for r in range(3)], "every second column from 1"),
    ]
    for x, name, described, rows, note in views:
        d.text(x, 120, name, mono=True)
        d.text(x, 140, described, mono=True, size=11)
        for r, row in enumerate(rows):
            for c, value in enumerate(row):
                d.box(x + 40 * c, 155 + 32 * r, 40, 32, [str(value)], BLUE, mono=True)
        d.text(x, 155 + 32 * len(rows) + 20, note, color=SOFT)
    d.text(20, 340, "element (i, j) lies at  storage + (offset + i * strides[0] + j * strides[1]) * bytes per element", mono=True, size=13)
    d.save("tensor.svg")


def ddp():
    d = Drawing(1080, 330)
    d.text(20, 26, "One backward of DDP on one rank. Gradients arrive last layer first; a full bucket is reduced while the rest is computed.")
    buckets = [("bucket 0", ["head.bias", "head.weight"], BLUE), ("bucket 1", ["mid.bias", "mid.weight"], ORANGE), ("bucket 2", ["in.bias", "in.weight"], GREEN)]
    d.text(20, 90, "backward", size=13)
    d.text(20, 162, "flat memory", size=13)
    d.text(20, 246, "all_reduce", size=13)
    x = 110
    for i, (name, parts, fill) in enumerate(buckets):
        for j, part in enumerate(parts):
            d.box(x + 115 * j, 66, 110, 38, [part], fill)
            d.arrow(x + 115 * j + 55, 104, x + 115 * j + 55, 138)
            d.box(x + 115 * j, 138, 115, 38, [".grad view"], fill)
        d.arrow(x + 172, 176, x + 235, 222)
        d.box(x + 235, 222, 130, 38, [name + ", mean"], fill)
        x += 235
    d.arrow(20, 290, 1060, 290)
    d.text(20, 312, "time", color=SOFT)
    d.text(1060, 281, "optimizer.step()", "end", color="#bc4c00")
    d.text(1060, 312, "end of backward: waits for what is still on its way (bucket 2); then .grad holds the means", "end", color=SOFT)
    d.save("ddp.svg")


tape()
tensor()
ddp()
