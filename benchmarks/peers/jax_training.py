"""The same training with JAX: a jitted step, or with --scan one call that scans all steps of an epoch."""

import os
import sys

THREADS = int(sys.argv[sys.argv.index("--threads") + 1])
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:THREADS])  # before JAX starts its threads
os.environ["JAX_PLATFORMS"] = "cpu"

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy  # noqa: E402

from models import BATCH_SIZES, HEADS, LAYERS, NUM_CHECKED_SAMPLES, make_dataset, make_model  # noqa: E402
from turns import serve  # noqa: E402

# PyTorch's defaults of AdamW.
LR, BETA1, BETA2, EPSILON, WEIGHT_DECAY = 1e-3, 0.9, 0.999, 1e-8, 1e-2


def linear(parameters, name, x):
    return x @ parameters[f"{name}.weight"].T + parameters[f"{name}.bias"]


def mlp(parameters, x):
    x = jax.nn.relu(linear(parameters, "hidden1", x))
    x = jax.nn.relu(linear(parameters, "hidden2", x))
    return linear(parameters, "output", x)


def convolution(parameters, name, x):
    y = jax.lax.conv_general_dilated(x, parameters[f"{name}.weight"], (1, 1), "VALID",
                                     dimension_numbers=("NCHW", "OIHW", "NCHW"))
    return y + parameters[f"{name}.bias"][:, None, None]


def pool(x):
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")


def cnn(parameters, x):
    x = pool(jax.nn.relu(convolution(parameters, "conv1", x)))
    x = pool(jax.nn.relu(convolution(parameters, "conv2", x)))
    x = jax.nn.relu(linear(parameters, "hidden", x.reshape(x.shape[0], -1)))
    return linear(parameters, "output", x)


def normalise(parameters, name, x):
    return jax.nn.standardize(x, epsilon=1e-5) * parameters[f"{name}.weight"] + parameters[f"{name}.bias"]


def attend(parameters, name, x):
    samples, length, width = x.shape
    parts = linear(parameters, f"{name}.query_key_value", x).reshape(samples, length, 3, HEADS, width // HEADS)
    y = jax.nn.dot_product_attention(parts[:, :, 0], parts[:, :, 1], parts[:, :, 2], is_causal=True)
    return linear(parameters, f"{name}.projection", y.reshape(x.shape))


def gpt(parameters, tokens):
    x = parameters["bytes.weight"][tokens] + parameters["positions.weight"][:tokens.shape[1]]
    for name in (f"blocks.{i}" for i in range(LAYERS)):
        x = x + attend(parameters, name, normalise(parameters, f"{name}.attention_norm", x))
        y = linear(parameters, f"{name}.mlp.0", normalise(parameters, f"{name}.mlp_norm", x))
        x = x + linear(parameters, f"{name}.mlp.2", jax.nn.gelu(y, approximate=False))
    return linear(parameters, "head", normalise(parameters, "norm", x))


def make_step(forward):
    def loss_of(parameters, x, y):
        scores = jax.nn.log_softmax(forward(parameters, x))
        return -jnp.take_along_axis(scores, y[..., None], axis=-1).mean()

    def step(state, x, y):
        parameters, means, squares, count = state
        loss, gradients = jax.value_and_grad(loss_of)(parameters, x, y)
        count = count + 1
        of_all = jax.tree.map
        means = of_all(lambda m, g: BETA1 * m + (1 - BETA1) * g, means, gradients)
        squares = of_all(lambda v, g: BETA2 * v + (1 - BETA2) * g * g, squares, gradients)
        size, root = LR / (1 - BETA1 ** count), jnp.sqrt(1 - BETA2 ** count)
        parameters = of_all(lambda p, m, v: p * (1 - LR * WEIGHT_DECAY) - size * m / (jnp.sqrt(v) / root + EPSILON),
                            parameters, means, squares)
        return (parameters, means, squares, count), loss

    return step, loss_of


def train(arguments, turns):
    dataset = make_dataset(arguments.work, arguments.steps)
    inputs, targets = (jnp.asarray(each.numpy()) for each in dataset.tensors)
    parameters = {name: jnp.asarray(value.numpy()) for name, value in make_model(arguments.work).state_dict().items()}
    zeros = lambda: jax.tree.map(jnp.zeros_like, parameters)  # noqa: E731: a buffer can be donated once
    state = (parameters, zeros(), zeros(), jnp.zeros((), jnp.float32))
    step, loss_of = make_step({"mlp": mlp, "cnn": cnn, "gpt": gpt}[arguments.work])
    # The batch is gathered in the compiled code, too, which is the fastest way for data in memory.
    gathering = lambda state, indices: step(state, inputs[indices], targets[indices])  # noqa: E731
    one = jax.jit(gathering, donate_argnums=0)
    epoch = jax.jit(lambda state, batches: jax.lax.scan(gathering, state, batches), donate_argnums=0)
    random = numpy.random.default_rng(0)

    def run(state):
        order = random.permutation(len(inputs)).reshape(arguments.steps, BATCH_SIZES[arguments.work])
        if arguments.scan:
            state, _ = epoch(state, order)
        else:
            for indices in order:
                state, _ = one(state, indices)
        return jax.block_until_ready(state)

    turns.ready()
    while True:
        turns.begin()
        state = run(state)
        turns.end(lambda: float(loss_of(state[0], inputs[:NUM_CHECKED_SAMPLES], targets[:NUM_CHECKED_SAMPLES])))


if __name__ == "__main__":
    serve(train)
