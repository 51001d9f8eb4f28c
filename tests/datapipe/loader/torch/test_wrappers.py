"""Libraries that would hand out other batches than the dataset's are refused, and those that hold batches cannot miscount."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from datapipe.errors import DroppedRowsWarning, UserError
from datapipe.loader import Loader
from tests.support.late_import import late_import
from tests.support.snapshots import make_snapshot

torch = late_import("torch")
torch_data = late_import("torch.utils.data")
stateful = late_import("torchdata.stateful_dataloader")
accelerate = late_import("accelerate")
transformers = late_import("transformers")
lightning = late_import("lightning")
loader_torch = late_import("datapipe.loader.torch")
device = late_import("datapipe.loader.device")

pytestmark = [pytest.mark.needs("torch"), pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

S = 16
NUM_STEPS = 15
OPTIONS: dict[str, Any] = {"global_batch_size": 4, "fields": ("input_ids", "step")}


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    counts = {"code": 31, "web": 83}
    return make_snapshot(tmp_path_factory.mktemp("snapshot"), counts, total_tokens=S * 60, validation={"web": 12})


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_snapshot(tmp_path_factory.mktemp("endless"), {"code": 31, "web": 83}, vocab_size=256)


@pytest.fixture
def accelerator() -> Iterator[Callable[..., Any]]:
    """Makes an Accelerator, and leaves none of its state behind."""
    pytest.importorskip("accelerate")

    def make(**options: Any) -> Any:
        return accelerate.Accelerator(cpu=True, **options)

    yield make
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()


def steps_of(batches: Any, count: int) -> list[Any]:
    steps = []
    for batch in batches:
        steps.append(batch["step"])
        if len(steps) == count:
            break
    return steps


def prepared(dataset: Any, **options: Any) -> Any:
    """What Accelerate makes of a DataLoader on the first of two processes."""
    loader = torch_data.DataLoader(dataset, batch_size=options.pop("batch_size", None), num_workers=options.pop("workers", 0))
    return accelerate.data_loader.prepare_data_loader(loader, num_processes=2, process_index=0, put_on_device=True, **options)


@pytest.mark.parametrize("batch_size", [None, 2])
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("dispatch", [None, True, False])
def test_accelerate_that_would_split_the_rows_of_a_rank_is_refused(
    output: Path, accelerator: Any, dispatch: bool | None, workers: int, batch_size: int | None
) -> None:
    accelerator()
    dataset = loader_torch.StreamingDataset(output, **OPTIONS, rank=0, world_size=2, samples=batch_size is not None)
    loader = prepared(dataset, dispatch_batches=dispatch, workers=workers, batch_size=batch_size)
    with pytest.raises(UserError, match=r"rank of 2 already.*accelerator\.prepare takes as it is"):
        next(iter(loader))


@pytest.mark.parametrize(
    "options", [{}, {"dispatch_batches": False}, {"split_batches": True}, {"use_stateful_dataloader": True}]
)
def test_accelerate_prepares_a_streaming_dataloader_as_it_is(output: Path, accelerator: Any, options: dict[str, Any]) -> None:
    configuration = accelerate.DataLoaderConfiguration(**options)
    loader = loader_torch.dataloader(output, **OPTIONS, rank=1, world_size=2)
    model = torch.nn.Linear(2, 2)
    found, _ = accelerator(dataloader_config=configuration).prepare(loader, model)
    assert found is loader
    assert steps_of(found, 4) + steps_of(found, 99) == list(range(NUM_STEPS))


@pytest.mark.parametrize("workers", [0, 2])
def test_accelerate_saves_and_restores_the_position(output: Path, accelerator: Any, tmp_path: Path, workers: int) -> None:
    maker = accelerator()
    loader = maker.prepare(loader_torch.dataloader(output, **OPTIONS, num_workers=workers))
    assert steps_of(loader, 4) == [0, 1, 2, 3]
    maker.save_state(str(tmp_path / "state"))
    assert steps_of(loader, 3) == [4, 5, 6]
    maker.load_state(str(tmp_path / "state"))
    assert steps_of(loader, 99) == list(range(4, NUM_STEPS))


def test_accelerate_steps_at_the_last_batch_of_a_run(output: Path, accelerator: Any) -> None:
    """15 batches of which four make a step: the last step has three."""
    maker = accelerator(gradient_accumulation_steps=4)
    model = torch.nn.Linear(1, 1)
    loader, model = maker.prepare(loader_torch.dataloader(output, **OPTIONS), model)
    syncs = []
    for batch in loader:
        with maker.accumulate(model):
            if maker.sync_gradients:
                syncs.append(batch["step"])
    assert syncs == [3, 7, 11, 14]


def test_accelerate_that_skips_batches_of_a_streaming_dataloader_is_refused(output: Path, accelerator: Any) -> None:
    maker = accelerator()
    loader = maker.prepare(loader_torch.dataloader(output, **OPTIONS))
    assert steps_of(loader, 3) == [0, 1, 2]
    with pytest.raises(UserError, match="skip_first_batches"):
        next(iter(maker.skip_first_batches(loader, 3)))
    assert steps_of(loader, 1) == [3]


@pytest.mark.parametrize("stop", [4, 14, 99])
def test_dataset_under_accelerate_in_one_process_neither_miscounts_nor_goes_on_wrongly(
    output: Path, accelerator: Any, stop: int
) -> None:
    """Accelerate holds a batch, to know which is the last."""
    dataset = loader_torch.StreamingDataset(output, **OPTIONS)
    loader = accelerator().prepare(torch_data.DataLoader(dataset, batch_size=None))
    assert steps_of(loader, stop) == list(range(min(stop, NUM_STEPS)))
    with pytest.raises(UserError, match="DataLoaderDispatcher takes batches before"):
        dataset.state_dict()
    with pytest.raises(UserError, match="DataLoaderDispatcher iterated this dataset before"):
        next(iter(loader))
    dataset.load_state_dict(dataset.state_dict(steps_done=4))
    assert steps_of(dataset, 99) == list(range(4, NUM_STEPS))


@pytest.mark.needs("torchdata")
def test_accelerate_with_a_stateful_dataloader_counts_in_one_process(output: Path, accelerator: Any) -> None:
    maker = accelerator(dataloader_config=accelerate.DataLoaderConfiguration(use_stateful_dataloader=True))

    def loader() -> Any:
        return maker.prepare(torch_data.DataLoader(loader_torch.StreamingDataset(output, **OPTIONS), batch_size=None))

    first, second = loader(), loader()
    assert steps_of(first, 5) == [0, 1, 2, 3, 4]
    second.load_state_dict(first.state_dict())
    assert steps_of(second, 99) == list(range(5, NUM_STEPS))


def test_accelerate_may_split_what_one_reader_reads_for_all(output: Path, accelerator: Any) -> None:
    """One reader of whole global batches, whose batches Accelerate deals out: nothing is left out."""
    accelerator()
    found = []
    for process in range(2):
        dataset = loader_torch.StreamingDataset(output, **OPTIONS, rank=0, world_size=1, samples=True)
        loader = torch_data.DataLoader(dataset, batch_size=2)
        shard = accelerate.data_loader.prepare_data_loader(
            loader, num_processes=2, process_index=process, put_on_device=False, dispatch_batches=False
        )
        found += [row for batch in shard for row in batch["input_ids"][:, 0].tolist()]
    expected = [row for batch in loader_torch.dataloader(output, **OPTIONS) for row in batch["input_ids"][:, 0].tolist()]
    assert sorted(found) == sorted(expected)


def hugging_face(folder: Path, dataset: Any, **options: Any) -> Any:
    config = transformers.GPT2Config(vocab_size=256, n_positions=S, n_embd=8, n_layer=1, n_head=1)
    arguments = transformers.TrainingArguments(
        output_dir=str(folder), max_steps=2, report_to="none", use_cpu=True, disable_tqdm=True, save_strategy="no", **options
    )
    return transformers.Trainer(transformers.GPT2LMHeadModel(config), arguments, train_dataset=dataset, eval_dataset=dataset)


@pytest.mark.slow
@pytest.mark.needs("transformers", "accelerate")
@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize("workers", [0, 1])
def test_hugging_face_trainer_that_makes_batches_of_batches_is_refused(
    endless: Path, tmp_path: Path, accelerator: Any, workers: int, batch_size: int
) -> None:
    dataset = loader_torch.StreamingDataset(endless, batch_size=4, labels="unshifted")
    trainer = hugging_face(tmp_path, dataset, per_device_train_batch_size=batch_size, dataloader_num_workers=workers)
    with pytest.raises(UserError, match="get_train_dataloader"):
        trainer.train()


@pytest.mark.slow
@pytest.mark.needs("transformers", "accelerate")
def test_hugging_face_trainer_takes_rows_in_its_own_batches(endless: Path, tmp_path: Path, accelerator: Any) -> None:
    dataset = loader_torch.StreamingDataset(endless, batch_size=4, labels="unshifted", samples=True)
    trainer = hugging_face(tmp_path, dataset, per_device_train_batch_size=4)
    seen: list[Any] = []
    trainer.model.register_forward_pre_hook(lambda _, args, named: seen.append(named["input_ids"]), with_kwargs=True)
    trainer.train()
    expected = list(islice(loader_torch.dataloader(endless, batch_size=4), 2))
    assert all(torch.equal(found, batch["input_ids"]) for found, batch in zip(seen, expected, strict=True))


def training(folder: Path, loader: Any, num_steps: int, dataset: Any = None) -> Any:
    """A Trainer of the user's own that checkpoints each step and does not skip batches, and the first tokens that it saw."""
    config = transformers.GPT2Config(vocab_size=256, n_positions=S, n_embd=8, n_layer=1, n_head=1)
    arguments = transformers.TrainingArguments(
        output_dir=str(folder), max_steps=num_steps, save_steps=1, ignore_data_skip=True, report_to="none", use_cpu=True,
        disable_tqdm=True, per_device_train_batch_size=4,
    )  # fmt: skip

    class Trainer(transformers.Trainer):
        def get_train_dataloader(self) -> Any:
            return super().get_train_dataloader() if loader is None else loader

    trainer, seen = Trainer(transformers.GPT2LMHeadModel(config), arguments, train_dataset=dataset), list[Any]()
    trainer.model.register_forward_pre_hook(lambda _, args, named: seen.append(named["input_ids"]), with_kwargs=True)
    return trainer, seen


@pytest.mark.slow
@pytest.mark.needs("transformers", "accelerate")
@pytest.mark.filterwarnings("ignore")  # those of a library that is not ours
@pytest.mark.parametrize("workers", [0, 1])
def test_hugging_face_trainer_that_resumes_without_the_state_of_its_loader_is_refused(
    endless: Path, tmp_path: Path, accelerator: Any, workers: int
) -> None:
    def loader() -> Any:
        return loader_torch.dataloader(endless, batch_size=4, labels="unshifted", num_workers=workers)

    first, again, resumed = loader(), loader(), loader()
    training(tmp_path, first, 2)[0].train()
    with pytest.raises(UserError, match="resumes after step 2"):
        training(tmp_path, again, 4)[0].train(resume_from_checkpoint=True)
    resumed.load_state_dict(first.state_dict())
    trainer, seen = training(tmp_path, resumed, 4)
    trainer.train(resume_from_checkpoint=True)
    expected = list(islice(loader(), 4))[2:]
    assert all(torch.equal(found, batch["input_ids"]) for found, batch in zip(seen, expected, strict=True))
    again.load_state_dict(again.state_dict())  # on purpose
    training(tmp_path, again, 6)[0].train(resume_from_checkpoint=True)
    assert again.step == 2


@pytest.mark.slow
@pytest.mark.needs("transformers", "accelerate")
@pytest.mark.filterwarnings("ignore")  # those of a library that is not ours
@pytest.mark.parametrize("workers", [0, 1])
def test_hugging_face_trainer_that_resumes_with_rows_from_the_beginning_is_refused(
    endless: Path, tmp_path: Path, accelerator: Any, workers: int
) -> None:
    options = {"batch_size": 4, "labels": "unshifted", "samples": True}
    trainer, _ = training(tmp_path, None, 2, loader_torch.StreamingDataset(endless, **options))
    trainer.args.dataloader_num_workers = workers
    trainer.train()
    trainer, _ = training(tmp_path, None, 4, loader_torch.StreamingDataset(endless, **options))
    trainer.args.dataloader_num_workers = workers
    with pytest.raises(UserError, match="resumes after step 2"):
        trainer.train(resume_from_checkpoint=True)


@pytest.mark.slow
@pytest.mark.needs("transformers", "accelerate")
def test_hugging_face_trainer_evaluates_the_whole_split_each_time(output: Path, tmp_path: Path, accelerator: Any) -> None:
    loader = loader_torch.dataloader(output, global_batch_size=4, split="validation", labels="unshifted", num_workers=1)
    trainer = hugging_face(tmp_path, None, per_device_eval_batch_size=4)
    trainer.get_eval_dataloader = lambda _=None: loader
    seen: list[Any] = []
    trainer.model.forward = lambda input_ids, **_: seen.append(input_ids) or {"loss": input_ids.float().mean()}
    assert trainer.evaluate()["eval_loss"] == trainer.evaluate()["eval_loss"]
    expected = [torch.from_numpy(batch["input_ids"]) for batch in Loader(output, global_batch_size=4, split="validation")]
    assert torch.equal(torch.stack(seen), torch.stack(expected + expected))


class Recorder:
    """Makes a Lightning module that notes the steps of its batches."""

    def __new__(cls) -> Any:
        class Module(lightning.LightningModule):
            def __init__(self) -> None:
                super().__init__()
                self.layer = torch.nn.Linear(1, 1)
                self.trained: list[int] = []
                self.validated: list[list[int]] = []

            def training_step(self, batch: Any, number: int) -> Any:
                self.trained.append(batch["step"])
                return self.layer(torch.ones(1, 1)).sum()

            def on_validation_epoch_start(self) -> None:
                self.validated.append([])

            def validation_step(self, batch: Any, number: int) -> None:
                self.validated[-1].append(batch["step"])

            def configure_optimizers(self) -> Any:
                return torch.optim.SGD(self.parameters(), lr=0.1)

        return Module()


def fit(module: Any, *loaders: Any, checkpoint: Path | None = None, **options: Any) -> Any:
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = lightning.Trainer(accelerator="cpu", **quiet, **options)
    trainer.fit(module, *loaders, ckpt_path=checkpoint)
    return trainer


@pytest.mark.slow
@pytest.mark.needs("lightning")
@pytest.mark.parametrize("workers", [{"num_workers": 0}, {"num_workers": 2, "persistent_workers": True}])
def test_lightning_goes_on_in_the_middle_of_an_epoch_and_repeats_no_epoch(
    output: Path, tmp_path: Path, workers: dict[str, Any]
) -> None:
    first, second = Recorder(), Recorder()
    fit(first, loader_torch.dataloader(output, **OPTIONS, **workers), max_steps=6).save_checkpoint(tmp_path / "last.ckpt")
    loader = loader_torch.dataloader(output, **OPTIONS, **workers)
    fit(second, loader, checkpoint=tmp_path / "last.ckpt", max_steps=99, max_epochs=3)
    assert first.trained + second.trained == list(range(NUM_STEPS))


@pytest.mark.slow
@pytest.mark.needs("lightning")
def test_lightning_that_does_not_restore_a_loader_is_refused_unless_the_trainer_restores_it(
    endless: Path, tmp_path: Path
) -> None:
    """A checkpoint at the end of an epoch, with max_epochs."""
    options, epochs = {"batch_size": 4, "fields": ("step",)}, {"limit_train_batches": 5, "max_epochs": 4}
    saved = loader_torch.dataloader(endless, **options)
    fit(Recorder(), saved, max_steps=10, limit_train_batches=5).save_checkpoint(tmp_path / "last.ckpt")
    with pytest.raises(UserError, match="LightningDataModule"):
        fit(Recorder(), loader_torch.dataloader(endless, **options), checkpoint=tmp_path / "last.ckpt", **epochs)
    module, restored = Recorder(), loader_torch.dataloader(endless, **options)
    restored.load_state_dict(saved.state_dict())
    fit(module, restored, checkpoint=tmp_path / "last.ckpt", **epochs)
    assert module.trained == list(range(10, 20))


@pytest.mark.needs("lightning")
def test_lightning_validates_whole_passes_after_its_sanity_check(output: Path) -> None:
    module = Recorder()
    validation = loader_torch.dataloader(output, **OPTIONS, split="validation")
    fit(module, loader_torch.dataloader(output, **OPTIONS), validation, max_steps=15, val_check_interval=5)
    assert module.validated == [[0, 1], [0, 1, 2], [0, 1, 2], [0, 1, 2]]
    assert module.trained == list(range(NUM_STEPS))


@pytest.mark.needs("lightning")
def test_lightning_that_counts_batches_is_told_of_rows_that_are_left_out(tmp_path: Path) -> None:
    ending = make_snapshot(tmp_path, {"web": 83}, total_tokens=S * 63)
    module = Recorder()
    with pytest.warns(DroppedRowsWarning, match="3 rows") as told:
        fit(module, loader_torch.dataloader(ending, **OPTIONS), max_epochs=1)
    assert len([each for each in told if each.category is DroppedRowsWarning]) == 1
    assert module.trained == list(range(15))


@pytest.mark.needs("lightning")
def test_lightning_without_an_end_needs_the_length_of_an_epoch(endless: Path, tmp_path: Path) -> None:
    options = {"batch_size": 4, "fields": ("step",)}
    with pytest.raises(UserError, match="limit_train_batches"):
        fit(Recorder(), loader_torch.dataloader(endless, **options), max_steps=3)
    first, second = Recorder(), Recorder()
    fit(first, loader_torch.dataloader(endless, **options), max_steps=8, limit_train_batches=5).save_checkpoint(
        tmp_path / "last.ckpt"
    )
    loader = loader_torch.dataloader(endless, **options)
    fit(second, loader, checkpoint=tmp_path / "last.ckpt", max_steps=17, limit_train_batches=5)
    assert first.trained + second.trained == list(range(17))


@pytest.mark.needs("lightning")
def test_dataset_under_lightning_without_an_end_does_not_miscount(endless: Path) -> None:
    dataset = loader_torch.StreamingDataset(endless, batch_size=4, fields=("step",))
    module = Recorder()
    fit(module, torch_data.DataLoader(dataset, batch_size=None), max_steps=3)
    assert module.trained == [0, 1, 2]
    with pytest.raises(UserError, match="_PrefetchDataFetcher takes batches before"):
        dataset.state_dict()


@pytest.mark.parametrize("samples", [False, True])
def test_samplers_that_other_trainers_put_in_are_refused(output: Path, endless: Path, samples: bool) -> None:
    """As DeepSpeed does with `training_data`: a sampler over the length of the dataset, and batches of its own."""
    for folder in (output, endless):
        dataset = loader_torch.StreamingDataset(folder, **OPTIONS, samples=samples)
        with pytest.raises(UserError, match="leave out training_data"):
            torch_data.DistributedSampler(dataset, num_replicas=2, rank=1)
        with pytest.raises(UserError, match="leave out training_data"):
            torch_data.RandomSampler(dataset)


def test_a_loader_that_is_repeated_forever_ends_with_its_run(output: Path) -> None:
    """As DeepSpeed's RepeatingLoader does: at the end it asks for another iterator, and for the first batch of it."""

    def repeated(loader: Any) -> Iterator[Any]:
        batches = iter(loader)
        while True:
            batch = next(batches, None)
            if batch is None:
                batches = iter(loader)
                batch = next(batches, None)
            if batch is None:
                return
            yield batch

    assert [batch["step"] for batch in repeated(loader_torch.dataloader(output, **OPTIONS))] == list(range(NUM_STEPS))


@pytest.mark.needs("torchdata")
@pytest.mark.parametrize("workers", [0, 2])
def test_states_that_are_pickled_for_each_data_rank_restore_rows(output: Path, workers: int) -> None:
    """As torchtitan does: a StatefulDataLoader that collates rows, with its state pickled under the name of the data rank."""

    def loader(rank: int) -> Any:
        dataset = loader_torch.StreamingDataset(output, **OPTIONS, rank=rank, world_size=2, samples=True)
        return stateful.StatefulDataLoader(dataset, batch_size=2, num_workers=workers)

    first = [loader(rank) for rank in range(2)]
    before = [steps_of(each, 6) for each in first]
    saved = {f"dp_rank_{rank}": pickle.dumps(each.state_dict()) for rank, each in enumerate(first)}
    second = [loader(rank) for rank in range(2)]
    for rank, each in enumerate(second):
        each.load_state_dict(pickle.loads(saved[f"dp_rank_{rank}"]))
    found = [[step.tolist() for step in (*steps, *steps_of(each, 99))] for steps, each in zip(before, second)]
    assert found == [[[step, step] for step in range(NUM_STEPS)]] * 2


@pytest.fixture
def begin_world() -> Iterator[Callable[[int, int], None]]:
    """Makes this process a rank of a world without its other ranks."""
    store = pytest.importorskip("torch.testing._internal.distributed.fake_pg").FakeStore

    yield lambda rank, size: torch.distributed.init_process_group("fake", rank=rank, world_size=size, store=store())
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("workers", [0, 1])
def test_dataset_that_was_made_before_the_process_group_is_refused(output: Path, begin_world: Any, workers: int) -> None:
    early = [loader_torch.dataloader(output, **OPTIONS, num_workers=workers), loader_torch.StreamingDataset(output, **OPTIONS)]
    told = loader_torch.dataloader(output, **OPTIONS, rank=0, world_size=1)
    begin_world(1, 2)
    for each in early:
        with pytest.raises(UserError, match="for rank 0 of 1; this process is rank 1 of 2"):
            next(iter(each))
    assert next(iter(told))["input_ids"].shape == (4, S)
    assert next(iter(loader_torch.dataloader(output, **OPTIONS)))["input_ids"].shape == (2, S)


def test_world_without_a_rank_is_refused(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lightning's own launcher tells WORLD_SIZE and LOCAL_RANK before its process group begins."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(UserError, match="WORLD_SIZE=2 and no RANK"):
        loader_torch.dataloader(output, **OPTIONS)
    assert steps_of(loader_torch.dataloader(output, **OPTIONS, rank=1, world_size=2), 1) == [0]


@pytest.mark.parametrize("kind", ["dataloader", "StreamingDataset"])
def test_batches_that_are_held_for_the_device_are_not_left_out(output: Path, kind: str) -> None:
    loader = getattr(loader_torch, kind)(output, **OPTIONS)
    batches = device.prefetch_to_device(loader, "cpu", depth=3)
    assert steps_of(batches, 4) == [0, 1, 2, 3]
    with pytest.raises(UserError, match=r"prefetch_to_device|DevicePrefetcher"):
        loader.state_dict()
    with pytest.raises(UserError, match=r"prefetch_to_device|DevicePrefetcher"):
        next(iter(loader))
    assert batches.state_dict()["step"] == 4
    assert steps_of(batches, 2) == [4, 5]
    batches.close()
    assert loader.state_dict()["step"] == 6
    assert steps_of(loader, 99) == list(range(6, NUM_STEPS))
