"""Random crops and horizontal flips of a batch of images, from an explicit generator."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class CropAndFlip:
    """Shift each image by up to ``padding`` pixels either way, and mirror every second one.

    ``black`` is what a padded pixel is, per channel: black as it is after normalisation.

    >>> images = torch.ones(2, 3, 4, 4)
    >>> generator = torch.Generator().manual_seed(1)
    >>> CropAndFlip(black=(0.0, 0.0, 0.0), padding=1)(images, generator).shape
    torch.Size([2, 3, 4, 4])
    """

    black: tuple[float, ...]
    padding: int = 4

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """``images`` (N, C, H, W), cropped and flipped."""
        count, channels, height, width = images.shape
        margin = self.padding
        shifts = 2 * margin + 1
        black = images.new_tensor(self.black).reshape(1, channels, 1, 1)
        padded = black.repeat(count, 1, height + 2 * margin, width + 2 * margin)
        padded[:, :, margin : margin + height, margin : margin + width] = images
        top, left = torch.randint(shifts, (2, count, 1), generator=generator)
        mirrored = torch.randint(2, (count, 1), generator=generator, dtype=torch.bool)
        rows = top + torch.arange(height)
        columns = torch.arange(width).expand(count, width)
        columns = left + torch.where(mirrored, columns.flip(1), columns)
        sample = torch.arange(count)[:, None, None]
        picked = padded[sample, :, rows[:, :, None], columns[:, None, :]]
        return picked.permute(0, 3, 1, 2).contiguous()
