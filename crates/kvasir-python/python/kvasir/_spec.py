"""Model specs, and their sources."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from . import _kvasir
from .errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

KV = Any
"""A cache: a pair ``(k, v)`` per layer, each ``[kv_heads, tokens, head_dim]`` with or without a leading 1, or one tensor
``[layers, 2, kv_heads, tokens, head_dim]``. A tensor has ``__dlpack__`` or the buffer protocol, or is
``(address, nbytes, shape, dtype)`` of contiguous memory that the caller keeps."""


class ModelSpec:
    """Layout and identity of a model's cache. Engines with equal specs share stored caches.

    Made by `from_config` or `from_json`.

    Attributes
    ----------
    model_id : str
        Hash of the spec.
    kv_dtype : str
        Type of the cached values: ``bfloat16``, ``float16``, ``float32`` or ``float8_e4m3fn``.
    bytes_per_token : int
        Size of one token's cache, uncompressed.

    Examples
    --------
    >>> config = {"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    ...           "num_key_value_heads": 8, "rope_theta": 500000.0, "torch_dtype": "bfloat16"}
    >>> spec = kvasir.ModelSpec.from_config(config, weights="meta-llama/Meta-Llama-3-8B", revision="8cde5ca")
    >>> spec.bytes_per_token
    131072
    """

    __slots__ = ("_core",)

    def __init__(self, core: _kvasir.Spec) -> None:
        self._core = core

    @classmethod
    def from_json(cls, text: str) -> ModelSpec:
        """Read the JSON of a spec.

        Parameters
        ----------
        text : str
            The output of `to_json` or ``kvasir model spec``.

        Raises
        ------
        InputError
            ``invalid_model_spec`` for an invalid spec.

        Examples
        --------
        >>> kvasir.ModelSpec.from_json(spec.to_json()) == spec
        True
        """
        return cls(_kvasir.Spec.from_json(text))

    @classmethod
    def from_config(
        cls,
        config: Any,
        *,
        weights: str | None = None,
        revision: str | None = None,
        adapter: str | None = None,
        kv_dtype: str | None = None,
        pairing: str | None = None,
        context: int | None = None,
    ) -> ModelSpec:
        """Read a Hugging Face configuration.

        Parameters
        ----------
        config : dict, path, or object with ``to_dict``
            The configuration, its ``config.json``, the folder that contains it, or ``model.config``.
        weights, revision : str, optional
            Name and commit of the weights. Default: those in the configuration, or in its path in Hugging Face's cache.
        adapter : str, optional
            Name and digest of an adapter (LoRA) that changes the cache.
        kv_dtype : str, optional
            Type of the cached values, if it differs from that of the weights.
        pairing : {"half", "interleaved"}, optional
            Layout of rotary pairs in cached keys, if the engine's differs from the model's.
        context : int, optional
            Tokens of the longest context served; required if frequencies depend on it.

        Raises
        ------
        InputError
            ``invalid_config`` naming the field that is missing or not supported.

        Examples
        --------
        >>> kvasir.ModelSpec.from_config(config, weights="toy", revision="1", kv_dtype="float16").kv_dtype
        'float16'
        """
        text, name, commit = _config(config)
        weights, revision = weights or name, revision or commit
        missing = [what for what, value in (("weights", weights), ("revision", revision)) if not value]
        if not weights or not revision:
            what = " and ".join(missing)
            raise InputError(f"the configuration does not name the {what}", "invalid_config", f"give {what}=")
        return cls(_kvasir.Spec.from_hf(text, weights, revision, adapter, _dtype(kv_dtype), pairing, context))

    def to_json(self) -> str:
        """Return the spec as JSON.

        Examples
        --------
        >>> json.loads(spec.to_json())["weights"]
        'toy'
        """
        return self._core.to_json()

    @property
    def model_id(self) -> str:
        return self._core.model_id

    @property
    def kv_dtype(self) -> str:
        return self._core.kv_dtype

    @property
    def bytes_per_token(self) -> int:
        return self._core.bytes_per_token

    @property
    def layers(self) -> list[tuple[str, tuple[tuple[int, int], tuple[int, int]]]]:
        """For each layer its kind (``gqa``, ``sliding_window``, ``mla``, ``none``), and heads and elements of K and V."""
        return [(kind, (keys, values)) for kind, (keys, values) in self._core.layers]

    def empty(self, tokens: int) -> list[Any]:
        """Create numpy arrays for a cache, filled with zeros: a pair ``(k, v)`` per layer, each ``[kv_heads, tokens, head_dim]``.

        numpy has no bfloat16 and no float8; uint16 and uint8 hold their bits.

        Parameters
        ----------
        tokens : int
            Number of tokens.

        Raises
        ------
        InputError
            ``missing_package``, ``wrong_dtype``.

        Examples
        --------
        >>> [array.shape for array in spec.empty(100)[0]]
        [(2, 100, 16), (2, 100, 16)]
        """
        try:
            import numpy as np
        except ImportError as error:
            what = "numpy, whose arrays this makes, is not installed"
            raise InputError(what, "missing_package", "pip install numpy, or allocate the cache by other means") from error

        names = {"bfloat16": "uint16", "float16": "float16", "float32": "float32", "float8_e4m3fn": "uint8"}
        dtype = names.get(self.kv_dtype)
        if dtype is None:
            raise InputError(f"numpy has no arrays for a cache of {self.kv_dtype}", "wrong_dtype", "use another type of cache")

        def plane(shape: tuple[int, int]) -> Any:
            return np.zeros((shape[0], tokens, shape[1]), dtype)

        return [None if kind == "none" else (plane(k), plane(v)) for kind, (k, v) in self.layers]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ModelSpec) and other.model_id == self.model_id

    def __hash__(self) -> int:
        return hash(self.model_id)

    def __repr__(self) -> str:
        size = f"{self.bytes_per_token} bytes per token"
        return f"<ModelSpec {self.model_id[:12]}: {len(self.layers)} layers, {size}, {self.kv_dtype}>"


def _dtype(name: Any) -> str | None:
    return None if name is None else str(name)


def _config(config: Any) -> tuple[str, str | None, str | None]:
    """Return the text of a configuration, and the weights' name and commit if they are known."""
    if isinstance(config, Mapping):
        return json.dumps(dict(config), default=str), config.get("_name_or_path"), config.get("_commit_hash")
    if hasattr(config, "to_dict"):
        text = json.dumps(config.to_dict(), default=str)
        return text, getattr(config, "_name_or_path", None), getattr(config, "_commit_hash", None)
    if not isinstance(config, (str, os.PathLike)):
        kind = type(config).__name__
        raise InputError(f"{kind} is not a configuration", "invalid_config", "give a dict, a path, or an object with to_dict")
    # Takes as long to import as everything else together.
    from pathlib import Path

    path = Path(config)
    path = path / "config.json" if path.is_dir() else path
    return path.read_text(), *snapshot_of(path.parent)


def snapshot_of(folder: Path) -> tuple[str | None, str | None]:
    """Return the weights' name and commit if a folder is a model in Hugging Face's cache."""
    # models--ORGANISATION--MODEL/snapshots/COMMIT
    if folder.parent.name == "snapshots" and folder.parents[1].name.startswith("models--"):
        return folder.parents[1].name.removeprefix("models--").replace("--", "/", 1), folder.name
    return None, None


def spec_of(model: Any, **options: Any) -> ModelSpec:
    """Return a spec from any description of a model."""
    if isinstance(model, ModelSpec):
        return model
    is_spec = isinstance(model, Mapping) and "layers" in model and "kv_dtype" in model
    if is_spec or (isinstance(model, str) and model.lstrip().startswith("{")):
        return ModelSpec.from_json(model if isinstance(model, str) else json.dumps(model))
    return ModelSpec.from_config(model, **options)


def token_list(tokens: Any) -> list[int]:
    """Return token ids from a list, an array or a tensor; a batch of one is accepted."""
    ids = tokens.tolist() if hasattr(tokens, "tolist") else tokens
    if isinstance(ids, Sequence) and len(ids) == 1 and isinstance(ids[0], Sequence):
        ids = ids[0]
    return list(ids)
