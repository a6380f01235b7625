"""Brax's checkpoints of agents: `save`, `load`, `load_policy`, and a training that saves."""

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
from _report import describe, main
from brax import envs
from brax.training.acme import running_statistics, specs
from brax.training.agents.ppo import checkpoint as ppo_checkpoint
from brax.training.agents.ppo import networks as ppo_networks
from brax.training.agents.ppo import train as ppo
from brax.training.agents.sac import checkpoint as sac_checkpoint
from brax.training.agents.sac import networks as sac_networks

OBSERVATIONS, ACTIONS = 3, 2


def make_statistics() -> running_statistics.RunningStatisticsState:
    statistics = running_statistics.init_state(specs.Array((OBSERVATIONS,), jnp.dtype("float32")))
    return running_statistics.update(statistics, jnp.arange(6.0).reshape(2, 3))


def train(**options: object) -> object:
    """Train for a few steps on Brax's environment for tests."""
    network = functools.partial(
        ppo_networks.make_ppo_networks,
        policy_hidden_layer_sizes=(4,),
        value_hidden_layer_sizes=(4,),
    )
    _, params, _ = ppo.train(
        environment=envs.get_environment("fast"),
        num_timesteps=64,
        episode_length=8,
        num_envs=4,
        batch_size=4,
        num_minibatches=1,
        unroll_length=4,
        num_evals=2,
        num_updates_per_batch=1,
        normalize_observations=True,
        network_factory=network,
        **options,
    )
    return params


def save(directory: Path) -> object:
    key = jax.random.key(0)
    factory = functools.partial(
        ppo_networks.make_ppo_networks,
        policy_hidden_layer_sizes=(4, 4),
        activation=jax.nn.tanh,
        mean_kernel_init_fn=jax.nn.initializers.orthogonal,
    )
    config = ppo_checkpoint.network_config(OBSERVATIONS, ACTIONS, True, factory)
    network = factory(OBSERVATIONS, ACTIONS)
    params = (make_statistics(), network.policy_network.init(key), network.value_network.init(key))
    for step in (1, 2, 2):  # the second overwrites the first
        ppo_checkpoint.save(directory / "ppo", step, params, config)

    config = sac_checkpoint.network_config(
        OBSERVATIONS, ACTIONS, False, sac_networks.make_sac_networks
    )
    network = sac_networks.make_sac_networks(OBSERVATIONS, ACTIONS)
    params = (make_statistics(), network.policy_network.init(key))
    sac_checkpoint.save(directory / "sac", 5, params, config)

    train(save_checkpoint_path=directory / "training", seed=3)
    return {
        path.name: sorted(step.name for step in path.iterdir())
        for path in sorted(directory.iterdir())
    }


def restore(directory: Path) -> object:
    results = {}
    observation = jnp.array([1.0, 2.0, 3.0])
    path = directory / "ppo" / f"{2:012d}"
    results["ppo"] = describe(ppo_checkpoint.load(path))
    policy = ppo_checkpoint.load_policy(path)
    results["action of ppo"] = describe(policy(observation, jax.random.key(1))[0])
    path = directory / "sac" / f"{5:012d}"
    results["sac"] = describe(sac_checkpoint.load(path))
    policy = sac_checkpoint.load_policy(path)
    results["action of sac"] = describe(policy(observation, jax.random.key(1))[0])

    path = max((directory / "training").iterdir())
    results["training"] = [path.name, describe(ppo_checkpoint.load(path))]
    resumed = train(restore_checkpoint_path=path, seed=4)
    results["resumed"] = describe(resumed)
    return results


if __name__ == "__main__":
    main(save, restore)
