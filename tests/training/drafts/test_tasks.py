"""Trainings of drafts: what is learnt, what stays, what a loss is; the same on a mesh and after a
stop."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fastdec.errors import UserError
from fastdec.heads.anchors import anchors_of
from fastdec.heads.lesson import Lesson
from fastdec.heads.shortlist import find_output
from fastdec.models.fconv import FConv, FConvConfig
from fastdec.models.lm import LMConfig
from fastdec.models.t5 import T5, T5Config
from fastdec.models.transformer import Transformer
from fastdec.struct import Bound
from fastdec.training.drafts import losses
from fastdec.training.drafts.losses import DraftLoss, draft_accuracy, draft_loss, make_guesses
from fastdec.training.drafts.start import layers_like, start_params
from fastdec.training.drafts.tasks import finetuned_draft_task, frozen_draft_task
from fastdec.training.loop import make_step
from fastdec.training.optimizer import OptimizerConfig
from fastdec.training.state import TrainState
from tests.training.drafts.small import (
  KINDS,
  LAYERS_OF,
  MODELS,
  TAPS,
  D,
  batch_of,
  bound,
  network,
  seen_by,
)
from tests.training.fakes import VOCAB

OPTIMIZER = OptimizerConfig(
  d_model=D, schedule='linear', constant=0.01, warmup=2, steps=40, b2=0.98
)
LOSSES = {
  'ce': DraftLoss(passes=2),
  'kl': DraftLoss(passes=2, ce=0.0, kl=1.0),
  'both': DraftLoss(passes=2, ce=0.1, kl=0.9, decay=0.8, anchors=6),
}


loss_of = jax.jit(draft_loss, static_argnames='settings')


def lesson_on(target, batch, anchors=0, key=None):
  """What a draft without taps learns from a batch."""
  return Lesson(target, batch, seen_by(target, batch), anchors_of(batch, anchors, key))


def run(task, batch, steps=20):
  transform = OPTIMIZER.build()
  state = TrainState.create(task, transform, jax.random.key(1))
  step = make_step(task, transform, OPTIMIZER.learning_rate)
  history = []
  for _ in range(steps):
    state, metrics = step(state, task.frozen, batch)
    history.append(metrics)
  return state, history


def same(a, b):
  return [np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)]


@pytest.fixture(scope='module')
def target():
  return bound(MODELS['translation'])


@pytest.mark.slow
@pytest.mark.parametrize('kind, loss', [('eagle', 'ce'), ('block', 'kl'), ('block', 'both')])
def test_the_loss_of_one_batch_falls_and_the_target_stays(kind, loss, target):
  before, batch = jax.device_get(target.params), batch_of('translation')
  module = network(kind, 'translation', words=7)
  draft = Bound(
    module,
    start_params(module, target, jax.random.key(2), 'fresh', np.array([0, 1, 2, 4, 5, 8, 10])),
  )
  task = frozen_draft_task(target, draft, LOSSES[loss])
  state, history = run(task, batch)
  loss = [float(metrics['loss']) for metrics in history]
  assert np.mean(loss[-3:]) < 0.9 * np.mean(loss[:3])
  assert all(same(target.params, before)) and 'ids' not in state.params
  assert same(state.params['output'], draft.params['output']) == [False]


@pytest.mark.slow
@pytest.mark.parametrize('name', [*KINDS, 'p-eagle'])
def test_ten_steps_of_any_kind_of_block_go_down(name, target):
  batch = batch_of('translation')
  if name == 'p-eagle':
    target, batch = bound(MODELS['lm']), batch_of('lm')
    module = network('parallel', 'lm', unknown_id=3, k=4, **TAPS)
  else:
    module = network('block', 'translation', **KINDS[name])
  draft = Bound(module, start_params(module, target, jax.random.key(2), 'fresh', None))
  state, history = run(frozen_draft_task(target, draft, DraftLoss()), batch)
  loss = [float(metrics['loss']) for metrics in history]
  assert np.mean(loss[-3:]) < 0.95 * np.mean(loss[:3])
  if module.edge_kind in ('rnn', 'selector'):
    assert np.any(state.params['after'])  # the edges learn


@functools.partial(jax.jit, static_argnames='passes')
def guesses_of(draft, lesson, passes):
  """Returns the rows, and the logits of each guess."""
  rows = make_guesses(draft, lesson, passes)
  carry, by_row = draft.module.start_carry(rows.states[0]), []
  for i, (state, before) in enumerate(zip(rows.states, rows.before, strict=True)):
    logits, carry = draft.module.guess_logits(
      draft.params, lesson.target, state, before, carry, number=i
    )
    by_row.append(logits)
  return rows, by_row


def by_hand(draft, target, batch, settings, by_rows=False):
  """Computes the loss, one guess at a time; `by_rows`: by the logits before any edge."""
  lesson = lesson_on(target, batch)
  seen, anchors = lesson.features, lesson.anchors
  rows, guessed = guesses_of(draft, lesson, settings.passes)
  if by_rows:
    guessed = [draft.module.logits(draft.params, target, state) for state in rows.states]
  n, (b, a) = len(rows.token), rows.token[0].shape
  each, counts, rights = np.zeros((n, b, a)), np.zeros((n, b, a)), []
  ids = np.asarray(draft.params['ids']) if 'ids' in draft.params else np.arange(VOCAB)
  law = np.array(target.module.unembed(target.params, seen.hidden), np.float64)
  law[..., 0] = -np.inf  # the target never writes padding
  law = np.asarray(jax.nn.softmax(law[..., ids], axis=-1))
  for i in range(n):
    q, right = np.asarray(jax.nn.softmax(guessed[i], axis=-1), np.float64), []
    for at in map(tuple, np.argwhere(np.asarray(rows.is_real[i]))):
      token, place = int(rows.token[(i, *at)]), int(anchors.place[at]) + 1 + i
      right.append(ids[q[at].argmax()] == token)
      if token not in ids:
        continue
      own, p = q[at], law[at[0], place]
      ce = -np.log(own[list(ids).index(token)])
      kl = sum(x * np.log(x / y) for x, y in zip(p, own, strict=True) if x)
      each[(i, *at)], counts[(i, *at)] = settings.ce * ce + settings.kl * kl, 1
    rights.append(np.mean(right))
  means = each.sum((1, 2)) / counts.sum((1, 2))
  weights = settings.decay ** np.arange(n)
  return (weights * means).sum() / weights.sum(), rights


@pytest.mark.parametrize(('kind', 'words', 'settings'), [
  ('eagle', None, DraftLoss(passes=3, ce=0.5, kl=0.3, decay=0.7)),
  ('block', 6, DraftLoss(passes=3, ce=0.1, decay=0.6)),
  ('block', 6, DraftLoss(ce=0.0, kl=1.0)),
])  # fmt: skip
@pytest.mark.wide('block-6-settings2')
def test_a_loss_is_the_weighted_mean_of_its_guesses(kind, words, settings, target):
  batch = batch_of('translation', 1)
  draft, projection = bound(network(kind, 'translation', words=words), 5), None
  if words:
    draft.params['ids'] = ids = jnp.array([1, 2, 3, 5, 6, 9])
    projection = find_output(*target, D)[ids]
  loss, metrics = loss_of(draft, lesson_on(target, batch), settings, projection=projection)
  expected, rights = by_hand(draft, target, batch, settings)
  np.testing.assert_allclose(loss, expected, rtol=1e-5)
  np.testing.assert_allclose([metrics[f'accuracy_{i + 1}'] for i in range(3)], rights, rtol=1e-6)
  assert metrics['tokens'] == anchors_of(batch).is_real.sum()


def slopes_of(draft, lesson, settings):
  loss = lambda params: draft_loss(Bound(draft.module, params), lesson, settings)[0]
  return jax.jit(jax.grad(loss))(draft.params)


@pytest.mark.parametrize(('share', 'of_rows'), [(0, 1), (0.125, 0.75), (0.5, 0)])
def test_domino_s_loss_moves_from_its_rows_to_its_edges(share, of_rows, target):
  batch, settings = batch_of('translation', 1), DraftLoss(ce=0.5, kl=0.25)
  draft = bound(network('block', 'translation', **KINDS['domino']), 5)
  lesson = lesson_on(target, batch | {'share': jnp.full(len(batch['target']), share)})
  rows, edges = (by_hand(draft, target, batch, settings, by_rows)[0] for by_rows in (True, False))
  loss, _ = loss_of(draft, lesson, settings)
  np.testing.assert_allclose(loss, of_rows * rows + (1 - of_rows) * edges, rtol=1e-5)
  slopes = slopes_of(draft, lesson, settings)
  assert any(map(np.any, jax.tree.leaves(slopes['network']['tower'])))
  for slope in (slopes['after'], slopes['network']['gru_state']['kernel']):
    assert np.any(slope) == (share > 0)


@pytest.mark.parametrize('choice', [(0.25, 0.0, 0.25), (0.125, 0.125, 0.25), (0.0, 1.0, 0.0)])
def test_the_losses_of_a_lattice(choice, target):
  """Margin: the token's score must be 2 above the best other one. Penalty: the gap of the target's
  logits, weighted by the chances of the candidates."""
  batch = batch_of('translation', 1)
  module = network('block', 'translation', **KINDS['lilicorr'] | {'candidates': 8})
  draft, lesson = bound(module, 5), lesson_on(target, batch)
  rows, _ = guesses_of(draft, lesson, 3)
  links = losses._link(draft, lesson, rows)
  z = np.asarray(target.module.unembed(target.params, lesson.features.hidden), np.float64)
  n, *_ = rows.token.shape
  ids = [np.asarray(draft.module.logits(draft.params, target, state)) for state in rows.states]
  ids = np.argsort(-np.stack(ids), axis=-1, kind='stable')[..., :8]
  expected, taught = np.zeros(rows.token.shape), 0
  for at in map(tuple, np.argwhere(np.asarray(rows.is_real.all(0)))):
    place = int(lesson.anchors.place[at])
    chosen = 0
    for i in range(n):
      token = int(rows.token[(i, *at)])
      own = ids[(i, *at)].tolist()
      if token not in own:
        break
      into = np.asarray(links.after[(i, *at)], np.float64)
      scores = into @ np.asarray(links.before[(i, *at)], np.float64)[chosen]
      chosen, taught = own.index(token), taught + 1
      chances = np.exp(scores) / np.exp(scores).sum()
      laws = z[at[0], place + 1 + i]
      terms = (
        -np.log(chances[chosen]),
        max(0, 2 - scores[chosen] + np.delete(scores, chosen).max()),
        chances @ np.maximum(laws[token] - laws[own], 0),
      )
      expected[(i, *at)] = np.dot(choice, terms)
  assert taught > 10
  settings = DraftLoss(decay=0.8, choice=choice)
  base, _ = by_hand(draft, target, batch, settings)
  weights = 0.8 ** np.arange(n)
  means = expected.sum((1, 2)) / np.asarray(rows.is_real).sum((1, 2))
  loss, _ = loss_of(draft, lesson, settings)
  np.testing.assert_allclose(loss - base, (weights * means).sum() / weights.sum(), rtol=1e-4)
  slopes = slopes_of(draft, lesson, settings)['network']
  for slope in jax.tree.leaves(slopes['correlator']):
    assert np.any(slope)


@pytest.mark.slow
def test_logits_that_are_computed_again_give_the_same_gradient(target, monkeypatch):
  batch, draft = (
    batch_of('translation', 1),
    bound(network('block', 'translation', markov_kind='rnn'), 5),
  )
  lesson, learnt = lesson_on(target, batch), draft.params['network']

  def gradient():
    def loss(part):
      whole = Bound(draft.module, draft.params | {'network': part})
      return draft_loss(whole, lesson, DraftLoss(kl=0.5))[0]

    return jax.jit(jax.grad(loss))(learnt)

  kept = gradient()
  monkeypatch.setattr(losses, 'KEPT', 0)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), gradient(), kept
  )


@pytest.mark.slow
def test_a_sample_of_all_places_is_all_of_them(target):
  batch, draft = batch_of('translation', 1), bound(network('eagle', 'translation'), 5)
  most = int(anchors_of(batch).is_real.sum(1).max())
  whole = loss_of(draft, lesson_on(target, batch), DraftLoss())[1]
  sample = lesson_on(target, batch, most, jax.random.key(3))
  drawn = loss_of(draft, sample, DraftLoss(anchors=most))[1]
  for name in whole:
    np.testing.assert_allclose(drawn[name], whole[name], rtol=1e-5)
  some = anchors_of(batch, 2, jax.random.key(3))
  assert (np.asarray(some.place[:, 0] != some.place[:, 1]) | ~np.asarray(some.is_real[:, 1])).all()
  other = anchors_of(batch, 2, jax.random.key(4))
  assert not np.array_equal(some.place, other.place)


def test_tokens_a_call_are_those_of_a_chain_that_stops_at_the_first_wrong_guess(target):
  batch, draft = batch_of('translation', 1), bound(network('eagle', 'translation'), 5)
  accuracy = draft_accuracy(draft, target, [batch, batch], passes=3)
  lesson = lesson_on(target, batch)
  anchors = lesson.anchors
  rows, guessed = guesses_of(draft, lesson, 3)
  guesses = jnp.stack(guessed).argmax(-1)
  right = np.asarray((guesses == rows.token) & rows.is_real)
  lengths = [
    next((i for i in range(3) if not right[i, r, c]), 3)
    for r, c in np.argwhere(np.asarray(anchors.is_real))
  ]
  np.testing.assert_allclose(accuracy['tokens a call'], 1 + np.mean(lengths), rtol=1e-6)
  np.testing.assert_allclose(
    accuracy['accuracy 2'], right[1].sum() / np.asarray(rows.is_real[1]).sum(), rtol=1e-6
  )


def test_text_without_anything_to_guess_is_a_sentence(target):
  with pytest.raises(UserError, match='the evaluation text is too short'):
    draft_accuracy(bound(network('eagle', 'translation'), 5), target, [], passes=3)


@pytest.mark.slow
def test_both_are_trained_together_and_the_target_s_own_loss_counts(target):
  before, batch = jax.device_get(target.params), batch_of('translation')
  draft = bound(network('block', 'translation'), 5)
  task = finetuned_draft_task(target, draft, DraftLoss(), 0.25, 0.1)
  state, (_, metrics) = run(task, batch, steps=2)
  expected = 0.25 * metrics['loss_model'] + 0.75 * metrics['loss_draft']
  np.testing.assert_allclose(metrics['loss'], expected, rtol=1e-6)
  assert all(same(target.params, before)) and not any(same(state.params['model'], before))


def test_layers_with_convolutions_begin_as_the_target_s_too(target):
  layers = layers_like(target.module, 2)
  module = network('block', 'translation', layers=layers, **KINDS['dflash2'])
  params = start_params(module, target, jax.random.key(0), 'target', None)
  for i in range(2):
    layer = dict(params['network']['tower'][f'layer_{i}'])
    assert {'attention_conv', 'mlp_conv'} <= layer.keys()  # they change nothing at first
    del layer['attention_conv'], layer['mlp_conv']
    assert all(same(layer, target.params[f'decoder_{i + 1}']))


def test_layers_begin_as_the_target_s_last_and_words_by_its_projection(target):
  layers = layers_like(target.module, 2)
  module = network('eagle', 'translation', layers=layers, words=4)
  ids = np.array([1, 3, 5, 7], np.int32)
  params = start_params(module, target, jax.random.key(0), 'target', ids)
  for i in range(2):
    assert all(same(params['network']['tower'][f'layer_{i}'], target.params[f'decoder_{i + 1}']))
  hidden = jax.random.normal(jax.random.key(1), (1, 1, D))
  expected = target.module.unembed(target.params, hidden)[..., ids]
  np.testing.assert_allclose(module.logits(params, target, hidden), expected, rtol=1e-5, atol=1e-6)
  with pytest.raises(UserError, match='init=target with 4 layers, and the target has 3'):
    start_params(
      dataclasses.replace(module, layers=layers_like(target.module, 4)),
      target,
      jax.random.key(0),
      'target',
      ids,
    )
  wide = dataclasses.replace(module, layers=dataclasses.replace(layers, d_ff=16))
  with pytest.raises(UserError, match="draft's layers have other sizes"):
    start_params(wide, target, jax.random.key(0), 'target', ids)


@pytest.mark.parametrize('dtype', ['bfloat16', 'float16'])
def test_a_draft_of_a_model_in_half_precision_learns_in_float32(target, dtype):
  half = Bound(
    dataclasses.replace(
      target.module, config=dataclasses.replace(target.module.config, dtype=dtype)
    ),
    jax.tree.map(lambda x: x.astype(dtype), target.params),
  )
  layers = layers_like(half.module, 1)
  assert layers.dtype == ('bfloat16' if dtype == 'bfloat16' else 'float32')  # it computes in
  module = network('eagle', 'translation', layers=layers, words=4)
  params = start_params(module, half, jax.random.key(0), 'target', np.array([1, 3, 5, 7], np.int32))
  kinds = {x.dtype.name for x in jax.tree.leaves(params)}
  assert kinds == {'float32', 'int32'}  # the words are integers


def products(jaxpr):
  for equation in jaxpr.eqns:
    if equation.primitive.name == 'dot_general':
      yield equation
    for value in jax.tree.leaves(list(equation.params.values())):
      if hasattr(value, 'eqns'):
        yield from products(value)


@pytest.mark.parametrize('settings', [{}, {'markov_kind': 'gated'}])
def test_in_bfloat16_rows_times_kernels_and_their_gradients_are_products_of_bfloat16(settings):
  """Also of the bias by the token before, whose vectors learn in float32."""
  config, layers = MODELS['translation'].config, LAYERS_OF['translation']
  model = Transformer(dataclasses.replace(config, dtype='bfloat16'))
  draft = network(
    'block', 'translation', layers=dataclasses.replace(layers, dtype='bfloat16'), **settings
  )
  task = frozen_draft_task(bound(model), bound(draft), LOSSES['ce'])
  gradient = jax.make_jaxpr(jax.grad(task.loss, has_aux=True))
  params, batch = task.init(jax.random.key(0)), batch_of('translation', rows=6, length=32)
  types = set()
  for equation in products(gradient(params, task.frozen, batch, jax.random.key(1))):
    left, right = (factor.aval for factor in equation.invars)
    if left.ndim == right.ndim == 2:
      types |= {left.dtype.name, right.dtype.name}
  assert types == {'bfloat16'}


def test_a_draft_of_a_t5_has_a_language_model_s_layers():
  model = T5(T5Config(vocab_size=VOCAB, d_model=D, d_ff=12, heads=2, d_kv=4))
  layers = layers_like(model, 1)
  assert isinstance(layers, LMConfig)
  assert (layers.d_model, layers.d_ff, layers.heads, layers.width) == (D, 12, 2, 4)
  with pytest.raises(UserError, match='a T5 or an LM, and this model is a FConv'):
    layers_like(FConv(FConvConfig()), 1)


@pytest.mark.parametrize(('settings', 'words'), [
  ({'passes': 0}, 'passes=0 is not possible: give 1 or more'),
  ({'anchors': -1}, 'anchors=-1 is not possible'),
  ({'ce': 0.0}, 'ce=0.0, kl=0.0: give weights of 0 or more, one of them above 0'),
  ({'kl': -1.0}, 'kl=-1.0'),
  ({'decay': 0.0}, 'decay=0.0 is not possible'),
])  # fmt: skip
def test_settings_that_are_not_possible(settings, words):
  with pytest.raises(UserError, match=words):
    DraftLoss(**settings)
