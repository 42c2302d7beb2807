"""Captions of images, the objects in the images, and whether a caption names an object."""

import codecs
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from memlib.data.examples import Caption, Source
from memlib.data.id_files import named_content, named_digest, said_of_examples
from memlib.errors import DataError, UserError
from memlib.specs.captions import CaptionSpec, CaptionTable, CocoCaptions
from memlib.store.records import json_once

WORD = re.compile(r"\w+")
SETTING = "captions.origin"
TABLE = "a table with columns of example ids, captions and objects"
MOST_LINE = 2**16  # bytes of a file's beginning by which its form is known
LISTS = (
    (rb"[{\[]", "a list in JSON; give COCO's or Karpathy's as {captions: ..., instances: ...}, or"),
    (rb"[^\t\n]+#\d+\t", "a list of captions without objects, as Flickr's tokens;"),
    (rb"[^\t\n]*\thttps?://", "a list of captions and addresses of images without objects, as CC3M's;"),
)
"""Beginnings of lists of captions that are no tables, and descriptions of the lists."""
UNSPACED = (
    (0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x2E80, 0x2FDF), (0x3005, 0x3007), (0x3021, 0x3029),
    (0x3038, 0x30FF), (0x3105, 0x312F), (0x31F0, 0x31FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF),
    (0xFF66, 0xFF9F), (0x20000, 0x323AF),
)  # fmt: skip
"""Ranges of characters of scripts without spaces between words: Thai, Lao, Burmese, Khmer, Han, Kana."""


def words_of(text: str) -> list[str]:
    """Return the words of a text in lower case; of scripts without spaces between words, each character is a word.

    Text is normalized (Unicode's NFC), and marks belong to the character before them.

    Example:
        >>> words_of("A dog's bowl, 2 cats")
        ['a', 'dog', 's', 'bowl', '2', 'cats']
        >>> words_of("cafe\u0301 の猫")
        ['café', 'の', '猫']
    """
    text = unicodedata.normalize("NFC", text.lower())
    if text.isascii():
        return WORD.findall(text)
    words, is_open, is_within = list[str](), False, False  # whether letters, and marks, continue the last word
    for character in text:
        if unicodedata.category(character).startswith("M"):
            if is_within:
                words[-1] += character
            continue
        is_within = character == "_" or character.isalnum()
        if is_open and is_within and not _is_unspaced(character):
            words[-1] += character
        elif is_within:
            words.append(character)
        is_open = is_within and not _is_unspaced(character)
    return words


def _is_unspaced(character: str) -> bool:
    return any(first <= ord(character) <= last for first, last in UNSPACED)


def are_split_otherwise(texts: Iterable[str]) -> bool:
    """Return whether earlier versions, which split all texts at spaces and punctuation, found other words in any of them."""
    return any(not text.isascii() and words_of(text) != WORD.findall(text.lower()) for text in texts)


def is_named(name: str, words: Sequence[str]) -> bool:
    """Return whether words contain the words of a name one after the other, the last one in the singular or plural.

    Example:
        >>> is_named("traffic light", ["two", "traffic", "lights"]), is_named("car", ["a", "carpet"])
        (True, False)
    """
    sought = words_of(name)
    size = len(sought)
    if not size:
        return False
    for start in range(len(words) - size + 1):
        *first, last = words[start : start + size]
        if first == sought[:-1] and last in (sought[-1], f"{sought[-1]}s", f"{sought[-1]}es"):
            return True
    return False


def read_captions(source: Source, spec: CaptionSpec) -> Mapping[str, Caption]:
    """Return the captions of a source's images by example id; for COCO, by the name of the image file.

    Raises:
        UserError: when the source states no captions.
        DataError: when a file cannot be read.
    """
    match spec.origin:
        case CaptionTable() as table:
            return _from_table(table)
        case CocoCaptions() as coco:
            return _from_coco(coco)
        case _:
            stated: Mapping[str, Caption] | None = getattr(source, "captions", None)
            if stated is None:
                raise UserError(
                    f"{SETTING}: the source of the images states no captions; name a table: "
                    "{path: ..., caption_column: ..., objects_column: ...}, or COCO's files: {captions: ..., instances: ...}"
                )
            return stated


def _refuse_lists(path: str) -> None:
    """Raise DataError if a file is a list of captions of another form than a table, by its first line."""
    start = named_content(path, setting=SETTING)[:MOST_LINE].removeprefix(codecs.BOM_UTF8).lstrip()
    for pattern, kind in LISTS:
        if re.match(pattern, start):
            raise DataError(f"{path} is {kind} write {TABLE}")


def captions_digest(spec: CaptionSpec) -> dict[str, str]:
    """Return the digests of the files of captions as stage inputs; an empty dict if the source states the captions."""
    match spec.origin:
        case CaptionTable() as table:
            return {"captions": named_digest(table.path, setting=SETTING)}
        case CocoCaptions() as coco:
            return {
                name: named_digest(getattr(coco, name), setting=f"{SETTING}.{name}") for name in ("captions", "instances")
            }
        case _:
            return {}


def _from_table(table: CaptionTable) -> dict[str, Caption]:
    _refuse_lists(table.path)
    columns = (table.caption_column, table.objects_column)
    texts, objects = (said_of_examples(table.path, column, setting=SETTING, id_column=table.id_column) for column in columns)
    _check_separator(list(objects.values()), table)
    return {name: Caption(text, _parted(objects.get(name, ""), table.separator)) for name, text in texts.items()}


def _check_separator(cells: Sequence[str], table: CaptionTable) -> None:
    """Raise DataError if lists of objects are written in another way, so that each would be the name of one object."""
    written = next((cell for cell in cells if cell.startswith("[") and cell.endswith("]")), None)
    if written is not None:
        raise DataError(
            f"{table.path}: {table.objects_column} holds {written[:60]}, a list as a program prints it; write the names of "
            f"objects with {table.separator!r} between them"
        )
    if "separator" in table.model_fields_set:
        return
    commas = [cell for cell in cells if "," in cell]
    if 2 * len(commas) > len(cells) and not any(table.separator in cell for cell in cells):
        raise DataError(
            f"{table.path}: no cell of {table.objects_column} has the separator {table.separator!r}, but {len(commas)} "
            f"have a comma, such as {commas[0][:60]!r}; set {SETTING}.separator"
        )


def _parted(text: str, separator: str) -> tuple[str, ...]:
    parts = (part.strip() for part in unicodedata.normalize("NFC", text).split(separator))
    return tuple(dict.fromkeys(filter(None, parts)))


def _from_coco(coco: CocoCaptions) -> dict[str, Caption]:
    try:
        texts, instances = (json_once(named_content(path, setting=SETTING)) for path in (coco.captions, coco.instances))
        texts = _as_coco(texts, instances, coco)
        names = {image["id"]: str(image["file_name"]) for image in texts["images"]}
        others = [image for image in instances.get("images", ()) if "file_name" in image]
        _check_same_images(names, {image["id"]: str(image["file_name"]) for image in others}, coco)
        kinds = {kind["id"]: unicodedata.normalize("NFC", str(kind["name"])) for kind in instances["categories"]}
        first: dict[Any, str] = {}
        for one in sorted(texts["annotations"], key=lambda one: int(one["id"])):
            first.setdefault(one["image_id"], str(one["caption"]))
        objects: dict[Any, dict[str, None]] = {}
        for one in instances["annotations"]:
            objects.setdefault(one["image_id"], {})[kinds[one["category_id"]]] = None
        return {names[image]: Caption(text, tuple(objects.get(image, ()))) for image, text in first.items()}
    except UserError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        problem = f"{type(error).__name__}: {error}"
        raise DataError(f"{coco.captions} and {coco.instances} are not COCO's captions and instances ({problem})") from error


def _as_coco(texts: Any, instances: Any, coco: CocoCaptions) -> Any:
    """Return Karpathy's list of captions (dataset_coco.json) in COCO's form; other content is unchanged.

    Images that the file of instances does not list are left out, as the list is of several of COCO's parts.
    """
    images = texts["images"]
    if "annotations" in texts or not any("sentences" in image for image in images):
        return texts
    if any("cocoid" not in image for image in images):
        raise DataError(
            f"{coco.captions} is Karpathy's list of images without COCO's ids (cocoid), so that no objects are known; write "
            f"{TABLE}"
        )
    listed = {image["id"] for image in instances["images"]}
    used = [image for image in images if image["cocoid"] in listed]
    sentences = [(image["cocoid"], one) for image in used for one in image["sentences"]]
    return {
        "images": [{"id": image["cocoid"], "file_name": image["filename"]} for image in used],
        "annotations": [{"id": one["sentid"], "image_id": image, "caption": one["raw"]} for image, one in sentences],
    }


def _check_same_images(names: Mapping[Any, str], others: Mapping[Any, str], coco: CocoCaptions) -> None:
    """Raise DataError if an id belongs to two images, as in files of two data sets that are both numbered from 1."""
    for image, name in names.items():
        other = others.get(image, name)
        if other.rpartition("/")[2] != name.rpartition("/")[2]:
            raise DataError(
                f"image {image} is {name} in {coco.captions}, but {other} in {coco.instances}; give captions and "
                "instances of the same images"
            )
