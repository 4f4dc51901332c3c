"""Compares tiny random models with `transformers`, if it and PyTorch are installed (they need not
be)."""

import jax.numpy as jnp
import numpy as np
import pytest

import fastdec as fd
from fastdec.models.api import causal

LLAMA3 = {
  'rope_type': 'llama3', 'factor': 8.0, 'low_freq_factor': 1.0, 'high_freq_factor': 4.0,
  'rope_theta': 5e3,
}  # fmt: skip
LM = {
  'vocab_size': 31, 'hidden_size': 24, 'intermediate_size': 40, 'num_hidden_layers': 2,
  'num_attention_heads': 4, 'num_key_value_heads': 2, 'max_position_embeddings': 64,
  'bos_token_id': 1, 'eos_token_id': [2, 5, 9],
}  # fmt: skip
SEQ2SEQ = {
  'vocab_size': 31, 'd_model': 24, 'decoder_start_token_id': 0, 'pad_token_id': 0,
  'eos_token_id': 1, 'forced_eos_token_id': None,
}  # fmt: skip
CASES = {
  'llama': {
    **LM, 'rope_parameters': LLAMA3, 'attention_bias': True, 'mlp_bias': True, 'head_dim': 10,
  },
  'mistral': {**LM, 'sliding_window': 5, 'tie_word_embeddings': True},
  'qwen2': {**LM, 'use_sliding_window': True, 'sliding_window': 4, 'max_window_layers': 1},
  'qwen3': {**LM, 'head_dim': 8, 'rms_norm_eps': 1e-3},
  't5': {
    **SEQ2SEQ, 'd_kv': 5, 'd_ff': 40, 'num_layers': 2, 'num_decoder_layers': 1, 'num_heads': 3,
    'feed_forward_proj': 'gated-gelu', 'tie_word_embeddings': False,
    'relative_attention_num_buckets': 8, 'relative_attention_max_distance': 9,
  },
  'marian': {
    **SEQ2SEQ, 'encoder_layers': 2, 'decoder_layers': 1, 'encoder_ffn_dim': 40,
    'decoder_ffn_dim': 28, 'encoder_attention_heads': 4, 'decoder_attention_heads': 2,
    'max_position_embeddings': 32, 'scale_embedding': False,
  },
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize('family', CASES)
def test_logits_and_greedy_tokens_are_theirs(family, tmp_path):
  torch, transformers = pytest.importorskip('torch'), pytest.importorskip('transformers')
  seq2seq = family in ('t5', 'marian')
  auto = transformers.AutoModelForSeq2SeqLM if seq2seq else transformers.AutoModelForCausalLM
  theirs = auto.from_config(transformers.AutoConfig.for_model(family, **CASES[family])).eval()
  with torch.no_grad():
    generator = torch.Generator().manual_seed(0)
    for name, x in theirs.named_parameters():
      if 'embed_positions' not in name:
        x.copy_(0.25 * torch.randn(x.shape, generator=generator) + ('norm' in name and x.ndim == 1))
  if seq2seq:
    theirs.generation_config.bad_words_ids = [[0]]  # the pad, which Marian never emits
  theirs.save_pretrained(tmp_path, max_shard_size='9KB')
  model, params = fd.load(tmp_path)
  inputs, target = np.random.default_rng(0).integers(6, 30, (2, 3, 12))
  batch = {'input_ids': torch.tensor(inputs)}
  with torch.no_grad():
    expected = theirs(
      **batch, **({'decoder_input_ids': torch.tensor(target)} if seq2seq else {})
    ).logits.numpy()
    theirs_out = theirs.generate(**batch, max_new_tokens=8, do_sample=False, num_beams=1)[
      :, 1 if seq2seq else 12 :
    ]
  read = jnp.asarray(target if seq2seq else inputs, jnp.int32)
  cache = model.init_cache(params, model.encode(params, jnp.asarray(inputs)), *read.shape)
  logits = model.unembed(params, model.apply(params, read, causal(12), cache)[0])
  assert abs(logits - expected).max() < 2e-4 * abs(expected).max()
  out = fd.decode(model, params, inputs, fd.Greedy(), max_len=8)
  for ours, length, other in zip(out.tokens, out.lengths, theirs_out.numpy(), strict=True):
    np.testing.assert_array_equal(ours[:length], other[:length])
