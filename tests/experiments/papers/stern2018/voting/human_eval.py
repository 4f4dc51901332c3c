"""What the tests of the human evaluation share: images as table2 leaves them, and a server as its
own process."""

import contextlib
import json
import re
import socket
import subprocess
import sys
import urllib.parse
import urllib.request
from pathlib import Path

import numpy as np

from tests.experiments.conftest import ROOT

PAIRS = 12  # of `images`: 3 pictures, 2 k, 2 rules


def images(workdir, count=3, ks=(2, 10), seed=0, split='dev'):
  """Writes random images: the baseline, fine-tuned ones, and ones that the study leaves alone.
  Returns the workdir."""
  rng = np.random.default_rng(seed)
  sizes = {'input': 8, 'original': 32}
  shared = {
    name: rng.integers(256, size=(count, n, n, 3), dtype=np.uint8) for name, n in sizes.items()
  }
  (workdir / 'images').mkdir(parents=True, exist_ok=True)
  methods = [
    (k, regime, rule)
    for k in ks
    for regime in ('finetune', 'both')
    for rule in ('exact', 'distance-2')
  ]
  for k, regime, rule in [(1, 'regular', 'exact'), (1, 'both', 'exact'), *methods]:
    output = rng.integers(256, size=(count, 32, 32, 3), dtype=np.uint8)
    np.savez(workdir / 'images' / f'{split}-k{k}-{regime}-{rule}.npz', output=output, **shared)
  return workdir


@contextlib.contextmanager
def server(workdir, port=0):
  """The launcher with --serve as its own process: yields (process, address), and kills it
  afterwards."""
  words = f'--workdir={workdir}', '--serve', f'--port={port}'
  process = subprocess.Popen(
    [sys.executable, '-m', 'experiments.human_eval', *words],
    cwd=ROOT,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )
  try:
    line = process.stdout.readline()
    assert line, process.communicate()[1]
    yield process, re.search(r'http://\S+', line)[0]
  finally:
    process.kill()
    process.communicate()


def free_port():
  with socket.create_server(('127.0.0.1', 0)) as listening:
    return listening.getsockname()[1]


class Client:
  """A rater without a page."""

  def __init__(self, address, rater='Ada'):
    self.address, self.rater = address, rater

  def request(self, path, body=None, **headers):
    """The content of an answer; a status other than 200 raises HTTPError."""
    request = urllib.request.Request(self.address + path.lstrip('/'), body, headers)
    with urllib.request.urlopen(request, timeout=20) as answer:
      return answer.read()

  def state(self):
    return json.loads(self.request(f'state?rater={urllib.parse.quote(self.rater)}'))

  def picture(self, place, name):
    return self.request(f'picture/{place}/{name}?rater={urllib.parse.quote(self.rater)}')

  def vote(self, place, side):
    return json.loads(
      self.request('vote', json.dumps({'rater': self.rater, 'place': place, 'side': side}).encode())
    )


def files(workdir):
  """{path: content} of all that lies there."""
  return {path: path.read_bytes() for path in Path(workdir).rglob('*') if path.is_file()}
