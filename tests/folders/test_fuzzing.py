"""Whatever stands in a folder's JSON, there is a model, or a sentence: no other exception, no file
outside the folder, no hang and no memory without end.
"""

import contextlib
import dataclasses
import json
import resource
import signal
import sys
import warnings
from pathlib import Path

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ml_collections import ConfigDict
from safetensors.numpy import save_file

import fastdec as fd
from configs.common import to_dataclass
from fastdec import folders
from fastdec.heads.block import BlockNetwork
from fastdec.heads.blockwise import BlockwiseHeads
from fastdec.heads.eagle import EagleNetwork
from fastdec.heads.medusa import MedusaHeads
from fastdec.models.fconv import FConv, FConvConfig
from fastdec.models.image_transformer import ImageTransformer, ImageTransformerConfig
from fastdec.models.lm import LM, LMConfig
from fastdec.models.stacks import StackConfig
from fastdec.models.t5 import T5, T5Config
from fastdec.models.taps import RULE
from fastdec.models.transformer import Transformer, TransformerConfig
from tests.folders.draft_layouts import LAYOUTS
from tests.folders.draft_layouts import write as write_draft

SECONDS, MEMORY = 20, 2**31

# Folders of every format, small.

LLAMA = {
  'model_type': 'llama', 'vocab_size': 7, 'hidden_size': 4, 'intermediate_size': 6,
  'num_hidden_layers': 1, 'num_attention_heads': 2, 'num_key_value_heads': 1, 'head_dim': 2,
  'max_position_embeddings': 16, 'eos_token_id': 2, 'rms_norm_eps': 1e-6, 'hidden_act': 'silu',
  'tie_word_embeddings': True, 'attention_bias': False, 'mlp_bias': False, 'rope_theta': 1e4,
  'dtype': 'float32',
  'rope_scaling': {'rope_type': 'llama3', 'factor': 2, 'low_freq_factor': 1, 'high_freq_factor': 2},
}  # fmt: skip
LLAMA_SHAPES = {
  'model.embed_tokens.weight': (7, 4), 'model.norm.weight': (4,),
  'model.layers.0.input_layernorm.weight': (4,),
  'model.layers.0.post_attention_layernorm.weight': (4,),
  'model.layers.0.self_attn.q_proj.weight': (4, 4),
  'model.layers.0.self_attn.k_proj.weight': (2, 4),
  'model.layers.0.self_attn.v_proj.weight': (2, 4),
  'model.layers.0.self_attn.o_proj.weight': (4, 4), 'model.layers.0.mlp.gate_proj.weight': (6, 4),
  'model.layers.0.mlp.up_proj.weight': (6, 4), 'model.layers.0.mlp.down_proj.weight': (4, 6),
}  # fmt: skip
MARIAN = {
  'model_type': 'marian', 'vocab_size': 7, 'd_model': 4, 'encoder_layers': 1, 'decoder_layers': 1,
  'dropout': 0.1, 'encoder_attention_heads': 2, 'decoder_attention_heads': 2, 'encoder_ffn_dim': 6,
  'decoder_ffn_dim': 6, 'max_position_embeddings': 8, 'pad_token_id': 6, 'eos_token_id': 0,
  'decoder_start_token_id': 6, 'activation_function': 'swish', 'scale_embedding': True,
  'decoder_vocab_size': 7, 'bad_words_ids': [[6]],
}  # fmt: skip
T5_SAID = {
  'model_type': 't5', 'd_model': 4, 'd_kv': 2, 'd_ff': 6, 'num_heads': 2, 'num_layers': 1,
  'num_decoder_layers': 1, 'vocab_size': 7, 'feed_forward_proj': 'gated-gelu', 'pad_token_id': 0,
  'eos_token_id': 1, 'dropout_rate': 0.0, 'relative_attention_num_buckets': 8,
  'relative_attention_max_distance': 16, 'layer_norm_epsilon': 1e-6, 'is_encoder_decoder': True,
  'tie_word_embeddings': True, 'decoder_start_token_id': 0, 'scale_decoder_outputs': True,
}  # fmt: skip
MEDUSA = {
  'medusa_num_heads': 1,
  'medusa_num_layers': 1,
  'base_model_name_or_path': 'a',
  'original_lm_head': False,
}
VLLM = {
  'model_type': 'medusa', 'num_heads': 1, 'num_hidden_layers': 1, 'vocab_size': 7,
  'truncated_vocab_size': 7, 'original_lm_head': False,
}  # fmt: skip
GENERATION = {
  'eos_token_id': [2], 'pad_token_id': 0, 'bos_token_id': 1, 'bad_words_ids': [[3]],
  'suppress_tokens': [4], 'repetition_penalty': 1.05, 'num_beams': 4, 'do_sample': True,
  'forced_bos_token_id': None, 'sequence_bias': None,
}  # fmt: skip
TOKENIZER_CONFIG = {
  'tokenizer_class': 'LlamaTokenizerFast', 'add_bos_token': True, 'add_eos_token': False,
  'bos_token': 'a', 'eos_token': {'content': 'b'},
}  # fmt: skip
SIZES = {'d_model': 4, 'd_ff': 6, 'heads': 2}
OWN_DRAFTS = {
  'eagle': EagleNetwork(
    layers=LMConfig(vocab_size=7, **SIZES, layers=1),
    vocab_size=7,
    d_target=4,
    taps=RULE,
    fuses=True,
    words=5,
  ),
  'block': BlockNetwork(
    layers=StackConfig(**SIZES, encoder_layers=1, decoder_layers=1),
    vocab_size=7,
    d_target=4,
    k=3,
    markov=2,
  ),
}
STACKS = {**SIZES, 'encoder_layers': 1, 'decoder_layers': 1}
FCONV = FConvConfig(
  vocab_size=7, d_embed=4, d_out=4, encoder_layers=((4, 3),), decoder_layers=((4, 3),)
)
MODELS = {
  'transformer': Transformer(TransformerConfig(vocab_size=7, **STACKS)),
  'lm': LM(LMConfig(vocab_size=7, layers=1, **SIZES)),
  't5': T5(T5Config(vocab_size=7, d_kv=2, buckets=8, max_distance=16, **STACKS)),
  'fconv': FConv(FCONV),
  'image_transformer': ImageTransformer(
    ImageTransformerConfig(**{**STACKS, 'd_model': 8}, source_size=2, size=4)
  ),
}


def zeros(module):
  return jax.tree.map(
    lambda x: np.zeros(x.shape, x.dtype), jax.eval_shape(module.init, jax.random.key(0))
  )


def write_native(folder, model):
  heads = (
    BlockwiseHeads(2, model.d_model, 3)
    if isinstance(model, Transformer)
    else MedusaHeads(1, model.d_model)
  )
  folders.save(model, zeros(model), folder, (heads, zeros(heads)))
  return json.loads((folder / 'config.json').read_text())


def write_tensors(file, shapes=LLAMA_SHAPES):
  save_file({name: np.zeros(shape, np.float32) for name, shape in shapes.items()}, file)


def write_index(folder):
  for file in (folder / 'a.safetensors', folder.parent / 'outside.safetensors'):
    write_tensors(file)
  (folder / 'config.json').write_text(json.dumps(LLAMA))
  return {'metadata': {}, 'weight_map': dict.fromkeys(LLAMA_SHAPES, 'a.safetensors')}


def write_tokenizer(folder):
  tokenizers = pytest.importorskip('tokenizers')
  made = tokenizers.Tokenizer(tokenizers.models.WordLevel({'a': 0, 'b': 1}, unk_token='a'))
  made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
  made.post_processor = tokenizers.processors.TemplateProcessing(
    single='a $A', special_tokens=[('a', 0)]
  )
  made.save(str(folder / 'tokenizer.json'))
  (folder / 'config.json').write_text(json.dumps(LLAMA))
  return json.loads(made.to_str())


# What is written into a file.

NASTY = (
  None, True, False, 0, 1, -1, 2, 3.0, 0.5, 2**31, 10**12, 10**400, -(10**30), 1e308, float('nan'),
  float('inf'), '', '2', '1e-5', 'float16', 'relu', '..', '/', '../outside.safetensors',
  'a/../../outside.safetensors', 'a\0', [], {}, [[]], [1, 2], [-1], ['a'], [[1, 'a']],
  {'content': 5}, {'a': {}}, {'type': 'x'}, 'x' * 999,
)  # fmt: skip
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4)
JSON = st.recursive(
  SCALARS, lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(max_size=4), x, max_size=3)
)
WILD = st.sampled_from(NASTY) | JSON
BROKEN = (
  '',
  '{',
  '[' * 10**5,
  '{"a":' * 10**5,
  '\ufeff{}',
  '1' * 5000,
  '{"vocab_size": 1e999}',
  'null',
  '\udcff',
)


def anything(value):
  """In the place of a value: mostly of its own kind."""
  alike = [x for x in NASTY if type(x) is type(value)]
  return st.sampled_from(alike) | WILD if alike else WILD


def fields(value):
  """An object with some fields set to anything, or left out, at its top or further down."""
  names = sorted(value)
  one = [st.tuples(st.just(name), anything(value[name])) for name in names]
  one += [
    st.tuples(st.just(name), fields(value[name]))
    for name in names
    if isinstance(value[name], dict) and value[name]
  ]
  one += [st.tuples(st.text(max_size=3), WILD)]
  left_out = st.just([]) | st.lists(st.sampled_from(names), max_size=2)
  kept = left_out.map(lambda left: {name: value[name] for name in names if name not in left})
  return st.builds(
    lambda kept, changes: {**kept, **dict(changes)},
    kept,
    st.lists(st.one_of(one), min_size=1, max_size=2),
  )


def changed(base):
  """Texts of a file: mostly a document with other fields."""
  document = st.builds(json.dumps, fields(base))
  return st.one_of(
    document, document, document, document, st.builds(json.dumps, WILD), st.sampled_from(BROKEN)
  )


# What may happen.

OPENED = []


def _note(event, args):
  if event == 'open' and WATCHING and isinstance(args[0], str | bytes):
    OPENED.append(str(args[0]))


WATCHING = []
sys.addaudithook(_note)


def _out_of_time(*_):
  raise TimeoutError(f'it takes more than {SECONDS} seconds')


@contextlib.contextmanager
def guarded(folder):
  """The block ends well or by a sentence, soon, within bounds of memory, and opens files of the
  folder alone."""
  before = resource.getrlimit(resource.RLIMIT_AS)
  used = int(Path('/proc/self/statm').read_text().split()[0]) * resource.getpagesize()
  resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, before[1]))
  signal.signal(signal.SIGALRM, _out_of_time)
  signal.alarm(SECONDS)
  OPENED.clear()
  WATCHING.append(folder)
  try:
    with warnings.catch_warnings():
      warnings.simplefilter('ignore', fd.UserNote)
      yield
  except fd.UserError as error:
    assert len(str(error)) < 3000
  finally:
    WATCHING.clear()
    signal.alarm(0)
    resource.setrlimit(resource.RLIMIT_AS, before)
  imported, compiled = ('.py', '.pyc', '.so'), Path(jax.config.jax_compilation_cache_dir).resolve()
  files = [Path(file).resolve() for file in OPENED if not file.endswith(imported)]
  outside = [
    file for file in files if not (file.is_relative_to(folder) or file.is_relative_to(compiled))
  ]
  assert not outside, outside


def put(folder, file, text):
  (folder / file).write_bytes(text.encode('utf-8', 'surrogateescape'))


def fuzz(folder, file, base, action, examples):
  """Calls the action with the folder for many contents of one of its files; first with the right
  ones."""
  put(folder, file, json.dumps(base))
  action(folder)

  # where the machine is busy
  @settings(max_examples=examples, suppress_health_check=[HealthCheck.too_slow])
  @given(changed(base))
  def hold(text):
    put(folder, file, text)
    with guarded(folder):
      action(folder)

  hold()


def load_all(folder):
  fd.load(folder)
  if folders.open(folder).has_heads:
    fd.load_heads(folder)


@pytest.fixture
def folder(tmp_path):
  (tmp_path / 'folder').mkdir()
  return tmp_path / 'folder'


@pytest.mark.parametrize('kind', MODELS)
def test_our_own_config(kind, folder):
  fuzz(folder, 'config.json', write_native(folder, MODELS[kind]), load_all, 60)


def test_the_config_of_a_language_model(folder):
  write_tensors(folder / 'model.safetensors')
  fuzz(folder, 'config.json', LLAMA, fd.load, 150)


@pytest.mark.parametrize('said', [MARIAN, T5_SAID], ids=['marian', 't5'])
def test_the_config_of_an_encoder_decoder(said, folder):
  fuzz(folder, 'config.json', said, lambda folder: folders.open(folder).model, 150)


@pytest.mark.parametrize('said', [LLAMA, MARIAN, T5_SAID], ids=['llama', 'marian', 't5'])
def test_the_generation_config(said, folder):
  put(folder, 'config.json', json.dumps(said))
  base = {**GENERATION, 'eos_token_id': said['eos_token_id']}
  with warnings.catch_warnings():
    warnings.simplefilter('ignore', fd.UserNote)
    fuzz(folder, 'generation_config.json', base, lambda folder: folders.open(folder).model, 100)


def test_an_index(folder):
  fuzz(folder, 'model.safetensors.index.json', write_index(folder), fd.load, 150)


def test_an_index_may_name_what_no_file_can_be_called(folder):
  index = write_index(folder)
  put(
    folder,
    'model.safetensors.index.json',
    json.dumps(index | {'weight_map': {'model.norm.weight': 300 * 'x'}}),
  )
  with pytest.raises(fd.UserError, match='lacks x'):
    fd.load(folder)


def test_the_config_of_published_heads(folder):
  shapes = {'0.0.linear.weight': (4, 4), '0.0.linear.bias': (4,), '0.1.weight': (7, 4)}
  write_tensors(folder / 'medusa_lm_head.safetensors', shapes)
  for said in (MEDUSA, VLLM):
    fuzz(folder, 'config.json', said, fd.load_heads, 60)


PUBLISHED = (
  'eagle-1 of two layers', 'eagle-3 of SpecForge', 'eagle-3 of speculators',
    'dspark of SpecForge, gated',
  'dspark of DeepSpec, recurrent', 'mtp with norms around zero',
)  # fmt: skip


@pytest.mark.parametrize('layout', PUBLISHED)
def test_the_config_of_a_published_draft(layout, folder):
  write_draft(folder, layout)
  fuzz(folder, 'config.json', LAYOUTS[layout][0], fd.load_draft, 60)


@pytest.mark.parametrize('kind', OWN_DRAFTS)
def test_the_config_of_our_own_drafts(kind, folder):
  module = OWN_DRAFTS[kind]
  fd.save_draft(folder, (module, jax.jit(module.init)(jax.random.key(0))))
  fuzz(folder, 'config.json', json.loads((folder / 'config.json').read_text()), fd.load_draft, 60)


def encode(folder):
  assert isinstance(fd.load_tokenizer(folder).encode('a b'), list)


def test_a_tokenizer(folder):
  fuzz(folder, 'tokenizer.json', write_tokenizer(folder), encode, 150)


def test_the_settings_of_a_tokenizer(folder):
  write_tokenizer(folder)
  fuzz(folder, 'tokenizer_config.json', TOKENIZER_CONFIG, encode, 100)


def test_a_file_of_choices(folder):
  fuzz(
    folder,
    'tree.json',
    {'choices': [[0], [0, 0], [1]]},
    lambda folder: fd.medusa_choices(folder / 'tree.json'),
    150,
  )


@pytest.mark.parametrize('kind', MODELS)
def test_the_parts_of_an_experiments_config(kind, tmp_path):
  config = MODELS[kind].config

  @settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
  @given(
    st.dictionaries(
      st.sampled_from([field.name for field in dataclasses.fields(config)]), WILD, max_size=3
    )
  )
  def hold(changes):
    with guarded(tmp_path):
      to_dataclass(type(config), ConfigDict({**dataclasses.asdict(config), **changes}))

  hold()
