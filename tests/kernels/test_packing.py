"""Which parameters launchers pack."""

import os

import jax
import pytest

import fastdec as fd
from fastdec.heads.blockwise import BlockwiseHeads
from fastdec.kernels import forms
from fastdec.kernels.packed import is_packed
from fastdec.kernels.packing import pack_if_faster


@pytest.mark.parametrize(
  ('width', 'cores', 'flags', 'is_faster'),
  [
    (128, 1, (), False),
    (256, 1, (), True),
    (256, 2, (), True),
    (512, 1, (), True),
    (512, 2, (), False),
    (256, 1, ('amx_int8',), False),
    (512, 1, ('amx_int8',), False),
  ],
)
def test_what_gains_by_it_on_this_processor(monkeypatch, width, cores, flags, is_faster):
  monkeypatch.setattr(forms, 'cpu_flags', lambda: frozenset(flags))
  monkeypatch.setattr(os, 'sched_getaffinity', lambda _: range(cores))
  heads = BlockwiseHeads(k=2, d_model=width, d_ff=64)
  module, params = pack_if_faster(heads, heads.init(jax.random.key(0)))
  assert module is heads and is_packed(params) == is_faster


def test_kernels_in_int8_are_read_as_they_lie(monkeypatch):
  """Panels of integers take twice as long as `forms`."""
  monkeypatch.setattr(os, 'sched_getaffinity', lambda _: range(1))
  heads = BlockwiseHeads(k=2, d_model=256, d_ff=128)
  params = fd.quantize(heads, heads.init(jax.random.key(0)))
  assert not is_packed(pack_if_faster(heads, params)[1])
  assert not is_packed(fd.pack(heads, params)['w1'])


def test_nothing_is_packed_unless_the_device_is_a_cpu(monkeypatch):
  monkeypatch.setattr(forms, 'cpu_flags', frozenset)
  heads = BlockwiseHeads(k=2, d_model=256, d_ff=64)
  bound = heads, heads.init(jax.random.key(0))
  assert is_packed(pack_if_faster(*bound)[1])
  monkeypatch.setattr(jax, 'default_backend', lambda: 'gpu')
  assert not is_packed(pack_if_faster(*bound)[1])
