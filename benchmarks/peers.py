"""Times our decoder against CTranslate2, llama.cpp and transformers, where they are installed.

All have the same weights and token ids. A translator decodes greedily and by beam search, one text
at a time and several at once. A language model in a GGUF file answers questions one at a time, in
its chat template if it has one.

  python benchmarks/peers.py --out=out/peers.jsonl      # random weights of the quickstart's sizes
  python benchmarks/peers.py --model=out/quickstart/k8-finetune --prompts=dev.en --cores=1 --packed
  python benchmarks/peers.py --model=model.gguf --prompts=examples/questions.txt --tokens=96

If `fastdec tune` has chosen a strategy for the model, it is timed too. In float32 all engines write
the same greedy texts, but for near ties. They are timed in turn. CT2_USE_MKL=0 makes CTranslate2
use its other library, which is faster on some processors.
"""

import argparse
import dataclasses
import functools
import itertools
import os
import pathlib
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

import fastdec as fd
from fastdec.decoding.inputs import pad_ids
from fastdec.evaluation import rows, wallclock
from fastdec.evaluation.calls import random_params
from fastdec.kernels.packing import pack_if_faster
from fastdec.models.layers import sinusoids
from fastdec.models.transformer import Transformer, TransformerConfig
from fastdec.text.load import load_tokenizer, open_folder
from fastdec.tuning.tuned import default_file

Ways = dict[str, Callable[[Any, int], list[list[int]]]]  # by name: (sources, beams) -> texts
UNION = 'union(prompt_lookup(k=6), eagle(depth=3))'
REST = 0.02  # seconds after a peer, whose threads spin on and would slow the next call
RANDOM = TransformerConfig(vocab_size=2000, d_model=256, d_ff=1024, heads=4, encoder_layers=1,
  eos_ids=(), suppressed_ids=(0, 1))  # fmt: skip
PARTS = {  # our name of a part of a layer: CTranslate2's and Pegasus' names
  'attention/qkv': (
    'self_attention.linear.0',
    'self_attn.q_proj self_attn.k_proj self_attn.v_proj',
  ),
  'attention/out': ('self_attention.linear.1', 'self_attn.out_proj'),
  'around_attention/norm': ('self_attention.layer_norm', 'self_attn_layer_norm'),
  'cross/q': ('attention.linear.0', 'encoder_attn.q_proj'),
  'cross/kv': ('attention.linear.1', 'encoder_attn.k_proj encoder_attn.v_proj'),
  'cross/out': ('attention.linear.2', 'encoder_attn.out_proj'),
  'around_cross/norm': ('attention.layer_norm', 'encoder_attn_layer_norm'),
  'feed_forward/w1': ('ffn.linear_0', 'fc1'),
  'feed_forward/w2': ('ffn.linear_1', 'fc2'),
  'around_feed_forward/norm': ('ffn.layer_norm', 'final_layer_norm'),
}


def weights(model: Any, params: Any) -> list[tuple[str, str, list[str], str, np.ndarray]]:
  """Lists all weights but the embedding.

  Returns:
    For each array: the side, CTranslate2's name and Pegasus' names of its part, our name of the
    array, and its values with all outputs on one axis.
  """
  parts = []
  for side, text in (('encoder', 'source'), ('decoder', 'target')):
    positions = jnp.arange(model.config.max_positions)
    signal = params.get(f'{text}_positions', sinusoids(positions, model.d_model))
    parts.append((side, 'position_encodings', ['embed_positions'], {'encodings': signal}))
    parts.append((side, 'layer_norm', ['layer_norm'], params[f'{side}_norm']))
    for i in range(getattr(model.config, f'{side}_layers')):
      layer = params[f'{side}_{i}']
      for path, (ours, theirs) in PARTS.items():
        group, name = path.split('/')
        if group in layer:
          names = [f'layers.{i}.{part}' for part in theirs.split()]
          parts.append((side, f'layer.{i}.{ours}', names, layer[group][name]))

  listed = []
  for *part, arrays in parts:
    for name, value in arrays.items():
      shape = (-1, value.shape[-1]) if name in ('kernel', 'encodings') else (-1,)
      listed.append((*part, name, np.array(value, np.float32).reshape(shape)))
  return listed


def ctranslate2(model: Any, params: Any, tokens: int) -> Ways:
  """Makes CTranslate2, with one thread and with all, in float32 and in int8.

  The pieces of its vocabulary are our token ids as text.
  """
  from ctranslate2 import Translator, specs

  c, names = model.config, [str(token) for token in range(model.vocab_size)]
  kind = {'relu': 'RELU', 'gelu': 'GELUTanh', 'swish': 'SWISH'}[c.activation]
  sizes = (c.encoder_layers, c.decoder_layers), c.heads
  spec = specs.TransformerSpec.from_config(*sizes, activation=specs.Activation[kind])
  for side, path, _, name, value in weights(model, params):
    part: Any = getattr(spec, side)
    for step in path.split('.'):
      part = part[int(step)] if step.isdigit() else getattr(part, step)
    of_norm = {'scale': 'gamma', 'bias': 'beta'} if path.endswith('norm') else {}
    setattr(part, {'kernel': 'weight', **of_norm}.get(name, name), value)
  for part in (spec.encoder.embeddings[0], spec.decoder.embeddings, spec.decoder.projection):
    part.weight = np.asarray(params['embedding'], np.float32)
  spec.register_source_vocabulary(names)
  spec.register_target_vocabulary(names)
  spec.config.layer_norm_epsilon = c.norm_epsilon
  spec.config.bos_token = spec.config.decoder_start_token = names[c.start_id]
  spec.config.eos_token, spec.config.unk_token = names[1], names[-1]  # no piece is unknown
  spec.validate()
  spec.optimize()
  options = {'max_input_length': 0, 'return_end_token': True, 'max_decoding_length': tokens,
    'min_decoding_length': 0 if c.eos_ids else tokens,
    'suppress_sequences': [[names[token]] for token in c.suppressed_ids]}  # fmt: skip

  def decode(translator: Any, sources: Any, beams: int) -> list[list[int]]:
    pieces = [[names[token] for token in row if token] for row in sources]
    translated = translator.translate_batch(pieces, beam_size=beams, **options)
    return [list(map(int, text.hypotheses[0])) for text in translated]

  ways: Ways = {}
  with tempfile.TemporaryDirectory() as folder:
    spec.save(folder)
    cores = sorted({1, len(os.sched_getaffinity(0))})
    for dtype, threads in itertools.product(('float32', 'int8'), cores):
      own = Translator(folder, compute_type=dtype, intra_threads=threads)
      ways[f'CTranslate2, {dtype}, threads: {threads}'] = functools.partial(decode, own)
  return ways


def transformers(model: Any, params: Any, tokens: int) -> Ways:
  """Makes transformers on PyTorch: its Pegasus has the layers of our pre-norm Transformer."""
  import torch
  from transformers import PegasusConfig, PegasusForConditionalGeneration

  c, state = model.config, {'model.shared.weight': np.array(params['embedding'], np.float32)}
  theirs: Any = PegasusForConditionalGeneration(PegasusConfig(
    vocab_size=c.vocab_size, d_model=c.d_model, scale_embedding=c.scales_embedding,
    encoder_layers=c.encoder_layers, encoder_attention_heads=c.heads, encoder_ffn_dim=c.d_ff,
    decoder_layers=c.decoder_layers, decoder_attention_heads=c.heads, decoder_ffn_dim=c.d_ff,
    activation_function='gelu_new' if c.activation == 'gelu' else c.activation,
    decoder_start_token_id=c.start_id, max_position_embeddings=c.max_positions,
  )).eval()  # fmt: skip
  for side, _, names, name, value in weights(model, params):
    for own, part in zip(names, np.split(value, len(names)), strict=True):
      state[f'model.{side}.{own}.{"bias" if name == "bias" else "weight"}'] = part
  with torch.no_grad():
    for name, value in theirs.named_parameters():  # our model may have no biases
      value.copy_(torch.from_numpy(state.get(name, np.zeros(value.shape, np.float32))))
  for part in theirs.modules():
    if isinstance(part, torch.nn.LayerNorm):
      part.eps = c.norm_epsilon
  options: Any = {'do_sample': False, 'max_new_tokens': tokens, 'pad_token_id': 0,
    'min_new_tokens': None if c.eos_ids else tokens, 'suppress_tokens': [*c.suppressed_ids],
    'eos_token_id': 1, 'forced_eos_token_id': None}  # fmt: skip

  def decode(sources: Any, beams: int) -> list[list[int]]:
    ids = torch.from_numpy(sources).long()
    with torch.inference_mode():
      out = theirs.generate(ids, attention_mask=(ids != 0).long(), num_beams=beams, **options)
    return [[token for token in row if token] for row in out[:, 1:].tolist()]

  return {f'transformers, float32, threads: {torch.get_num_threads()}': decode}


def opened_file(args: argparse.Namespace) -> tuple[Any, Any, Ways]:
  """Opens a GGUF file, a language model: its tokenizer, questions, and our own ways to answer."""
  questions = args.prompts.read_text().splitlines()[: args.texts]
  tokenizer, ways = fd.load_tokenizer(args.model), {}

  def answer(generator: fd.Generator, prompts: Any, _: int) -> list[list[int]]:
    answers = [
      generator(render_question(tokenizer, one), max_new_tokens=args.tokens) for one in prompts
    ]
    return [without_end(generator.model.eos_ids, one.tokens) for one in answers]

  for asked_for in args.dtypes:
    own = None if asked_for == 'own' else asked_for
    greedy = fd.Generator.load(args.model, dtype=own)
    dtype = own or greedy.model.config.dtype
    name = f'fastdec, {dtype}' if ways else 'fastdec'
    ways[name] = functools.partial(answer, greedy)
    lookup = dataclasses.replace(greedy, strategy=fd.PromptLookup(k=8))
    ways[f'fastdec, {dtype}, prompt lookup'] = functools.partial(answer, lookup)
    if args.draft is not None:
      drafted = fd.Generator.load(args.model, args.draft, dtype=own, strategy=UNION)
      ways[f'fastdec, {dtype}, draft and prompt lookup'] = functools.partial(answer, drafted)
  if default_file(args.model).is_file():
    tuned = fd.load_tuned(args.model)
    name = ', '.join(filter(None, (tuned.name, tuned.dtype)))
    generator = fd.Generator.load(args.model, strategy='tuned')
    ways[f'fastdec, as tuned: {name}'] = functools.partial(answer, generator)
  return tokenizer, np.array(questions, object), ways


def without_end(ends: Any, tokens: Any) -> list[int]:
  """Returns the ids of a text without those that end it, which llama.cpp does not return."""
  return [int(token) for token in tokens if int(token) not in ends]


def render_question(tokenizer: Any, question: str) -> Any:
  """Returns a question as a chat, if the tokenizer has a chat template."""
  return [{'role': 'user', 'content': question}] if tokenizer.templates() else question


def llama_cpp(tokenizer: Any, args: argparse.Namespace) -> Ways:
  """Makes llama.cpp, with one thread and with all, and its own speculation by n-grams."""
  import xllamacpp

  kinds = xllamacpp.common_speculative_type
  cores = sorted({1, len(os.sched_getaffinity(0))})
  ways: Ways = {}
  for threads in cores:
    for kind in (None, kinds.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE):
      settings = xllamacpp.CommonParams()
      settings.model.path = str(args.model)
      settings.n_ctx, settings.n_parallel, settings.verbosity = 2048, 1, -1
      settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = threads
      name = f'llama.cpp, threads: {threads}'
      if kind is not None:
        settings.speculative.types = [kind]
        name = f'llama.cpp, n-grams, threads: {threads}'
      server = xllamacpp.Server(settings)
      ways[name] = functools.partial(_complete, server, tokenizer, args.tokens)
  return ways


def _complete(server: Any, tokenizer: Any, tokens: int, prompts: Any, _: int) -> list[list[int]]:
  """Returns the answers of a server of llama.cpp; the texts that it returns become ids again."""
  texts = []
  for question in prompts:
    prompt = render_question(tokenizer, question)
    text = prompt if isinstance(prompt, str) else tokenizer.render(prompt)
    answer = server.handle_completions(
      {'prompt': text, 'n_predict': tokens, 'temperature': 0, 'cache_prompt': False}
    )
    ids = tokenizer.encode(answer['choices'][0]['text'], special=False)
    texts.append(ids)
  return texts


def transformers_file(tokenizer: Any, args: argparse.Namespace) -> Ways:
  """Makes transformers on PyTorch, which reads the GGUF file itself."""
  import torch
  from transformers import AutoModelForCausalLM

  path = pathlib.Path(args.model)
  theirs: Any = AutoModelForCausalLM.from_pretrained(
    path.parent, gguf_file=path.name, dtype=torch.float32
  ).eval()
  ends = fd.load(args.model)[0].eos_ids

  def decode(prompts: Any, _: int) -> list[list[int]]:
    texts = []
    for question in prompts:
      prompt = render_question(tokenizer, question)
      is_text = isinstance(prompt, str)
      ids = tokenizer.encode(prompt) if is_text else tokenizer.encode_chat(prompt)
      with torch.inference_mode():
        out = theirs.generate(
          torch.tensor([ids]), do_sample=False, max_new_tokens=args.tokens, pad_token_id=0
        )
      texts.append(without_end(ends, out[0, len(ids) :].tolist()))
    return texts

  return {f'transformers, float32, threads: {torch.get_num_threads()}': decode}


def open_model(args: argparse.Namespace) -> tuple[Any, Any, Any, Ways]:
  """Opens the model, its parameters, sources, and our own ways to decode with it."""

  def ready(module: Any, params: Any) -> tuple[Any, Any]:
    return pack_if_faster(module, params) if args.packed else (module, params)

  def decode(model: Any, params: Any, strategy: Any, sources: Any, beams: int) -> list[list[int]]:
    search = fd.Beam(beams) if beams > 1 else strategy
    out = fd.decode(model, params, sources, search, max_len=args.tokens)
    texts = zip(np.asarray(out.tokens), out.lengths, strict=True)
    return [tokens[:length].tolist() for tokens, length in texts]

  ways: Ways = {}
  if args.model is None:
    model: Any = Transformer(RANDOM)
    params, rng = random_params(model, 0, 'float32'), np.random.default_rng(0)
    sources = rng.integers(2, model.vocab_size, (args.texts, 16), np.int32)
    ways['fastdec'] = functools.partial(decode, *ready(model, params), fd.Greedy())
    ways['fastdec, int8'] = functools.partial(
      decode, model, fd.quantize(model, params), fd.Greedy()
    )
    return model, params, sources, ways

  folder, lines = open_folder(args.model), args.prompts.read_text().splitlines()[: args.texts]
  model, params = folder.model, folder.params()
  if not isinstance(model, Transformer) or model.config.norm != 'pre':
    sys.exit(f'{args.model} must be a pre-norm Transformer: only that runs in the peers')
  tokenizer = load_tokenizer(folder)
  ids = tokenizer.encode_lines(lines)
  sources, _ = pad_ids('prompts', ids, model.vocab_size, model.pad_id)
  generator = fd.Generator(*ready(model, params), tokenizer, rows=max(args.batches))
  line_of = dict(zip(map(tuple, sources.tolist()), lines, strict=True))

  def generate(sources: Any, _: int) -> list[list[int]]:
    prompts = [line_of[tuple(source)] for source in sources.tolist()]
    return [text.tokens for text in generator(prompts, max_new_tokens=args.tokens)]

  ways['fastdec, as fd.Generator'] = generate
  ways['fastdec'] = functools.partial(decode, *ready(model, params), fd.Greedy())
  if (folder.path / 'tuned.json').is_file():
    tuned = fd.load_tuned(folder.path, prepare=ready)
    in_dtype = open_folder(folder.path, tuned.dtype)
    parts = ready(in_dtype.model, in_dtype.params())
    name = ', '.join(filter(None, (tuned.name, tuned.dtype)))
    ways[f'fastdec, as tuned: {name}'] = functools.partial(decode, *parts, tuned.strategy)
  return model, params, sources, ways


def time_ways(
  ways: Ways, sources: Any, beams: int, batch: int, rounds: int
) -> list[dict[str, Any]]:
  """Times all ways in turn, by one search and at one batch size."""
  if beams > 1:  # only ways that search by beams
    greedy = ('fastdec, as',)
    ways = {name: way for name, way in ways.items() if not name.startswith(greedy)}
  inputs = [(part, beams) for part in np.split(sources, range(batch, len(sources), batch))]
  texts = {}
  for name, way in ways.items():
    texts[name] = list(itertools.chain.from_iterable(way(*args) for args in inputs))
  rests = {name: REST for name in ways if 'threads' in name}
  times = wallclock.measure(ways, rounds, inputs, rests)

  plain, table = texts['fastdec'], []
  tokens_of_plain = sum(map(len, plain))
  for name, written in texts.items():
    seconds, tokens = times[name].median, sum(map(len, written))
    same = np.mean([text == other for text, other in zip(written, plain, strict=True)])
    # an engine that writes more tokens may take longer
    ratio = tokens / tokens_of_plain
    table.append({
      'search': f'beam {beams}' if beams > 1 else 'greedy', 'batch': batch, 'engine': name,
      'same_as_greedy': float(same) if beams == 1 else None, 'ms_a_text': 1e3 * seconds / batch,
      'ms_a_token': 1e3 * seconds * len(inputs) / tokens,
      'times_ours': ratio * times[name].speedup_over(times['fastdec']),
      'spread': [ratio * speedup for speedup in times[name].speedups_over(times['fastdec'])],
    })  # fmt: skip
  return table


def main() -> None:
  parser = argparse.ArgumentParser(usage=__doc__)
  parser.add_argument(
    '--model', help='folder of a pre-norm Transformer, or a GGUF file; without: random weights'
  )
  parser.add_argument('--prompts', type=pathlib.Path, help='file of sentences or questions')
  parser.add_argument('--out', type=pathlib.Path, default='out/peers.jsonl', help='file of rows')
  parser.add_argument('--batches', type=int, nargs='+', default=[1, 16], help='texts at once')
  parser.add_argument('--beams', type=int, nargs='+', default=[1, 4], help='1 is greedy')
  parser.add_argument('--tokens', type=int, default=32, help='most tokens of a text')
  parser.add_argument('--texts', type=int, default=16, help='how many are decoded')
  parser.add_argument('--rounds', type=int, default=5)
  parser.add_argument('--cores', type=int, help='most cores of this process')
  parser.add_argument(
    '--dtypes', nargs='+', default=['float32', 'int8'], help='of a GGUF file; own: its'
  )
  parser.add_argument('--draft', help='draft network for a GGUF file')
  parser.add_argument(
    '--packed', action='store_true', help='our weights packed if that is faster here'
  )
  args = parser.parse_args()
  if (args.model is None) != (args.prompts is None):
    parser.error('--model and --prompts go together: give both, or none for random weights')
  # Set before JAX counts the cores.
  os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.cores])
  if str(args.model).endswith('.gguf'):
    tokenizer, sources, ways = opened_file(args)
    peers = [functools.partial(peer, tokenizer, args) for peer in (llama_cpp, transformers_file)]
    args.beams, args.batches = [1], [1]
  else:
    model, params, sources, ways = open_model(args)
    both = (ctranslate2, transformers)
    peers = [functools.partial(peer, model, params, args.tokens) for peer in both]
  for peer in peers:
    try:
      ways |= peer()
    except ImportError as error:
      print(f"{error.name} is not installed: pip install -e '.[benchmark]' brings it")
  conditions = {'config': rows.command(), **rows.conditions()}
  table = []
  for beams, batch in itertools.product(args.beams, args.batches):
    for row in time_ways(ways, sources, beams, batch, args.rounds):
      table.append(row | conditions)
      rows.append(args.out, table[-1])
  print(rows.table(table, conditions))


if __name__ == '__main__':
  main()
