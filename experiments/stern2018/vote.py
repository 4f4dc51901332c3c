"""Table 3 of Stern et al. 2018: people choose between two enlargements of a tiny photograph.

`Study` holds the pictures, `Server` shows them by vote.html and keeps votes, `table3` counts these.

  GET  /?rater=ada  the page with the next pairs of this rater in it; without a rater it asks who
  POST /vote        {"rater": "ada", "pair": "0f3a9c52d1e04b77", "side": "left"}: 204 once kept

Whoever can reach the server can vote. Whoever knows a rater's word can continue as that rater.
"""

import base64
import dataclasses
import hashlib
import io
import itertools
import re
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import PIL.Image

from experiments.lab import report, rows
from experiments.lab.report import Column
from fastdec.cli import page
from fastdec.data.images import npz
from fastdec.errors import UserError
from fastdec.evaluation.rows import append
from fastdec.fields import Size, Token, read
from fastdec.files import parse_json

SIDES = ('left', 'right')
SHAPES = {'input': (8, 8, 3), 'output': (-1, -1, 3), 'base': (8,)}
FIGURES = '{:.1f} [{:.1f}, {:.1f}]'
PAGE_PAIRS = 100  # in one page, which loads itself again for more
COLUMNS = (
  Column('Method 1', 'name'),
  Column('Method 2', lambda row: 'regular, exact, k = 1'),
  Column('1 > 2', 'ours'),
  Column('The paper', 'theirs'),
  Column('Votes', 'votes'),
  Column('Raters', 'raters'),
)
# The baseline, and fine-tuned models by the two rules of the paper's table.
FILE = re.compile(r'.+-k(1(?=-regular-exact)|\d+(?=-finetune))-[a-z]+-(exact|distance-2)')

# Table 3, by Mechanical Turk: k, rule -> per cent of raters who prefer the fine-tuned model to the
# base, and the ends of the 90 % bootstrap interval.
PAPERS_TABLE3 = {
  (2, 'exact'): (52.8, 50.8, 54.9),
  (4, 'exact'): (54.4, 52.5, 56.3),
  (6, 'exact'): (53.2, 51.3, 55.0),
  (8, 'exact'): (55.1, 53.3, 56.8),
  (10, 'exact'): (54.5, 53.1, 56.0),
  (2, 'distance-2'): (50.0, 48.4, 51.5),
  (4, 'distance-2'): (53.3, 51.7, 55.0),
  (6, 'distance-2'): (56.8, 55.4, 58.2),
  (8, 'distance-2'): (55.2, 53.5, 56.7),
  (10, 'distance-2'): (50.3, 48.9, 51.8),
}


@dataclasses.dataclass(frozen=True)
class Vote:
  """A line of votes.jsonl."""

  pair: str
  rater: str
  k: Size
  rule: str
  image: Token
  preferred: bool
  time: float


class Study:
  """The pictures that table2 wrote to a workdir: by fine-tuned models, and by the baseline."""

  def __init__(self, workdir: Path) -> None:
    remedy = f'make the pictures by python -m experiments.table2 --workdir={workdir}'
    key = hashlib.sha256()
    self.outputs: dict[tuple[int, str], np.ndarray] = {}  # (k, rule) -> uint8[n, h, h, 3]
    for path in sorted(workdir.glob('images/*.npz')):
      if name := FILE.fullmatch(path.stem):
        try:
          arrays = npz.read(path, SHAPES, 'images')
          inputs, output, base = arrays['input'], arrays['output'], arrays['base'].tobytes()
        except UserError as error:
          raise UserError(f'{path} cannot be read ({error}): remove it, and {remedy}') from None
        if not self.outputs:
          self.inputs, self.base = inputs, base  # inputs: uint8[n, 8, 8, 3]
        if base != self.base or not np.array_equal(inputs, self.inputs):
          raise UserError(
            f'{path} shows other pictures than the files before it, or comes from a different base:'
            ' move it away'
          )
        self.outputs[int(name[1]), name[2]] = output
        key.update(name[0].encode() + inputs.tobytes() + output.tobytes())
    if (1, 'exact') not in self.outputs or len(self.outputs) == 1:
      raise UserError(f'{workdir}/images lacks the baseline or fine-tuned models: {remedy}')
    self.baseline = self.outputs.pop((1, 'exact'))
    self.key = key.hexdigest()

  def pairs(self, rater: str) -> dict[str, tuple[int, str, int, str]]:
    """The pairs in a rater's order: name -> k, rule, image, the fine-tuned model's side.

    Order, sides and names are hashes of the pictures and the rater's word. The page gets only the
    names, which do not reveal the sides.
    """
    pairs = {}
    for (k, rule), image in itertools.product(self.outputs, range(len(self.inputs))):
      drawn = hashlib.sha256(f'{self.key} {rater} {k} {rule} {image}'.encode()).digest()
      pairs[drawn[:8].hex()] = (k, rule, image, SIDES[drawn[8] % 2])
    return dict(sorted(pairs.items()))

  def vote(self, rater: str, pair: str, side: str) -> Vote:
    """The vote of a rater for a side of a pair.

    Raises:
      LookupError, TypeError, ValueError: the rater, the pair or the side does not exist.
    """
    k, rule, image, tuned = self.pairs(rater)[pair]
    if side not in SIDES:
      raise ValueError(f'{side} is not a side')
    vote = {'rater': rater, 'pair': pair, 'k': k, 'rule': rule, 'image': image}
    return read(Vote, {**vote, 'preferred': side == tuned, 'time': time.time()}, 'a vote')

  def pictures(self, k: int, rule: str, image: int, side: str) -> dict[str, str]:
    """The pictures of a pair as data URLs."""
    baseline = self.baseline[image]
    pixels = {'input': self.inputs[image], 'left': baseline, 'right': baseline}
    pixels[side] = self.outputs[k, rule][image]
    addresses = {}
    for name, array in pixels.items():
      bitmap = io.BytesIO()  # its length, unlike a PNG's, reveals nothing
      PIL.Image.fromarray(array).save(bitmap, 'bmp')
      encoded = base64.b64encode(bitmap.getvalue()).decode()
      addresses[name] = f'data:image/bmp;base64,{encoded}'
    return addresses


def read_votes(path: Path) -> dict[str, Vote]:
  """Reads votes by the names of their pairs.

  The fragment of a write that was killed is left out: no rater was shown that this vote is kept.
  """
  votes = {}
  for line in rows.read(path):
    vote = read(Vote, line, f'a vote in {path}')
    votes[vote.pair] = vote
  return votes


class Server(page.Server):
  """The server of the page, which appends votes to a file."""

  def __init__(self, study: Study, path: Path, host: str = '127.0.0.1', port: int = 0) -> None:
    self.study, self.path = study, path
    self.votes = read_votes(path)
    self.lock = threading.Lock()
    super().__init__(host, port, Handler)

  def keep(self, vote: Vote) -> None:
    """Writes a vote to the disk. A rater's first vote on a pair counts; more are ignored.

    Raises:
      OSError, UserError: it cannot be written, and is not kept.
    """
    with self.lock:
      if vote.pair not in self.votes:
        append(self.path, dataclasses.asdict(vote))
        self.votes[vote.pair] = vote


class Handler(page.Handler):
  """One request of a browser, and the answer to it."""

  server: Server

  def do_GET(self) -> None:
    query = re.fullmatch(r'/(\?rater=([a-z0-9-]{0,40}))?', self.path)
    if not query:
      return self.send_error(404, 'this page or rater does not exist')
    study, rater = self.server.study, query[2] or ''
    pairs = {}
    if rater:
      pairs = study.pairs(rater)
    left = sorted(pairs.keys() - self.server.votes.keys())  # in the rater's order
    shown = [{'pair': name, **study.pictures(*pairs[name])} for name in left[:PAGE_PAIRS]]
    state = {'rater': rater, 'done': len(pairs) - len(left), 'total': len(pairs), 'pairs': shown}
    self.show(Path(__file__).with_name('vote.html'), state)

  def do_POST(self) -> None:
    sent = self.body('/vote', 999)
    if sent is None:
      return
    try:
      vote = self.server.study.vote(**parse_json(sent))
    except (LookupError, TypeError, ValueError):
      return self.send_error(400, 'this vote does not exist: load the page again')
    try:
      self.server.keep(vote)
    except (OSError, UserError) as error:
      return self.send_error(503, f'the vote is not kept ({error})')
    self.send_response(204)
    self.end_headers()


def table3(study: Study, votes: dict[str, Vote]) -> str:
  """Writes the paper's Table 3 in Markdown: our figures with the paper's."""
  names: set[str] = set()  # of the pairs of these pictures
  for rater in {vote.rater for vote in votes.values()}:
    names.update(study.pairs(rater))
  groups: dict[tuple[int, str], list[tuple[str, bool]]] = {}  # by k and rule
  for name, vote in votes.items():
    if name in names:
      groups.setdefault((vote.k, vote.rule), []).append((vote.rater, vote.preferred))
  if not groups:
    raise UserError('these pictures have no votes yet: collect votes with --serve')
  lines, others = [], len(votes)
  for (k, rule), group in sorted(groups.items()):
    raters, preferred = zip(*group, strict=True)
    ours = FIGURES.format(*measure_preference(preferred))
    line = {'name': f'fine-tuning, {rule}, k = {k}', 'ours': ours, 'theirs': None}
    if (k, rule) in PAPERS_TABLE3:
      line['theirs'] = FIGURES.format(*PAPERS_TABLE3[k, rule])
    lines.append({**line, 'votes': len(group), 'raters': len(set(raters))})
    others -= len(group)
  note = 'Per cent of votes [90 % bootstrap interval; each vote is taken as independent].'
  note += f' Votes on other pictures, not counted: {others}.'
  return report.markdown(report.Table('', COLUMNS).of(lines, notes=[note]))


def measure_preference(chosen: Sequence[bool]) -> tuple[float, float, float]:
  """Returns votes for method 1 in per cent, and percentiles 5 and 95 of 10,000 resamples."""
  n, share = len(chosen), float(np.mean(chosen))
  # n votes drawn with replacement contain a binomial number of votes for method 1
  resampled = np.random.default_rng(0).binomial(n, share, 10_000)
  low, high = np.percentile(resampled, (5, 95)) / n
  return 100 * share, 100 * float(low), 100 * float(high)
