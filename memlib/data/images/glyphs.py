"""A 5 x 5 dot typeface with capital letters and digits; 'A' is the papers' patch (Hartley 2022, Fig. 2)."""

import numpy as np
from numpy.typing import NDArray

from memlib.errors import UserError

SIDE = 5

_DOTS = """
A 00100 01010 11111 10001 10001
B 11110 10001 11110 10001 11110
C 01111 10000 10000 10000 01111
D 11110 10001 10001 10001 11110
E 11111 10000 11110 10000 11111
F 11111 10000 11110 10000 10000
G 01111 10000 10011 10001 01111
H 10001 10001 11111 10001 10001
I 01110 00100 00100 00100 01110
J 00111 00010 00010 10010 01100
K 10001 10010 11100 10010 10001
L 10000 10000 10000 10000 11111
M 10001 11011 10101 10001 10001
N 10001 11001 10101 10011 10001
O 01110 10001 10001 10001 01110
P 11110 10001 11110 10000 10000
Q 01110 10001 10101 10010 01101
R 11110 10001 11110 10010 10001
S 01111 10000 01110 00001 11110
T 11111 00100 00100 00100 00100
U 10001 10001 10001 10001 01110
V 10001 10001 10001 01010 00100
W 10001 10001 10101 11011 10001
X 10001 01010 00100 01010 10001
Y 10001 01010 00100 00100 00100
Z 11111 00010 00100 01000 11111
0 01110 10011 10101 11001 01110
1 00100 01100 00100 00100 01110
2 11110 00001 01110 10000 11111
3 11110 00001 00110 00001 11110
4 10010 10010 11111 00010 00010
5 11111 10000 11110 00001 11110
6 01110 10000 11110 10001 01110
7 11111 00001 00010 00100 00100
8 01110 10001 01110 10001 01110
9 01110 10001 01111 00001 01110
"""
GLYPHS: dict[str, NDArray[np.bool_]] = {
    line[0]: np.array([[dot == "1" for dot in row] for row in line[2:].split()]) for line in _DOTS.strip().splitlines()
}
LETTERS = "".join(name for name in GLYPHS if name.isalpha())
DIGITS = "".join(name for name in GLYPHS if name.isdigit())


def draw_text(text: str, *, scale: int = 1, font: str | None = None) -> NDArray[np.bool_]:
    """Draw a text as a bitmap: (height, width) bool.

    Args:
        text: capital letters, digits and spaces; any text if a `font` is given.
        scale: side of a dot in pixels; a `font` gets 8 times this size.
        font: a TrueType or OpenType file to use instead of the built-in typeface.

    Raises:
        UserError: for a letter the typeface lacks, or a font that cannot be read.
    """
    if font is not None:
        return _draw_with_font(text, font, size=8 * scale)
    unknown = [letter for letter in text if letter not in GLYPHS and letter != " "]
    if unknown:
        raise UserError(f"the built-in typeface has no {unknown[0]!r}, only A to Z, 0 to 9 and space; set a font file")
    gap = np.zeros((SIDE, 1), dtype=bool)
    blank = np.zeros((SIDE, SIDE), dtype=bool)
    parts = [part for letter in text for part in (gap, GLYPHS.get(letter, blank))][1:]
    return np.kron(np.hstack(parts), np.ones((scale, scale), dtype=bool)).astype(bool)


def _draw_with_font(text: str, font: str, *, size: int) -> NDArray[np.bool_]:
    from PIL import Image, ImageDraw, ImageFont

    try:
        face = ImageFont.truetype(font, size)
    except OSError as error:
        raise UserError(f"cannot read the font {font} ({error})") from error
    left, top, right, bottom = (round(side) for side in face.getbbox(text))
    canvas = Image.new("L", (max(1, right - left), max(1, bottom - top)))
    ImageDraw.Draw(canvas).text((-left, -top), text, fill=255, font=face)
    return np.asarray(canvas) >= 128
