"""What stands in for several engines."""

from __future__ import annotations

from types import SimpleNamespace


class Cls:
    """Any class of an engine's: a base that does nothing."""

    def __init__(self, *_, **__) -> None:
        pass


class Tensor(list):
    """torch's."""


class Config(SimpleNamespace):
    """A configuration of transformers."""

    def to_dict(self):
        return dict(self.__dict__)


TOY = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
TOY |= {"num_key_value_heads": 2, "torch_dtype": "bfloat16", "max_position_embeddings": 512, "rope_theta": 10_000.0}
