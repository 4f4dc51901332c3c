"""Whatever stands in a folder's JSON, there is a model, or a sentence: no other exception, no file
outside the folder, no hang and no memory without end.
"""

import dataclasses
import io
import json
import warnings
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st
from ml_collections import ConfigDict
from safetensors.numpy import save_file

import fastdec as fd
from experiments.lab.config import to_dataclass
from fastdec import folders
from fastdec.cli.prompts import read_prompts
from fastdec.data.images import npz
from fastdec.data.text.sentencepiece import Tokenizer
from fastdec.evaluation import machine
from fastdec.evaluation.tree_calibration import Calibration
from fastdec.evaluation.tree_growth import Tree
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
from fastdec.text.load import open_folder
from fastdec.training.log import read_metrics
from fastdec.tuning.tuned import Figures, Tuned
from tests.fuzzing import WILD, fields, fuzz, fuzz_bytes, fuzz_lines, guarded, put, spoilt
from tests.hub.draft_layouts import LAYOUTS
from tests.hub.draft_layouts import write as write_draft

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
QUANTIZED = {
  'quant_method': 'compressed-tensors', 'format': 'int-quantized', 'bits': 4, 'group_size': 2,
  'version': '1', 'weight_block_size': [4, 4], 'sparsity_config': {'format': 'dense'},
  'config_groups': {'group_0': {'weights': {'block_structure': [4, 4]}}}, 'transform_config': {},
}  # fmt: skip
MARIAN = {
  'model_type': 'marian', 'vocab_size': 7, 'd_model': 4, 'encoder_layers': 1, 'decoder_layers': 1,
  'dropout': 0.1, 'encoder_attention_heads': 2, 'decoder_attention_heads': 2, 'encoder_ffn_dim': 6,
  'decoder_ffn_dim': 6, 'max_position_embeddings': 8, 'pad_token_id': 6, 'eos_token_id': 0,
  'decoder_start_token_id': 6, 'activation_function': 'swish', 'scale_embedding': True,
  'decoder_vocab_size': 7, 'bad_words_ids': [[6]],
}  # fmt: skip
T5_FIELDS = {
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


def load_all(folder):
  fd.load(folder)
  if open_folder(folder).has_heads:
    fd.load_heads(folder)


@pytest.fixture
def folder(tmp_path):
  (tmp_path / 'folder').mkdir()
  return tmp_path / 'folder'


@pytest.mark.parametrize('kind', MODELS)
@pytest.mark.wide('transformer')
def test_our_own_config(kind, folder):
  fuzz(folder, 'config.json', write_native(folder, MODELS[kind]), load_all, 40)


def test_the_config_of_a_language_model(folder):
  write_tensors(folder / 'model.safetensors')
  fuzz(folder, 'config.json', LLAMA, fd.load, 60)


def test_the_config_of_a_quantized_model(folder):
  stored = {name: np.ones(shape, np.float32) for name, shape in LLAMA_SHAPES.items()}
  for name in [name for name in stored if 'proj' in name]:
    stored[f'{name}_scale'] = np.ones((len(stored[name]), 1), np.float32)
    stored[name] = stored[name].astype(np.int8)
  save_file(stored, folder / 'model.safetensors')
  fuzz(folder, 'config.json', {**LLAMA, 'quantization_config': QUANTIZED}, fd.load, 60)


@pytest.mark.parametrize('config', [MARIAN, T5_FIELDS], ids=['marian', 't5'])
@pytest.mark.wide('t5')
def test_the_config_of_an_encoder_decoder(config, folder):
  fuzz(folder, 'config.json', config, lambda folder: open_folder(folder).model, 60)


@pytest.mark.parametrize('config', [LLAMA, MARIAN, T5_FIELDS], ids=['llama', 'marian', 't5'])
@pytest.mark.wide('llama')
def test_the_generation_config(config, folder):
  put(folder, 'config.json', json.dumps(config))
  base = {**GENERATION, 'eos_token_id': config['eos_token_id']}
  with warnings.catch_warnings():
    warnings.simplefilter('ignore', fd.UserNote)
    fuzz(folder, 'generation_config.json', base, lambda folder: open_folder(folder).model, 50)


def test_an_index(folder):
  fuzz(folder, 'model.safetensors.index.json', write_index(folder), fd.load, 60)


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
  for config in (MEDUSA, VLLM):
    fuzz(folder, 'config.json', config, fd.load_heads, 60)


PUBLISHED = (
  'eagle-1 of two layers', 'eagle-3 of SpecForge', 'eagle-3 of speculators',
    'dspark of SpecForge, gated',
  'dspark of DeepSpec, recurrent', 'mtp with norms around zero',
)  # fmt: skip


@pytest.mark.parametrize('layout', PUBLISHED)
@pytest.mark.wide('dspark of SpecForge*')
def test_the_config_of_a_published_draft(layout, folder):
  write_draft(folder, layout)
  fuzz(folder, 'config.json', LAYOUTS[layout][0], fd.load_draft, 30)


@pytest.mark.parametrize('kind', OWN_DRAFTS)
def test_the_config_of_our_own_drafts(kind, folder):
  module = OWN_DRAFTS[kind]
  params = zeros(module)
  fd.save_draft(folder, (module, params | {x: np.arange(5) for x in params if x == 'ids'}))
  fuzz(folder, 'config.json', json.loads((folder / 'config.json').read_text()), fd.load_draft, 30)


def encode(folder):
  assert isinstance(fd.load_tokenizer(folder).encode('a b'), list)


def test_a_tokenizer(folder):
  fuzz(folder, 'tokenizer.json', write_tokenizer(folder), encode, 60)


@pytest.mark.parametrize(
  'config', [LLAMA, {'format': 'fastdec', 'model': {}}], ids=['llama', 'own']
)
def test_a_sentencepiece_model(config, folder):
  put(folder, 'config.json', json.dumps(config))
  data = Tokenizer.train(['a b c'] * 9, folder / 'made', 8).model_proto

  def read(folder):
    tokenizer = fd.load_tokenizer(folder)
    tokenizer.decode([*tokenizer.encode('a b'), 3, 99])
    tokenizer.pieces([0, 99])

  fuzz_bytes(folder, 'tokenizer.model', data, spoilt(data), read, 50)


def test_the_settings_of_a_tokenizer(folder):
  write_tokenizer(folder)
  fuzz(folder, 'tokenizer_config.json', TOKENIZER_CONFIG, encode, 50)


def test_a_pool(folder):
  pool = fd.build_pool([[3, 4, 5, 3, 4, 5], [2, 6]], MODELS['lm'], ngram=3)
  fd.save_pool(pool, folder / 'pool')
  data = (folder / 'pool').read_bytes()
  length = int.from_bytes(data[:8], 'little')
  headers = fields(json.loads(data[8 : 8 + length])).map(lambda header: json.dumps(header).encode())
  others = headers.map(lambda text: len(text).to_bytes(8, 'little') + text + data[8 + length :])

  def guess(folder):
    pool = fd.load_pool(folder / 'pool')
    pool.check(7)
    pool.best(jnp.array([0, 6]), 3)

  fuzz_bytes(folder, 'pool', data, st.one_of(spoilt(data), others), guess, 60)


def test_what_was_tuned(folder):
  model = MODELS['lm']
  heads = MedusaHeads(1, model.d_model)
  folders.save(model, zeros(model), folder, (heads, zeros(heads)))
  row = Figures('Greedy', 1.0, 2.0, 2.0, 500.0, 1.0, 1.0, 1.0, 1.0, 6, 0.5)
  strategy = fd.Medusa(fd.load_heads(folder), [[0]])
  results = ('Greedy', 'of this test', 'Greedy', 'exact', 1, 8, 6, 2.0, 1.0, machine.here())
  Tuned(*results, (row,), strategy=strategy).save(folder)
  base = json.loads((folder / 'tuned.json').read_text())
  with mock.patch.object(machine, 'here', return_value=machine.here()):  # it reads /proc
    fuzz(folder, 'tuned.json', base, fd.load_tuned, 50)
    part = {**base, 'part': {**base['part'], 'folder': '..'}}
    with pytest.raises(fd.UserError, match='name that folder too'):
      put(folder, 'tuned.json', json.dumps(part))
      fd.load_tuned(folder)


def test_a_calibrated_tree(folder):
  tree = Tree(((0,), (0, 0), (1,)), (0.6, 0.3, 0.1))
  calibration = Calibration(
    tree, {1: (0.6, 0.4), 5: (0.8, 0.7)}, 9, {1: 1.0, 2: 1.8}, {1: 1.0, 2: 1.2}
  )
  calibration.save(folder / 'tree.json')
  base = json.loads((folder / 'tree.json').read_text())
  fuzz(folder, 'tree.json', base, lambda folder: Calibration.load(folder / 'tree.json').chosen, 50)


@pytest.mark.parametrize('name', ['prompts.txt', 'prompts.jsonl', 'chats.jsonl'])
@pytest.mark.wide('*.jsonl')
def test_prompts(name, folder):
  record: dict = {'prompt': 'a b'}
  if name == 'chats.jsonl':
    record = {'conversations': [{'from': 'human', 'value': 'a'}, {'from': 'gpt', 'value': 'b'}]}
  fuzz_lines(folder, name, record, lambda folder: read_prompts(folder / name), 60)


def test_metrics(folder):
  line = {'step': 1, 'train': {'loss': 2.0}}
  fuzz_lines(folder, 'metrics.jsonl', line, read_metrics, 60)


def test_images(folder):
  with io.BytesIO() as file:
    np.savez(file, train=np.zeros((1, 32, 32, 3), np.uint8))
    data = file.getvalue()
  ends = st.one_of(st.integers(0, 300), st.integers(len(data) - 300, len(data) - 1))  # the headers
  change = st.lists(st.tuples(ends, st.integers(0, 255)), min_size=1, max_size=3)
  others = change.map(lambda bad: bytes({**dict(enumerate(data)), **dict(bad)}.values()))
  contents = st.one_of(others, others, spoilt(data))
  fuzz_bytes(folder, 'a.npz', data, contents, lambda f: npz.load(str(f / 'a.npz'), True), 60)


def test_a_file_of_choices(folder):
  fuzz(
    folder,
    'tree.json',
    {'choices': [[0], [0, 0], [1]]},
    lambda folder: fd.medusa_choices(folder / 'tree.json'),
    60,
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
    try:
      changed = ConfigDict({**dataclasses.asdict(config), **changes})
    except ValueError:
      reject()  # a key with a dot, which no ConfigDict can hold
    with guarded(tmp_path):
      to_dataclass(type(config), changed)

  hold()
