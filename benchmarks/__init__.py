"""Time orbit_ckpt side by side with Orbax, safetensors, PyTorch and the bare disk.

    python -m benchmarks                                # the usual trees, on memory and on disk
    python -m benchmarks --trees small-5000 transformer --rounds 9 --json results.json
    python -m benchmarks --trees small-1000 small-5000 small-20000 --plot cost_per_leaf.svg
    python -m benchmarks --trees 4GB --contenders orbit_ckpt orbax --memory-limit-gb 0.256
    python -m benchmarks --small                        # are all values right? No figures
    python -m benchmarks --replay results.json          # print, or plot, a past run again
    python -m benchmarks.import_time                    # what an import costs

`nox -s benchmarks -- ARGUMENTS` installs all that is needed first, apart from PyTorch.

How it measures:

- Every contender lives in a process of its own, which makes the same tree from the same seed. The
  processes take turns: one works, the others wait. The order rotates from round to round, so that
  a busy moment of the machine does not hit the same contender every time. Trees of more
  than a gigabyte are the exception: there a contender does all its operations in one turn, because
  the checkpoints of all contenders at once may not fit.
- The first round warms up and is not counted. Every value loaded in it is compared, bit for bit,
  with what was saved. A figure is the median of the other rounds, a ratio one of medians.
- Timed is what a training program waits for. Making checkpointers and restore arguments,
  collecting garbage, comparing and deleting happen outside. Saves include `fsync`, for safetensors
  too, which leaves it to its caller. Loads find the files in the page cache, on disks as well.
- Every operation is done once right before it is timed. Virtual machines take back memory that is
  not used and return it at a fraction of memory's speed; whoever needed it first would pay.
- Peak memory is the highest resident memory during an operation beyond what was resident before,
  as a multiple of the tree. The result of a load is part of it, as are files that are mapped.
- Contenders that can compress do so on equal terms: all or none, see `--compression`.

A contender is a class, see `benchmarks.contenders`; `--contenders` takes `MODULE:CLASS` too.
"""
