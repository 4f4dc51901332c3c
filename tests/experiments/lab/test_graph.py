"""Every node is done once, in order; one that fails takes along those that need it, and no
others."""

import io
import threading
import time

import pytest
import rich.console

from experiments.lab import graph
from experiments.lab.graph import Budget, Node, Worker
from fastdec.errors import UserError
from fastdec.files import locked


class Files:
  """Nodes that are done when their file is there; `log` has what was worked on, in order."""

  def __init__(self, folder, **needs):
    self.folder, self.needs, self.log, self.works = folder / 'done', needs, [], {}
    self.folder.mkdir(exist_ok=True)
    self.workdir = folder

  def nodes(self, **fields):
    return [
      Node(
        name,
        f'doing {name}',
        tuple(needs.split()),
        (self.folder / name).exists,
        self._work(name),
        **fields,
      )
      for name, needs in self.needs.items()
    ]

  def _work(self, name):
    def work(left):
      self.log.append(name)
      self.works.get(name, lambda left: None)(left)
      (self.folder / name).touch()

    return work

  def run(self, budget=None, **fields):
    out = io.StringIO()
    outcome = Worker(
      self.nodes(**fields), self.workdir, Budget(budget), rich.console.Console(file=out)
    ).run()
    self.said = out.getvalue()
    return outcome


def raises(error):
  def work(left):
    raise error

  return work


@pytest.fixture
def chain(tmp_path):
  return Files(tmp_path, base='', heads='base', cells='heads', teacher='', distilled='teacher')


def test_what_is_needed_comes_first_and_what_is_done_is_skipped(chain):
  (chain.folder / 'teacher').touch()
  outcome = chain.run()
  assert chain.log == ['base', 'heads', 'cells', 'distilled']
  assert outcome == graph.Outcome({}, True)
  assert chain.run() == graph.Outcome({}, True) and len(chain.log) == 4


def test_what_nothing_missing_needs_is_not_made_again(chain):
  (chain.folder / 'distilled').touch()
  (chain.folder / 'heads').touch()
  chain.run()
  assert chain.log == ['cells']


@pytest.mark.parametrize(
  'error, reason',
  [
    (UserError('the loss is\nnot finite'), 'the loss is not finite'),
    (OSError(28, 'No space left on device'), 'OSError: [Errno 28] No space left on device'),
    (ValueError('x' * 500), f'ValueError: {"x" * 387}…'),
  ],
  ids=['mistake', 'full disk', 'long'],
)
def test_a_failure_takes_along_what_needs_it_and_the_rest_goes_on(chain, error, reason):
  chain.works['base'] = raises(error)
  outcome = chain.run()
  assert outcome.failed == {'base': reason, 'heads': f'base: {reason}', 'cells': f'base: {reason}'}
  assert outcome.is_complete and chain.log == ['base', 'teacher', 'distilled']
  log = chain.workdir / 'failures' / 'base.log'
  assert 'Traceback' in log.read_text() and 'in work' in log.read_text()
  assert 'Traceback' not in chain.said and f'base failed: {reason[:40]}' in ' '.join(
    chain.said.split()
  )


def test_a_rerun_tries_again_and_forgets(chain):
  chain.works['heads'] = raises(UserError('no'))
  chain.run()
  chain.works.clear()
  assert chain.run() == graph.Outcome({}, True)
  assert not list((chain.workdir / 'failures').iterdir())


def test_work_without_a_result_is_a_failure_and_no_endless_loop(chain):
  nodes = [Node('base', 'doing base', (), lambda: False, lambda left: None)]
  outcome = Worker(
    nodes, chain.workdir, Budget(None), rich.console.Console(file=io.StringIO())
  ).run()
  assert outcome.failed == {'base': 'base ended without a result: run the same command again'}


def test_ctrl_c_is_no_failure(chain):
  chain.works['base'] = raises(KeyboardInterrupt())
  with pytest.raises(KeyboardInterrupt):
    chain.run()
  assert not (chain.workdir / 'failures').exists()


def test_a_budget_ends_between_nodes_and_is_told_to_them(chain):
  lefts = []
  chain.works['base'] = lambda left: (lefts.append(left), time.sleep(0.1))
  outcome = chain.run(budget=0.1)
  assert chain.log == ['base'] and not outcome.is_complete and outcome.failed == {}
  assert 0 < lefts[0] <= 0.1
  assert chain.run(budget=0).is_complete is False and chain.log == ['base']


def test_what_does_not_fit_into_the_rest_of_the_budget_does_not_begin(chain):
  assert chain.run(budget=60, seconds=600.0) == graph.Outcome({}, False)
  assert chain.log == []
  # an endless one has room
  assert chain.run(seconds=600.0).is_complete and len(chain.log) == len(chain.needs)


def test_two_workers_share_and_do_nothing_twice(chain, monkeypatch):
  monkeypatch.setattr(graph, 'POLL_SECONDS', 0.01)
  started = threading.Barrier(2, timeout=20)
  # each waits for the other
  chain.works['base'] = chain.works['teacher'] = lambda left: started.wait()
  chain.works['distilled'] = lambda left: time.sleep(0.1)
  workers = [threading.Thread(target=chain.run) for _ in range(2)]
  for worker in workers:
    worker.start()
  for worker in workers:
    worker.join(timeout=30)
  assert sorted(chain.log) == sorted(chain.needs)


def test_who_finds_everything_taken_waits(chain, monkeypatch):
  taken = chain.workdir / 'locks' / 'base.lock'
  chain.needs = {'base': ''}

  def finish(seconds):
    (chain.folder / 'base').touch()

  monkeypatch.setattr(graph.time, 'sleep', finish)
  with locked(taken, wait=False) as is_mine:
    assert is_mine and chain.run() == graph.Outcome({}, True)
  assert chain.log == [] and 'Waiting for base: another process is at it' in chain.said


def test_shared_work_is_joined(chain):
  chain.needs = {'base': ''}
  with locked(chain.workdir / 'locks' / 'base.lock'):
    assert chain.run(is_shared=True).is_complete
  assert chain.log == ['base']


def test_a_failure_here_is_none_where_another_process_succeeds(chain):
  def fail_while_another_does_it(left):
    (chain.folder / 'base').touch()
    raise UserError('out of memory')

  chain.works['base'] = fail_while_another_does_it
  assert chain.run().failed == {} and 'cells' in chain.log


def test_a_lock_that_cannot_be_made_is_a_mistake(tmp_path):
  (tmp_path / 'file').touch()
  with pytest.raises(UserError, match='give another folder'), locked(tmp_path / 'file' / 'x'):
    pass
