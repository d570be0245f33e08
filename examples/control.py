"""Trains a decision transformer on logged episodes, and plays for requested returns.

    python examples/control.py                          # CartPole: keep a pole upright
    python examples/control.py --environment Acrobot    # swing up a double pendulum

The log holds episodes of mixed quality. At each step the model reads the return from there on, the
state and the last action, and predicts the action (Chen et al. 2021, arXiv 2106.01345). To play,
you request a return, and the policy subtracts each reward. ONNX Runtime runs the policy inside the
environment. Behaviour cloning, the same model without returns, is the baseline. Needs gymnasium.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # errors still raise exceptions

import keras
import numpy as np
from support.baselines import StatePolicy
from support.plots import Panel, plot_panels
from support.recipes import learning_rate
from support.sets.episodes import (
    logged_episodes,
    make_environment,
    step_features,
    training_windows,
)
from support.task_run import TaskRun, make_parser, parse

import keras_transformer as kt
from keras_transformer import export
from keras_transformer.export.runtime import Predictor

# Number of actions, and the requested returns, the best one last.
ENVIRONMENTS = {
    "CartPole": (2, [50, 100, 200, 300, 400, 500]),
    "Acrobot": (3, [-400, -300, -200, -150, -100, -75]),
}
CONTEXT = 16  # steps that the model reads
D_MODEL = 64
FIRST_GAME = 10**9  # seeds that no logged episode has


def make_model(features, actions):
    """Makes a model from steps (B, S, features) to action logits (B, S, actions)."""
    steps = keras.Input((None, features), name="steps")
    x = keras.layers.Masking()(steps)  # steps of zeros are padding
    x = kt.SinusoidalPositionEncoding()(keras.layers.Dense(D_MODEL)(x))
    for _ in range(2):
        x = kt.EncoderBlock(4, 2 * D_MODEL, 0.1)(x, use_causal_mask=True)
    return kt.Model(steps, keras.layers.Dense(actions)(x))


def train(args, run, episodes, actions, use_returns):
    parts = episodes[len(episodes) // 10 :], episodes[: len(episodes) // 10]
    counts = args.windows, args.windows // 10
    windows, valid = (
        training_windows(part, count, CONTEXT, actions, use_returns, args.seed)
        for part, count in zip(parts, counts, strict=True)
    )
    model = make_model(windows[0].shape[-1], actions)
    updates = args.epochs * -(-args.windows // 64)
    rate = learning_rate(peak=2e-3, warmup_steps=updates // 10 + 1, anneal=True, updates=updates)
    model.compile(
        keras.optimizers.Adam(rate, global_clipnorm=1.0),
        loss=kt.SequenceCrossentropy(pad_id=-1),
        metrics=[kt.TokenAccuracy(pad_id=-1, name="accuracy")],
    )
    options = dict(batch_size=64, epochs=args.epochs, best="val_loss")
    run.fit(model, *windows, validation_data=valid, **options)
    return model


def play(folder, name, count, targets, games, seed, noise=1.0):
    """Returns the mean return of games for each requested return; `None` requests none.

    Actions are sampled from their probabilities; `noise=0.0` takes the most likely one. All games
    run side by side, so that ONNX Runtime processes one batch per step.
    """
    predictor, draw = Predictor(folder), np.random.default_rng(seed)
    environments = [make_environment(f"{name}-v1") for _ in range(len(targets) * games)]
    states = [[one.reset(seed=FIRST_GAME + i % games)[0]] for i, one in enumerate(environments)]
    wanted = [[target or 0] for target in np.repeat(np.array(targets, object), games)]
    asks = [target is not None for target in np.repeat(np.array(targets, object), games)]
    actions, returns = [[] for _ in states], np.zeros(len(states))
    playing = list(range(len(states)))
    while playing:
        windows = [
            step_features(np.array(states[i]), actions[i], wanted[i], count)[-CONTEXT:]
            for i in playing
        ]
        for i, result in zip(playing[:], predictor.predict(windows), strict=True):
            (logits,) = result.arrays.values()  # (S, actions)
            actions[i].append(int(np.argmax(logits[-1] + noise * draw.gumbel(size=count))))
            state, reward, ended, cut, _ = environments[i].step(actions[i][-1])
            returns[i] += reward
            states[i].append(state)
            wanted[i].append(wanted[i][-1] - reward * asks[i])
            if ended or cut:
                playing.remove(i)
    return returns.reshape(len(targets), games).mean(axis=1)


def play_states(policy, args):
    """Returns the mean return of games of a policy that reads the last state only."""
    returns = []
    for game in range(args.games):
        environment, playing, total = make_environment(f"{args.environment}-v1"), True, 0.0
        state, _ = environment.reset(seed=FIRST_GAME + game)
        while playing:
            state, reward, ended, cut, _ = environment.step(int(policy(state[None])[0]))
            total, playing = total + reward, not (ended or cut)
        returns.append(total)
    return float(np.mean(returns))


def main(argv=None):
    parser = make_parser("control", __doc__, epochs=6, data=False)
    add = parser.add_argument
    add("--environment", choices=[*ENVIRONMENTS], default="CartPole", help="default: CartPole")
    add("--episodes", type=int, default=300, help="logged episodes to train on; default: 300")
    add("--windows", type=int, default=8000, help="windows to train on; default: 8000")
    add("--games", type=int, default=10, help="games per requested return; default: 10")
    args = parse(parser, argv)
    count, targets = ENVIRONMENTS[args.environment]
    with TaskRun(args) as run:
        episodes = logged_episodes(f"{args.environment}-v1", args.limit or args.episodes)
        logged = [float(one.rewards.sum()) for one in episodes]
        for use_returns, folder in ((False, "cloning"), (True, "onnx")):
            model = train(args, run, episodes, count, use_returns)
            export.export_onnx(model, run.path / folder)

        # From here on, ONNX Runtime predicts.
        options = dict(name=args.environment, count=count, games=args.games, seed=args.seed)
        achieved = play(run.path / "onnx", targets=targets, **options)
        (cloned,) = play(run.path / "cloning", targets=[None], **options)
        states, actions = (
            np.concatenate([getattr(one, name) for one in episodes])
            for name in ("states", "actions")
        )
        linear = play_states(StatePolicy(states, actions), args)
        greedy = [
            float(play(run.path / folder, targets=[target], noise=0.0, **options)[0])
            for folder, target in (("onnx", targets[-1]), ("cloning", None))
        ]
        lines = {
            "decision transformer": list(achieved),
            "behaviour cloning": [cloned] * len(targets),
            "as asked for": targets,
        }
        panel = Panel(args.environment, "return asked for", "mean return", targets, lines)
        run.draw("returns.png", plot_panels([panel], columns=1))
        best = f"return when asked for {targets[-1]}"
        score = {best: float(achieved[-1])}
        others = {"most likely action": dict(zip((best, "behaviour cloning"), greedy, strict=True))}
        baseline = {
            "behaviour cloning": float(cloned),
            "logistic regression on the state": linear,
            "logged episodes, mean": float(np.mean(logged)),
            "logged episodes, best": max(logged),
        }
        facts = dict(data=args.environment, baseline=baseline, games=args.games)
        run.write_score(model, score, others, **facts)
        for target, found in zip(targets, achieved, strict=True):
            print(f"  requested {target}, achieved {found:.1f}")


if __name__ == "__main__":
    main()
