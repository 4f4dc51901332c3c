"""Likeness of images to others: PSNR and SSIM by scikit-image. The paper gives neither.

scikit-image and Pillow are imported where they are used: commands for text load this module too.
"""

import numpy as np
from jaxtyping import Array, Shaped, UInt8

from fastdec import extras
from fastdec.errors import UserError

Images = Shaped[Array | np.ndarray, '...']


def psnr(images: Images, originals: Images) -> float:
  """Computes the peak signal-to-noise ratio in dB, of the mean squared error over all images.

  The mean of single ratios would be infinite as soon as one image equals its original. This one is
  infinite only where all do.

  Args:
    images: uint8[n, h, w, 3].
    originals: as many.

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
    originals: as many.

  Raises:
    UserError: other shapes or dtypes, or no image.
  """
  with extras.explained():
    import skimage.metrics

  pairs = zip(*_checked(images, originals), strict=True)
  similarity = skimage.metrics.structural_similarity
  return float(
    np.mean([similarity(theirs, ours, channel_axis=-1, data_range=255) for ours, theirs in pairs])
  )


def bicubic(images: Images, side: int) -> UInt8[np.ndarray, 'n {side} {side} 3']:
  """Enlarges images, uint8[n, h, h, 3], by Pillow's bicubic filter, which a model must beat."""
  with extras.explained():
    import PIL.Image

  large = (side, side)
  made = [
    PIL.Image.fromarray(image).resize(large, PIL.Image.Resampling.BICUBIC)
    for image in np.asarray(images)
  ]
  return np.stack([np.asarray(image) for image in made])


def _checked(images: Images, originals: Images) -> tuple[np.ndarray, np.ndarray]:
  ours, theirs = np.asarray(images), np.asarray(originals)
  for given in (ours, theirs):
    if given.dtype != np.uint8 or given.ndim != 4 or given.shape[-1] != 3 or not len(given):
      raise UserError(
        f'images to compare are {given.dtype}{list(given.shape)}: give uint8[n, h, w, 3], n from 1'
      )
  if ours.shape[1:] != theirs.shape[1:]:
    sizes = ' with originals of '.join(
      f'{image.shape[1]} x {image.shape[2]}' for image in (ours, theirs)
    )
    raise UserError(f'images of {sizes} pixels cannot be compared: give originals of the same size')
  if len(ours) != len(theirs):
    raise UserError(
      f'{len(ours)} images cannot be compared with {len(theirs)} originals: give one for each'
    )
  return ours, theirs
