"""Draws image files of odd sizes, modes and formats, as a stranger's data set has them."""

import io

import numpy as np
import PIL.Image

ORIENTATION = 0x0112
_MODES = ("RGB", "L", "P", "RGBA", "LA", "1", "I;16", "CMYK", "P with alpha", "turned")
_FORMATS = {
    "RGB": ("JPEG", "PNG", "WEBP"),
    "L": ("JPEG", "PNG"),
    "RGBA": ("PNG", "WEBP"),
    "P": ("PNG", "GIF", "BMP"),
    "1": ("PNG", "PPM"),
    "CMYK": ("JPEG",),
    "turned": ("JPEG", "PNG", "WEBP"),
}
_SIZES = (
    (37, 51),
    (1, 1),
    (3, 200),
    (200, 3),
    (64, 64),
    (97, 31),
    (129, 128),
    (17, 90),
    (250, 333),
)


def drawn(width, height, seed=0):
    """Draws a gradient with noise, in which no two corners are alike."""
    random = np.random.default_rng(seed)
    x, y = np.meshgrid(np.linspace(0, 200, width), np.linspace(0, 120, height))
    gradient = np.stack([x, y, (x + y) / 2], axis=-1)
    noise = random.integers(0, 56, (height, width, 3))
    return PIL.Image.fromarray((gradient + noise).astype(np.uint8))


def encoded(picture, kind, **options):
    """Encodes an image of Pillow."""
    buffer = io.BytesIO()
    picture.save(buffer, kind, **options)
    return buffer.getvalue()


def turned(width, height, orientation, kind="JPEG", seed=0):
    """Draws a file whose EXIF says that it is turned."""
    exif = PIL.Image.Exif()
    exif[ORIENTATION] = orientation
    return encoded(drawn(width, height, seed), kind, exif=exif.tobytes())


def odd_files(count=50):
    """Makes encoded files, with a name for each."""
    files = {}
    for number in range(count):
        mode = _MODES[number % len(_MODES)]
        width, height = _SIZES[(number * 7 + number // 10) % len(_SIZES)]
        kinds = _FORMATS.get(mode, ("PNG",))
        kind = kinds[number // len(_MODES) % len(kinds)]
        if mode == "turned":
            content = turned(width, height, 1 + (number // 10 * 3 + 5) % 8, kind, seed=number)
        else:
            content = encoded(_in_mode(drawn(width, height, number), mode), kind)
        files[f"{number} {mode} {width}x{height} {kind}"] = content
    return files


def _in_mode(picture, mode):
    if mode == "I;16":
        gray = np.asarray(picture.convert("L")).astype(np.uint16) * 257
        return PIL.Image.fromarray(gray)
    if mode == "P with alpha":
        palette = picture.convert("P")
        palette.info["transparency"] = 3
        return palette
    return picture.convert(mode)
