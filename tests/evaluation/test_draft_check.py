"""The share of the target's own tokens that a draft guesses. Each guess depends only on the text
before it."""

import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fastdec as fd
from fastdec.evaluation import draft_check
from fastdec.evaluation.draft_check import _first_guesses, check_draft
from fastdec.heads.block import BlockNetwork
from fastdec.heads.eagle import EagleNetwork
from fastdec.models.api import causal, source_of
from fastdec.models.attention import node_mask
from fastdec.models.lm import LM, LMConfig
from fastdec.models.stacks import StackConfig
from fastdec.models.taps import apply_with
from fastdec.models.transformer import Transformer, TransformerConfig
from fastdec.struct import Bound

V = 9
SIZES = {'d_model': 8, 'd_ff': 8, 'heads': 2}
LAYERS = LMConfig(vocab_size=V, **SIZES, layers=1)
STACK = StackConfig(**SIZES, encoder_layers=1, decoder_layers=1)
OF = {'vocab_size': V, 'd_target': 8}
TRANSLATOR = TransformerConfig(vocab_size=V, **SIZES, encoder_layers=1, decoder_layers=1)
TARGETS = {  # and a source
  'lm': (LM(LMConfig(vocab_size=V, **SIZES, layers=2, eos_ids=(), suppressed_ids=(0,))), None),
  'transformer': (
    Transformer(TransformerConfig(vocab_size=V, **SIZES, encoder_layers=1, decoder_layers=1)),
    [3, 2, 4, 1],
  ),
}
DRAFTS = {
  'eagle': ('lm', EagleNetwork(layers=LAYERS, **OF, taps=(0, 2), fuses=True, entry='beside')),
  'block': ('lm', BlockNetwork(layers=LAYERS, **OF, k=4, markov=2, words=6)),
  'masks': ('lm',
    BlockNetwork(layers=LAYERS, **OF, k=4, entry='masks', unknown_id=3, drops_first=True)),
  'eagle over a source': ('transformer', EagleNetwork(layers=STACK, **OF)),
  'block over a source': ('transformer', BlockNetwork(layers=STACK, **OF, k=3, taps=(0,))),
}  # fmt: skip


@functools.partial(jax.jit, static_argnums=(0, 2))
def guess_after(model, params, module, draft, inputs, text):
  """Returns the draft's guesses after a text, all of which it reads at once."""
  target = Bound(model, params)
  n = text.shape[1] - 1  # the newest token, the root, is not in the cache
  memory = model.encode(params, inputs)
  cache = model.init_cache(params, memory, 1, n)
  hidden, taps, _ = apply_with(model, module.taps)(params, text[:, :n], causal(n), cache)
  features = module.features(draft, hidden, taps)
  cache = module.init_cache(draft, source_of(model)(memory), 1, n + 8)
  positions = jnp.arange(n, dtype=jnp.int32)[None]
  if isinstance(module, EagleNetwork):
    mask = node_mask(causal(n), jnp.zeros(1, jnp.int32), n + 8)
    embedded = module.embedded(draft, target, text[:, 1:])
    states, _ = module.read(
      draft, embedded, features, positions, mask, cache, jnp.zeros(1, jnp.int32)
    )
    logits = module.logits(draft, target, states[:, -1])
  else:
    cache = module.remember(draft, features, positions, cache).commit(
      None, jnp.full(1, n, jnp.int32)
    )
    state = module.read(draft, target, text[:, -1], features[:, -1], cache)[:, 0]
    logits = module.logits(draft, target, state)
    if module.markov:
      logits = (
        logits + module.bias(draft, text[:, -1], None, state, jnp.zeros((1, module.markov)))[0]
      )
  words = module.in_target_words(draft, logits)[0]
  return words.at[jnp.array(model.suppressed_ids)].set(-jnp.inf).argmax()


@pytest.mark.parametrize('kind', DRAFTS)
@pytest.mark.wide('block over a source')
def test_first_guesses_depend_only_on_the_text_before(kind):
  of, module = DRAFTS[kind]
  model, source = TARGETS[of]
  params, draft = jax.jit(model.init)(jax.random.key(1)), jax.jit(module.init)(jax.random.key(2))
  if 'after' in draft:
    draft['after'] = jax.random.normal(jax.random.key(3), draft['after'].shape)
  text = np.array([[1, 3, 2, 2, 5, 7, 4], [1, 6, 6, 3, 2, 8, 0]], np.int32)
  inputs = None if source is None else jnp.array([source, source[::-1]])
  guesses = _first_guesses(Bound(model, params), Bound(module, draft), inputs, text)
  assert guesses.shape == text.shape and len(np.unique(guesses)) > 2
  for row, place in ((0, 2), (1, 6)):
    alone = None if inputs is None else inputs[row : row + 1]
    assert guesses[row, place] == guess_after(
      model, params, module, draft, alone, text[row : row + 1, :place]
    )


def test_the_share_counts_all_tokens_but_the_first_of_each_row(monkeypatch):
  """One row writes from a prompt of 3, the other from one of 2: positions 4, 5, 6 and 3, 4, 5 are
  asked for."""
  right = np.zeros((2, 20), bool)
  right[0, [3, 4, 7]] = right[1, [2, 5, 3]] = True
  monkeypatch.setattr(
    draft_check,
    '_first_guesses',
    lambda target, draft, inputs, text: np.where(right[:, : text.shape[1]], text, -1),
  )
  model, module = TARGETS['lm'][0], DRAFTS['eagle'][1]
  params = jax.jit(model.init)(jax.random.key(1))
  assert check_draft(model, params, (module, {}), [[3, 2, 1], [5, 2, 0]], [3, 2], tokens=4) == 3 / 6
  assert np.isnan(check_draft(model, params, (module, {}), [[3, 2, 1]], tokens=1))


def test_a_wrong_draft_is_warned_of_and_a_right_one_is_not():
  module = EagleNetwork(layers=LAYERS, **OF, words=1)
  model = TARGETS['lm'][0]
  params, draft = (
    jax.tree.map(jnp.zeros_like, jax.jit(one.init)(jax.random.key(0))) for one in (model, module)
  )
  with warnings.catch_warnings():
    warnings.simplefilter('error')
    # what it always writes
    assert check_draft(model, params, (module, draft | {'ids': jnp.array([1])}), [[3, 2]]) == 1
  with pytest.warns(
    fd.UserNote,
    match='guesses 0% of 63 tokens that its target wrote, while a correct one guesses 60 %',
  ):
    assert check_draft(model, params, (module, draft | {'ids': jnp.array([2])}), [[3, 2]]) == 0


def test_a_draft_for_a_different_target_is_refused():
  module = EagleNetwork(layers=LAYERS, vocab_size=V + 1, d_target=8)
  with pytest.raises(
    fd.UserError, match=f'is for {V + 1} words, and this model has {V}: load the two together'
  ):
    check_draft(TARGETS['lm'][0], {}, (module, {}), [[3, 2]])
