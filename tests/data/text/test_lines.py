"""Lines of files and archives; a file is read once for each state that it has been in."""

import bz2
import gzip
import io
import lzma
import os
import tarfile
from pathlib import Path

import pytest

from fastdec.data.text import lines
from fastdec.data.text.lines import Lines, check_content, read_pairs
from fastdec.errors import UserError

SGM = """<refset>
<doc id="1">
<seg id="1"> R&amp;D &lt;b&gt; &amp;quot; </seg>
<p>
<seg id="2"></seg>
</doc>
"""


def archive(path: Path, members: dict[str, bytes]) -> Path:
  """A gzipped tar archive of these files."""
  with tarfile.open(path, 'w:gz') as file:
    for name, content in members.items():
      info = tarfile.TarInfo(name)
      info.size = len(content)
      file.addfile(info, io.BytesIO(content))
  return path


def test_lines_are_the_same_in_a_file_a_gzipped_one_and_an_archive(tmp_path: Path):
  content = 'eins\n\n zwei\xa0\r\ndrei\x0cdrei\u2028'.encode()
  (tmp_path / 'plain.de').write_bytes(content)
  (tmp_path / 'packed.gz').write_bytes(gzip.compress(content))
  (tmp_path / 'unnamed.de').write_bytes(gzip.compress(content))
  (tmp_path / 'packed.bz2').write_bytes(bz2.compress(content))
  (tmp_path / 'packed.de').write_bytes(lzma.compress(content))
  packed = archive(
    tmp_path / 'archive.tgz', {'b/a/text.de': b'no\n', './a/text.de': content, 'z': b''}
  )
  expected = [line.encode() for line in ('eins', '', ' zwei\xa0', 'drei\x0cdrei\u2028')]
  places = (
    Lines(str(tmp_path / 'plain.de')),
    *(Lines(str(tmp_path / name)) for name in ('packed.gz', 'unnamed.de')),
    *(Lines(str(tmp_path / name)) for name in ('packed.bz2', 'packed.de')),
    Lines(str(packed), 'a/text.de'),
  )
  assert [list(place) for place in places] == [expected] * 6


@pytest.mark.parametrize('data, reason', [
  (b'\x28\xb5\x2f\xfd\x04', 'it is packed by zstd: unpack it by zstd -d'),
  (lzma.compress(b'eins')[:-9], 'Compressed file ended'),
])  # fmt: skip
def test_files_that_are_packed_otherwise_or_damaged_are_named(tmp_path: Path, data, reason):
  (tmp_path / 'train.en').write_bytes(data)
  with pytest.raises(UserError, match=rf'cannot read .*train.en \({reason}'):
    list(Lines(str(tmp_path / 'train.en')))


def test_of_sgm_files_the_segments_are_the_lines(tmp_path: Path):
  (tmp_path / 'test.sgm').write_text(SGM)
  assert list(Lines(str(tmp_path / 'test.sgm'))) == [b'R&D <b> &quot;', b'']


def test_files_are_read_one_after_another(tmp_path: Path):
  for name, content in {
    'a.en': 'a\n\nc\n',
    'a.de': 'A\nB\nC\n',
    'b.en': 'd\ne\n',
    'b.de': 'D\n \n',
  }.items():
    (tmp_path / name).write_text(content)
  files = [tuple(Lines(str(tmp_path / f'{stem}.{side}')) for side in ('en', 'de')) for stem in 'ab']
  assert list(read_pairs(files)) == [('a', 'A'), ('', 'B'), ('c', 'C'), ('d', 'D'), ('e', ' ')]


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Lines, Lines]:
  """Two files of two lines each."""
  for name in ('source', 'target'):
    (tmp_path / name).write_text('one\ntwo\n')
  return Lines(str(tmp_path / 'source')), Lines(str(tmp_path / 'target'))


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
  """The paths of the files that were read whole, in order."""
  read, scan = [], lines._scan
  monkeypatch.setattr(lines, '_scan', lambda place: read.append(place.path) or scan(place))
  return read


def test_an_unchanged_file_is_not_read_again(pair, reads: list[str], tmp_path: Path):
  keys = [
    check_content({split: [pair]}, tmp_path / 'memory').key for split in ('train', 'train', 'dev')
  ]
  assert keys[0] == keys[1] != keys[2]
  assert reads == [pair[0].path, pair[1].path]


@pytest.mark.parametrize(('content', 'seconds'), [('one two\n\n', 0), ('ONE\ntwo\n', 1)])
def test_a_file_with_a_new_size_or_date_is_read_again(
  pair, reads: list[str], tmp_path: Path, content: str, seconds: int
):
  before = check_content({'train': [pair]}, tmp_path / 'memory').key
  status = os.stat(pair[0].path)
  Path(pair[0].path).write_text(content)
  os.utime(pair[0].path, ns=(status.st_atime_ns, status.st_mtime_ns + seconds * 10**9))
  assert check_content({'train': [pair]}, tmp_path / 'memory').key != before
  assert reads == [pair[0].path, pair[1].path, pair[0].path]


@pytest.mark.parametrize('damage', ['', '{"lines": 2}', '[]'])
def test_a_damaged_note_is_made_again(pair, reads: list[str], tmp_path: Path, damage: str):
  key = check_content({'train': [pair]}, tmp_path / 'memory').key
  for note in (tmp_path / 'memory').iterdir():
    note.write_text(damage)
  assert [check_content({'train': [pair]}, tmp_path / 'memory').key for _ in range(2)] == [key, key]
  assert len(reads) == 4


def test_where_nothing_can_be_remembered_files_are_read_each_time(
  pair, reads: list[str], tmp_path: Path
):
  (tmp_path / 'memory').write_text('a file, not a folder')
  assert len({check_content({'train': [pair]}, tmp_path / 'memory').key for _ in range(2)}) == 1
  assert len(reads) == 4


@pytest.mark.parametrize('cut', [
  lambda content: content[: len(content) // 2],
  lambda content: b'', lambda content: b'<html>404</html>',
])  # fmt: skip
def test_an_archive_that_was_cut_is_refused(tmp_path: Path, cut):
  noise = bytes(range(256)) * 200
  path = archive(
    tmp_path / 'archive.tgz',
    {'a': noise, 'b.de': b'\n'.join(noise.hex().encode() for _ in range(9))},
  )
  path.write_bytes(cut(path.read_bytes()))
  place = Lines(str(path), 'b.de')
  with pytest.raises(
    UserError, match=r'cannot read b.de in .*archive.tgz .*: give the whole archive'
  ):
    check_content({'train': [(place, place)]}, tmp_path / 'memory')
