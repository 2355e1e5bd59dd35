"""Profiles, the codec and the arithmetic, without a service."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from . import _kvasir
from ._progress import Tell, told
from ._spec import KV, ModelSpec, _config, spec_of, token_list


class Level(NamedTuple):
    """What training measured of a level.

    Attributes
    ----------
    bits_per_element : float
        Bits a KV element of everything up to this level, on held-out text.
    nmse : float
        Power of the error over the power of the signal.
    kl : float or None
        Predicted logit KL in nats a token, where it was measured.
    """

    bits_per_element: float
    nmse: float
    kl: float | None


class Profile:
    """Tables and bases that a model's caches are encoded with; a file that is named by its hash.

    Made by `train`, `load` or ``Profile(data)``.

    Parameters
    ----------
    data : bytes
        A profile file.

    Raises
    ------
    DataError
        ``invalid_profile`` for bytes that are no profile.

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
        finest_nmse: float = 2.5e-4,
        progress: Tell | Any = None,
    ) -> Profile:
        """Train a profile.

        The call takes minutes for large models. It works with the GIL released, and cannot be stopped.

        Parameters
        ----------
        dumps : sequence of paths, or of ``(tokens, kv)``
            KV dumps (safetensors files), or caches in memory with their tokens; with ``model`` then.
        model : ModelSpec, dict, path, or object with ``to_dict``
            The model of caches in memory.
        recipe : {"basis", "direct", "exact-only", "exact-residual", "cachegen"}
            How the profile codes. ``basis`` is the smallest, the two ``exact`` ones give the cache back bit for bit.
        finest_nmse : float
            Error of the finest level: its power over that of the cache about its mean, above 0 and below 1.
        progress : callable, tqdm, or True, optional
            Is told what is going on, and how far it is, 0 to 1; a tqdm is moved. True draws a bar where rich is installed, and
            writes lines to stderr where it is not.

        Raises
        ------
        InputError
            ``not_trainable`` for too little data, ``wrong_shape`` and ``wrong_dtype`` for tensors that are not the model's.
        DataError
            ``invalid_dump`` for a file that is no dump.

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
        """Give the profile file.

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
        """The model it is of."""
        return self._core.model_id

    @property
    def is_lossless(self) -> bool:
        """Whether the finest level gives the cache back bit for bit."""
        return self._core.is_lossless

    @property
    def levels(self) -> list[Level]:
        """What is known of each level, coarsest first."""
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
            return f"{level.bits_per_element:.3f} bits an element, NMSE {level.nmse:.1e}{kl}"

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

    Such an object is for looking at, measuring and exchanging: what a service stores is made by `Session.save`.

    Parameters
    ----------
    tokens : sequence of int, array or tensor
        1 to 16,384 token ids.
    kv : KV
        Their cache: a pair ``(k, v)`` a layer of shape ``[kv_heads, tokens, head_dim]``, keys after RoPE, read without a copy.
    model : ModelSpec, dict, path, or object with ``to_dict``
        The model.
    profile : Profile, bytes or path
        A profile of this model.

    Returns
    -------
    bytes
        All levels. A prefix of ``inspect(object).level_bytes[n]`` bytes decodes to level ``n``.

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
    """Decode a chunk object, or the prefix of one that holds the level.

    Parameters
    ----------
    object : bytes
        The object.
    model : ModelSpec, dict, path, or object with ``to_dict``
        The model.
    profile : Profile, bytes or path
        The profile that the object names.
    level : int, optional
        Level to decode; the finest by default.
    into : KV, optional
        Tensors of the cache's type for the rows; by default numpy arrays from `ModelSpec.empty`.

    Returns
    -------
    KV
        ``into``.

    Raises
    ------
    InputError
        ``wrong_shape``, ``wrong_dtype`` or ``wrong_layout`` naming the tensor.
    DataError
        ``not_decodable`` or ``invalid_object``, saying why.

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
    """What is in a chunk object. Made by `inspect`.

    Attributes
    ----------
    model_id, profile_id, seq_hash : str
        Whose cache it is, which profile it needs, and its identity.
    first_position : int
        Position of its first token.
    tokens, exact_tokens : int
        Tokens, and how many of them at the start are stored exactly.
    kl_beneath : float
        Predicted KL, in nats a token, of the prefix that it was computed over.
    head_bytes, object_bytes : int
        Bytes of its head, and of all of it.
    level_bytes : list of int
        Bytes of the prefix that decodes to each level.
    qualities : list of str or None
        The best name that each level's measured error earns; none if it was not measured or is above all bounds.
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
            (f"level {level}", count, f"{_html.size(count)}, {count / self.tokens:.1f} bytes a token")
            for level, count in enumerate(self.level_bytes)
        ]
        return _html.ladder(f"chunk {self.seq_hash[:12]}: {self.tokens} tokens", rows)


def inspect(object: bytes) -> Inspection:
    """Check every byte of a chunk object, and tell what is in it.

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
    """What `plan` found: the document that ``kvasir plan --json`` prints, with a table of the links in notebooks."""

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
    """Calculate how large a context's cache is, what keeping it costs, and which level fits a link.

    Parameters
    ----------
    model : str, ModelSpec, dict, path, or object with ``to_dict``
        Name of a preset (``kvasir plan --list``), a Hugging Face configuration, or a spec.
    tokens : int
        Tokens of the context.
    bandwidth : float or sequence of float
        Bandwidths of the links in question, in bits a second.
    slo : float, optional
        Time to first token to meet, in seconds.
    gpu, gpus : str, int
        What would compute the context otherwise.
    parameters : float, optional
        Parameters that a token passes through, in 10⁹; needed with a spec, which does not have them.
    profile : Profile, bytes or path, optional
        A profile whose measured levels count; assumptions otherwise.

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
