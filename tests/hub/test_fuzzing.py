"""Every reader of a user's files, on malformed files: it reads them or raises a UserError."""

import io
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st
from safetensors.numpy import save_file

import fastdec as fd
from fastdec import folders
from fastdec.cli.prompts import read_prompts
from fastdec.data.images import npz
from fastdec.data.text.sentencepiece import Tokenizer
from fastdec.evaluation import machine
from fastdec.heads.medusa import MedusaHeads
from fastdec.models.lm import LM, LMConfig
from fastdec.text.load import open_folder
from fastdec.tuning.tuned import Figures, Tuned
from tests.fuzzing import fields, fuzz, fuzz_json, fuzz_lines, spoilt
from tests.hub.draft_layouts import LAYOUTS
from tests.hub.draft_layouts import write as write_draft

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
T5_FIELDS = {
  'model_type': 't5', 'd_model': 4, 'd_kv': 2, 'd_ff': 6, 'num_heads': 2, 'num_layers': 1,
  'num_decoder_layers': 1, 'vocab_size': 7, 'feed_forward_proj': 'gated-gelu', 'pad_token_id': 0,
  'eos_token_id': 1, 'dropout_rate': 0.0, 'relative_attention_num_buckets': 8,
  'relative_attention_max_distance': 16, 'layer_norm_epsilon': 1e-6, 'is_encoder_decoder': True,
  'tie_word_embeddings': True, 'decoder_start_token_id': 0, 'scale_decoder_outputs': True,
}  # fmt: skip
MEDUSA = {
  'medusa_num_heads': 1, 'medusa_num_layers': 1, 'base_model_name_or_path': 'a',
  'original_lm_head': False,
}  # fmt: skip
GENERATION = {
  'eos_token_id': [2], 'pad_token_id': 0, 'bos_token_id': 1, 'bad_words_ids': [[3]],
  'suppress_tokens': [4], 'repetition_penalty': 1.05,
  'forced_bos_token_id': None, 'sequence_bias': None,
}  # fmt: skip
MODEL = LM(LMConfig(vocab_size=7, layers=1, d_model=4, d_ff=6, heads=2))


def zeros(module):
  shapes = jax.eval_shape(module.init, jax.random.key(0))
  return jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)


def write_native(folder):
  heads = MedusaHeads(1, MODEL.d_model)
  folders.save(MODEL, zeros(MODEL), folder, (heads, zeros(heads)))
  return json.loads((folder / 'config.json').read_text())


def write_tensors(file, shapes=LLAMA_SHAPES):
  save_file({name: np.zeros(shape, np.float32) for name, shape in shapes.items()}, file)


@pytest.fixture
def folder(tmp_path):
  (tmp_path / 'folder').mkdir()
  return tmp_path / 'folder'


def test_our_own_config(folder):
  def load():
    fd.load(folder)
    if open_folder(folder).has_heads:
      fd.load_heads(folder)

  fuzz_json(folder / 'config.json', write_native(folder), load, 40)


def test_the_config_of_a_language_model(folder):
  write_tensors(folder / 'model.safetensors')
  fuzz_json(folder / 'config.json', LLAMA, lambda: fd.load(folder))


def test_the_config_of_an_encoder_decoder(folder):
  fuzz_json(folder / 'config.json', T5_FIELDS, lambda: open_folder(folder).model)


def test_the_generation_config(folder):
  (folder / 'config.json').write_text(json.dumps(LLAMA))
  fuzz_json(folder / 'generation_config.json', GENERATION, lambda: open_folder(folder).model)


def test_an_index(folder):
  for file in (folder / 'a.safetensors', folder.parent / 'outside.safetensors'):
    write_tensors(file)
  (folder / 'config.json').write_text(json.dumps(LLAMA))
  index = {'metadata': {}, 'weight_map': dict.fromkeys(LLAMA_SHAPES, 'a.safetensors')}
  fuzz_json(folder / 'model.safetensors.index.json', index, lambda: fd.load(folder))


def test_the_config_of_published_heads(folder):
  shapes = {'0.0.linear.weight': (4, 4), '0.0.linear.bias': (4,), '0.1.weight': (7, 4)}
  write_tensors(folder / 'medusa_lm_head.safetensors', shapes)
  fuzz_json(folder / 'config.json', MEDUSA, lambda: fd.load_heads(folder))


@pytest.mark.parametrize('layout', [
  'eagle-3 of SpecForge', 'dspark of SpecForge, gated', 'lilicorr', 'dflash 2',
  'p-eagle of speculators',
])  # fmt: skip
@pytest.mark.wide('dspark*')
def test_the_config_of_a_published_draft(layout, folder):
  write_draft(folder, layout)
  fuzz_json(folder / 'config.json', LAYOUTS[layout][0], lambda: fd.load_draft(folder), 30)


def test_a_tokenizer(folder):
  tokenizers = pytest.importorskip('tokenizers')
  made = tokenizers.Tokenizer(tokenizers.models.WordLevel({'a': 0, 'b': 1}, unk_token='a'))
  made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
  made.post_processor = tokenizers.processors.TemplateProcessing(
    single='a $A', special_tokens=[('a', 0)]
  )
  (folder / 'config.json').write_text(json.dumps(LLAMA))
  base = json.loads(made.to_str())
  fuzz_json(folder / 'tokenizer.json', base, lambda: fd.load_tokenizer(folder).encode('a b'))


def test_a_sentencepiece_model(folder):
  (folder / 'config.json').write_text(json.dumps({'format': 'fastdec', 'model': {}}))
  data = Tokenizer.train(['a b c'] * 9, folder / 'made', 8).model_proto

  def read():
    tokenizer = fd.load_tokenizer(folder)
    tokenizer.decode([*tokenizer.encode('a b'), 3, 99])
    tokenizer.pieces([0, 99])

  fuzz(folder / 'tokenizer.model', data, spoilt(data), read)


def test_a_pool(folder):
  pool = fd.build_pool([[3, 4, 5, 3, 4, 5], [2, 6]], MODEL, ngram=3)
  fd.save_pool(pool, folder / 'pool')
  data = (folder / 'pool').read_bytes()
  length = int.from_bytes(data[:8], 'little')
  headers = fields(json.loads(data[8 : 8 + length])).map(lambda header: json.dumps(header).encode())
  others = headers.map(lambda text: len(text).to_bytes(8, 'little') + text + data[8 + length :])

  def guess():
    pool = fd.load_pool(folder / 'pool')
    pool.check(7)
    pool.best(jnp.array([0, 6]), 3)

  fuzz(folder / 'pool', data, st.one_of(spoilt(data), others), guess)


def test_what_was_tuned(folder, monkeypatch):
  write_native(folder)
  row = Figures('Greedy', 'timed', 1.0, 2.0, 2.0, 500.0, None, 1.0, 1.0, 1.0, 1.0, 6, 0.5)
  strategy = fd.Medusa(fd.load_heads(folder), [[0]])
  results = ('Greedy', 'of this test', 'Greedy', 'exact', 1, 8, 6, 2.0, 1.0, machine.here())
  Tuned(*results, (row,), strategy=strategy).save(folder)
  base = json.loads((folder / 'tuned.json').read_text())
  fuzz_json(folder / 'tuned.json', base, lambda: fd.load_tuned(folder))
  base['part']['folder'] = '..'
  (folder / 'tuned.json').write_text(json.dumps(base))
  with pytest.raises(fd.UserError, match='give that folder too'):
    fd.load_tuned(folder)


def test_prompts(folder):
  record = {'conversations': [{'from': 'human', 'value': 'a'}, {'from': 'gpt', 'value': 'b'}]}
  file = folder / 'chats.jsonl'
  fuzz_lines(file, record, lambda: read_prompts(file))


def test_images(folder):
  with io.BytesIO() as file:
    np.savez(file, train=np.zeros((1, 32, 32, 3), np.uint8))
    data = file.getvalue()
  # most of the changes are in the headers, at both ends
  ends = st.one_of(st.integers(0, 300), st.integers(len(data) - 300, len(data) - 1))
  change = st.lists(st.tuples(ends, st.integers(0, 255)), min_size=1, max_size=3)
  others = change.map(lambda bad: bytes({**dict(enumerate(data)), **dict(bad)}.values()))
  path = folder / 'a.npz'
  fuzz(path, data, st.one_of(others, spoilt(data)), lambda: npz.load(str(path), True))
