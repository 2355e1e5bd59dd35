"""Small random models of several architectures: generation with loaded caches gives the same text as without. See `run`."""

import importlib.util
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import DynamicCache, GenerationConfig, PreTrainedTokenizerFast, pipeline

import kvasir
from kvasir.transformers import KvasirCache, spec_of_model
from toy_model import readme_examples

MODELS = Path(__file__).resolve().parents[1] / "models" / "check.py"
NAMES = [
    "llama-3.1-8b",
    "mistral-7b-v0.1",
    "qwen2.5-7b",
    "qwen3-8b",
    "qwen3-30b-a3b",
    "gemma-2-9b",
    "gemma-3-12b",
    "gpt-oss-20b",
    "phi-4",
    "deepseek-v3",
    "glm-4-9b",
    "smollm3-3b",
    "olmo-2-7b",
]
PROMPT, NEW = 300, 16
VERSION = tuple(int(part) for part in transformers.__version__.split(".")[:2])


def whole_blocks(tokens: int) -> int:
    """Tokens of a stored sequence that another one which goes on differently finds."""
    return tokens // 16 * 16


def small_models():
    """The makers of small models that `tests/models` compares specs with."""
    made = importlib.util.spec_from_file_location("small_models", MODELS)
    module = importlib.util.module_from_spec(made)
    made.loader.exec_module(module)
    return module


def prompt(seed: int, count: int = PROMPT) -> torch.Tensor:
    return torch.randint(3, 64, (1, count), generator=torch.Generator().manual_seed(seed))


def fast_tokenizer(largest: int) -> PreTrainedTokenizerFast:
    """One whose words are the numbers of the tokens."""
    words = {"[PAD]": 0, **{str(token): token for token in range(1, int(largest) + 1)}}
    words["[UNK]"] = len(words)
    made = Tokenizer(WordLevel(words, unk_token="[UNK]"))
    made.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="[PAD]")


def rows(model, ids: torch.Tensor) -> list:
    """The cache of a prompt, with the rows of all tokens in every layer."""
    cache = DynamicCache()
    with torch.no_grad():
        model(ids, past_key_values=cache, use_cache=True)
    return [(layer.keys, layer.values) for layer in cache.layers]


@pytest.fixture(scope="module", params=NAMES)
def made(request, store):
    """A model in bfloat16, and what stores its caches bit for bit."""
    small = small_models()
    model = small.model_of(small.shrink(small.load(request.param))).to(torch.bfloat16).eval()
    model.generation_config.eos_token_id = None
    identity = {"weights": request.param, "revision": "1"}
    if request.param == "deepseek-v3" and VERSION < (5, 15):
        with pytest.raises(kvasir.KvasirError, match="does not cache the latent"):
            KvasirCache(store, model, **identity)
        pytest.skip("refused by name: transformers is older than 5.15")
    spec = spec_of_model(model, **identity)
    contexts = [(prompt(seed), rows(model, prompt(seed))) for seed in (1, 2, 3)]
    profile = kvasir.Profile.train(contexts, model=spec, recipe="exact-only")
    return SimpleNamespace(model=model, profile=profile, store=store, identity=identity)


def cache_of(made, **options) -> KvasirCache:
    return KvasirCache(made.store, made.model, profile=made.profile, level=0, **made.identity, **options)


def generate(made, ids, **options):
    return made.model.generate(ids, max_new_tokens=NEW, do_sample=False, pad_token_id=0, **options)


def test_greedy_text_is_the_same(made):
    kv, ids = cache_of(made), prompt(10)
    plain = generate(made, ids)
    with kv.reuse(made.model):
        first = generate(made, ids)
        assert kv.last.cached_tokens == 0 and kv.last.matched_tokens == [0]
        kv.drain()
        second = generate(made, ids)
        assert kv.last.cached_tokens == whole_blocks(PROMPT) and kv.last.bytes > 0
    assert torch.equal(plain, first)
    # The reference has the same prefix in its cache, computed by the model: kernels round by the number of queries.
    reference = DynamicCache()
    with torch.no_grad():
        made.model(ids[:, : whole_blocks(PROMPT)], past_key_values=reference, use_cache=True)
    assert torch.equal(second, generate(made, ids, past_key_values=reference))
    # Another turn finds what was generated, too.
    longer = torch.cat([second, prompt(11, 40)], dim=1)
    kv.drain()
    cache = kv.load(longer)
    assert cache.get_seq_length() == whole_blocks(PROMPT + NEW - 1)


def test_what_is_loaded_is_what_was_computed(made):
    kv, ids = cache_of(made), prompt(12)
    computed = rows(made.model, ids)
    cache = DynamicCache()
    for layer, (k, v) in enumerate(computed):
        cache.update(k, v, layer)
    [save] = kv.store(ids, cache)
    assert save.wait().refused is None
    loaded = kv.load(torch.cat([ids, prompt(13, 8)], dim=1))
    count = loaded.get_seq_length()
    assert count == whole_blocks(PROMPT)
    for layer, (k, v) in zip(loaded.layers, computed, strict=True):
        assert torch.equal(layer.keys, k[:, :, :count]) and torch.equal(layer.values, v[:, :, :count])


def test_batches_with_left_padding(made):
    kv = cache_of(made)
    short, long = prompt(14, 270), prompt(15)
    ids = torch.cat([torch.nn.functional.pad(short, (PROMPT - 270, 0)), long])
    mask = (torch.arange(PROMPT) >= torch.tensor([[PROMPT - 270], [0]])).long()
    cache = kv.load(ids, mask)
    output = generate(made, ids, attention_mask=mask, past_key_values=cache)
    for save in kv.store(output, cache, mask):
        assert save.wait().refused is None
    again = kv.load(ids, mask)
    assert kv.last.matched_tokens == [whole_blocks(270), whole_blocks(PROMPT)]
    count = again.get_seq_length()
    assert count == PROMPT - 270 + whole_blocks(270)
    assert generate(made, ids, attention_mask=mask, past_key_values=again).shape == output.shape
    # A row is found alone, too, and holds what it held in the batch.
    alone = kv.load(torch.cat([short, prompt(16, 8)], dim=1))
    for one, batch in zip(alone.layers, cache.layers, strict=True):
        assert torch.equal(one.keys[0], batch.keys[0, :, PROMPT - 270 : count])
        assert torch.equal(one.values[0], batch.values[0, :, PROMPT - 270 : count])
    with pytest.raises(kvasir.InputError, match="padded on the right"):
        kv.load(ids, mask.flip(1))


def test_lost_rows_and_strange_layers_are_refused(made):
    kv, ids = cache_of(made), prompt(17)
    native = DynamicCache(config=made.model.config)
    with torch.no_grad():
        made.model(ids, past_key_values=native, use_cache=True)
    if any(type(layer).__name__ == "DynamicSlidingWindowLayer" for layer in native.layers):
        with pytest.raises(kvasir.InputError, match="DynamicSlidingWindowLayer, keeps only the last"):
            kv.store(ids, native)
    else:
        assert kv.store(ids, native)[0].wait().refused is None

    class StrangeLayer:
        pass

    native.layers[0] = StrangeLayer()
    with pytest.raises(kvasir.InputError, match="layer 0 is a StrangeLayer"):
        kv.store(ids, native)


def test_what_changes_rows_is_left_alone(made):
    """Beams and several answers, and no cache, asked for by options or by a configuration, neither load nor store."""
    kv, ids = cache_of(made), prompt(18)
    beams = GenerationConfig(**{**made.model.generation_config.to_dict(), "num_beams": 2})
    beams_or_none = [{"num_beams": 2}, {"generation_config": beams}, {"num_return_sequences": 2, "num_beams": 2}]
    with kv.reuse(made.model):
        for options in [*beams_or_none, {"use_cache": False}]:
            made.model.generate(ids, max_new_tokens=2, do_sample=False, pad_token_id=0, **options)
    kv.drain()
    assert kv.load(ids).get_seq_length() == 0


def test_the_hubs_default_for_windows_is_reused(made, monkeypatch):
    """Models with sliding windows name a kind of cache that transformers 5 ignores."""
    kv, ids = cache_of(made), prompt(21)
    monkeypatch.setattr(made.model.generation_config, "cache_implementation", "hybrid")
    with kv.reuse(made.model):
        generate(made, ids)
        kv.drain()
        generate(made, ids)
    assert kv.last.cached_tokens == whole_blocks(PROMPT)


def test_a_pipeline_reuses(made):
    """What wraps a pipeline of transformers, as LangChain's HuggingFacePipeline, needs no change."""
    kv, ids = cache_of(made), prompt(19)
    tokenizer = fast_tokenizer(ids.max())
    text = tokenizer.decode(ids[0])
    pipe = pipeline("text-generation", model=made.model, tokenizer=tokenizer)
    plain = pipe(text, max_new_tokens=4, do_sample=False)
    with kv.reuse(made.model):
        assert pipe(text, max_new_tokens=4, do_sample=False) == plain
        kv.drain()
        pipe(text, max_new_tokens=4, do_sample=False)
    assert kv.last.cached_tokens == whole_blocks(PROMPT)


def test_the_examples_of_the_guide_run(made):
    """With a profile that makes itself."""
    made.model.config._name_or_path, made.model.config._commit_hash = "org/readme", "1"
    ids = prompt(20)
    names = {
        "store": made.store,
        "model": made.model,
        "tokenizer": fast_tokenizer(ids.max()),
        "input_ids": ids,
        "prompt": " ".join(map(str, ids[0].tolist())),
        "DynamicCache": DynamicCache,
    }
    for example in readme_examples()[2:]:
        with torch.no_grad():
            exec(example, names)
    assert names["kv"].last.matched_tokens == [whole_blocks(PROMPT)]
    assert names["output"].shape[1] > PROMPT


def test_encoder_decoders_are_refused(store):
    model = SimpleNamespace(config=SimpleNamespace(is_encoder_decoder=True))
    with pytest.raises(kvasir.InputError, match="encoder-decoder"):
        KvasirCache(store, model)


def test_models_on_several_devices_are_refused(store):
    model = SimpleNamespace(config=SimpleNamespace(), hf_device_map={"model": 0, "lm_head": 1})
    with pytest.raises(kvasir.InputError, match="several devices"):
        KvasirCache(store, model)


def test_a_lora_is_part_of_the_identity():
    small = small_models()
    model = small.model_of(small.shrink(small.load("qwen3-8b"))).to(torch.bfloat16)
    identity = {"weights": "qwen3-8b", "revision": "1"}
    plain = spec_of_model(model, **identity)
    # As transformers keeps them for `add_adapter`.
    model.peft_config = {"default": SimpleNamespace()}
    with pytest.raises(kvasir.InputError, match="the model has a LoRA"):
        spec_of_model(model, **identity)
    assert spec_of_model(model, adapter="helper@1", **identity).model_id != plain.model_id
