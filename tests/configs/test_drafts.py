"""Every choice of the drafts' config describes a training, and a mistake in one is a sentence."""

import itertools

import pytest

from configs import drafts
from experiments.papers.drafts.settings import experiment_of
from fastdec.errors import UserError
from fastdec.models.lm import LM, LMConfig
from fastdec.models.transformer import Transformer, TransformerConfig

BASES = {
  'translation': Transformer(TransformerConfig(vocab_size=4000)),
  'lm': LM(LMConfig(vocab_size=4000)),
}
CHOICES = list(
  itertools.product(('smoke', 'tiny', 'multi30k'), ('translation', 'lm'), ('eagle', 'block'))
)


@pytest.mark.parametrize(('scale', 'task', 'kind'), CHOICES)
def test_every_choice_is_a_training(scale, task, kind):
  experiment = experiment_of(drafts.get_config(f'scale={scale},task={task},kind={kind}'))
  network = experiment.draft.network(BASES[task])
  assert network.depth == 7 if kind == 'block' else experiment.draft.depth == 7
  assert (experiment.task, experiment.kind, experiment.scale) == (task, kind, scale)
  assert network.reads_source == (task == 'translation')


@pytest.mark.parametrize(
  ('name', 'value', 'told'),
  [
    ('layers', 0, r'config.draft.layers=0'),
    ('words', -1, r'config.draft.words=-1'),
    ('dropout', 1.0, r'config.draft.dropout=1.0'),
  ],
)
def test_a_mistake_in_a_draft_is_a_sentence(name, value, told):
  config = drafts.get_config('scale=smoke')
  config.draft[name] = value
  with pytest.raises(UserError, match=told):
    experiment_of(config)
