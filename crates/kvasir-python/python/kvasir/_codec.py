"""Profiles, the codec and plans, without a service."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from . import _kvasir
from ._progress import Tell, told
from ._spec import KV, ModelSpec, _config, spec_of, token_list


class Level(NamedTuple):
    """A level of a profile, as measured in training.

    Attributes
    ----------
    bits_per_element : float
        Bits per KV element of everything up to this level, on held-out text.
    nmse : float
        Error power relative to signal power.
    kl : float or None
        Predicted logit KL in nats per token, if it was measured.
    """

    bits_per_element: float
    nmse: float
    kl: float | None


class Profile:
    """Tables and bases for encoding a model's caches. Stored as a file that is named by its hash.

    Made by `train`, `load` or ``Profile(data)``.

    Parameters
    ----------
    data : bytes
        A profile file.

    Raises
    ------
    DataError
        ``invalid_profile`` if the bytes are not a profile.

    Examples
    --------
    >>> kvasir.Profile(profile.to_bytes()) == profile
    True
    """

    __slots__ = ("_core",)

    def __init__(self, data: bytes) -> None:
        self._core = _kvasir.Profile.from_bytes(bytes(data))

    @classmethod
    def _of(cls, core: _kvasir.Profile) -> Profile:
        made = cls.__new__(cls)
        made._core = core
        return made

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Profile:
        """Read a profile file.

        Examples
        --------
        >>> profile.save(folder / "toy.kvp")
        >>> kvasir.Profile.load(folder / "toy.kvp") == profile
        True
        """
        with open(path, "rb") as file:
            return cls(file.read())

    @classmethod
    def train(
        cls,
        dumps: Sequence[Any],
        *,
        model: Any = None,
        recipe: str = "basis",
        finest_nmse: float | None = None,
        progress: Tell | Any = None,
    ) -> Profile:
        """Train a profile.

        The call takes minutes for large models. It releases the GIL, and cannot be interrupted.

        Parameters
        ----------
        dumps : sequence of paths, or of ``(tokens, kv)``
            KV dumps (safetensors files), or caches in memory with their tokens, which require ``model``.
        model : ModelSpec, dict, path, or object with ``to_dict``
            The model of caches in memory.
        recipe : {"basis", "direct", "exact-only", "exact-residual", "cachegen"}
            Coding recipe. ``basis`` is the smallest; the two ``exact`` ones reproduce the cache bit for bit.
        finest_nmse : float, optional
            Error of the finest level: its power relative to that of the cache about its mean, above 0 and below 1. Default: what
            ``"transparent"`` allows in every head of held-out text, and a finer level in reserve for other text. Chunks that are
            coarser are not loaded unless `Store.model` has a lower ``quality``. ``cachegen`` keeps its own errors, which are not
            measured.
        progress : callable, tqdm, or True, optional
            Called with a message and the progress, 0 to 1; a tqdm is updated. True draws a bar if rich is installed, and
            otherwise writes lines to stderr.

        Raises
        ------
        InputError
            ``not_trainable`` for too little data or a basis that loses too much, ``wrong_shape`` and ``wrong_dtype`` for tensors
            that do not fit the model.
        DataError
            ``invalid_dump`` if a file is not a dump.

        Examples
        --------
        >>> kvasir.Profile.train([(tokens, kv)] * 3, model=spec, recipe="direct").levels[-1].bits_per_element < 16
        True
        """
        contexts = [dump for dump in dumps if not isinstance(dump, (str, os.PathLike))]
        with told(progress) as tell:
            if not contexts:
                return cls._of(_kvasir.Profile.train_files(list(dumps), recipe, finest_nmse, tell)[0])
            spec = spec_of(model)
            pairs = [(token_list(tokens), kv) for tokens, kv in contexts]
            return cls._of(_kvasir.Profile.train_tensors(spec._core, pairs, recipe, finest_nmse, tell))

    def to_bytes(self) -> bytes:
        """Return the bytes of the profile file.

        Examples
        --------
        >>> profile.to_bytes()[:8]
        b'KVSRPROF'
        """
        return self._core.to_bytes()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the profile file.

        Examples
        --------
        >>> profile.save(folder / "again.kvp")
        """
        with open(path, "wb") as file:
            file.write(self.to_bytes())

    @property
    def profile_id(self) -> str:
        """Hash of the file."""
        return self._core.profile_id

    @property
    def model_id(self) -> str:
        """Id of the profile's model."""
        return self._core.model_id

    @property
    def is_lossless(self) -> bool:
        """Whether the finest level reproduces the cache bit for bit."""
        return self._core.is_lossless

    @property
    def levels(self) -> list[Level]:
        """The levels, coarsest first."""
        return [Level(*level) for level in self._core.levels]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Profile) and other.profile_id == self.profile_id

    def __hash__(self) -> int:
        return hash(self.profile_id)

    def __repr__(self) -> str:
        return f"<Profile {self.profile_id[:12]}: {self._core.recipe}, {len(self.levels)} levels>"

    def _repr_html_(self) -> str:
        from . import _html

        def text(level: Level) -> str:
            kl = "" if level.kl is None else f", KL {level.kl:.1e}"
            return f"{level.bits_per_element:.3f} bits per element, NMSE {level.nmse:.1e}{kl}"

        rows = [(f"level {n}", level.bits_per_element, text(level)) for n, level in enumerate(self.levels)]
        return _html.ladder(repr(self), rows)


def profile_of(profile: Profile | bytes | str | os.PathLike[str]) -> Profile | str:
    """A profile, or the id of one in a store."""
    if isinstance(profile, Profile):
        return profile
    if isinstance(profile, (bytes, bytearray)):
        return Profile(bytes(profile))
    text = os.fspath(profile)
    if len(text) == 64 and all(digit in "0123456789abcdef" for digit in text):
        return text
    return Profile.load(text)


def _local(profile: Profile | bytes | str | os.PathLike[str]) -> Profile:
    found = profile_of(profile)
    return found if isinstance(found, Profile) else Profile.load(found)


def encode(tokens: Any, kv: KV, *, model: Any, profile: Profile | bytes | str | os.PathLike[str]) -> bytes:
    """Encode a cache from position 0 as one chunk object.

    Such an object is for inspection, measurement and exchange. To store a cache in a service, use `Session.save`.

    Parameters
    ----------
    tokens : sequence of int, array or tensor
        1 to 16,384 token ids.
    kv : KV
        Their cache: a pair ``(k, v)`` per layer of shape ``[kv_heads, tokens, head_dim]``, keys after RoPE, read without a copy.
    model : ModelSpec, dict, path, or object with ``to_dict``
        The model.
    profile : Profile, bytes or path
        A profile of this model.

    Returns
    -------
    bytes
        The object with all levels. Its first ``inspect(object).level_bytes[n]`` bytes decode to level ``n``.

    Raises
    ------
    InputError
        ``wrong_shape``, ``wrong_dtype`` or ``wrong_layout`` naming the tensor; ``not_encodable``.
    DataError
        ``invalid_profile`` for a profile of another model.

    Examples
    --------
    >>> object = kvasir.encode(tokens, kv, model=spec, profile=profile)
    >>> kvasir.inspect(object).object_bytes == len(object)
    True
    """
    return _kvasir.encode(spec_of(model)._core, _local(profile)._core, token_list(tokens), kv)


def decode(
    object: bytes,
    *,
    model: Any,
    profile: Profile | bytes | str | os.PathLike[str],
    level: int | None = None,
    into: KV = None,
) -> KV:
    """Decode a chunk object, or a prefix of one that contains the level.

    Parameters
    ----------
    object : bytes
        The object.
    model : ModelSpec, dict, path, or object with ``to_dict``
        The model.
    profile : Profile, bytes or path
        The profile that the object names.
    level : int, optional
        Level to decode. Default: the finest.
    into : KV, optional
        Tensors of the cache's type to write to. Default: numpy arrays from `ModelSpec.empty`.

    Returns
    -------
    KV
        ``into``.

    Raises
    ------
    InputError
        ``wrong_shape``, ``wrong_dtype`` or ``wrong_layout`` naming the tensor.
    DataError
        ``not_decodable`` or ``invalid_object``, with the cause.

    Examples
    --------
    >>> object = kvasir.encode(tokens, kv, model=spec, profile=profile)
    >>> back = kvasir.decode(object, model=spec, profile=profile)
    >>> back[0][0].shape == kv[0][0].shape
    True
    """
    spec = spec_of(model)
    target = spec.empty(len(_kvasir.tokens_of(object))) if into is None else into
    _kvasir.decode(spec._core, _local(profile)._core, bytes(object), level, target)
    return target


class Inspection(NamedTuple):
    """The contents of a chunk object. Returned by `inspect`.

    Attributes
    ----------
    model_id, profile_id, seq_hash : str
        Model, required profile, and identity.
    first_position : int
        Position of its first token.
    tokens, exact_tokens : int
        Number of tokens, and of leading tokens that are stored exactly.
    kl_beneath : float
        Predicted KL, in nats per token, of the prefix that it was computed over.
    head_bytes, object_bytes : int
        Size of its head, and of the whole object.
    level_bytes : list of int
        Size of the prefix that decodes to each level.
    qualities : list of str or None
        The best quality that each level's measured error satisfies; None if it was not measured, or exceeds all bounds.
    """

    model_id: str
    profile_id: str
    seq_hash: str
    first_position: int
    tokens: int
    exact_tokens: int
    kl_beneath: float
    head_bytes: int
    object_bytes: int
    level_bytes: list[int]
    qualities: list[str | None]

    def _repr_html_(self) -> str:
        from . import _html

        rows = [
            (f"level {level}", count, f"{_html.size(count)}, {count / self.tokens:.1f} bytes per token")
            for level, count in enumerate(self.level_bytes)
        ]
        return _html.ladder(f"chunk {self.seq_hash[:12]}: {self.tokens} tokens", rows)


def inspect(object: bytes) -> Inspection:
    """Check every byte of a chunk object, and return its contents.

    Parameters
    ----------
    object : bytes
        The object.

    Raises
    ------
    DataError
        ``invalid_object`` naming the damage.

    Examples
    --------
    >>> found = kvasir.inspect(kvasir.encode(tokens, kv, model=spec, profile=profile))
    >>> found.tokens == len(tokens), found.level_bytes == sorted(found.level_bytes)
    (True, True)
    """
    return Inspection(**json.loads(_kvasir.inspect(bytes(object))))


class Plan(dict[str, Any]):
    """The result of `plan`: what ``kvasir plan --json`` prints, but decoding is never measured: a GPU's is assumed.

    Notebooks show a table of its links.
    """

    def _repr_html_(self) -> str:
        from . import _html

        rows = [
            [
                f"{link['bandwidth']['value'] / 1e9:g} Gbit/s",
                way["name"],
                _html.size(way["bytes"]),
                f"{way['seconds']:.3f} s",
                "best" if link["fits"] == index else {None: "", True: "yes", False: "no"}[way["within_slo"]],
            ]
            for link in self["links"]
            for index, way in enumerate(link["ways"])
        ]
        request = self["request"]
        title = f"{request['model']['name']}, {request['tokens']} tokens"
        return _html.table(title, ["link", "way", "size", "time", "fits"], rows)


def plan(
    model: Any,
    *,
    tokens: int = 8192,
    bandwidth: float | Sequence[float] = 3e9,
    slo: float | None = None,
    gpu: str = "h100",
    gpus: int = 1,
    parameters: float | None = None,
    profile: Profile | bytes | str | os.PathLike[str] | None = None,
) -> Plan:
    """Estimate the size of a context's cache, the cost of keeping it, and the level that fits a link.

    Parameters
    ----------
    model : str, ModelSpec, dict, path, or object with ``to_dict``
        Name of a preset (``kvasir plan --list``), a Hugging Face configuration, or a spec.
    tokens : int
        Tokens of the context.
    bandwidth : float or sequence of float
        Bandwidths of the links, in bits per second.
    slo : float, optional
        Target time to first token, in seconds.
    gpu, gpus : str, int
        The GPUs that would otherwise compute the context.
    parameters : float, optional
        Active parameters per token, in 10⁹; required with a spec, which does not contain them.
    profile : Profile, bytes or path, optional
        A profile whose measured levels are used. Default: assumed levels.

    Raises
    ------
    InputError
        ``unknown_model``, ``unknown_gpu``, ``invalid_setting``.

    Examples
    --------
    >>> kvasir.plan("llama-3.1-8b", tokens=8192)["bytes"]["fp16"]
    1073741824
    """
    name, config, spec = None, None, None
    if isinstance(model, ModelSpec):
        spec = model._core
    elif isinstance(model, str) and not os.path.exists(model):
        name = model
    else:
        config = _config(model)[0]
    links = [float(bandwidth)] if isinstance(bandwidth, (int, float)) else [float(bits) for bits in bandwidth]
    core = None if profile is None else _local(profile)._core
    return Plan(json.loads(_kvasir.plan_json(name, config, spec, parameters, tokens, links, slo, gpu, gpus, core)))
