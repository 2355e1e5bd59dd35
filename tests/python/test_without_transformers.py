"""Parts of transformers' back end that need no engine: plain objects stand in for what they import of its packages."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace

import pytest
from stand_ins import TOY, Cls, Config, Tensor

import kvasir


def import_transformers(import_over) -> ModuleType:
    stand_ins = {"torch": {"Tensor": Tensor}, "transformers": {"__version__": "5.0.0", "DynamicCache": Cls}}
    return import_over("kvasir.transformers", stand_ins)


def test_transformers_leaves_alone_what_has_other_rows_or_none(import_over):
    module = import_transformers(import_over)
    done = []

    class Cache(module.KvasirCache):
        def __init__(self) -> None:
            pass

        def load(self, *given):
            done.append(("load", *given))
            return "cache"

        def store(self, *given):
            done.append(("store", *given))

    class Model:
        # As the Hub's of models with sliding windows.
        generation_config = SimpleNamespace(num_beams=1, use_cache=True, cache_implementation="hybrid")

        def generate(self, ids, generation_config=None, **options):
            done.append((ids, options if generation_config is None else {"generation_config": generation_config, **options}))
            return "output"

    model, one, two, mask = Model(), Tensor([[1, 2]]), Tensor([[1, 2], [3, 4]]), Tensor([[1, 1]])
    left_alone = [
        (one, {"pixel_values": Tensor()}),
        (one, {"attention_mask": mask, "image_grid_thw": Tensor()}),
        (one, {"inputs_embeds": Tensor()}),
        (one, {"images": [Tensor()]}),
        (one, {"vision": {"patches": (Tensor(),)}}),
        (one, {"position_ids": Tensor()}),
        (two, {}),
        (one, {"use_cache": False}),
        (one, {"generation_config": SimpleNamespace(use_cache=False)}),
        (one, {"cache_implementation": "static"}),
        (one, {"cache": "own"}),
        (one, {"assistant_early_exit": 2}),
        (one, {"use_mtp": True}),
    ]
    with Cache().reuse(model):
        for ids, options in left_alone:
            done.clear()
            assert model.generate(input_ids=ids, **options) == "output" and done == [(ids, options)], options
        for ids, options in [(one, {"max_new_tokens": 1}), (one, {"attention_mask": mask}), (two, {"attention_mask": mask})]:
            done.clear()
            assert model.generate(ids, **options) == "output"
            hidden = options.get("attention_mask")
            used = {"past_key_values": "cache", **options}
            assert done == [("load", ids, hidden), (ids, used), ("store", "output", "cache", hidden)], options
        done.clear()
        assert model.generate(one, "configuration") == "output" and done == [(one, {"generation_config": "configuration"})]
        # What a configuration of a call leaves open is the model's.
        Model.generation_config.num_beams = 2
        done.clear()
        assert model.generate(one, generation_config=SimpleNamespace(num_beams=None)) == "output" and len(done) == 1


def test_a_block_that_reuses_leaves_the_model_as_it_was(import_over):
    module = import_transformers(import_over)

    class Model:
        def generate(self) -> str:
            return "class"

    caches, model = [object.__new__(module.KvasirCache) for _ in range(2)], Model()
    with caches[0].reuse(model):
        outer = model.generate
        with caches[1].reuse(model):
            assert model.generate is not outer
        assert model.generate is outer
    assert model.generate() == "class" and not model.__dict__
    model.generate = own = lambda: "own"
    with caches[0].reuse(model):
        pass
    assert model.generate is own


def test_models_whose_cache_is_another_or_elsewhere_are_refused(import_over):
    module = import_transformers(import_over)

    def cache(adapter=None, revision="1", **others):
        model = SimpleNamespace(config=Config(**TOY, _commit_hash="2"), dtype="torch.bfloat16", device="cpu", **others)
        store = SimpleNamespace(model=lambda *_, **__: None)
        return module.KvasirCache(store, model, weights="org/toy", revision=revision, adapter=adapter)

    lora = {"peft_config": {"default": object()}}
    with pytest.raises(kvasir.InputError, match="the model has a LoRA"):
        cache(**lora)
    with pytest.raises(kvasir.InputError, match="on several devices"):
        cache(hf_device_map={"model.layers.0": 0, "model.layers.1": 1})
    quantized, at_load = ({"hf_quantizer": SimpleNamespace(pre_quantized=before)} for before in (True, False))
    with pytest.raises(kvasir.InputError, match="quantized when they were loaded"):
        cache(revision=None, **at_load)
    cache(revision=None, **quantized)
    for others in (lora | {"adapter": "helper@1"}, at_load, {"peft_config": {}}, {"hf_device_map": {"model": 0, "lm_head": 0}}, {}):
        cache(**others)


def test_loads_of_transformers_may_fall_to_the_soft_quality(import_over):
    module, asked = import_transformers(import_over), []

    class Session:
        matched = 16

        def load(self, into, **options):
            asked.append(options)
            return SimpleNamespace(prefix_tokens=16, bytes=0)

    store = SimpleNamespace(model=lambda *_, **__: SimpleNamespace(session=lambda _: Session()))
    model = SimpleNamespace(config=Config(**TOY), dtype="torch.bfloat16", device="cpu")

    def cache(**settings):
        made = module.KvasirCache(store, model, weights="org/toy", revision="1", **settings)
        made._paddings, made._planes = lambda *_: [0], lambda *_: []
        return made

    ids = Tensor([[1] * 17])
    ids.shape = (1, 17)
    for settings in ({"quality": "transparent", "soft_quality": "small", "deadline": 0.5}, {"quality": "small"}, {}):
        cache(**settings).load(ids)
        assert asked.pop()["soft_quality"] == settings.get("soft_quality")
    for quality, soft in [("transparent", "transparent"), ("small", "balanced"), ("transparent", "tiny"), (None, "small")]:
        with pytest.raises(kvasir.InputError, match=f"soft_quality is '{soft}'"):
            cache(quality=quality, soft_quality=soft)
