"""`python -m replicax demo`: trains a classifier of handwritten digits on all devices.

A first `Trainer` runs half of the steps and saves a checkpoint. Then everything is discarded, and a second
`Trainer` continues from the checkpoint, as after a crash. It starts with different initial weights on
purpose, so that its accuracy can only come from the checkpoint.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, final

import jax
import numpy as np

import replicax as rx
from replicax.cli._devices import all_devices
from replicax.cli._digits import load_digits
from replicax.cli._extras import require_extra
from replicax.cli._picture import draw_picture
from replicax.cli._progress import Progress
from replicax.errors import DeviceError
from replicax.tracking import make_folder

if TYPE_CHECKING:
    from rich.console import Console

    from replicax.cli._trainer import Trainer

__all__ = ["DemoOptions", "run_demo"]

LARGEST_BATCH = 64  # the global batch size
NUM_CPU_DEVICES = 4
WANTED_ACCURACY = 0.97
PROFILED_STEPS = range(10, 20)


@final
@dataclass(frozen=True)
class DemoOptions:
    """The options of the command line; see `python -m replicax demo --help`."""

    strategy: str = "mirrored"
    num_replicas: int | None = None
    num_epochs: int = 40
    output: Path = Path("replicax_demo")
    tensorboard: Path | None = None
    profile: Path | None = None


def run_demo(options: DemoOptions) -> int:
    """Train, stop, resume, test, draw.

    Returns:
        The exit status: 1 if the accuracy is too low.

    Raises:
        DeviceError: JAX has no devices, or too few.
        OSError: a folder is not writable.
        MissingExtraError: a package is not installed.
    """
    require_extra("demo", optax="optax", orbax="orbax-checkpoint")
    require_extra("demo", sklearn="scikit-learn", matplotlib="matplotlib", rich="rich")
    if options.tensorboard is not None:
        require_extra("tensorboard", tensorboardX="tensorboardX")
    from rich.console import Console

    strategy = make_strategy(options)
    for option in ("output", "tensorboard", "profile"):
        if (folder := getattr(options, option)) is not None:
            make_folder(f"--{option} {folder}", str(folder))
    with tempfile.TemporaryDirectory(prefix="checkpoints_", dir=options.output) as folder:
        console = Console(highlight=False, soft_wrap=True)
        demo = _Demo(options, console, folder, strategy.num_replicas_in_sync)
        demo.introduce(strategy)
        with rx.Tracker(tensorboard=options.tensorboard, writers=[demo.progress], every=5) as tracker:
            before = demo.train_first_half(strategy, tracker)
            trainer = demo.resume(make_strategy(options), expected=before)
            demo.train_second_half(trainer, tracker)
        return demo.conclude(trainer)


def make_strategy(options: DemoOptions) -> rx.Strategy:
    """Create the chosen strategy, on the accelerators or, without any, on virtual CPU devices.

    Raises:
        DeviceError: there are fewer devices than replicas.
    """
    if options.strategy == "one-device" and options.num_replicas not in (None, 1):
        raise DeviceError(
            f"--replicas {options.num_replicas}: the strategy one-device has one replica. Leave it out."
        )
    rx.set_cpu_devices(options.num_replicas or NUM_CPU_DEVICES)
    devices = all_devices()
    num_replicas = options.num_replicas or len(devices)
    if num_replicas > len(devices):
        raise DeviceError(
            f"--replicas {num_replicas}: JAX has only {len(devices)} device(s), {devices}. Use fewer "
            "replicas, or set JAX_PLATFORMS=cpu to use virtual CPU devices."
        )
    match options.strategy:
        case "one-device":
            return rx.OneDeviceStrategy(devices[0])
        case "central-storage":
            return rx.CentralStorageStrategy(devices[:num_replicas])
        case _:
            return rx.MirroredStrategy(devices[:num_replicas])


@final
class _Demo:
    """The parts of the demo, and the state that they share."""

    def __init__(self, options: DemoOptions, console: Console, folder: str, num_replicas: int) -> None:
        self.options = options
        self.console = console
        self.folder = folder
        self.digits, self.test_digits = load_digits()
        # The same number of rows for all replicas, so that they share one program.
        self.batch_size = LARGEST_BATCH // num_replicas * num_replicas
        self.num_steps = options.num_epochs * len(self.digits) // self.batch_size
        self.progress = Progress(console, self.num_steps, self.batch_size)
        self.num_examples = np.zeros(0, int)  # per replica

    def introduce(self, strategy: rx.Strategy) -> None:
        """Print what will happen, and on which devices."""
        devices = strategy.extended.worker_devices
        where = f"1 replica on {devices[0]}"
        if len(devices) > 1:
            virtual = ", one CPU that acts as several devices" if jax.default_backend() == "cpu" else ""
            where = f"{len(devices)} replicas on {', '.join(devices)}{virtual}"
        self.console.print(
            f"[bold]{type(strategy).__name__}[/bold]: {where}\n"
            f"{len(self.digits)} handwritten digits for training, {len(self.test_digits)} for testing; "
            f"{self.num_steps} steps of {self.batch_size} examples for all replicas together\n"
        )

    def make_trainer(self, strategy: rx.Strategy, seed: int) -> Trainer:
        """A new model with its optimizer and its input."""
        from replicax.cli._trainer import Trainer  # only after checking for the packages it imports

        return Trainer(
            strategy,
            self.digits,
            num_epochs=self.options.num_epochs,
            batch_size=self.batch_size,
            folder=self.folder,
            seed=seed,
        )

    def train_first_half(self, strategy: rx.Strategy, tracker: rx.Tracker) -> np.ndarray:
        """Train, save a checkpoint and stop. Returns the predictions for the test digits."""
        trainer = self.make_trainer(strategy, seed=0)
        middle = self.num_steps // 2
        with self.progress.training():
            trainer.train(min(PROFILED_STEPS.start, middle), tracker)
            with rx.profile(self.options.profile):
                trainer.train(min(PROFILED_STEPS.stop, middle), tracker)
            trainer.train(middle, tracker)
        predictions = trainer.predict(self.test_digits.images)
        self.console.print(
            f"Step {middle}: test accuracy {self._accuracy(predictions)}. Saved a checkpoint, "
            f"{Path(trainer.save()).name}, and [bold]stopped[/bold]"
        )
        self.num_examples = trainer.num_examples
        trainer.close()
        return predictions

    def resume(self, strategy: rx.Strategy, expected: np.ndarray) -> Trainer:
        """Create everything again and restore the checkpoint."""
        trainer = self.make_trainer(strategy, seed=1)
        fresh = trainer.predict(self.test_digits.images)
        self.console.print(
            f"Created everything again, with other weights: test accuracy {self._accuracy(fresh)}"
        )
        trainer.resume()
        restored = trainer.predict(self.test_digits.images)
        self.console.print(
            f"[bold]Resumed[/bold] from the checkpoint at step {trainer.step}: test accuracy "
            f"{self._accuracy(restored)}"
        )
        if not np.array_equal(restored, expected):
            raise RuntimeError("The restored model's predictions differ from the saved one's.")
        self.progress.history.resumed_at = trainer.step
        return trainer

    def train_second_half(self, trainer: Trainer, tracker: rx.Tracker) -> None:
        """Train to the end."""
        with self.progress.training():
            trainer.train(self.num_steps, tracker)
        self.num_examples = self.num_examples + trainer.num_examples
        trainer.close()

    def conclude(self, trainer: Trainer) -> int:
        """Test, print what each device did, draw the picture. Returns the exit status."""
        predictions = trainer.predict(self.test_digits.images)
        self._print_devices(trainer.strategy)
        path = self.options.output / "demo.png"
        shares = dict(
            zip(trainer.strategy.extended.worker_devices, self.num_examples.tolist(), strict=True)
        )
        name = type(trainer.strategy).__name__
        draw_picture(path, name, self.progress.history, shares, self.test_digits, predictions)
        correct = np.mean(predictions == self.test_digits.labels)
        self.console.print(f"\n[bold]Test accuracy: {self._accuracy(predictions)}[/bold]")
        self.console.print(f"Picture: {path}")
        for what, folder in (("TensorBoard", self.options.tensorboard), ("Profile", self.options.profile)):
            if folder is not None:
                self.console.print(f"{what}: {folder}")
        if correct >= WANTED_ACCURACY:
            return 0
        self.console.print(
            f"That is below {WANTED_ACCURACY:.0%}, which this model reaches within 40 epochs. It was "
            f"trained for {self.options.num_epochs}."
        )
        return 1

    def _print_devices(self, strategy: rx.Strategy) -> None:
        from rich.table import Table

        table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
        table.add_column("replica")
        table.add_column("device")
        table.add_column("examples", justify="right")
        table.add_column("share", justify="right")
        for replica, (device, count) in enumerate(
            zip(strategy.extended.worker_devices, self.num_examples, strict=True)
        ):
            table.add_row(str(replica), device, f"{count:,}", f"{count / self.num_examples.sum():.1%}")
        self.console.print()
        self.console.print(table)

    def _accuracy(self, predictions: np.ndarray) -> str:
        correct = int(np.sum(predictions == self.test_digits.labels))
        return f"{correct / len(predictions):.1%} ({correct} of {len(predictions)})"
