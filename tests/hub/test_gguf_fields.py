"""Each field of a GGUF file about its model is read, changes nothing, or is refused by name."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType, Keys

import fastdec as fd
from fastdec.hub.gguf.config import make_config
from fastdec.hub.gguf.folder import GgufFile
from fastdec.hub.gguf.header import GgufTensor, Header
from fastdec.hub.gguf.metadata import ARCHITECTURES, NEUTRAL, OTHERS, SPECIAL, Metadata
from fastdec.hub.gguf.ropes import TENSORS

CORE = {
  'block_count': 2, 'context_length': 64, 'embedding_length': 16, 'feed_forward_length': 24,
  'attention.head_count': 4, 'attention.head_count_kv': 2, 'attention.key_length': 4,
  'attention.value_length': 4, 'attention.layer_norm_rms_epsilon': 1e-5, 'rope.freq_base': 2e4,
}  # fmt: skip
YARN = {
  'rope.scaling.type': 'yarn', 'rope.scaling.factor': 4.0,
  'rope.scaling.original_context_length': 16, 'rope.scaling.yarn_attn_factor': 1.5,
  'rope.scaling.yarn_beta_fast': 16.0, 'rope.scaling.yarn_beta_slow': 2.0,
}  # fmt: skip
LINEAR = {'rope.scaling.factor': 4.0}
LONG = {
  'rope.scaling.attn_factor': 1.5, 'rope.scaling.original_context_length': 32,
  'rope.dimension_count': 2,
}  # fmt: skip
SPECIFIC = {  # of some architectures, by the names in `Metadata`
  'attention_sliding_window': 8, 'attention_sliding_window_pattern': 2, 'attention_scale': 0.25,
  'attn_logit_softcapping': 20.0, 'final_logit_softcapping': 30.0, 'embedding_scale': 3.0,
  'residual_scale': 0.5, 'logit_scale': 4.0, 'expert_count': 4, 'expert_used_count': 2,
  'expert_feed_forward_length': 12, 'rope_freq_base_swa': 3e4,
}  # fmt: skip
EXPERTS = ('expert_count', 'expert_used_count', 'expert_feed_forward_length')
OF_EXPERTS = EXPERTS[2]
NAMES = {name.replace('.', '_'): name for name in [*CORE, *YARN, *LONG, 'rope.scale_linear']}
for keys in (Keys.LLM, Keys.Attention, Keys.Rope):
  for template in vars(keys).values():
    if isinstance(template, str) and template.startswith('{arch}.'):
      name = template.removeprefix('{arch}.')
      NAMES.setdefault(name.replace('.', '_'), name)


def model_of(architecture, fields, tensors=()):
  """The settings of a model whose file has these fields and little else."""
  metadata = {f'{architecture}.{name}': value for name, value in fields.items()}
  metadata['general.architecture'] = architecture
  found = {}
  for name, shape in {'token_embd.weight': (6, 16), **dict(tensors)}.items():
    kind = GGMLQuantizationType.F32
    found[name] = GgufTensor(name, Path(__file__), 0, kind, shape, 4 * shape[-1])
  header = Header(Path('model.gguf'), metadata, found)
  return GgufFile(header.path, make_config(header), header=header).model.config


def bases():
  """Fields that a file of each architecture may have, with several scalings of its rotations."""
  rows = []
  for architecture, row in ARCHITECTURES.items():
    own = {NAMES[name]: SPECIFIC[name] for name in row.reads if name in SPECIFIC}
    dense = {name: value for name, value in own.items() if name not in EXPERTS}
    for scaling in [LONG] if architecture == 'phi3' else [YARN, LINEAR]:
      rows.append((architecture, CORE | own | scaling))
    if architecture == 'llama':
      rows.append((architecture, CORE | dense | {'rope.scale_linear': 2.0}))
  return rows


BASES = bases()


@pytest.fixture
def factors(monkeypatch):
  """Stands for the tensors of factors, which lie in no file here."""
  monkeypatch.setattr(
    'fastdec.hub.gguf.ropes._numbers', lambda tensor, count: np.ones(count).tolist()
  )
  return {name: (1,) for name in TENSORS[1:]}


@pytest.mark.parametrize('case', range(len(BASES)))
def test_a_read_field_changes_the_model(case, factors):
  architecture, base = BASES[case]
  tensors = factors if architecture == 'phi3' else {}
  before = model_of(architecture, base, tensors)
  for name, value in base.items():
    if name == 'feed_forward_length' and OF_EXPERTS in base:
      continue  # all layers may have experts
    changed = 'none' if isinstance(value, str) else 2 * value
    try:
      after = model_of(architecture, base | {name: changed}, tensors)
    except fd.UserError as error:
      assert name in str(error) or ('length' in name and 'width of a head' in str(error))
    else:
      assert after != before, name


def test_the_table_of_fields_is_tried_whole():
  tried = {name for _, base in BASES for name in base}
  assert {field.name for field in dataclasses.fields(Metadata)} == {
    name.replace('.', '_') for name in tried
  }
  assert set(SPECIAL) <= {name.replace('.', '_') for name in tried}


@pytest.mark.parametrize('architecture', ARCHITECTURES)
def test_any_other_field_is_refused_by_its_name(architecture, factors):
  base = next(base for name, base in BASES if name == architecture)
  tensors = factors if architecture == 'phi3' else {}
  row, before = ARCHITECTURES[architecture], model_of(architecture, base, tensors)
  read = {field.name for field in dataclasses.fields(Metadata)} - SPECIAL | {*row.reads}
  refused = 0
  for field, name in {**NAMES, 'something_new': 'something.new'}.items():
    if field in read:
      continue
    for value in (7, 7.5, [7, 8], 'word', True, False, 0, 1):
      if field == 'rope_scaling_yarn_ext_factor' and value in (0, 1):
        continue  # with or without yarn
      if field in NEUTRAL and (NEUTRAL[field] == () or value in NEUTRAL[field]):
        assert model_of(architecture, base | {name: value}, tensors) == before
        continue
      if not value and field not in NEUTRAL:
        assert model_of(architecture, base | {name: value}, tensors) == before
        continue
      with pytest.raises(fd.UserError) as raised:
        model_of(architecture, base | {name: value}, tensors)
      assert f'{architecture}.{name}=' in str(raised.value)
      refused += 1
  assert refused > 100


@pytest.mark.parametrize('architecture', ARCHITECTURES)
def test_a_field_that_an_architecture_needs_is_missed(architecture, factors):
  base = next(base for name, base in BASES if name == architecture)
  tensors = factors if architecture == 'phi3' else {}
  for name in ARCHITECTURES[architecture].needs:
    fewer = {key: value for key, value in base.items() if key != NAMES[name]}
    with pytest.raises(fd.UserError, match=f'lacks a field of its architecture, {name}'):
      model_of(architecture, fewer, tensors)


def test_absent_fields_of_gemma_2_mean_what_llama_cpp_takes():
  model = model_of('gemma2', CORE)
  assert (model.score_cap, model.logit_cap, model.windows) == (50.0, 30.0, (4096, 0))
  none = {NAMES[name]: 0 for name in ARCHITECTURES['gemma2'].absent}
  model = model_of('gemma2', CORE | none)
  assert (model.score_cap, model.logit_cap, any(model.windows)) == (None, None, False)


@pytest.mark.parametrize('pattern', [[True, False], [1, 0], [1, 1], [0, 0]])
def test_a_window_of_each_layer_is_one_whatever_its_numbers_are(pattern):
  fields = {'attention.sliding_window': 8, 'attention.sliding_window_pattern': pattern}
  assert model_of('gemma3', CORE | fields).windows == tuple(8 * int(one) for one in pattern)


TORN = {  # scalings that contradict themselves
  'one of two': ({}, TENSORS[1:2]),
  'all three': ({}, TENSORS),
  'a factor too': ({'rope.scaling.factor': 2.0}, TENSORS[:1]),
  'no tensors': ({'rope.scaling.type': 'longrope'}, ()),
}


@pytest.mark.parametrize('name', TORN)
def test_scalings_that_contradict_themselves_are_refused(name, factors):
  fields, tensors = TORN[name]
  with pytest.raises(fd.UserError, match='which do not belong together'):
    model_of('llama', CORE | fields, dict.fromkeys(tensors, (2,)))


@pytest.mark.parametrize('kind', [*OTHERS, 'dataset'])
def test_a_file_of_something_else_says_what_to_do(kind):
  for name in ('general.type', 'general.architecture'):
    if (kind, name) == ('dataset', 'general.architecture'):
      continue
    header = Header(Path('x.gguf'), {'general.architecture': 'llama', name: kind}, {})
    with pytest.raises(fd.UserError, match=r'x\.gguf is .*: (give|merge)'):
      make_config(header)
