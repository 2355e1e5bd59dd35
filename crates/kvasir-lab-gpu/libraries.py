"""Libraries on the same GPU, for the same run of kernels/gpu-check: cuBLAS on the product's sizes (through PyTorch), nvCOMP's
ANS (through nvidia-nvcomp, where it is installed)."""

import torch


def best_ms(work, rounds=7):
    best = float("inf")
    for _ in range(rounds):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        work()
        end.record()
        end.synchronize()
        best = min(best, start.elapsed_time(end))
    return best


def cublas():
    for name, elements, rank, scopes in [
        ("4 groups of 8 layers, r = 2,048", 16384, 2048, 4),
        ("all layers, r = 4,096", 65536, 4096, 1),
    ]:
        left = [torch.randn(1536, rank, device="cuda", dtype=torch.float16) for _ in range(scopes)]
        right = [torch.randn(elements, rank, device="cuda", dtype=torch.float16) for _ in range(scopes)]
        ms = best_ms(lambda: [a @ b.T for a, b in zip(left, right)])
        print(f"cuBLAS, 1,536 tokens, {name}: {ms:.3f} ms, {2 * 1536 * rank * elements * scopes / ms / 1e9:.0f} TFLOP/s")


def copies():
    source = torch.empty(1 << 30, device="cuda", dtype=torch.uint8)
    target = torch.empty_like(source)
    ms = best_ms(lambda: target.copy_(source))
    print(f"device copy: {2 * source.numel() / ms / 1e6:.0f} GB/s read and written")
    pinned = torch.empty(1 << 28, dtype=torch.uint8, pin_memory=True)
    ms = best_ms(lambda: target[: 1 << 28].copy_(pinned, non_blocking=True))
    print(f"host to device, pinned: {pinned.numel() / ms / 1e6:.1f} GB/s")


def nvcomp_ans():
    try:
        from nvidia import nvcomp
    except ImportError:
        print("nvCOMP: not installed, not timed")
        return
    # Symbols of the same statistics as the peers' in gpu_check, one byte each.
    symbols = (torch.randn(256 * 65536, device="cuda") * 1.4 + 7.5).clamp(0, 14).to(torch.uint8)
    codec = nvcomp.Codec(algorithm="ANS", chunk_size=1 << 16)
    coded = codec.encode(nvcomp.as_array(symbols))
    ms = best_ms(lambda: codec.decode(coded))
    print(f"nvCOMP ANS: {symbols.numel() / ms / 1e6:.0f} Gsym/s, {2 * symbols.numel() / ms / 1e6:.0f} GB/s as bf16 would be")


if torch.cuda.is_available():
    copies()
    cublas()
    nvcomp_ans()
else:
    raise SystemExit("PyTorch sees no GPU")
