"""Table 1 from nothing to the picture, at toy size: what is written, what a rerun does, what a budget does."""
def test_x(table, launch):
  import time
  t=time.time()
  e = launch('table1', *table.words(), f'--workdir={table.folder}')
  print(e.out); print(e.err)
  print('RERUN', time.time()-t)
  for i in range(2):
    t=time.time()
    e = launch('translate', f'--workdir={table.folder}/k2-freeze', 'a b', 'c d\ne')
    print(e)
    print('TR', time.time()-t)
    t=time.time()
    e = launch('evaluate', *table.words('k=2'), f'--workdir={table.folder}/k2-freeze')
    print(e)
    print('EV', time.time()-t)
