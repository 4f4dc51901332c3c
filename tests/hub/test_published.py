"""Drafts are written in the published layouts, and read back."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fastdec as fd
from fastdec.decoding.description import usual_for
from fastdec.hub.published import publish_draft
from fastdec.models.lm import LMConfig
from fastdec.training.drafts.start import start_params
from tests.training.drafts.small import KINDS, MODELS, D, bound, network
from tests.training.fakes import VOCAB

ROPE = {'rope': 'llama3', 'rope_theta': 5e5, 'rope_factor': 8.0, 'rope_original': 64}
LAYERS = LMConfig(
  vocab_size=VOCAB, d_model=D, d_ff=12, heads=2, key_heads=1, layers=1, norm_epsilon=1e-5, **ROPE
)
EAGLE3 = {
  'layers': LAYERS, 'taps': (1, 2), 'fuses': True, 'entry': 'beside', 'recycles_normed': False,
  'words': 6,
}  # fmt: skip
DFLASH = {
  'layers': dataclasses.replace(LAYERS, layers=2, qk_norm=True), 'taps': (1, 2), 'fuses': True,
  'entry': 'masks', 'unknown_id': 3, 'drops_first': True, 'markov': 0,
}  # fmt: skip


def draft_of(kind, settings):
  draft = bound(network(kind, 'lm', **settings), 1)
  if 'ids' in draft.params:
    draft.params['ids'] = jnp.array([1, 2, 4, 5, 7, 9], jnp.int32)
  return draft


PARALLEL = {
  'layers': dataclasses.replace(LAYERS, layers=2), 'taps': (1, 2), 'fuses': True, 'unknown_id': 3,
  'words': 6, 'k': 4,
}  # fmt: skip
BLOCKS = {name: DFLASH | {'markov': 3} | settings for name, settings in KINDS.items()}
WINDOWS = DFLASH | {'layers': dataclasses.replace(DFLASH['layers'], windows=(0, 5))}


@pytest.mark.parametrize('kind, settings', [
  ('eagle', EAGLE3), ('block', DFLASH), ('parallel', PARALLEL), ('block', BLOCKS['jetspec']),
  ('block', BLOCKS['dspark']), ('block', BLOCKS['domino']), ('block', BLOCKS['lilicorr']),
  ('block', BLOCKS['dflash2'] | {'logit_cap': 5.0, 'logit_scale': 0.5, 'embedding_scale': 2.0}),
  ('block', WINDOWS | {'causal': 'windows'}),
])  # fmt: skip
@pytest.mark.wide('eagle-settings0', 'block-settings5')
def test_a_draft_that_is_published_is_read_back(kind, settings, tmp_path):
  draft = draft_of(kind, settings)
  publish_draft(tmp_path / 'draft', tuple(draft), 3)
  module, params = fd.load_draft(tmp_path / 'draft')
  jax.tree.map(np.testing.assert_array_equal, params, draft.params)
  assert module.taps == (1, 2) and module.words == draft.module.words
  assert type(module) is type(draft.module) and getattr(module, 'k', 0) == getattr(
    draft.module, 'k', 0
  )
  # It writes the same text with the same guesses.
  target = bound(MODELS['lm'], 5)
  strategy = usual_for
  outputs = []
  for one in (tuple(draft), (module, params)):
    outputs.append(fd.decode(*target, [[4, 5, 6]], strategy(one), max_new_tokens=9))
  np.testing.assert_array_equal(outputs[0].tokens, outputs[1].tokens)
  np.testing.assert_array_equal(outputs[0].block_sizes, outputs[1].block_sizes)
  config = json.loads((tmp_path / 'draft' / 'config.json').read_text())
  assert config['rope_scaling']['rope_type'] == 'llama3'


@pytest.mark.parametrize('kind, settings, words', [
  ('eagle', {}, 'only fastdec has such a network: train it with --kind=eagle3'),
  ('eagle', EAGLE3 | {'words': None}, 'EAGLE-3 has words of its own'),
  ('block', DFLASH | {'markov': 2}, 'and no Markov bias'),
  ('eagle', EAGLE3 | {'layers': dataclasses.replace(LAYERS, qkv_bias=True)}, 'qkv_bias=True'),
])  # fmt: skip
def test_a_draft_without_a_published_form(kind, settings, words, tmp_path):
  with pytest.raises(fd.UserError, match=words):
    publish_draft(tmp_path / 'draft', tuple(draft_of(kind, settings)), 3)
  assert not (tmp_path / 'draft').exists()


def test_it_begins_as_the_last_layer_that_reads_the_feature():
  target = bound(MODELS['lm'])
  layers = dataclasses.replace(MODELS['lm'].config, layers=1, dropout=0.0)
  draft = network('eagle', 'lm', **EAGLE3 | {'layers': layers})
  ids = np.arange(6)
  params = start_params(draft, target, jax.random.key(0), 'target', ids)['network']['tower'][
    'layer_0'
  ]
  kernel = target.params['layer_2']['q']['kernel']
  np.testing.assert_array_equal(params['q']['kernel'][..., D:], kernel)
  assert not params['q']['kernel'][..., :D].any()
