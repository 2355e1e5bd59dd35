#!/usr/bin/env python3
"""Trains kvasir-recall: a small Llama that needs its context, on books and on records that are asked for.

    python train.py --text BOOKS... --tokenizer tokenizer.json --out DIR [--held-out BOOK]
    python train.py --measure --tokenizer tokenizer.json --out DIR [--held-out BOOK]

Needs torch >= 2.9 (for Muon), numpy, tokenizers, safetensors and a C++ compiler (torch.compile). On a CPU,
OMP_WAIT_POLICY=passive helps when other programs run.
"""
import argparse, json, math, os, random, re, shutil, time
import numpy as np, torch
from torch import nn
from torch.nn import functional as F
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

VOCAB, DIM, LAYERS, HEADS, KV_HEADS, HEAD, FF, THETA, EPS = 2048, 256, 4, 4, 2, 64, 640, 1e5, 1e-5
MATCH = 2  # the layer whose first head is taught where the answer stands

# Kinds of batches: rows, tokens a row, share of text, of repeats, whether few records and easy formats.
def SHORT(text, repeat): return 16, 256, text, repeat, True
def LONG(text, repeat): return 4, 1024, text, repeat, False
# Stages: steps, the kinds in turn, weight of the helps, learning rate from, to (a share of the optimisers' rates).
PLAN = [(600, [SHORT(.25, .10)], 0.5, 1.0, 1.0),
        (173, [LONG(.30, .10)], 0.3, 1.0, 0.86),
        (160, [LONG(.30, .10)] + 3 * [SHORT(.95, .05)], 0.0, 0.8, 0.8),  # too few records: recall was lost, see README
        (780, [LONG(.45, .05), SHORT(.75, .05)], 0.3, 0.8, 0.02),
        (220, [LONG(.55, .05), SHORT(.80, .05)], 0.2, 0.4, 0.01)]

LAB_ADJ = "amber brave calm dusty eager faint gentle heavy".split()
LAB_NOUN = "anchor bridge candle door engine forest garden hammer".split()
ADJ = LAB_ADJ + ("hollow idle jolly keen lucid mellow noble olive plain quiet rapid solid tidy upper vivid warm "
                 "young bitter crisp dense early fuzzy golden humble").split()
NOUN = LAB_NOUN + ("harbor island jacket kettle ladder market needle orchard pocket quarry ribbon saddle temple "
                   "valley window basket copper donkey falcon goblet lantern mirror pillow river").split()
# A record up to its name and from there to its value, a question likewise. The first is what is measured.
FORMATS = [("line", ": REGISTER_CONTENT is <", "What is the REGISTER_CONTENT in line", "? The REGISTER_CONTENT is <"),
           ("line", ": <", "asked", "? <"), ("name", " is <", "name", " is <")]

def rope(x, pos):
    """Rotary embedding, half-split; x is batch, heads, tokens, head elements."""
    inv = THETA ** (-torch.arange(0, HEAD, 2).float() / HEAD)
    angle = pos[:, None].float() * inv
    c, s = angle.cos(), angle.sin()
    x1, x2 = x.float().chunk(2, -1)
    return torch.cat([x1 * c - x2 * s, x1 * s + x2 * c], -1).to(x.dtype)

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        linear = lambda i, o: nn.Linear(i, o, bias=False)
        self.n1, self.n2 = nn.Parameter(torch.ones(DIM)), nn.Parameter(torch.ones(DIM))
        self.q, self.o = linear(DIM, HEADS * HEAD), linear(HEADS * HEAD, DIM)
        self.k, self.v = linear(DIM, KV_HEADS * HEAD), linear(DIM, KV_HEADS * HEAD)
        self.gate, self.up, self.down = linear(DIM, FF), linear(DIM, FF), linear(FF, DIM)

    def forward(self, x, pos, past=None):
        b, t, _ = x.shape
        h = F.rms_norm(x, (DIM,), self.n1, EPS)
        q = rope(self.q(h).view(b, t, HEADS, HEAD).transpose(1, 2), pos)
        k = rope(self.k(h).view(b, t, KV_HEADS, HEAD).transpose(1, 2), pos)
        v = self.v(h).view(b, t, KV_HEADS, HEAD).transpose(1, 2)
        mask = None
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
            mask = torch.ones(t, k.shape[2], dtype=torch.bool).tril(k.shape[2] - t)
        wide = [x.repeat_interleave(HEADS // KV_HEADS, 1) for x in (k, v)]
        a = F.scaled_dot_product_attention(q, *wide, attn_mask=mask, is_causal=mask is None)
        x = x + self.o(a.transpose(1, 2).reshape(b, t, -1))
        h = F.rms_norm(x, (DIM,), self.n2, EPS)
        return x + self.down(F.silu(self.gate(h)) * self.up(h)), q, k, v

class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.Parameter(torch.ones(DIM))
        for name, p in self.named_parameters():
            last = name.endswith(("o.weight", "down.weight"))
            if p.dim() == 2: nn.init.normal_(p, 0, 0.02 / (2 * LAYERS) ** 0.5 if last else 0.02)

    def forward(self, ids):
        """Final hidden states; for training, what layer MATCH sees and its q and k."""
        pos, x = torch.arange(ids.shape[1]), self.embed(ids)
        for i, block in enumerate(self.blocks):
            before = x
            x, q, k, _ = block(x, pos)
            if i == MATCH: seen = (before, q, k)
        return F.rms_norm(x, (DIM,), self.norm, EPS), *seen

    @torch.no_grad()
    def cached(self, ids, past=None):
        """Logits and every layer's keys and values, over an earlier cache."""
        start = 0 if past is None else past[0][0].shape[2]
        pos, x, kv = torch.arange(start, start + ids.shape[1]), self.embed(ids), []
        for i, block in enumerate(self.blocks):
            x, _, k, v = block(x, pos, None if past is None else past[i])
            kv.append((k, v))
        return self.logits(F.rms_norm(x, (DIM,), self.norm, EPS)), kv

    def logits(self, h):
        return F.linear(h, self.embed.weight)

def hf_names():
    """Our parameter names and Hugging Face's."""
    attention, mlp = dict.fromkeys("qkvo", "self_attn.{}_proj"), dict.fromkeys(("gate", "up", "down"), "mlp.{}_proj")
    yield from (("embed.weight", "model.embed_tokens.weight"), ("norm", "model.norm.weight"))
    for i in range(LAYERS):
        for name, form in (attention | mlp).items():
            yield f"blocks.{i}.{name}.weight", f"model.layers.{i}.{form.format(name)}.weight"
        yield f"blocks.{i}.n1", f"model.layers.{i}.input_layernorm.weight"
        yield f"blocks.{i}.n2", f"model.layers.{i}.post_attention_layernorm.weight"

def export(model, out, tokenizer):
    s = {theirs: model.state_dict()[ours].half().contiguous() for ours, theirs in hf_names()}
    save_file(s, f"{out}/model.safetensors", metadata={"format": "pt"})
    config = dict(
        architectures=["LlamaForCausalLM"], model_type="llama", hidden_size=DIM, intermediate_size=FF,
        num_hidden_layers=LAYERS, num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, head_dim=HEAD,
        vocab_size=VOCAB, max_position_embeddings=1024, rms_norm_eps=EPS, rope_theta=THETA, tie_word_embeddings=True,
        hidden_act="silu", attention_bias=False, mlp_bias=False, torch_dtype="float16", bos_token_id=None,
        eos_token_id=None)
    with open(f"{out}/config.json", "w", encoding="utf-8") as f: f.write(json.dumps(config, indent=1) + "\n")
    if not os.path.exists(f"{out}/tokenizer.json"): shutil.copy(tokenizer, f"{out}/tokenizer.json")

def load(folder):
    model, s = Llama(), load_file(f"{folder}/model.safetensors")
    model.load_state_dict({ours: s[theirs].float() for ours, theirs in hf_names()})
    return model

def encode(tok, path):
    with open(path, encoding="utf-8") as f: text = re.sub(r"[ \t]+", " ", f.read())
    return [i for at in range(0, len(text), 200_000) for i in tok.encode(text[at:at + 200_000]).ids]

class Rows:
    """Training rows: tokens, a weight for each, and two lists for the helps of `loss_of`:
    answers (where a value's token is foretold, where it stands) and owners (where, adjective, noun)."""

    def __init__(self, tok, text, seed):
        self.rng, self.text = random.Random(seed), text
        ids = lambda s: tok.encode(s).ids
        self.adj, self.noun = [ids(" " + w) for w in ADJ], [ids("-" + w) for w in NOUN]
        self.value = {v: ids(f"<{v}>")[1:-1] for v in range(100, 1000)}
        self.formats, self.end = [[ids(s) for s in f] for f in FORMATS], ids("<1>\n")[2:]

    def lines(self, length, prefix, fmt=0, lab=True, count=80, cut=False):
        """Records that fill `prefix` tokens (at most `count`), then questions up to `length` tokens."""
        rng, (r0, r1, q0, q1) = self.rng, self.formats[fmt]
        adjectives, nouns = (8, 8) if lab else (len(ADJ), len(NOUN))
        names = [(a, n) for a in range(adjectives) for n in range(nouns)]
        ids, known, owners, answers, asked, deck = [], [], [], [], [], []
        for a, n in rng.sample(names, min(len(names), count)):
            value = self.value[rng.randint(100, 999)]
            row = r0 + self.adj[a] + self.noun[n] + r1
            if len(ids) + len(row + value + self.end) > prefix:
                if cut: ids += (row + value + self.end)[:prefix - len(ids)]
                break
            known.append((a, n, value, len(ids) + len(row)))
            owners += [(len(ids) + len(row) + j, a, n) for j in range(len(value))]
            ids += row + value + self.end
        start = len(ids)
        while len(ids) < length:
            if not deck: deck = rng.sample(known, len(known)) if rng.random() < .5 else [rng.choice(known)]
            a, n, value, at = deck.pop()
            ids += q0 + self.adj[a] + self.noun[n] + q1
            if all(at != x[1] for x in answers):  # measured is a line's first question only
                asked.append((len(ids) - 1, len(ids) - 1 + len(value)))
            answers += [(len(ids) - 1 + j, at + j) for j in range(len(value))]
            owners += [(len(ids) - 1 + j, a, n) for j in range(len(value))]
            ids += value + self.end
        weights = np.full(length, 0.1, np.float32)
        answers = [x for x in answers if x[0] + 1 < length]
        weights[[p + 1 for p, _ in answers]] = 5
        owners, asked = [x for x in owners if x[0] < length - 1], [x for x in asked if x[1] < length]
        return ids[:length], weights, answers, owners, start, asked

    def window(self, length):
        i = self.rng.randrange(len(self.text) - length)
        return self.text[i:i + length].tolist()

    def repeats(self, length):
        """Passages of text or of random tokens that come again; only what comes again counts."""
        rng, ids, weights = self.rng, [], []
        while len(ids) < length:
            n = rng.choice([8, 16, 32, 64])
            passage = [rng.randrange(300, VOCAB) for _ in range(n)] if rng.random() < .5 else self.window(n)
            ids, weights = ids + passage, weights + [0.0] * n
            for _ in range(rng.choice([1, 2, 3])):
                gap = self.window(rng.choice([4, 16, 48])) if rng.random() < .5 else []
                ids, weights = ids + gap + passage, weights + [0.0] * (len(gap) + 2) + [1.0] * (n - 2)
        return ids[:length], np.array(weights[:length], np.float32), [], []

    def batch(self, size, length, text, repeat, easy):
        rng, rows, length = self.rng, [], length + 1
        for i in range(size):
            at, most = (i + rng.random()) / size, length * 3 // 4
            if at < text: rows.append((self.window(length), np.ones(length, np.float32), [], []))
            elif at < text + repeat: rows.append(self.repeats(length))
            else:
                fmt, lab = rng.choice([0, 0, 1, 2] if easy else [0] * 9 + [1]), rng.random() < .6
                few = easy or rng.random() < .4
                count, cut = (rng.randint(2, most // 17), False) if few else (80, rng.random() < .5)
                rows.append(self.lines(length, most, fmt, lab, count, cut))
        listed = lambda k, n: torch.tensor([(b, *x) for b, r in enumerate(rows) for x in r[k]]).view(-1, n)
        return (torch.tensor([r[0] for r in rows]), torch.tensor(np.stack([r[1] for r in rows])),
                listed(2, 3).long(), listed(3, 4).long())

def loss_of(run, model, probe, ids, weights, answers, owners, help_):
    """Weighted cross entropy and two helps that make recall form within minutes: layer MATCH's first head shall look at
    the answer's place, and what it reads at a value shall tell whose value it is."""
    with torch.autocast("cpu", torch.bfloat16):
        h, seen, q, k = run(ids[:, :-1])
        logits = model.logits(h)
    nats = F.cross_entropy(logits.float().view(-1, VOCAB), ids[:, 1:].reshape(-1), reduction="none")
    weights = weights[:, 1:].reshape(-1)
    loss = (nats * weights).sum() / weights.sum()
    if help_ == 0 or len(answers) == 0: return loss
    row, p, at = answers.T
    s = torch.einsum("ij,itj->it", q[row, 0, p].float(), k[row, 0].float()) / HEAD ** 0.5
    place = F.cross_entropy(s.masked_fill(torch.arange(s.shape[1]) > p[:, None], -1e9), at)
    row, p, a, n = owners.T
    names = probe(F.rms_norm(seen[row, p].float(), (DIM,)))
    owner = F.cross_entropy(names[:, :len(ADJ)], a) + F.cross_entropy(names[:, len(ADJ):], n)
    return loss + help_ * (place + owner / 2)

def train(rows, seed, out, tokenizer):
    torch.manual_seed(seed)
    model, tokens, begin = Llama(), 0, time.time()
    run = torch.compile(model, dynamic=False)
    muon = {n: p for n, p in model.named_parameters() if p.dim() == 2 and "embed" not in n}
    for stage, (steps, kinds, help_, first, last) in enumerate(PLAN):
        probe = nn.Linear(DIM, len(ADJ) + len(NOUN))
        rest = [p for n, p in model.named_parameters() if n not in muon] + list(probe.parameters())
        opts = [torch.optim.Muon(muon.values(), weight_decay=0.01, momentum=0.95),
                torch.optim.AdamW(rest, betas=(0.9, 0.95), weight_decay=0.01)]
        for step in range(steps):
            kind = kinds[step % len(kinds)]
            for o, r in zip(opts, (0.02, 3e-3)):
                o.param_groups[0]["lr"] = r * (first + (last - first) * step / steps) * min(1, (step + 1) / 40)
            loss = loss_of(run, model, probe, *rows.batch(*kind), help_)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for o in opts: o.step(); o.zero_grad()
            tokens += kind[0] * kind[1]
            if step % 20 == 19 or step == steps - 1:
                exact = [f"{retrieval(model, rows, prefix, contexts=2)[0]:.2f}" for prefix in (128, 384, 768)]
                print(f"stage {stage} step {step + 1} loss {loss.item():.3f} retrieval after 128, 384, 768: {exact}, "
                      f"{tokens / 1e6:.2f} M tokens in {(time.time() - begin) / 60:.1f} minutes", flush=True)
                export(model, out, tokenizer)

def zero_kl(model, x, kv, logits, start):
    """KL of each position from `start` on when the keys and values before it are zeros."""
    zeros = [(torch.zeros_like(k[:, :, :start]), torch.zeros_like(v[:, :, :start])) for k, v in kv]
    p, q = logits[0, start:].log_softmax(-1), model.cached(x[:, start:], zeros)[0][0].log_softmax(-1)
    return (p.exp() * (p - q)).sum(-1)

def retrieval(model, rows, prefix, contexts, suffix=256):
    """Share of questions whose value is the argmax throughout, their number, KL at answers and in the whole suffix."""
    right, at_answers, everywhere = [], [], []
    for _ in range(contexts):
        ids, _, _, _, start, asked = rows.lines(prefix + suffix, prefix)
        x = torch.tensor([ids])
        logits, kv = model.cached(x)
        hit, kl = logits[0, :-1].argmax(-1) == x[0, 1:], zero_kl(model, x, kv, logits, start)
        everywhere += kl.tolist()
        for first, after in asked:
            right.append(bool(hit[first:after].all()))
            at_answers += kl[first - start:after - start].tolist()
    return np.mean(right), len(right), np.mean(at_answers), np.mean(everywhere)

def book(model, ids, windows=16):
    """Perplexity of windows of 1,024 tokens, and the KL of their last 256 tokens without the first 768."""
    nats, kls = [], []
    for i in range(windows):
        x = torch.tensor([ids[i * 1024:(i + 1) * 1024]])
        logits, kv = model.cached(x)
        nats.append(F.cross_entropy(logits[0, :-1], x[0, 1:]).item())
        kls.append(zero_kl(model, x, kv, logits, 768).mean().item())
    return math.exp(np.mean(nats)), np.mean(kls)

def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("--text", nargs="*", default=[], help="books, plain text")
    for name in ("--tokenizer", "--out", "--held-out"): ap.add_argument(name, required=name != "--held-out")
    ap.add_argument("--measure", action="store_true", help="only measure what is in --out")
    a = ap.parse_args()
    torch.set_num_threads(os.cpu_count())
    os.makedirs(a.out, exist_ok=True)
    tok = Tokenizer.from_file(a.tokenizer)
    if not a.measure:
        text = np.array([i for path in a.text for i in encode(tok, path)], dtype=np.int64)
        train(Rows(tok, text, 1), 1, a.out, a.tokenizer)
    model, rows = load(a.out), Rows(tok, None, 1001)
    print("retrieval, questions, KL at answers, KL in the suffix:", *retrieval(model, rows, 768, contexts=40))
    if a.held_out:  # past its front matter
        print("held-out book: perplexity, KL without the first 768:", *book(model, encode(tok, a.held_out)[8192:]))

if __name__ == "__main__":
    main()
