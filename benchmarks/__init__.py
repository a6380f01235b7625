"""Time orbit_ckpt side by side with Orbax, safetensors, PyTorch and the bare disk.

    python -m benchmarks                                # the usual trees, on memory and on disk
    python -m benchmarks reshard partial training       # other suites, see --help
    python -m benchmarks --docs                         # redraw what the documentation shows
    python -m benchmarks --trees small-5000 transformer --rounds 9 --json results.json
    python -m benchmarks leaves --plot cost_per_leaf.svg
    python -m benchmarks --trees 4GB --contenders orbit_ckpt orbax --memory-limit-gb 0.256
    python -m benchmarks --small                        # check all values, without figures
    python -m benchmarks --replay results.json          # print or plot a past run
    python -m benchmarks.import_time                    # the cost of an import
    python -m benchmarks.codecs                         # size and speed of codecs

`nox -s benchmarks -- ARGUMENTS` first installs all requirements except PyTorch.

Method:

- Every contender runs in its own process, which makes the same trees from the same seed. The
  processes alternate: one works while the others wait. Every round goes through the trees, and
  through the operations and contenders of each, in random order, except that saves come before
  loads; `--order-seed` repeats an order. For trees above a gigabyte, a contender does all its
  operations in one turn, because the checkpoints of all contenders together may not fit.
- The first round is a warm-up and does not count. Every value loaded in it is compared, bit for
  bit, with the saved one.
- A figure is the median of the other rounds, with the fastest and the slowest one. Processor time
  counts all threads, and is the least of any round: other programs disturb it least. A ratio is one
  of medians, or of such processor times, in the same run.
- The timings cover the time that a training program waits. They exclude making checkpointers and
  restore arguments, collecting garbage, comparing and deleting. Saves include `fsync`, also for
  safetensors, which leaves it to its caller. Loads read from the page cache, also on disks.
- Virtual machines reclaim unused memory and return it at a tenth of memory's speed, a cost that
  would hit operations at random. Immediately before every timed operation, its process therefore
  writes to 2.5 times as much fresh memory as the tree or the requested arrays take, at least 256
  MB, and returns it to the system, which hands out first what was returned last.
- Peak memory is the highest resident memory during an operation minus the resident memory before
  it, as a multiple of the tree. It includes the result of a load, and mapped files, but not the
  memory that was touched: it is returned before.
- Bytes read are what system calls returned from files, including the page cache.
- A training loop runs with saves and without in the same process, in random order. All rounds save
  with one checkpoint manager. What saves add is the difference of two runs of one round. At the
  end, a save is compared with the state that it was given before further steps.
- Contenders that can compress use the same setting, see `--compression`.

The tables of the documentation stand between comments, see `benchmarks.pages`; `--docs` replaces
nothing else.

A contender is a class, see `benchmarks.contenders`; `--contenders` also takes `MODULE:CLASS`.
"""
