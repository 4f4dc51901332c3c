"""Similarity of images to their originals: PSNR and SSIM by scikit-image.

scikit-image and Pillow are imported where they are used: commands for text load this module too.
"""

import numpy as np
from jaxtyping import Array, Shaped, UInt8

from fastdec import extras
from fastdec.errors import UserError

Images = Shaped[Array | np.ndarray, '...']


def psnr(images: Images, originals: Images) -> float:
  """Computes the peak signal-to-noise ratio in dB, from the mean squared error over all images.

  The mean of the images' own ratios would be infinite as soon as one image equals its original.
  This ratio is infinite only if all images do.

  Args:
    images: uint8[n, h, w, 3].
    originals: one for each.

  Raises:
    UserError: other shapes or dtypes, or no image.
  """
  with extras.explained():
    import skimage.metrics

  ours, theirs = _checked(images, originals)
  with np.errstate(divide='ignore'):
    return float(skimage.metrics.peak_signal_noise_ratio(theirs, ours, data_range=255))


def ssim(images: Images, originals: Images) -> float:
  """Computes structural similarity (Wang et al. 2004), 1 for equal images.

  It is the mean over windows of 7 x 7, channels and images.

  Args:
    images: uint8[n, h, w, 3].
    originals: one for each.

  Raises:
    UserError: other shapes or dtypes, or no image.
  """
  with extras.explained():
    import skimage.metrics

  values = []
  for ours, theirs in zip(*_checked(images, originals), strict=True):
    values.append(
      skimage.metrics.structural_similarity(theirs, ours, channel_axis=-1, data_range=255)
    )
  return float(np.mean(values))


def bicubic(images: Images, side: int) -> UInt8[np.ndarray, 'n {side} {side} 3']:
  """Enlarges images, uint8[n, h, h, 3], by Pillow's bicubic filter, which a model must beat."""
  with extras.explained():
    import PIL.Image

  enlarged = []
  for image in np.asarray(images):
    picture = PIL.Image.fromarray(image).resize((side, side), PIL.Image.Resampling.BICUBIC)
    enlarged.append(np.asarray(picture))
  return np.stack(enlarged)


def _checked(images: Images, originals: Images) -> tuple[np.ndarray, np.ndarray]:
  ours, theirs = np.asarray(images), np.asarray(originals)
  for batch in (ours, theirs):
    if batch.dtype != np.uint8 or batch.ndim != 4 or batch.shape[-1] != 3 or not len(batch):
      raise UserError(
        f'images to compare are {batch.dtype}{list(batch.shape)}: give uint8[n, h, w, 3], n from 1'
      )
  if ours.shape[1:] != theirs.shape[1:]:
    raise UserError(
      f'images of {ours.shape[1]} x {ours.shape[2]} with originals of {theirs.shape[1]} x'
      f' {theirs.shape[2]} pixels cannot be compared: give originals of the same size'
    )
  if len(ours) != len(theirs):
    raise UserError(
      f'{len(ours)} images cannot be compared with {len(theirs)} originals: give one for each'
    )
  return ours, theirs
