"""The decoders of the Wan VAEs in PyTorch, random weights, one latent frame at a time with the history
that causal convolutions need: what `ballast bench vae` is compared with on the same machine.

    python bench/peers/vae_torch.py 2.1 480 832 81
    python bench/peers/vae_torch.py 2.2 704 1280 121
"""
import argparse
import time

import torch
import torch.nn.functional as F
from torch import nn


class Norm(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(channels, 1, 1, 1))
        self.scale = channels**0.5

    def forward(self, x):
        return F.normalize(x, dim=1) * self.scale * self.gain


class Causal(nn.Conv3d):
    """A convolution that keeps the last two frames it saw."""

    def __init__(self, a, b, kernel):
        super().__init__(a, b, kernel, padding=(0, kernel[1] // 2, kernel[2] // 2))
        self.seen = None

    def forward(self, x):
        if self.kernel_size[0] == 1:
            return super().forward(x)
        past = self.seen if self.seen is not None else x.new_zeros(x.shape[0], x.shape[1], 2, *x.shape[3:])
        x = torch.cat([past, x], dim=2)
        self.seen = x[:, :, -2:].clone()
        return super().forward(x)


class Residual(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.norm1, self.conv1 = Norm(a), Causal(a, b, (3, 3, 3))
        self.norm2, self.conv2 = Norm(b), Causal(b, b, (3, 3, 3))
        self.skip = Causal(a, b, (1, 1, 1)) if a != b else nn.Identity()

    def forward(self, x):
        y = self.conv1(F.silu(self.norm1(x)))
        return self.skip(x) + self.conv2(F.silu(self.norm2(y)))


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.norm, self.qkv, self.out = Norm(c), nn.Conv2d(c, 3 * c, 1), nn.Conv2d(c, c, 1)

    def forward(self, x):
        b, c, t, h, w = x.shape
        y = self.norm(x).transpose(1, 2).reshape(b * t, c, h, w)
        q, k, v = (p.flatten(2).transpose(1, 2).unsqueeze(1) for p in self.qkv(y).chunk(3, 1))
        y = F.scaled_dot_product_attention(q, k, v).squeeze(1).transpose(1, 2).reshape(b * t, c, h, w)
        return x + self.out(y).reshape(b, t, c, h, w).transpose(1, 2)


class Up(nn.Module):
    def __init__(self, a, b, in_time):
        super().__init__()
        self.conv = nn.Conv2d(a, b, 3, padding=1)
        self.time = Causal(a, 2 * a, (3, 1, 1)) if in_time else None
        self.first = True

    def forward(self, x):
        if self.time is not None and not self.first:
            b, c, t, h, w = x.shape
            x = self.time(x).reshape(b, 2, c, t, h, w).permute(0, 2, 3, 1, 4, 5).reshape(b, c, 2 * t, h, w)
        self.first = False
        b, c, t, h, w = x.shape
        y = F.interpolate(x.transpose(1, 2).reshape(b * t, c, h, w), scale_factor=2.0, mode="nearest-exact")
        return self.conv(y).reshape(b, t, -1, 2 * h, 2 * w).transpose(1, 2)


class Stage(nn.Module):
    def __init__(self, a, b, up, in_time, shortcut):
        super().__init__()
        self.blocks = nn.Sequential(Residual(a, b), Residual(b, b), Residual(b, b))
        self.up = Up(b, b if shortcut else b // 2, in_time) if up else None
        self.shortcut, self.out, self.ft = shortcut and up, b, 2 if in_time else 1
        self.first = True

    def forward(self, x):
        y = self.blocks(x)
        if self.up is not None:
            y = self.up(y)
        if self.shortcut:
            n, c, t, h, w = x.shape
            r = self.out * self.ft * 4 // c
            s = x.repeat_interleave(r, dim=1).reshape(n, self.out, self.ft, 2, 2, t, h, w)
            s = s.permute(0, 1, 5, 2, 6, 3, 7, 4).reshape(n, self.out, t * self.ft, 2 * h, 2 * w)
            y = y + s[:, :, self.ft - 1:] if self.first else y + s
        self.first = False
        return y


class Decoder(nn.Module):
    def __init__(self, generation):
        super().__init__()
        if generation == "2.1":
            z, widths, out, shortcut = 16, [(384, 384), (192, 384), (192, 192), (96, 96)], 3, False
        else:
            z, widths, out, shortcut = 48, [(1024, 1024), (1024, 1024), (1024, 512), (512, 256)], 12, True
        c = widths[0][0]
        self.z, self.fold = z, 2 if shortcut else 1
        self.point, self.conv = Causal(z, z, (1, 1, 1)), Causal(z, c, (3, 3, 3))
        self.middle = nn.Sequential(Residual(c, c), Attention(c), Residual(c, c))
        self.stages = nn.Sequential(*(Stage(a, b, i < 3, i < 2, shortcut) for i, (a, b) in enumerate(widths)))
        self.norm, self.head = Norm(widths[-1][1]), Causal(widths[-1][1], out, (3, 3, 3))

    def forward(self, z):
        x = self.stages(self.middle(self.conv(self.point(z))))
        x = self.head(F.silu(self.norm(x)))
        if self.fold == 2:
            b, c, t, h, w = x.shape
            x = x.reshape(b, 3, 2, 2, t, h, w).permute(0, 1, 4, 5, 3, 6, 2).reshape(b, 3, t, 2 * h, 2 * w)
        return x.clamp(-1, 1)

    def forget(self):
        for m in self.modules():
            if isinstance(m, Causal):
                m.seen = None
            if isinstance(m, (Up, Stage)):
                m.first = True


@torch.inference_mode()
def clip(net, latent):
    net.forget()
    return [net(latent[:, :, f:f + 1]).float().cpu() for f in range(latent.shape[2])]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("generation", choices=["2.1", "2.2"])
    p.add_argument("height", type=int)
    p.add_argument("width", type=int)
    p.add_argument("frames", type=int)
    a = p.parse_args()
    torch.backends.cudnn.benchmark = True
    for layout in ("contiguous", "channels_last_3d"):
        net = Decoder(a.generation).cuda().bfloat16().eval()
        if layout == "channels_last_3d":
            for m in net.modules():
                if isinstance(m, nn.Conv3d):
                    m.to(memory_format=torch.channels_last_3d)
        side = 8 * net.fold
        latent = torch.randn(1, net.z, (a.frames + 3) // 4, a.height // side, a.width // side,
                             device="cuda", dtype=torch.bfloat16)
        clip(net, latent[:, :, :3])
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        begin = time.perf_counter()
        clip(net, latent)
        torch.cuda.synchronize()
        seconds = time.perf_counter() - begin
        print(f"PyTorch {torch.__version__} VAE {a.generation} decode {a.frames} x {a.height} x {a.width} "
              f"bf16 {layout}: {seconds:.3f} s, peak {torch.cuda.max_memory_allocated() / 1e9:.2f} GB", flush=True)


main()
