"""Loading onto a mesh: neither a device nor the host holds much more than its share, and mistakes
are named before anything is read."""

import json
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fastdec as fd
from fastdec import folders
from fastdec.folders.stored import Stacked, Stored, stored_in
from fastdec.models.lm import LM, LMConfig

ROOT = Path(__file__).parents[2]
HUGGING_FACE = {
  'model_type': 'llama', 'vocab_size': 64, 'hidden_size': 32, 'intermediate_size': 64,
  'num_hidden_layers': 6, 'num_attention_heads': 8, 'num_key_value_heads': 4,
  'max_position_embeddings': 64, 'eos_token_id': 2,
}  # fmt: skip


def on_a_mesh(*words):
  """What `tests.hub.on_a_mesh` finds, in a process of its own: the number of devices is fixed
  when JAX starts."""
  command = [sys.executable, '-m', 'tests.hub.on_a_mesh', *map(str, words)]
  done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
  assert done.returncode == 0, done.stderr[-3000:]
  return json.loads(done.stdout.splitlines()[-1])


def saved(folder, **sizes):
  """A language model of random numbers, in our format."""
  model, rng = LM(LMConfig(**sizes)), np.random.default_rng(0)
  shapes = jax.eval_shape(model.init, jax.random.key(0))
  folders.save(
    model, jax.tree.map(lambda x: rng.standard_normal(x.shape, np.float32), shapes), folder
  )
  return folder


@pytest.fixture(scope='module')
def published(tmp_path_factory):
  """A small Llama as Hugging Face stores it, in bfloat16: queries, keys and values, and gates, each
  by itself."""
  from safetensors.flax import save_file

  folder, rng = tmp_path_factory.mktemp('published'), np.random.default_rng(0)
  shapes = {
    'model.embed_tokens.weight': (64, 32),
    'model.norm.weight': (32,),
    'lm_head.weight': (64, 32),
  }
  for i in range(6):
    at = f'model.layers.{i}'
    shapes |= {
      f'{at}.{name}.weight': (32,) for name in ('input_layernorm', 'post_attention_layernorm')
    }
    shapes |= {
      f'{at}.self_attn.{name}_proj.weight': (32 if name in 'qo' else 16, 32) for name in 'qkvo'
    }
    shapes |= {f'{at}.mlp.{name}_proj.weight': (64, 32) for name in ('gate', 'up')}
    shapes[f'{at}.mlp.down_proj.weight'] = (32, 64)
  save_file(
    {name: jnp.asarray(rng.standard_normal(shape), jnp.bfloat16) for name, shape in shapes.items()},
    folder / 'model.safetensors',
  )
  (folder / 'config.json').write_text(json.dumps(HUGGING_FACE | {'dtype': 'bfloat16'}))
  return folder


@pytest.fixture(scope='module')
def loaded(published):
  return on_a_mesh('devices', published)


@pytest.mark.parametrize('dtype', ['None', 'float32', 'int8', 'int8w'])
@pytest.mark.slow
def test_no_device_holds_more_than_its_parts_and_one_tensor(loaded, dtype):
  report = loaded[dtype]
  for most, end in zip(report['most'], report['end'], strict=True):
    # a quarter, and the norms, which are whole
    assert 0.25 * report['whole'] <= end < 0.3 * report['whole']
    assert most <= end + report['largest']
  assert report['same'] and report['same tokens']


@pytest.mark.slow
def test_the_host_needs_little_more_than_the_file(tmp_path):
  sizes = dict(vocab_size=4096, d_model=1024, d_ff=4096, layers=6, heads=16)
  folder = saved(tmp_path / 'wide', **sizes)
  size = (folder / 'model.safetensors').stat().st_size
  assert size > 3e8
  report = on_a_mesh('host', folder)
  assert report['loaded'] == pytest.approx(size, rel=0.05)  # the norms are on all devices
  assert report['taken'] < 1.3 * size, report['taken'] / size


# nothing is put there
EIGHT = jax.sharding.Mesh(np.array(jax.devices() * 8).reshape(1, 8), ('data', 'model'))


@pytest.mark.parametrize('theirs', [True, False], ids=["Hugging Face's", 'ours'])
def test_a_mesh_that_does_not_divide_is_refused_before_anything_is_read(
  theirs, published, tmp_path, monkeypatch
):
  folder = tmp_path
  if theirs:
    config = json.loads((published / 'config.json').read_text()) | {
      'num_attention_heads': 4,
      'head_dim': 8,
    }
    (tmp_path / 'config.json').write_text(json.dumps(config | {'num_key_value_heads': 2}))
    (tmp_path / 'model.safetensors').write_bytes((published / 'model.safetensors').read_bytes())
  else:
    folder = saved(tmp_path / 'odd', vocab_size=24, d_model=16, d_ff=24, layers=1, heads=4)
  monkeypatch.setattr(Stored, '__getitem__', lambda self, index: pytest.fail('a tensor is read'))
  with pytest.raises(
    fd.UserError,
    match=r'q/kernel has shape .* 4 cannot be divided over'
    r' mesh\.model=8',
  ):
    fd.load(folder, mesh=EIGHT)
  other = jax.make_mesh((1,), ('x',))
  with pytest.raises(fd.UserError, match=r'axes .*x.*: make it by make_mesh'):
    fd.load(folder, mesh=other)


def test_an_index_reads_what_it_takes_of_tensors_and_of_several_as_one(tmp_path):
  from safetensors.flax import save_file

  values = {
    name: jnp.arange(start, start + 12.0).reshape(4, 3) for name, start in (('a', 0), ('b', 50))
  }
  save_file({'a': values['a'], 'b': values['b'].astype(jnp.bfloat16)}, tmp_path / 'file')
  stored = stored_in(tmp_path / 'file')
  np.testing.assert_array_equal(stored['a'][1:3], values['a'][1:3])
  np.testing.assert_array_equal(stored['b'].reshape(2, 2, 3)[1, :, 2:], [[58], [61]])
  assert stored['b'].dtype == jnp.bfloat16 and stored['b'].shape == (4, 3)
  both = Stacked((stored['a'], stored['a'])).reshape(2, 2, 2, 3)
  part = both[1:2, :, 0:1, :]
  assert both.shape == (2, 2, 2, 3) and part.shape == (1, 2, 1, 3)
  np.testing.assert_array_equal(part[0], np.arange(12).reshape(2, 2, 3)[:, :1])
