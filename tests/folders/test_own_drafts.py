"""Our own drafts are read back bit for bit. Incomplete folders and other content are refused."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fastdec as fd
from fastdec import folders
from fastdec.folders.drafts import draft_content
from fastdec.heads.block import BlockNetwork
from fastdec.heads.blockwise import BlockwiseHeads
from fastdec.heads.correlator import CorrelatorConfig
from fastdec.heads.eagle import EagleNetwork
from fastdec.heads.parallel import ParallelNetwork
from fastdec.kernels.sharding import MeshConfig, make_mesh
from fastdec.models.lm import LMConfig
from fastdec.models.stacks import StackConfig
from fastdec.models.taps import RULE
from fastdec.models.transformer import Transformer, TransformerConfig

LAYERS = LMConfig(vocab_size=9, d_model=4, d_ff=6, layers=2, heads=2, key_heads=1)
DECODER = TransformerConfig(
  vocab_size=9, d_model=4, d_ff=6, heads=2, encoder_layers=1, decoder_layers=1
)
STACK = StackConfig(d_model=4, d_ff=6, heads=2, decoder_layers=1)
TARGET = {'vocab_size': 9, 'd_target': 4}
DRAFTS = {
  'eagle': EagleNetwork(layers=LAYERS, **TARGET),
  'eagle-3': EagleNetwork(layers=LAYERS, **TARGET, taps=RULE, fuses=True, words=5, entry='beside'),
  'over an encoder': EagleNetwork(layers=STACK, **TARGET),
  'with layers of its target': EagleNetwork(layers=DECODER, **TARGET, taps=(0, 1), fuses=True),
  'block': BlockNetwork(layers=LAYERS, **TARGET, taps=(1, 2), fuses=True, norms_taps=True, k=4,
    markov=3),
  'block of the same words': BlockNetwork(layers=STACK, **TARGET, k=3, markov=2, words=6,
    has_confidence=True),
  'masks': BlockNetwork(layers=LAYERS, **TARGET, k=4, entry='masks', unknown_id=8, drops_first=True,
    markov=3, markov_kind='rnn'),
  'parallel': ParallelNetwork(layers=LAYERS, **TARGET, k=4, unknown_id=8, words=5),
  'lattice': BlockNetwork(layers=STACK, **TARGET, k=4, edge='correlator', markov=3, candidates=4,
    conv=2, conv_group=2, correlator=CorrelatorConfig(6, 2, 2, 9, 5.0)),
}  # fmt: skip


def made(module, **more):
  """Returns the module, and random parameters with the given ones; `ids` are not random."""
  rng = np.random.default_rng(0)
  value = lambda x: np.arange(len(x)) if x.dtype == jnp.int32 else rng.normal(size=x.shape)
  shapes = jax.eval_shape(module.init, jax.random.key(0))
  return module, jax.tree.map(lambda x: jnp.asarray(value(x), x.dtype), shapes) | more


def assert_same(draft, other):
  assert draft[0] == other[0]
  jax.tree.map(np.testing.assert_array_equal, draft[1], other[1])
  assert jax.tree.map(lambda x: x.dtype.name, draft[1]) == jax.tree.map(
    lambda x: x.dtype.name, other[1]
  )


@pytest.mark.parametrize('kind', DRAFTS)
@pytest.mark.wide('eagle-3', 'block of the same words', 'over an encoder', 'masks')
def test_what_is_written_is_read_back(kind, tmp_path):
  module = DRAFTS[kind]
  draft = made(module, warmth=jnp.arange(3.0))
  fd.save_draft(tmp_path / 'run' / 'draft', draft)
  for path in (tmp_path / 'run' / 'draft', tmp_path / 'run'):
    assert_same(fd.load_draft(path), draft)
  assert_same(fd.load_draft(tmp_path / 'run', mesh=make_mesh(MeshConfig())), draft)
  assert [file.name for file in (tmp_path / 'run').iterdir()] == ['draft']


def test_what_a_draft_may_have_of_its_own_is_kept(tmp_path):
  module = EagleNetwork(layers=LAYERS, **TARGET, d_embed=3)
  draft = made(module, embedding=jnp.ones((9, 3)), output=jnp.ones((9, 4)))
  fd.save_draft(tmp_path, draft)
  assert_same(fd.load_draft(tmp_path), draft)


def test_all_but_whole_numbers_come_in_the_dtype_of_the_call(tmp_path):
  fd.save_draft(tmp_path / 'draft', made(DRAFTS['eagle-3']))
  module, params = fd.load_draft(tmp_path / 'draft', dtype='bfloat16')
  assert module.layers.dtype == 'bfloat16'
  types = {name: {x.dtype.name for x in jax.tree.leaves(part)} for name, part in params.items()}
  assert types == {'network': {'bfloat16'}, 'output': {'bfloat16'}, 'ids': {'int32'}}


@pytest.mark.parametrize(('kind', 'dtype'), [('eagle-3', 'int8'), ('block', 'int8w')])
def test_int8_is_what_quantizing_makes_of_it(kind, dtype, tmp_path):
  module, params = made(DRAFTS[kind])
  fd.save_draft(tmp_path / 'draft', (module, params))
  loaded, in_int8 = fd.load_draft(tmp_path / 'draft', dtype)
  assert loaded == module
  jax.tree.map(np.testing.assert_array_equal, in_int8, fd.quantize(module, params, dtype))
  with pytest.raises(fd.UserError, match='parameters in int8 are not written'):
    fd.save_draft(tmp_path / 'other', (module, in_int8))


def test_taps_are_set_explicitly(tmp_path):
  fd.save_draft(tmp_path, made(DRAFTS['eagle-3']))
  assert fd.load_draft(tmp_path, taps=[0, 2, 4])[0] == dataclasses.replace(
    DRAFTS['eagle-3'], taps=(0, 2, 4)
  )
  with pytest.raises(fd.UserError, match='this draft reads 3 layers: give as many'):
    fd.load_draft(tmp_path, taps=(1, 2))


def test_a_newer_draft_replaces_an_older_one_and_nothing_else(tmp_path):
  draft = made(DRAFTS['eagle'])
  fd.save_draft(tmp_path / 'draft', made(DRAFTS['block']))
  old = draft_content(tmp_path)
  fd.save_draft(tmp_path / 'draft', draft)
  assert_same(fd.load_draft(tmp_path), draft)
  assert draft_content(tmp_path) != old == old.lower()
  with pytest.raises(
    fd.UserError, match='is there already, and holds more than a draft of ours: give a new folder'
  ):
    fd.save_draft(tmp_path, draft)
  folders.save(*made(Transformer(DECODER)), tmp_path / 'model')
  with pytest.raises(fd.UserError, match='is there already'):
    fd.save_draft(tmp_path / 'model', draft)


def changed(folder, change):
  config = json.loads((folder / 'config.json').read_text())
  change(config['draft'])
  (folder / 'config.json').write_text(json.dumps(config))


REFUSED = {
  'another width': (lambda draft: draft.update(d_target=5, d_embed=4), r"fuses=True"),
  'more layers than tensors': (lambda draft: draft['layers'].update(layers=9999),
    'holds too little for layers=9999'),
  'an unknown field': (lambda draft: draft.update(depth=3), 'has unknown fields depth'),
  'another kind': (lambda draft: draft.update(type='lookahead'),
    "is of type 'lookahead': known are eagle, block"),
}  # fmt: skip


@pytest.mark.parametrize('case', REFUSED)
def test_what_does_not_fit_is_refused(case, tmp_path):
  change, message = REFUSED[case]
  fd.save_draft(tmp_path, made(DRAFTS['eagle']))
  changed(tmp_path, change)
  with pytest.raises(fd.UserError, match=message):
    fd.load_draft(tmp_path)


@pytest.mark.parametrize(
  'ids, span',
  [([0, 1, 2, 3, 9], 'ids from 0 to 9'), ([1, 1, 2, 3, 4], '5 words'), ([-1, 0, 1, 2, 3], '-1')],
)
def test_words_that_its_target_lacks_or_that_are_named_twice_are_refused(ids, span, tmp_path):
  module, params = made(DRAFTS['eagle-3'])
  fd.save_draft(tmp_path, (module, params | {'ids': jnp.array(ids, jnp.int32)}))
  with pytest.raises(fd.UserError, match=f'{span}.*, which must be different ids from 0 to 8'):
    fd.load_draft(tmp_path)


def test_a_folder_that_is_not_a_draft_is_refused(tmp_path):
  with pytest.raises(fd.UserError, match='is not a folder: give the folder of a draft'):
    fd.load_draft(tmp_path / 'draft')
  with pytest.raises(fd.UserError, match=r'has no config\.json'):
    fd.load_draft(tmp_path)
  model, params = made(Transformer(DECODER))
  folders.save(model, params, tmp_path / 'model')
  for path in (tmp_path, tmp_path / 'model'):
    with pytest.raises(fd.UserError, match=r'model: this is a model: load it with fd\.load'):
      fd.load_draft(path)
  heads = BlockwiseHeads(k=2, d_model=DECODER.d_model, d_ff=4)
  folders.save(model, params, tmp_path / 'heads', heads=made(heads))
  with pytest.raises(fd.UserError, match=r'these are prediction heads: load them with fd\.load_h'):
    fd.load_draft(tmp_path / 'heads')
  (tmp_path / 'model').rename(tmp_path / 'another')
  fd.save_draft(tmp_path / 'draft', made(DRAFTS['eagle']))
  for path in (tmp_path, tmp_path / 'draft'):
    for load in (fd.load, fd.load_heads):
      with pytest.raises(fd.UserError, match=r'draft network: load it with fd\.load_draft'):
        load(path)
  (tmp_path / 'draft' / 'model.safetensors').unlink()
  with pytest.raises(fd.UserError, match=r'model\.safetensors is missing: the folder is not whole'):
    fd.load_draft(tmp_path)
