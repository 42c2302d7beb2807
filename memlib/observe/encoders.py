"""External encoders, and embeddings that an encoder's owner computed."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from memlib.data.canaries.secret_key import keyed_digest
from memlib.data.opening import ParquetContent, reason
from memlib.data.tables.columns import check_once, hint_at_ids, ids_of
from memlib.errors import UserError
from memlib.models.external.factory import encoder_digest
from memlib.specs.encoders import EncoderSpec, SuppliedEmbeddings

if TYPE_CHECKING:
    from memlib.pipeline.stage import Artifact
    from memlib.training.fit import TrainedModel

Side = Literal["A", "B"]
SIDES: tuple[Side, ...] = ("A", "B")
LAST = "last"  # in recipes: the deepest layer, whatever its name
WHOLE = "whole"
NAMED = 3


class Pair(Protocol):
    """Two external encoders in a recipe, or one."""

    @property
    def a(self) -> EncoderSpec:
        """The encoder trained on A."""

    @property
    def b(self) -> EncoderSpec | None:
        """The encoder trained on B, if there is one."""


@dataclass(frozen=True)
class ExternalEncoder:
    """An external encoder, or embeddings that its owner computed."""

    spec: EncoderSpec

    @cached_property
    def digest(self) -> str:
        """The digest of the encoder or embeddings, for use in keys."""
        return encoder_digest(self.spec)


def encoder_key(model: Artifact[TrainedModel] | ExternalEncoder) -> str:
    """Return the key of a trained model, or the digest of an external encoder."""
    return model.digest if isinstance(model, ExternalEncoder) else model.key


def encoders_by_side(pairs: Sequence[Pair]) -> dict[tuple[int, Side], ExternalEncoder]:
    """Return the external encoders of a recipe, by number of the pair and set on which they were trained.

    Args:
        pairs: encoders trained on A and, if there is one, on B.
    """
    return {
        (number, side): ExternalEncoder(spec)
        for number, pair in enumerate(pairs)
        for side, spec in zip(SIDES, (pair.a, pair.b), strict=True)
        if spec is not None
    }


def name_of(row: int, shown: str | None, *of: str) -> str:
    """Return the id under which an encoder's owner sees a stored image, whole or as a background crop, or a caption.

    The id changes with what is shown, so that embeddings of an earlier export are not taken for those of other pictures.

    Args:
        shown: kind of the crop, or "caption"; None for whole images.
        of: keys of the stored images or captions, and settings of the crop.
    """
    return f"{shown or WHOLE}/{hashlib.sha256(' '.join(of).encode()).hexdigest()[:8]}-{row:07d}"


def given_layers(
    spec: SuppliedEmbeddings, names: Sequence[str], layers: Sequence[str], *, dtype: str = "float32"
) -> dict[str, NDArray[np.floating]]:
    """Return the layers (num_images, dim) of the named images from the file of an encoder's owner.

    Args:
        spec: path of the file, and its column of ids.
        names: ids from `name_of`; other images in the file are ignored.
        layers: columns of the file, or `LAST`.
        dtype: type of the result, float32 or float16.

    Raises:
        UserError: for a missing file or column, missing or repeated ids, and vectors that differ in length, contain missing
            or non-finite numbers, or are the same for all images.
    """
    try:
        file = ParquetContent(spec.path, spec.path)
        available = [field.name for field in file.schema if _holds_vectors(field.type)]
        check_once(file.schema.names, [spec.id_column], spec.path)
        if not available:
            raise UserError(
                f"{spec.path} has no column of embeddings (lists of numbers); its columns are "
                f"{', '.join(file.schema.names)}; store each embedding as a list"
            )
        columns = {layer: available[-1] if layer == LAST else layer for layer in layers}
        unknown = [column for column in columns.values() if column not in available]
        if unknown:
            raise UserError(f"{spec.path} has no layer {unknown[0]!r}; it has {', '.join(available)}")
        check_once(file.schema.names, list(columns.values()), spec.path)
        table = file.read(list(dict.fromkeys([spec.id_column, *columns.values()])))
    except (OSError, UnicodeDecodeError, pa.ArrowException) as error:
        raise UserError(f"cannot read embeddings from {spec.path} ({reason(error)})") from error
    ids = pa.array(ids_of(table[spec.id_column], f"{spec.path}: {spec.id_column}"), type=pa.string())
    if len(pc.unique(ids)) < len(ids):
        raise UserError(
            f"{spec.path} has {len(ids) - len(pc.unique(ids))} repeated ids in column {spec.id_column}; keep one row per id"
        )
    places = pc.index_in(pa.array(names, type=pa.string()), value_set=ids)
    if places.null_count:
        missing = [name for name, place in zip(names, places.to_pylist(), strict=True) if place is None]
        more = ", ..." if len(missing) > NAMED else ""
        raise UserError(
            f"{spec.path} lacks {len(missing):,} of {len(names):,} images that the audit embeds, such as "
            f"{', '.join(missing[:NAMED])}{more}; embed all images that memlib export wrote for this recipe"
            f"{hint_at_ids(ids.to_pylist(), missing)}"
        )
    wanted = table.take(places)
    return {layer: _vectors(wanted[column], f"{spec.path}: {column}", dtype) for layer, column in columns.items()}


def _most_equal(vectors: NDArray[np.floating]) -> int:
    """Return the number of copies of the most frequent vector if it makes up more than half, else a smaller number."""
    likely = vectors[vectors[:, 0] == np.median(vectors[:, 0])]
    return 0 if len(likely) <= len(vectors) / 2 else int(np.unique(likely, axis=0, return_counts=True)[1].max())


def _holds_vectors(kind: pa.DataType) -> bool:
    lists = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    return bool(lists and (pa.types.is_floating(kind.value_type) or pa.types.is_integer(kind.value_type)))


def _vectors(column: pa.ChunkedArray, where: str, dtype: str) -> NDArray[np.floating]:
    lengths = pc.unique(pc.list_value_length(column)).to_pylist()
    if len(lengths) != 1 or not lengths[0]:
        raise UserError(
            f"{where} holds vectors of {len(lengths)} lengths ({', '.join(map(str, lengths[:NAMED]))}); "
            "all must have the same length"
        )
    values = pc.list_flatten(column)
    if values.null_count:
        raise UserError(f"{where} has vectors with missing numbers")
    with np.errstate(over="ignore"):  # checked below
        vectors: NDArray[np.floating] = values.to_numpy().astype(dtype).reshape(len(column), lengths[0])
    if not np.isfinite(vectors).all():
        remedy = ", or set decode.embeddings to float32" if dtype == "float16" else ""
        raise UserError(f"{where} has numbers that are not finite or too large for {dtype}; embed the images again{remedy}")
    if (equal := _most_equal(vectors)) > max(1, len(vectors) / 2):
        raise UserError(
            f"{where} holds the same vector for {equal:,} of {len(vectors):,} images, which says nothing about them; check "
            "the encoder, and embed the images again"
        )
    return vectors


LENGTH = 16  # characters; the chance that any two of a million examples share a name is below 10^-7


def pseudonym_of(example_id: str, secret: bytes) -> str:
    """Return the pseudonym under which a model owner sees an example; it does not reveal the example."""
    return keyed_digest(secret, "asked", example_id)[:LENGTH]
