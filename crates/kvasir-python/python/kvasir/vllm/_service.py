"""The model in the service, once per process. vLLM starts and runs whether or not the service is available."""

from __future__ import annotations

import threading
from typing import Any

from vllm.logger import init_logger

from .._kvasir import Lookup
from .._model import Model
from .._session import Session
from .._spec import ModelSpec
from .._store import connect
from ..errors import AuthError, ForkError, InputError, KvasirError
from ._identity import model_spec
from ._plan import Prompt
from ._settings import Settings

logger = init_logger(__name__)

_AGAIN_S = 1.0
_AGAIN_MAX_S = 30.0


class Service:
    """Connects in the background until it succeeds, or finds that it cannot."""

    def __init__(self, settings: Settings, vllm_config: Any) -> None:
        self._settings = settings
        self._spec = model_spec(settings, vllm_config)
        self._model: Model | None = None
        self._closed = threading.Event()
        threading.Thread(target=self._connect, name="kvasir-connect", daemon=True).start()

    def session(self, prompt: Prompt, timeout: float) -> Session:
        """Look a prompt up.

        Raises
        ------
        KvasirError
            ``not_connected`` while the service is not connected.
        """
        return self._connected.session(prompt.tokens, salt=prompt.salt, adapter=prompt.adapter, timeout=timeout)

    def look_up(self, prompt: Prompt, timeout: float) -> Lookup:
        """Look a prompt up in the background, without a Python thread.

        Raises
        ------
        KvasirError
            ``not_connected`` while the service is not connected.
        """
        return self._connected._core.look_up(prompt.tokens, prompt.salt, prompt.adapter, timeout)

    def observe_prefill(self, tokens: range, seconds: float) -> None:
        """As `Model.observe_prefill`; nothing is learnt while the service is not connected."""
        if self._model is not None:
            self._model.observe_prefill(tokens, seconds)

    def session_of(self, lookup: Lookup, prompt: Prompt) -> Session | None:
        """Return the session of a finished lookup."""
        core = lookup.session
        return None if core is None else Session(ModelSpec(self._connected._core.spec), prompt.tokens, core)

    @property
    def _connected(self) -> Model:
        model = self._model
        if model is None:
            raise KvasirError("there is no connection to the service", "not_connected", "see the log", True)
        return model

    @property
    def heads(self) -> list[int]:
        """Return the model's KV heads, by layer."""
        return [keys[0] for _, (keys, _) in self._spec.layers]

    @property
    def is_connected(self) -> bool:
        """Whether the service is connected."""
        return self._model is not None

    @property
    def is_closed(self) -> bool:
        """Whether it no longer connects."""
        return self._closed.is_set()

    def close(self) -> None:
        """Stop connecting."""
        self._closed.set()

    def _connect(self) -> None:
        settings, wait = self._settings, _AGAIN_S
        while not self._closed.is_set():
            try:
                store = connect(settings.url, settings.token, settings.namespace, settings.zone)
                self._model = store.model(
                    self._spec, settings.profile, quality=settings.quality, chunk_tokens=settings.chunk_tokens
                )
                logger.info("Kvasir at %s keeps the cache of model %s", settings.url, self._spec.model_id[:12])
                return
            except (AuthError, ForkError, InputError, OSError) as error:
                # OSError: there is no file of the profile.
                logger.error("vLLM runs without Kvasir: %s", error)
                return
            except KvasirError as error:
                logger.warning("Kvasir at %s is not available yet, retrying in %.0f s: %s", settings.url, wait, error)
                self._closed.wait(wait)
                wait = min(2 * wait, _AGAIN_MAX_S)


# Of vLLM's model: what its identity is made of, apart from its files.
_IDENTITY = ("model", "revision", "dtype", "max_model_len", "hf_overrides", "hf_config_path", "quantization", "quantization_config")
_services: dict[tuple[Settings, str], Service] = {}
_making = threading.Lock()


def service_of(settings: Settings, vllm_config: Any) -> Service:
    """Return an engine's service: its scheduler and worker share it if they share a process; other engines do not."""
    model = vllm_config.model_config
    identity = [getattr(model, name, None) for name in _IDENTITY]
    # Of the text: overrides may be dictionaries, or a function.
    key = (settings, repr([*identity, vllm_config.cache_config.cache_dtype]))
    with _making:
        service = _services.get(key)
        if service is None or service.is_closed:
            service = _services[key] = Service(settings, vllm_config)
        return service
