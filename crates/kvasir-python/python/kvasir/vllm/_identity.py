"""Identity of a cache: the model by its files, the adapter by its files, and the non-token inputs of a prompt."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from .._spec import ModelSpec, snapshot_of
from ..errors import InputError
from ._plan import Prompt
from ._settings import Settings

_WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf")
# A file up to this size is read whole; of a longer one, the beginning, which names its tensors, and samples.
_WHOLE_BYTES = 64 << 20
_BEGIN_BYTES = 8 << 20
_SAMPLES = 128
_SAMPLE_BYTES = 64 << 10
# Types of caches by vLLM's names. fp8 scales belong to the weights, and are equal wherever the weights are.
_DTYPES = {
    "float32": "float32",
    "float16": "float16",
    "bfloat16": "bfloat16",
    "fp8": "float8_e4m3fn",
    "fp8_e4m3": "float8_e4m3fn",
}
# Fields that do not describe the model.
_NO_CONFIG = ("_commit_hash", "_name_or_path", "transformers_version")
# Number of cached digests.
_ADAPTERS_MAX = 256
# Not a byte of UTF-8, unlike a request's salt: the two kinds of salts are never equal.
_COMPOSED = b"\xff"


def model_spec(settings: Settings, vllm_config: Any) -> ModelSpec:
    """Return the spec of the model's cache in vLLM.

    The revision is the commit of a model from the Hugging Face Hub, and a digest of the files of a model in a folder: another
    training of the same architecture never matches, whatever its name. The rest is from the configuration, as overridden.

    Raises
    ------
    InputError
        ``invalid_config`` for a model whose cache is not supported, or whose weights are not identified.
    """
    model, cache = vllm_config.model_config, vllm_config.cache_config
    kv_dtype = str(model.dtype) if cache.cache_dtype == "auto" else _DTYPES.get(cache.cache_dtype)
    if kv_dtype is None:
        remedy = f"serve with --kv-cache-dtype {', '.join(_DTYPES)}, or without Kvasir"
        raise InputError(f"a cache of {cache.cache_dtype} is not supported", "invalid_config", remedy)
    weights, revision = settings.weights, settings.revision
    if vllm_config.load_config.load_format == "dummy" and not revision:
        raise InputError("the weights are random, whatever the model's files are", "invalid_config", 'give "revision"')
    folder, other_config = Path(model.model), getattr(model, "hf_config_path", None)
    source = model.hf_config
    # Overrides (`--hf-overrides`), which may be a function, are only in vLLM's copy of the configuration.
    is_changed = bool(model.hf_overrides) or other_config is not None
    if folder.is_dir():
        if not is_changed:
            source = folder
        name, commit = snapshot_of(folder)
        if name is None:
            name, commit = folder.resolve().name, None if revision else f"files:{files_digest(folder)}"
        weights, revision = weights or name, revision or commit
    else:
        if other_config is not None and other_config != model.model and not revision:
            # The commit in the configuration is that of its own repository: any commit of the weights would match.
            what = f"the configuration of {other_config} does not name the commit of the weights"
            raise InputError(what, "invalid_config", 'give "revision"')
        weights, revision = weights or model.model, revision or getattr(source, "_commit_hash", None)
    if is_changed and revision:
        revision = f"{revision}:config:{_config_digest(model.hf_config)}"
    if model.quantization is not None and getattr(model.hf_config, "quantization_config", None) is None and revision:
        # vLLM rounds the weights when it loads them (`--quantization fp8`); their files do not tell.
        how = repr((model.quantization, getattr(model, "quantization_config", None)))
        revision = f"{revision}:quantization:{hashlib.sha256(how.encode()).hexdigest()[:16]}"
    context = _rope_context(model)
    return ModelSpec.from_config(source, weights=weights, revision=revision, kv_dtype=kv_dtype, context=context)


def _rope_context(model: Any) -> int:
    """Return the length that a scaled rope is for, in tokens: vLLM does not raise the base of dynamic NTK for longer contexts."""
    config = getattr(model.hf_config, "text_config", None) or model.hf_config
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    is_dynamic = "dynamic" in (rope.get("rope_type"), rope.get("type"))
    return int(config.max_position_embeddings if is_dynamic else model.max_model_len)


def _config_digest(config: Any) -> str:
    """Digest a configuration: what the spec leaves out, like the number of a token's experts, changes rows as well."""
    fields = {name: value for name, value in config.to_dict().items() if name not in _NO_CONFIG}
    return hashlib.sha256(json.dumps(fields, sort_keys=True, default=str).encode()).hexdigest()[:16]


def files_digest(folder: Path) -> str:
    """Digest names, sizes and contents of the weights' files in a folder; of long ones only samples, at most 16 MiB each."""
    digest = hashlib.sha256()
    files = sorted({file for pattern in _WEIGHTS for file in folder.glob(pattern)})
    if not files:
        raise InputError(f"{folder} contains no weights", "invalid_config", 'give "weights" and "revision"')
    for file in files:
        size = file.stat().st_size
        digest.update(f"{file.name}\0{size}\0".encode())
        with file.open("rb") as data:
            for start, length in _parts(size):
                data.seek(start)
                digest.update(data.read(length))
    return digest.hexdigest()[:32]


def _parts(size: int) -> Iterator[tuple[int, int]]:
    if size <= _WHOLE_BYTES:
        yield 0, size
        return
    yield 0, _BEGIN_BYTES
    for sample in range(1, _SAMPLES + 1):
        yield (size - _SAMPLE_BYTES) * sample // _SAMPLES, _SAMPLE_BYTES


class Adapters:
    """Names and digests of LoRAs. Their files are read in the background when a request first uses one."""

    def __init__(self) -> None:
        self._readers = ThreadPoolExecutor(1, "kvasir-adapter")
        self._read: dict[tuple[str, str, int], Future[str]] = {}

    def identity(self, lora: Any) -> str | None:
        """Return name and digest of an adapter; None while its files are being read.

        Raises
        ------
        InputError, OSError
            If the files do not exist, or the adapter replaced one in place.
        """
        if getattr(lora, "load_inplace", False):
            # With the number of that one, and often its path: files that were digested before are not those that vLLM has.
            what = f"the adapter {lora.lora_name} was loaded in place of another one"
            raise InputError(what, "invalid_config", "load it under a new name, without load_inplace")
        key = lora.lora_name, lora.lora_path, lora.lora_int_id
        read = self._read.get(key)
        if read is None:
            read = self._read[key] = self._readers.submit(_identity, lora.lora_name, lora.lora_path)
            if len(self._read) > _ADAPTERS_MAX:
                del self._read[next(iter(self._read))]
        return read.result() if read.done() else None

    def close(self) -> None:
        """Stop the thread."""
        self._readers.shutdown(wait=False, cancel_futures=True)


def _identity(name: str, path: str) -> str:
    from vllm.lora.utils import get_adapter_absolute_path

    # The path may be a repository of the Hub, which vLLM has downloaded.
    folder = Path(get_adapter_absolute_path(path))
    # Its scale changes rows as much as its weights do.
    config = folder / "adapter_config.json"
    scale = hashlib.sha256(config.read_bytes() if config.is_file() else b"").hexdigest()[:16]
    return f"{name}@{files_digest(folder)}-{scale}"


def is_known_by_tokens(request: Any) -> bool:
    """Whether a prompt consists of its tokens and the inputs that `prompt_of` turns into a salt.

    Later parts of a request that is sent in parts (``resumable``) may have images and audio that the first one has not.
    """
    return request.prompt_token_ids is not None and request.prompt_embeds is None and not getattr(request, "resumable", False)


def prompt_of(request: Any, adapters: Adapters) -> Prompt | None:
    """Return the tokens of a new request as a prompt; None while the files of its adapter are being read.

    Raises
    ------
    InputError, OSError
        If the files of its adapter do not exist.
    """
    adapter = None
    if request.lora_request is not None:
        adapter = adapters.identity(request.lora_request)
        if adapter is None:
            return None
    return Prompt(request.prompt_token_ids, _salt(request.cache_salt, request.mm_features), adapter)


def _salt(cache_salt: str | None, features: list[Any]) -> bytes | None:
    """Return the request's own salt; if the prompt has images or audio, a digest of the salt and of those."""
    own = None if cache_salt is None else cache_salt.encode()
    if not features:
        return own
    digest = hashlib.sha256(b"\0" if own is None else b"\1" + len(own).to_bytes(8, "little") + own)
    for feature in features:
        identifier, position = feature.identifier.encode(), feature.mm_position
        for number in (position.offset, position.length, len(identifier)):
            digest.update(number.to_bytes(8, "little"))
        digest.update(identifier)
    return _COMPOSED + digest.digest()
