"""An example of each command, for its help."""

from __future__ import annotations

EXAMPLES = {
    "ls": "orbit-ckpt ls runs/a --keep-last 3 --keep-best 1 --metric loss",
    "tree": "orbit-ckpt tree runs/a --depth 2 --sort size --columns size,share",
    "show": "orbit-ckpt show runs/a@best:loss 'params/*/kernel'",
    "stats": "orbit-ckpt stats runs/a --only 'params/**' --fail-on-nan",
    "diff": "orbit-ckpt diff runs/a@1000 runs/a --values --rtol 1e-3",
    "verify": "orbit-ckpt verify runs/a@latest",
    "du": "orbit-ckpt du runs/a",
    "watch": "orbit-ckpt watch runs/a --until 10000",
    "plan": "orbit-ckpt plan runs/a --rules rules.toml --like runs/b",
    "report": "orbit-ckpt report runs/a --output report.html",
    "serve": "orbit-ckpt serve runs/a --port 8080",
    "convert": "orbit-ckpt convert runs/a@best:loss model.safetensors --to safetensors "
    "--only 'params/**'",
    "export": "orbit-ckpt export runs/a params/embed/kernel embed.npy --cast float32",
    "cp": "orbit-ckpt cp runs/a@best:loss backup/best",
    "pin": "orbit-ckpt pin runs/a@best:loss",
    "unpin": "orbit-ckpt unpin runs/a@1000",
    "rm": "orbit-ckpt rm runs/a@1000",
    "prune": "orbit-ckpt prune runs/a --keep-last 3 --keep-every 1000 --dry-run",
    "plugins": "orbit-ckpt plugins",
}
"""By name of the command; a command of a plug-in has none."""
