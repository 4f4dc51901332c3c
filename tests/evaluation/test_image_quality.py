"""PSNR and SSIM against their definitions, on small images."""

import numpy as np
import pytest

from fastdec.errors import UserError
from fastdec.evaluation.image_quality import bicubic, psnr, ssim

FLAT = np.full((2, 32, 32, 3), 100, np.uint8)
NOISE = np.random.default_rng(0).integers(0, 256, (2, 32, 32, 3), dtype=np.uint8)


def test_psnr_is_of_the_error_over_all_images_and_not_a_mean_of_ratios():
  other = FLAT.copy()
  other[0] += 10  # the second image is equal: its own ratio is infinite
  assert psnr(other, FLAT) == pytest.approx(10 * np.log10(255**2 / 50))


def test_equal_images_are_infinitely_near():
  assert psnr(NOISE, NOISE) == np.inf and ssim(NOISE, NOISE) == pytest.approx(1)


def test_ssim_of_flat_images_is_their_luminance_term():
  other = FLAT.copy()
  other[0] += 50
  luminance = (2 * 100 * 150 + (0.01 * 255) ** 2) / (100**2 + 150**2 + (0.01 * 255) ** 2)
  assert ssim(other, FLAT) == pytest.approx((luminance + 1) / 2)


def test_darker_than_black_is_not_brighter():
  """uint8 differences wrap round: 0 against 255 is the greatest error there is."""
  assert psnr(np.zeros_like(FLAT), np.full_like(FLAT, 255)) == pytest.approx(0)


@pytest.mark.parametrize(('images', 'originals', 'mistake'), [
  (FLAT[:, :8, :8], FLAT, 'images of 8 x 8 with originals of 32 x 32 pixels cannot be compared'),
  (FLAT, FLAT / 255, r'float64\[2, 32, 32, 3\]'),
  (FLAT[:1], FLAT, '1 images cannot be compared with 2'),
])  # fmt: skip
@pytest.mark.parametrize('measure', [psnr, ssim])
def test_other_images_are_refused(measure, images, originals, mistake):
  with pytest.raises(UserError, match=mistake):
    measure(images, originals)


def test_bicubic_enlarges_each_image_and_keeps_flat_ones_flat():
  large = bicubic(FLAT[:, :8, :8], 16)
  assert large.dtype == np.uint8 and large.shape == (2, 16, 16, 3) and (large == 100).all()
  ramp = np.broadcast_to(np.arange(0, 80, 10, dtype=np.uint8)[:, None, None], (8, 8, 3))
  (rising,) = bicubic(ramp[None], 16)
  assert (np.diff(rising[2:-2, 0, 0].astype(int)) == 5).sum() >= 8  # half as steep
